"""Catching up: write a marker at every source, and wait until every low watermark has passed it.

This is repeated for sites that forward changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, PropagationError
from headrace.console.output import bytes_text, scn_text
from headrace.console.status_view import Note, holding_notes
from headrace.deployment.failures import LOOK_CALL_S, Failures, TablesNotCopied, together
from headrace.status.applies import apply_status
from headrace.status.overview import Overview
from topology.proof.reach import applies_in_a_row

if TYPE_CHECKING:
    from actors.hosting.runtime import RayActors
    from topology.spec import TopologySpec

__all__ = [
    "LOOK_INTERVAL_S",
    "Look",
    "NotCaughtUp",
    "fixes_of",
    "halts",
    "look_at_tables",
    "problems_of",
    "wait_caught_up",
]

POLL_S = 0.1
LOOK_INTERVAL_S = 2.0  # between looks for what is stuck: for people; the controller updates once a second
# A component that has just started can look stuck, and one that waits for free disk space continues by itself.
STUCK_S = 5.0
MARKER_TIMEOUT_S = 15.0  # a marker waits for one fsync at the source
CALL_TIMEOUT_S = 5.0
_AT_REST = frozenset({"DONE", "KEPT", "LEFT OUT", "FAILED"})  # states of tables that are not being copied
TABLES_TIMEOUT_S = 10.0  # an apply process answers after five seconds, whether its check has ended or not

Look = Callable[[], Overview]
"""Returns the overview of the topology."""


class NotCaughtUp(PropagationError):  # noqa: N818 - the name states the condition
    """The destinations did not reach the markers in time."""

    code = "HDR-7002"
    fix = (
        "`headrace status FILE` names the component that does not progress; then wait again, with a longer `--timeout`."
    )


@dataclass(slots=True)
class _Wait:
    spec: TopologySpec
    actors: RayActors
    deadline: float | None
    overview: Look | None
    progress: Callable[[str], None]
    markers: dict[str, int] = field(default_factory=dict)
    behind: dict[str, int | None] = field(default_factory=dict)
    """Bytes of log between each apply process and its marker; None: unknown, because it is starting."""
    problems: dict[str, str] = field(default_factory=dict)
    stuck: list[Note] = field(default_factory=list)
    ends_when_stuck: bool = False
    stuck_since: dict[tuple[str, str], float] = field(default_factory=dict)
    """When a component was first seen to halt changes for this reason."""
    looked_at: float = 0.0
    reached: str = "caught_up_scn"
    """Call to each apply process: the position of all its tables, or (`low_watermark`) only of tables being applied."""
    failures: Failures = field(init=False)
    failed: dict[str, list[TablesNotCopied]] = field(default_factory=dict)
    """Tables that need an operator, by the name of an apply process that is copying no other table."""
    left_out: dict[str, list[TablesNotCopied]] = field(default_factory=dict)
    """Tables of `failed` that were not waited for."""

    def __post_init__(self) -> None:
        self.failures = Failures(self.look_at_tables)

    def write_markers(self) -> None:
        for source in sorted({apply.source for apply in self.spec.applies}):
            # A site that is restarting answers within seconds.
            while source not in self.markers:
                try:
                    self.markers[source] = int(
                        self.actors.call(f"site:{source}", "write_marker", b"caught-up", timeout_s=MARKER_TIMEOUT_S)
                    )
                except HeadraceError as error:
                    if self.is_late():
                        raise NotCaughtUp(
                            f"no marker could be written at {source}: {error.message}", hint=error.hint
                        ) from error
                    self.problems[source] = error.message
                    self.rest()
                else:
                    self.problems.pop(source, None)

    def look(self) -> bool:
        for apply in self.spec.applies:
            if self.behind.get(apply.name) == 0:
                continue
            name = f"apply:{apply.name}"
            failed = self.failed.get(name)
            try:
                reached = int(
                    self.actors.call(name, "low_watermark" if failed else self.reached, timeout_s=CALL_TIMEOUT_S)
                )
            except HeadraceError as error:
                self.problems[apply.name] = error.message
                continue
            self.problems.pop(apply.name, None)
            self.behind[apply.name] = max(0, self.markers[apply.source] - reached) if reached else None
            if failed and self.behind[apply.name] == 0:
                self.left_out[name] = failed
        return all(self.behind.get(apply.name) == 0 for apply in self.spec.applies)

    def rest(self) -> None:
        """Report the progress, and pause before the next look."""
        self.look_for_what_is_stuck()
        self.progress(self.text())
        time.sleep(POLL_S)

    def look_for_what_is_stuck(self) -> None:
        """Look from time to time for what is stuck until an operator acts or a window opens.

        Raises:
            NotCaughtUp: waiting is useless, because nothing replicates; or a component stays stuck, and the caller does
                not want to wait for it.
        """
        if self.overview is None or time.monotonic() - self.looked_at < LOOK_INTERVAL_S:
            return
        overview = self.overview()
        self.looked_at = time.monotonic()
        if overview.state == "REFUSED" and any(each.state == "NOT CREATED" for each in overview.components):
            raise NotCaughtUp(
                f"topology {self.spec.name} does not replicate: the databases are not ready for it",
                hint="run `headrace check FILE` to see what is missing; then run `headrace up FILE`",
            )
        self.stuck = holding_notes(overview)
        halting = {(note.component, note.problem): note for note in self.stuck if halts(note)}
        self.stuck_since = {each: self.stuck_since.get(each, self.looked_at) for each in halting}
        lasting = [halting[each] for each, since in self.stuck_since.items() if self.looked_at - since >= STUCK_S]
        if self.ends_when_stuck and lasting:
            raise NotCaughtUp(
                f"changes have been stuck for {STUCK_S:g} s: {problems_of(lasting)}", hint=fixes_of(lasting)
            )
        self.look_for_failed_tables(overview)

    def look_for_failed_tables(self, overview: Overview) -> None:
        """Find tables that need an operator: they are not waited for if their apply process copies nothing else."""
        errors = [
            e for e in self.failures.told(overview, self.looked_at, is_settled=True) if isinstance(e, TablesNotCopied)
        ]
        self.failed = {}
        for component in overview.components:
            name, states = component.name, {table.state for table in apply_status(component).instantiation}
            own = [error for error in errors if error.context["component"] == name]
            if own and states <= _AT_REST:
                self.failed[name] = own

    def look_at_tables(self, name: str) -> bool:
        """Have an apply process check its tables that could not be copied; return whether it did."""
        try:
            return bool(self.actors.call(name, "look_at_tables", timeout_s=LOOK_CALL_S))
        except HeadraceError:
            return False

    def is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def text(self) -> str:
        """Return how far each apply process is behind, and what is stuck."""
        behind = [
            f"{name} {'starting' if left is None else f'{bytes_text(left)} behind'}"
            for name, left in self.behind.items()
        ]
        return "; ".join(
            [*behind, *self.problems.values(), *(f"{note.component}: {note.problem}" for note in self.stuck)]
        )

    def late(self, timeout_s: float | None) -> NotCaughtUp:
        """Return the error for a time-out."""
        words = [
            f"{apply.name} has not reached SCN {scn_text(self.markers[apply.source])} of {apply.source}"
            + (f" ({self.problems[apply.name]})" if apply.name in self.problems else "")
            for apply in self.spec.applies
            if self.behind.get(apply.name) != 0
        ]
        words += [problems_of([note]) for note in self.stuck]
        return NotCaughtUp(f"not caught up within {timeout_s:g} s: " + "; ".join(words), hint=fixes_of(self.stuck))


def halts(note: Note) -> bool:
    """Return whether a finding stops changes until an operator acts; a table that cannot be copied stops no other."""
    return note.is_stuck and not note.is_of_table


def problems_of(found: Sequence[Note]) -> str:
    """Return the problems as text."""
    return "; ".join(f"{note.component}: {note.problem}" for note in found)


def fixes_of(found: Sequence[Note]) -> str:
    """Return the fixes as text."""
    return "; ".join(note.fix for note in found if note.fix) or "see `headrace status`"


def look_at_tables(spec: TopologySpec, actors: RayActors) -> None:
    """Have every apply process check now that its tables still match what was copied.

    `headrace status` shows the findings.

    Args:
        spec: the topology.
        actors: its actors.
    """
    for apply in spec.applies:
        with suppress(HeadraceError):  # it is restarting or busy, and checks by itself
            actors.call(f"apply:{apply.name}", "look_at_tables", timeout_s=TABLES_TIMEOUT_S)


def wait_caught_up(
    spec: TopologySpec,
    actors: RayActors,
    *,
    timeout_s: float | None = None,
    progress: Callable[[str], None] | None = None,
    overview: Look | None = None,
    of_applied_tables: bool = False,
    ends_when_stuck: bool = False,
) -> dict[str, int]:
    """Wait until everything committed at any source before this call is applied everywhere.

    Args:
        spec: the topology.
        actors: its actors.
        timeout_s: longest wait in seconds; None: unlimited.
        progress: receives lines of text about the progress.
        overview: returns the overview, which shows what is stuck; None: ask the apply processes only.
        of_applied_tables: do not wait for tables that are being copied or cannot be copied.
        ends_when_stuck: end when the overview has shown for `STUCK_S` that a component is stopped or has given up.

    Returns:
        The SCNs of the last markers, by source.

    Raises:
        NotCaughtUp: time-out, or a component is stuck; the message names the apply processes that are behind, and why.
        TablesNotCopied: everything else is applied everywhere, but these tables need an operator.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    wait = _Wait(spec, actors, deadline, overview, progress or (lambda _: None))
    wait.ends_when_stuck = ends_when_stuck
    wait.reached = "low_watermark" if of_applied_tables else "caught_up_scn"
    wait.look_for_what_is_stuck()
    # Changes that a site forwards reach its redo only when they are applied there. A marker written earlier proves
    # nothing about the sites behind it.
    for _ in range(max(1, applies_in_a_row(spec))):
        wait.markers, wait.behind = {}, {}
        wait.write_markers()
        while not wait.look():
            if wait.is_late():
                raise wait.late(timeout_s)
            wait.rest()
    if wait.left_out and not of_applied_tables:
        raise together([error for errors in wait.left_out.values() for error in errors], everything_runs=True)
    return wait.markers
