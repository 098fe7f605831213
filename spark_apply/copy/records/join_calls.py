"""What copies ask of the coordinator: to leave tables out, to keep the queue from forgetting, to let tables join."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.databases.ports import Instantiation, PartOf
    from headrace.lcr.scn import Scn

__all__ = ["JoinCalls"]


class JoinCalls(Protocol):
    """The coordinator, as the thread that copies sees it; every call waits for its outcome.

    Raises:
        ApplyError: it does not answer in time, or has ended.
    """

    def hold(self, scn: Scn | None) -> None:
        """Keep the queue from forgetting what comes after `scn`; None: nothing is needed any more."""
        ...

    def hold_now(self) -> None:
        """Keep the queue from forgetting anything it was not told to be durable: before a snapshot is taken."""
        ...

    def leave_out(self, tables: Collection[tuple[str, str]], parts: Collection[PartOf] = ()) -> bool:
        """Apply nothing more of these tables, and wait until nothing of them is on its way to the destination.

        Args:
            tables: names at the destination.
            parts: partitions that are copied alone.

        Returns:
            False: the driver ends first.
        """
        ...

    def admit(self, parts: Mapping[PartOf, Scn]) -> bool:
        """Apply partitions that were left out from a TRUNCATE of their tables on; see `ArrivingTables.admit`.

        Returns:
            False: the driver ends first.
        """
        ...

    def join(self, tables: Sequence[Instantiation]) -> bool:
        """Let copied tables join, and wait until that is recorded; they have caught up when `is_joined`.

        Returns:
            False: the driver ends first.
        """
        ...

    def emptied_scn(self, table: tuple[str, str]) -> Scn | None:
        """See `ArrivingTables.emptied_scn`."""
        ...

    @property
    def truncated_parts(self) -> Mapping[PartOf, Scn]:
        """See `ArrivingTables.truncated_parts`."""
        ...

    @property
    def truncated_tables(self) -> Mapping[str, tuple[Scn, frozenset[int]]]:
        """See `ArrivingTables.truncated`."""
        ...

    @property
    def applied_scn(self) -> Scn:
        """Everything below this is applied, but of tables that are left out or are joining."""
        ...

    @property
    def is_joined(self) -> bool:
        """The tables that joined last are where the others are."""
        ...

    def delete_obsolete(self, numbers: Sequence[int]) -> frozenset[int]:
        """Delete error transactions that copies have made obsolete; returns those that are gone."""
        ...

    def execute_held(self, numbers: Sequence[int]) -> None:
        """Have error transactions executed that waited behind others; what becomes of them the error queue shows."""
        ...
