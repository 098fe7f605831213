"""Calls from the copying thread to the loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.databases.ports import Instantiation, PartOf
    from headrace.lcr.scn import Scn
    from spark_apply.driver.loop.host import CoordinatorHost

__all__ = ["DELETED_AT_ONCE", "LoopJoinCalls"]

# Error transactions deleted in one transaction of the destination. It takes a tenth of a second, during which the loop
# does nothing else.
DELETED_AT_ONCE = 500
_WAIT_POLL_S = 0.2  # bounds the delay until the end of the driver is noticed


class LoopJoinCalls:
    """Implements `spark_apply.copy.records.join_calls.JoinCalls`: calls run on the loop's thread and wait for outcomes.

    Args:
        host: runs the loop.
        should_end: polled while a call waits.
    """

    def __init__(self, host: CoordinatorHost, should_end: Callable[[], bool]) -> None:
        self._host, self._should_end = host, should_end

    def hold(self, scn: Scn | None) -> None:
        """Make the queue keep everything after `scn`; None: nothing is needed any more."""
        self._host.inbox.call(lambda: self._host.joins.hold(scn))

    def hold_now(self) -> None:
        """Make the queue keep everything not yet acknowledged as durable: called before a snapshot is taken."""
        self._host.inbox.call(lambda: self._host.joins.hold(self._host.dequeuing.told_scn))

    def leave_out(self, tables: Collection[tuple[str, str]], parts: Collection[PartOf] = ()) -> bool:
        """Skip these tables, and wait until none of their rows is in flight.

        Args:
            tables: names at the destination.
            parts: partitions that are copied alone.

        Returns:
            False: the driver ends first.
        """
        return self._wait(self._host.inbox.call(lambda: self._host.joins.leave_out(tables, parts)))

    def admit(self, parts: Mapping[PartOf, Scn]) -> bool:
        """Apply skipped partitions again from a TRUNCATE of their tables; False: the driver ends first."""
        return self._wait(self._host.inbox.call(lambda: self._host.joins.admit(parts)))

    @property
    def truncated_parts(self) -> dict[PartOf, Scn]:
        """Copied partitions whose table waits to be truncated, and the order SCN of that TRUNCATE."""
        return self._host.inbox.call(lambda: self._host.joins.truncated_parts)

    def join(self, tables: Sequence[Instantiation]) -> bool:
        """Let copied tables join, and wait until that is recorded; False: the driver ends first."""
        return self._wait(self._host.inbox.call(lambda: self._host.joins.join(tables)))

    def emptied_scn(self, table: tuple[str, str]) -> Scn | None:
        """Return the SCN at which a skipped table was last emptied; None: it was not."""
        return self._host.inbox.call(lambda: self._host.joins.emptied_scn(table))

    @property
    def truncated_tables(self) -> dict[str, tuple[Scn, frozenset[int]]]:
        """By table identity: the order SCN of the last TRUNCATE of several partitions, and their numbers."""
        return self._host.inbox.call(lambda: self._host.joins.truncated_tables)

    @property
    def applied_scn(self) -> Scn:
        """Everything below this is applied, except for tables that are skipped or joining."""
        return self._host.inbox.call(lambda: self._host.joins.applied_scn)

    @property
    def is_joined(self) -> bool:
        """Whether the tables that joined last have caught up."""
        return self._host.inbox.call(lambda: self._host.joins.is_joined)

    def delete_obsolete(self, numbers: Sequence[int]) -> frozenset[int]:
        """Delete error transactions that copies have made obsolete; return those that are gone."""
        gone: set[int] = set()
        for first in range(0, len(numbers), DELETED_AT_ONCE):
            chosen = numbers[first : first + DELETED_AT_ONCE]
            gone |= self._host.inbox.call(partial(self._host.errors.delete_obsolete, chosen))
        return frozenset(gone)

    def execute_held(self, numbers: Sequence[int]) -> None:
        """Execute error transactions that waited behind others. The error queue shows their outcomes."""
        self._host.inbox.call(lambda: self._host.errors.execute(numbers))

    def _wait(self, done: Event) -> bool:
        while not done.wait(_WAIT_POLL_S):
            if self._should_end():
                return False
        return True
