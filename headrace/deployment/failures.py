"""Failures that `up` and `wait` cannot outwait: aborted components, and tables that cannot be copied.

A new process shows what an earlier one recorded about its tables until it has checked them itself, and the operator may
have just fixed the cause. A table's failure is therefore reported only after a check on behalf of this call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.base.errors import ApplyError
from headrace.console.remedies import for_component
from headrace.databases.ports import Finding
from headrace.status.applies import apply_status
from headrace.status.component import Failure
from headrace.status.overview import Overview

__all__ = ["LOOK_CALL_S", "Failures", "TablesNotCopied", "together"]

LOOK_CALL_S = 10.0  # an apply process answers after five seconds, whether its check has ended or not
LOOKED_S = 3.0  # by then the overview, which is up to a second old, shows the result of a requested check
# Tables that need an operator are checked every ten seconds, and the controller's overview is up to a second old.
STUCK_S = 20.0
LOOK_AT_ALL_S = 5.0  # after the first failure: failures that follow within this time are reported with it


class TablesNotCopied(ApplyError):  # noqa: N818 - the name states the condition
    """Everything runs, but some tables cannot be copied until an operator acts: a finding (exit code 1), not a failure.

    Args:
        message: one sentence that names the tables, or one line per table.
        findings: one per table.
        hint: as in `HeadraceError`.
        context: as in `HeadraceError`.
    """

    code = "HDR-7006"
    fix = "Do what `headrace status FILE` says of each table, then run `headrace up FILE`."
    is_finding = True

    def __init__(
        self, message: str, *, findings: tuple[Finding, ...] = (), hint: str = "", **context: str | int
    ) -> None:
        super().__init__(message, hint=hint, **context)
        self.findings = findings

    def __reduce__(self) -> tuple[Any, ...]:
        context: dict[str, Any] = dict(self.context)
        return functools.partial(type(self), findings=self.findings, hint=self.hint, **context), self.args


class Failures:
    """Failures seen by one call of `up` or `wait`.

    Args:
        look: asks an apply process to check its tables now; returns whether it did.
    """

    def __init__(self, look: Callable[[str], bool]) -> None:
        self._look = look
        self._since: dict[str, float] = {}
        self._looked_at: dict[str, float] = {}
        self._before: set[str] | None = None
        self._tried_again: set[str] = set()  # components that are restarted once more before the call ends
        self._failed_at: float | None = None

    def told(self, overview: Overview, now: float, *, is_settled: bool) -> list[ApplyError]:
        """Return the failures that end the call.

        None are returned while a failure may be an earlier process's, or while other failures may follow soon.

        Args:
            overview: the topology's current overview.
            now: seconds of a monotonic clock.
            is_settled: whether the controller has done what the call asked for.
        """
        found = _found(overview)
        if self._before is None:  # an operator may have fixed these since, and the retry happens only now
            self._before = set(found)
        self._since = {what: self._since.get(what, now) for what in found}
        outdated = {each.name for each in overview.components if each.outdated}
        if is_settled:
            self._ask_to_look(
                {what: component for what, (component, _) in found.items() if component and component not in outdated},
                now,
            )
        # A component that gave up under an earlier part of the file retries with the new one.
        waits = self._tried_again | outdated
        errors = [
            error
            for what, (component, error) in found.items()
            if self._is_of_now(what, component, now, waits=not component and what.partition(" ")[0] in waits)
        ]
        if not errors:
            self._failed_at = None
            return []
        self._failed_at = now if self._failed_at is None else self._failed_at
        is_all = len(errors) == len(found) and _all_looked_at(overview)
        return errors if is_all or now - self._failed_at > LOOK_AT_ALL_S else []

    def started(self, overview: Overview, *, once_more: bool) -> None:
        """Note that components which gave up were restarted: their failures shown so far are stale.

        Args:
            overview: the topology's overview at that time.
            once_more: whether they are restarted again when the controller has done what the call asked for; until then
                they may give up because of what it changes.
        """
        aborted = {what: component for what, component in _found(overview).items() if not component[0]}
        self._before = {*(self._before or ()), *aborted}
        self._tried_again = {what.partition(" ")[0] for what in aborted} if once_more else set()

    def _ask_to_look(self, tables: Mapping[str, str], now: float) -> None:
        for component in {
            component for what, component in tables.items() if self._looked_at.get(component, -1.0) < self._since[what]
        }:
            if self._look(component):
                self._looked_at[component] = now

    def _is_of_now(self, what: str, component: str, now: float, *, waits: bool) -> bool:
        if now - self._since[what] > STUCK_S:
            return True
        if not component:
            return what not in (self._before or ()) and not waits
        return self._since[what] <= self._looked_at.get(component, -1.0) < now - LOOKED_S


def together(failures: Sequence[ApplyError], *, everything_runs: bool) -> ApplyError:
    """Combine several failures into one error that names them all.

    Args:
        failures: at least one.
        everything_runs: whether every component runs; tables that cannot be copied are then a finding.
    """
    message, hint = failures[0].message, failures[0].hint
    if len(failures) > 1:
        message = f"{len(failures)} problems keep the topology incomplete:" + "".join(
            f"\n  {error.message}" for error in failures
        )
        hint = "; ".join(dict.fromkeys(error.hint for error in failures if error.hint))
    tables = [error for error in failures if isinstance(error, TablesNotCopied)]
    if everything_runs and len(tables) == len(failures):
        return TablesNotCopied(
            message, findings=tuple(finding for error in tables for finding in error.findings), hint=hint
        )
    return ApplyError(message, hint=hint)


def _found(overview: Overview) -> dict[str, tuple[str, ApplyError]]:
    """Return the failures by what has failed and in which process.

    Each has the apply process whose tables must be checked (empty: the failure is not a table's) and the error. These
    are not all stuck components (`status_view.stuck_notes`): `up` succeeds while a component is stopped or waits for an
    ALTER.
    """
    failures: dict[str, tuple[str, ApplyError]] = {}
    if overview.state == "ABORTED":
        failures["controller"] = (
            "",
            ApplyError(overview.problem or "the controller gave up", hint=overview.fix),
        )
    for component in overview.components:
        name, process = component.name, component.started_us or 0
        for table in apply_status(component).instantiation:
            if table.state == "FAILED":
                full, fix = (
                    f"{table.owner}.{table.name}",
                    "correct it: the table is checked again every few seconds, and everything else continues meanwhile",
                )
                failures[f"{name} {process} {full}"] = (
                    name,
                    TablesNotCopied(
                        f"{name}: table {full}: {table.problem}",
                        hint=fix,
                        findings=(Finding(path=f"{name} table {full}", problem=table.problem, fix=fix),),
                        component=name,
                    ),
                )
        # A component that is about to be bypassed ends with its error.
        if component.state == "ABORTED" and component.to_be_bypassed_by is None:
            error = component.last_error or Failure(message="aborted")
            hint = for_component(error.hint, name, overview.flows)
            failures[f"{name} {process} {error.at_us}"] = (
                "",
                ApplyError(f"{name}: {error.message}", hint=hint),
            )
    return failures


def _all_looked_at(overview: Overview) -> bool:
    """Return whether every table was checked, so that all tables that cannot be copied are known."""
    return not any(
        table.state == "PENDING" for each in overview.components for table in apply_status(each).instantiation
    )
