"""What an alert is sent of: found in one overview after the other, told once when it begins and once when it is over.

Pure: no clock, no thread. The controller gives an overview a second; `AlertWatch.look` answers what is new in it.

    error_transaction   the error queue of an apply process has a transaction more than at the last look; of those that
                        come soon after one was told,
                        one alert tells together, and errors of all apply processes have a share of the hour's limit:
                        else a storm of errors uses it up, and nobody hears what stops because of it
    conflicts           so many conflicts within so many seconds at an apply process
    lag                 a destination is further behind its source than it may be, or nobody knows how far for as long
    component           a component, or the controller itself, is stopped, has given up, waits for an operator or does not
                        answer, for longer than a
                        restart takes; or it does not get beyond its start

What is unknown is not over: what was told holds until it is known to be otherwise. After a restart of the controller
everything that holds then is told again: what began while it was away must not be missed.

States of `status` that are no alert: those in which changes pass, or wait for nothing but room (PAUSED FOR FLOW
CONTROL, PAUSED FOR BANDWIDTH; `lag` tells these), a window of the schedule (CLOSED), the end of a copy (INSTANTIATING,
which `lag` tells, too), and BYPASSED.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.base.errors import counted
from headrace.status.applies import ApplyStatus, apply_status
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus, Failure
from headrace.status.overview import Flow, Overview
from headrace.status.sites import SiteStatus
from topology.printed_commands import with_file

if TYPE_CHECKING:
    from topology.alerts import AlertsSpec

__all__ = ["Alert", "AlertWatch"]

# A component that is ended by a crash, an edit or `up` is back within seconds, a Spark application within a minute.
COMPONENT_AFTER_S = 60.0
# A database recovers after a crash, and a Spark application finds its executors, well within that.
STARTING_AFTER_S = 300.0
# An operator who was called needs no call for each error that follows.
ERRORS_APART_S = 300.0
# Of the hour's limit, for the errors of all apply processes: 12 of the default (20), one every five minutes. What stops
# because of them needs the rest.
ERRORS_SHARE = 0.6
_HOUR_S = 3600.0
# Between two attempts a component shows for a moment that it starts, or even works. It waits 5 s at most between them
# (`headrace.base.backoff`).
STEADY_S = 10.0

_STOPPED = frozenset(
    {
        "ABORTED",
        "DISABLED",
        "UNREACHABLE",
        "RETRYING",
        "REFUSED",
        "NOT CREATED",
        "DATABASE DOES NOT ANSWER",
        "WAITING FOR DATABASE",
    }
)
_STARTING = frozenset(
    {
        "INITIALIZING",
        "STARTING DATABASE",
        "STARTING SPARK",
        "WAITING FOR PREPARATION",
        "SHUTTING DOWN CLEANLY",
        "STARTING SITES",
        "PREFLIGHT",
        "PREPARING",  # the controller's
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing an operator must hear of.

    Args:
        kind: "error_transaction", "conflicts", "lag" or "component".
        subject: the component, by its full name; "controller": the topology as a whole.
        message: what happened, without row values and secrets.
        fix: what to do.
        is_over: it has ended.
        at_us: when, microseconds since the epoch.
    """

    kind: str
    subject: str
    message: str
    fix: str
    is_over: bool = False
    at_us: int = 0


@dataclass(slots=True)
class AlertWatch:
    """See the module.

    Args:
        spec: what an alert is wanted of.
        file: of the topology, for the commands that are named.
    """

    spec: AlertsSpec
    file: str
    _errors: dict[str, tuple[int, int]] = field(default_factory=dict)  # in the queue, and since the driver's start
    _errors_untold: dict[str, int] = field(default_factory=dict)
    _errors_told_at: dict[str, float] = field(default_factory=dict)
    _error_alerts: deque[float] = field(default_factory=deque)  # when, within the last hour, of all apply processes
    # when, and how many since the first look
    _conflicts: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _counted: dict[str, int] = field(default_factory=dict)  # as the driver said last
    _stopped_since: dict[str, float] = field(default_factory=dict)
    _starting_since: dict[str, float] = field(default_factory=dict)
    _retried_at: dict[str, float] = field(default_factory=dict)
    _unknown_since: dict[str, float] = field(default_factory=dict)
    _told: dict[tuple[str, str], str] = field(default_factory=dict)  # (kind, subject) of what holds, and its message

    def look(self, overview: Overview, now: float) -> list[Alert]:
        """What is new.

        Args:
            overview: `Controller.seen`.
            now: seconds on a monotonic clock.
        """
        at_us = overview.at_us
        applies = [apply_status(component) for component in overview.components if component.kind == "apply"]
        found: list[Alert] = []
        if self.spec.error_transaction:
            while self._error_alerts and self._error_alerts[0] <= now - _HOUR_S:
                self._error_alerts.popleft()
            # Who was told longest ago comes first, else one of several would take every place that gets free.
            turns = sorted(applies, key=lambda component: self._errors_told_at.get(component.name, -_HOUR_S))
            found += [alert for component in turns for alert in self._new_errors(component, now, at_us)]
        holding: dict[tuple[str, str], tuple[str, str]] = {}
        if self.spec.conflicts_count:
            holding |= dict(burst for component in applies for burst in self._burst(component, now))
        if self.spec.lag_s:
            holding |= dict(lag for flow in overview.flows for lag in self._lag(flow, now))
        if self.spec.component:
            observed, is_up = (_controller(overview), *overview.components), overview.state == "RUNNING"
            holding |= dict(stopped for component in observed for stopped in self._stopped(component, now, is_up=is_up))
            self._forget({component.name for component in observed})
        return [replace(each, fix=with_file(each.fix, self.file)) for each in (*found, *self._changes(holding, at_us))]

    # ------------------------------------------------------------------ inside

    def _changes(self, holding: Mapping[tuple[str, str], tuple[str, str]], at_us: int) -> Iterator[Alert]:
        """What began to hold and what does not hold any more."""
        for (kind, subject), (message, fix) in holding.items():
            if (kind, subject) not in self._told:
                self._told[kind, subject] = message
                yield Alert(kind=kind, subject=subject, message=message, fix=fix, at_us=at_us)
        for kind, subject in [key for key in self._told if key not in holding]:
            yield Alert(
                kind=kind, subject=subject, message=self._told.pop((kind, subject)), fix="", is_over=True, at_us=at_us
            )

    def _new_errors(self, component: ApplyStatus, now: float, at_us: int) -> Iterator[Alert]:
        name, there, total = component.name, component.errors, (component.counters or {}).get("total_errors")
        if there is None or total is None:
            return  # it does not answer, or its driver is starting and says 0: what it knew last counts
        is_first = name not in self._errors
        before, total_before = self._errors.get(name, (0, total))
        self._errors[name] = there, total
        if total < total_before:
            total_before = 0  # another driver: its count is what happened since
        # One that was executed while another one failed does not show in the length; the other count begins anew with a
        # driver.
        new = self._errors_untold.get(name, 0) + max(there - before, total - total_before, 0)
        if not new or self._must_wait(name, now):
            self._errors_untold[name] = new
            return
        self._errors_untold[name], self._errors_told_at[name] = 0, now
        self._error_alerts.append(now)
        # What was there when the controller began may be old, and may have been told by the one before.
        what = (
            counted(there, "error transaction") + " in the error queue"
            if is_first
            else f"{counted(new, 'new error transaction')}: {there} in the error queue"
        )
        yield Alert(kind="error_transaction", subject=name, at_us=at_us, fix="headrace errors list FILE", message=what)

    def _must_wait(self, name: str, now: float) -> bool:
        """Whether an apply process's new errors are told later: together with those that follow."""
        if len(self._error_alerts) >= max(1, int(self.spec.per_hour_max * ERRORS_SHARE)):
            return True
        told_at = self._errors_told_at.get(name)
        if told_at is None or now - told_at >= _HOUR_S:
            return False  # the operator does not know of it yet
        # Of any: several that fail for hours would use up their share at once, and one that begins to fail would have
        # to wait.
        return bool(self._error_alerts) and now - self._error_alerts[-1] < ERRORS_APART_S

    def _burst(self, component: ApplyStatus, now: float) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        name, count = component.name, (component.counters or {}).get("total_conflicts")
        if count is None:
            yield from self._still("conflicts", name)
            return
        seen = self._conflicts.setdefault(name, deque())
        before = self._counted.get(name, count)
        self._counted[name] = count
        # Another driver counts from zero: what it says is what happened since.
        total = (seen[-1][1] if seen else 0) + (count - before if count >= before else count)
        seen.append((now, total))
        while len(seen) > 1 and seen[1][0] <= now - self.spec.conflicts_seconds:
            seen.popleft()
        many = total - seen[0][1]
        if many >= self.spec.conflicts_count:
            yield (
                ("conflicts", name),
                (
                    f"{many} conflicts within {self.spec.conflicts_seconds:g} s",
                    "headrace conflicts FILE shows who won",
                ),
            )

    def _lag(self, flow: Flow, now: float) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        name, lag_s = f"apply:{flow.apply}", flow.lag_s
        if lag_s is None:
            since = self._unknown_since.setdefault(name, now)
            if now - since > self.spec.lag_s:
                yield (
                    ("lag", name),
                    (
                        f"it is unknown how far {flow.destination} is behind {flow.source}",
                        "headrace status FILE says who does not answer",
                    ),
                )
            else:
                yield from self._still("lag", name)
            return
        self._unknown_since.pop(name, None)
        if lag_s > self.spec.lag_s:
            yield (
                ("lag", name),
                (
                    f"{flow.destination} is more than {self.spec.lag_s:g} s behind {flow.source}",
                    "headrace status FILE says what it waits for",
                ),
            )

    def _stopped(
        self, component: ComponentStatus, now: float, *, is_up: bool
    ) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        name, state = component.name, component.state
        if state == "RETRYING":
            self._retried_at[name] = now
        is_stopped = state in _STOPPED or state.startswith("PAUSED: ")
        is_starting = state in _STARTING
        if not (is_stopped or is_starting):
            if now - self._retried_at.get(name, -STEADY_S) < STEADY_S:
                yield from self._still("component", name)
                return
            self._stopped_since.pop(name, None)
            self._starting_since.pop(name, None)
            return
        if _waits_for_others(component, is_up=is_up):
            self._starting_since.pop(name, None)
            yield from self._still("component", name)
            return
        if is_stopped:
            since, after_s = self._stopped_since.setdefault(name, now), 0.0 if state == "ABORTED" else COMPONENT_AFTER_S
        else:
            since, after_s = self._starting_since.setdefault(name, now), STARTING_AFTER_S
        if now - since < after_s:
            yield from self._still("component", name)
            return
        error = component.last_error or Failure()
        database_problem = component.database_problem if isinstance(component, SiteStatus) else ""
        why = component.detail or component.problem or database_problem or error.message
        fix = component.hint or component.fix or error.hint or "headrace status FILE"
        if state == "DISABLED" and component.enabled is False:
            why, fix = why or "an operator stopped it", f"headrace start FILE {name}"
        yield ("component", name), (f"{state}{': ' + why if why else ''}", fix)

    def _forget(self, present: set[str]) -> None:
        """Components that left: one of the same name that comes later begins anew."""
        for since in (self._stopped_since, self._starting_since, self._retried_at):
            for name in since.keys() - present:
                del since[name]

    def _still(self, kind: str, subject: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        """What was told holds on: nobody knows that it is over."""
        if (kind, subject) in self._told:
            yield (kind, subject), (self._told[kind, subject], "")


def _waits_for_others(component: ComponentStatus, *, is_up: bool) -> bool:
    """Whether a component that starts, or is not created, waits for others, which are told themselves.

    The controller, or the first copy of a combined apply process.
    """
    state = component.state
    if component.kind == "controller" or state not in _STARTING | {"NOT CREATED"}:
        return False
    return not is_up or (
        state != "NOT CREATED" and isinstance(component, CaptureStatus) and bool(component.combined_with)
    )


def _controller(overview: Overview) -> ComponentStatus:
    """The topology's own state as that of a component: whether the controller could bring up what the file says."""
    refused = [each for each in overview.findings if each.is_error] if overview.state == "REFUSED" else []
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    problem, fix = (
        (f"{refused[0].path}: {refused[0].problem}{more}", refused[0].fix)
        if refused
        else (overview.problem, overview.fix)
    )
    return ComponentStatus(name="controller", kind="controller", state=overview.state, problem=problem, fix=fix)
