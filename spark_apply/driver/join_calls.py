"""What the thread that copies asks of the loop."""

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

# error transactions in one transaction of the destination: a tenth of a second, in which nothing else is done for it
DELETED_AT_ONCE = 500
_WAIT_POLL_S = 0.2  # how soon the end of the driver is noticed


class LoopJoinCalls:
    """See `spark_apply.copy.records.join_calls.JoinCalls`: every call runs on the loop's thread, and waits for its outcome.

    Args:
        host: runs the loop.
        should_end: asked while it waits.
    """

    def __init__(self, host: CoordinatorHost, should_end: Callable[[], bool]) -> None:
        self._host, self._should_end = host, should_end

    def hold(self, scn: Scn | None) -> None:
        """See `TableJoins.hold`."""
        self._host.inbox.call(lambda: self._host.joins.hold(scn))

    def hold_now(self) -> None:
        """Keep the queue from forgetting anything it was not told to be durable: before a snapshot is taken."""
        self._host.inbox.call(lambda: self._host.joins.hold(self._host.dequeuing.told_scn))

    def leave_out(self, tables: Collection[tuple[str, str]], parts: Collection[PartOf] = ()) -> bool:
        """See `TableJoins.leave_out`; False: the driver ends first."""
        return self._wait(self._host.inbox.call(lambda: self._host.joins.leave_out(tables, parts)))

    def admit(self, parts: Mapping[PartOf, Scn]) -> bool:
        """See `TableJoins.admit`; False: the driver ends first."""
        return self._wait(self._host.inbox.call(lambda: self._host.joins.admit(parts)))

    @property
    def truncated_parts(self) -> dict[PartOf, Scn]:
        """See `ArrivingTables.truncated_parts`."""
        return self._host.inbox.call(lambda: self._host.joins.truncated_parts)

    def join(self, tables: Sequence[Instantiation]) -> bool:
        """See `TableJoins.join`; False: the driver ends first."""
        return self._wait(self._host.inbox.call(lambda: self._host.joins.join(tables)))

    def emptied_scn(self, table: tuple[str, str]) -> Scn | None:
        """See `ArrivingTables.emptied_scn`."""
        return self._host.inbox.call(lambda: self._host.joins.emptied_scn(table))

    @property
    def truncated_tables(self) -> dict[str, tuple[Scn, frozenset[int]]]:
        """See `ArrivingTables.truncated`."""
        return self._host.inbox.call(lambda: self._host.joins.truncated_tables)

    @property
    def applied_scn(self) -> Scn:
        """See `TableJoins.applied_scn`."""
        return self._host.inbox.call(lambda: self._host.joins.applied_scn)

    @property
    def is_joined(self) -> bool:
        """See `TableJoins.is_joined`."""
        return self._host.inbox.call(lambda: self._host.joins.is_joined)

    def delete_obsolete(self, numbers: Sequence[int]) -> frozenset[int]:
        """Delete error transactions that copies have made obsolete; returns those that are gone."""
        gone: set[int] = set()
        for first in range(0, len(numbers), DELETED_AT_ONCE):
            chosen = numbers[first : first + DELETED_AT_ONCE]
            gone |= self._host.inbox.call(partial(self._host.errors.delete_obsolete, chosen))
        return frozenset(gone)

    def execute_held(self, numbers: Sequence[int]) -> None:
        """Have error transactions executed that waited behind others; what becomes of them the error queue shows."""
        self._host.inbox.call(lambda: self._host.errors.execute(numbers))

    def _wait(self, done: Event) -> bool:
        while not done.wait(_WAIT_POLL_S):
            if self._should_end():
                return False
        return True
