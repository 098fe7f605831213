"""What an alert is sent of: found in one overview after the other, told once when it begins and once when it is over.

Pure: no clock, no thread. The controller gives an overview a second; `AlertWatch.look` answers what is new in it.

    error_transaction   the error queue of an apply process has a transaction more than at the last look
    conflicts           so many conflicts within so many seconds at an apply process
    lag                 a destination is further behind its source than it may be, or nobody knows how far for as long
    component           a component is stopped, has given up, waits for an operator or does not answer, for longer than a restart takes

After a restart of the controller everything that holds then is told again: what began while it was away must not be missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streams.errors import counted

if TYPE_CHECKING:
    from topology.alerts import AlertsSpec

__all__ = ["Alert", "AlertWatch"]

# A component that is ended by a crash, an edit or `up` is back within seconds, a Spark application within a minute.
COMPONENT_AFTER_S = 60.0
_BAD = frozenset({"ABORTED", "DISABLED", "UNREACHABLE", "RETRYING", "DATABASE DOES NOT ANSWER", "WAITING FOR DATABASE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing an operator must hear of.

    Args:
        kind: "error_transaction", "conflicts", "lag" or "component".
        subject: the component, by its full name.
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
    _conflicts: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _bad_since: dict[str, float] = field(default_factory=dict)
    _unknown_since: dict[str, float] = field(default_factory=dict)
    _told: dict[tuple[str, str], str] = field(default_factory=dict)  # (kind, subject) of what holds, and its message

    def look(self, overview: Mapping[str, Any], now: float) -> list[Alert]:
        """What is new.

        Args:
            overview: `Controller.overview`.
            now: seconds on a monotonic clock.
        """
        at_us = int(overview["at_us"])
        applies = [component for component in overview["components"] if component["kind"] == "apply"]
        found: list[Alert] = []
        if self.spec.error_transaction:
            found += [alert for component in applies for alert in self._new_errors(component, at_us)]
        holding: dict[tuple[str, str], tuple[str, str]] = {}
        if self.spec.conflicts_count:
            holding |= dict(burst for component in applies for burst in self._burst(component, now))
        if self.spec.lag_s:
            holding |= dict(lag for flow in overview["flows"] for lag in self._lag(flow, now))
        if self.spec.component:
            holding |= dict(bad for component in overview["components"] for bad in self._bad(component, now))
        return [*found, *self._changes(holding, at_us)]

    # ------------------------------------------------------------------ inside

    def _changes(self, holding: Mapping[tuple[str, str], tuple[str, str]], at_us: int) -> Iterator[Alert]:
        """What began to hold and what does not hold any more."""
        for (kind, subject), (message, fix) in holding.items():
            if (kind, subject) not in self._told:
                self._told[kind, subject] = message
                yield Alert(kind=kind, subject=subject, message=message, fix=fix, at_us=at_us)
        for kind, subject in [key for key in self._told if key not in holding]:
            yield Alert(kind=kind, subject=subject, message=self._told.pop((kind, subject)), fix="", is_over=True, at_us=at_us)

    def _new_errors(self, component: Mapping[str, Any], at_us: int) -> Iterator[Alert]:
        if "errors" not in component:
            return  # it does not answer: what it knew last counts
        name, there = str(component["name"]), int(component["errors"])
        total = int(component.get("counters", {}).get("total_errors", 0))
        before, total_before = self._errors.get(name, (0, total))
        self._errors[name] = there, total
        # One that was executed while another one failed does not show in the length; the other count begins anew with a driver.
        new = max(there - before, total - total_before, 0)
        if new:
            yield Alert(
                kind="error_transaction", subject=name, at_us=at_us, fix=f"headrace errors list {self.file}",
                message=f"{counted(new, 'new error transaction')}: {there} in the error queue",
            )

    def _burst(self, component: Mapping[str, Any], now: float) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        total = component.get("counters", {}).get("total_conflicts")
        if total is None:
            return
        name, seen = str(component["name"]), self._conflicts.setdefault(str(component["name"]), deque())
        if seen and seen[-1][1] > total:
            seen.clear()  # another driver counts from zero
        seen.append((now, int(total)))
        while len(seen) > 1 and seen[1][0] <= now - self.spec.conflicts_seconds:
            seen.popleft()
        many = int(total) - seen[0][1]
        if many >= self.spec.conflicts_count:
            yield ("conflicts", name), (
                f"{many} conflicts within {self.spec.conflicts_seconds:g} s", f"headrace conflicts {self.file} shows who won",
            )

    def _lag(self, flow: Mapping[str, Any], now: float) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        name, lag_s = f"apply:{flow['apply']}", flow["lag_s"]
        if lag_s is None:
            since = self._unknown_since.setdefault(name, now)
            if now - since > self.spec.lag_s:
                yield ("lag", name), (
                    f"it is unknown how far {flow['destination']} is behind {flow['source']}", f"headrace status {self.file} says who does not answer",
                )
            return
        self._unknown_since.pop(name, None)
        if lag_s > self.spec.lag_s:
            yield ("lag", name), (
                f"{flow['destination']} is more than {self.spec.lag_s:g} s behind {flow['source']}", f"headrace status {self.file} says what it waits for",
            )

    def _bad(self, component: Mapping[str, Any], now: float) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        name, state = str(component["name"]), str(component["state"])
        if state not in _BAD and not state.startswith("PAUSED: "):
            self._bad_since.pop(name, None)
            return
        if now - self._bad_since.setdefault(name, now) >= COMPONENT_AFTER_S or state == "ABORTED":
            error = component.get("last_error") or {}
            why = component.get("detail") or component.get("problem") or error.get("message") or ""
            fix = component.get("hint") or error.get("hint") or f"headrace status {self.file}"
            yield ("component", name), (f"{state}{': ' + str(why) if why else ''}", str(fix))
