"""Calls from copies to the coordinator: skip tables, keep the queue from purging changes, let tables join."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.databases.ports import Instantiation, PartOf
    from headrace.lcr.scn import Scn

__all__ = ["JoinCalls"]


class JoinCalls(Protocol):
    """The coordinator as the copying thread sees it; every call waits for its outcome.

    Raises:
        ApplyError: it does not answer in time, or has ended.
    """

    def hold(self, scn: Scn | None) -> None:
        """Keep the queue from purging changes behind `scn`; None: nothing is needed any more."""
        ...

    def hold_now(self) -> None:
        """Keep the queue from purging anything that is not reported durable yet; call before a snapshot is taken."""
        ...

    def leave_out(self, tables: Collection[tuple[str, str]], parts: Collection[PartOf] = ()) -> bool:
        """Skip all further changes of these tables, and wait until none is in flight to the destination.

        Args:
            tables: names at the destination.
            parts: partitions that are copied alone.

        Returns:
            False: the driver ends first.
        """
        ...

    def admit(self, parts: Mapping[PartOf, Scn]) -> bool:
        """Apply skipped partitions from the TRUNCATE of their tables on (`ArrivingTables.admit`).

        Returns:
            False: the driver ends first.
        """
        ...

    def join(self, tables: Sequence[Instantiation]) -> bool:
        """Let copied tables join, and wait until that is recorded; `is_joined` tells when they have caught up.

        Returns:
            False: the driver ends first.
        """
        ...

    def emptied_scn(self, table: tuple[str, str]) -> Scn | None:
        """Return where a skipped table was last emptied (`ArrivingTables.emptied_scn`)."""
        ...

    @property
    def truncated_parts(self) -> Mapping[PartOf, Scn]:
        """Partitions whose tables wait to be truncated (`ArrivingTables.truncated_parts`)."""
        ...

    @property
    def truncated_tables(self) -> Mapping[str, tuple[Scn, frozenset[int]]]:
        """The last TRUNCATE of partitions of each table (`ArrivingTables.truncated`)."""
        ...

    @property
    def applied_scn(self) -> Scn:
        """Everything below this is applied, except changes of skipped and joining tables."""
        ...

    @property
    def is_joined(self) -> bool:
        """Whether the tables that joined last have caught up with the others."""
        ...

    def delete_obsolete(self, numbers: Sequence[int]) -> frozenset[int]:
        """Delete error transactions that copies have made obsolete; return those that are gone."""
        ...

    def execute_held(self, numbers: Sequence[int]) -> None:
        """Execute error transactions that were held behind others; the error queue shows the outcomes."""
        ...
