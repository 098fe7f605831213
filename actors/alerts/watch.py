"""The conditions for alerts: found in successive overviews, reported once when they begin and once when they end.

Pure: no clock, no thread. The controller gives an overview a second; `AlertWatch.look` returns what is new in it.

    error_transaction   the error queue of an apply process has grown since the last look. Errors that follow soon after
                        an alert are reported together in the next one. The errors of all apply processes share a part
                        of the hourly limit: otherwise a storm of errors would use it up and hide what stops because of
                        them
    conflicts           too many conflicts at an apply process within a number of seconds
    lag                 a destination is too far behind its source, or its lag has been unknown for that long
    component           a component, or the controller itself, is stopped, has given up, waits for an operator or does not
                        answer for longer than a restart takes; or it does not complete its start

Unknown does not mean over: a reported condition holds until the opposite is known. After a restart of the controller
every condition that holds is reported again: a condition that began while it was away must not be missed.

States of `status` without an alert: those in which changes pass, or wait only for space (PAUSED FOR FLOW CONTROL, PAUSED
FOR BANDWIDTH), and the end of a copy (INSTANTIATING); `lag` covers these. Also a window of the schedule (CLOSED), and
BYPASSED.
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

# A component that a crash, an edit or `up` ends is back within seconds, a Spark application within a minute.
COMPONENT_AFTER_S = 60.0
# A database recovers after a crash, and a Spark application finds its executors, well within this time.
STARTING_AFTER_S = 300.0
# An operator who was alerted needs no alert for each error that follows.
ERRORS_APART_S = 300.0
# Share of the hourly limit for the errors of all apply processes: 12 of the default (20), one every five minutes. The
# rest is for components that stop because of them.
ERRORS_SHARE = 0.6
_HOUR_S = 3600.0
# Between two attempts a component briefly shows that it starts, or even works. It pauses 5 s at most between them
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
    """One event that an operator must learn of.

    Args:
        kind: "error_transaction", "conflicts", "lag" or "component".
        subject: the component, by its full name; "controller": the topology as a whole.
        message: what happened, without row values and secrets.
        fix: what to do.
        is_over: whether the condition has ended.
        at_us: time of the event, microseconds since the epoch.
    """

    kind: str
    subject: str
    message: str
    fix: str
    is_over: bool = False
    at_us: int = 0


@dataclass(slots=True)
class AlertWatch:
    """Finds new alerts in successive overviews.

    Args:
        spec: the wanted alerts.
        file: file of the topology, for the commands in fixes.
    """

    spec: AlertsSpec
    file: str
    _errors: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # errors in the queue, and since the driver's start
    _errors_untold: dict[str, int] = field(default_factory=dict)
    _errors_told_at: dict[str, float] = field(default_factory=dict)
    _error_alerts: deque[float] = field(default_factory=deque)  # times within the last hour, of all apply processes
    # (time, conflicts since the first look)
    _conflicts: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _counted: dict[str, int] = field(default_factory=dict)  # the driver's last count
    _stopped_since: dict[str, float] = field(default_factory=dict)
    _starting_since: dict[str, float] = field(default_factory=dict)
    _retried_at: dict[str, float] = field(default_factory=dict)
    _unknown_since: dict[str, float] = field(default_factory=dict)
    _told: dict[tuple[str, str], str] = field(
        default_factory=dict
    )  # (kind, subject) of each reported condition, and its message

    def look(self, overview: Overview, now: float) -> list[Alert]:
        """Return the new alerts.

        Args:
            overview: `Controller.seen`.
            now: time of a monotonic clock, in seconds.
        """
        at_us = overview.at_us
        applies = [apply_status(component) for component in overview.components if component.kind == "apply"]
        found: list[Alert] = []
        if self.spec.error_transaction:
            while self._error_alerts and self._error_alerts[0] <= now - _HOUR_S:
                self._error_alerts.popleft()
            # The apply process reported longest ago comes first; otherwise one of several would take every free place.
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
        """Yield the conditions that have begun and those that have ended."""
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
            return  # it does not answer, or its driver is starting and reports 0: the last known counts hold
        is_first = name not in self._errors
        before, total_before = self._errors.get(name, (0, total))
        self._errors[name] = there, total
        if total < total_before:
            total_before = 0  # a new driver: its count is what has happened since
        # The queue's length hides an error that was executed while another one failed; the total restarts with each
        # driver.
        new = self._errors_untold.get(name, 0) + max(there - before, total - total_before, 0)
        if not new or self._must_wait(name, now):
            self._errors_untold[name] = new
            return
        self._errors_untold[name], self._errors_told_at[name] = 0, now
        self._error_alerts.append(now)
        # Errors that existed when the controller began may be old, and may have been reported by the one before.
        what = (
            counted(there, "error transaction") + " in the error queue"
            if is_first
            else f"{counted(new, 'new error transaction')}: {there} in the error queue"
        )
        yield Alert(kind="error_transaction", subject=name, at_us=at_us, fix="headrace errors list FILE", message=what)

    def _must_wait(self, name: str, now: float) -> bool:
        """Return whether an apply process's new errors are reported later, together with those that follow."""
        if len(self._error_alerts) >= max(1, int(self.spec.per_hour_max * ERRORS_SHARE)):
            return True
        told_at = self._errors_told_at.get(name)
        if told_at is None or now - told_at >= _HOUR_S:
            return False  # the operator does not know of its errors yet
        # The last alert of any apply process counts: several that fail for hours would use up their share at once, and
        # a newly failing one would have to wait.
        return bool(self._error_alerts) and now - self._error_alerts[-1] < ERRORS_APART_S

    def _burst(self, component: ApplyStatus, now: float) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        name, count = component.name, (component.counters or {}).get("total_conflicts")
        if count is None:
            yield from self._still("conflicts", name)
            return
        seen = self._conflicts.setdefault(name, deque())
        before = self._counted.get(name, count)
        self._counted[name] = count
        # A new driver counts from zero: its count is what has happened since.
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
        """Drop components that left, so that a later one of the same name starts without a history."""
        for since in (self._stopped_since, self._starting_since, self._retried_at):
            for name in since.keys() - present:
                del since[name]

    def _still(self, kind: str, subject: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        """Repeat a reported condition: it is unknown whether it has ended."""
        if (kind, subject) in self._told:
            yield (kind, subject), (self._told[kind, subject], "")


def _waits_for_others(component: ComponentStatus, *, is_up: bool) -> bool:
    """Return whether a component that starts, or is not created, waits for others, which have their own alerts.

    It waits for the controller, or for the first copy of a combined apply process.
    """
    state = component.state
    if component.kind == "controller" or state not in _STARTING | {"NOT CREATED"}:
        return False
    return not is_up or (
        state != "NOT CREATED" and isinstance(component, CaptureStatus) and bool(component.combined_with)
    )


def _controller(overview: Overview) -> ComponentStatus:
    """Return the topology's state as that of a component: whether the controller could bring up what the file says."""
    refused = [each for each in overview.findings if each.is_error] if overview.state == "REFUSED" else []
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    problem, fix = (
        (f"{refused[0].path}: {refused[0].problem}{more}", refused[0].fix)
        if refused
        else (overview.problem, overview.fix)
    )
    return ComponentStatus(name="controller", kind="controller", state=overview.state, problem=problem, fix=fix)
