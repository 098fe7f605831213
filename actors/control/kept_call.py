"""What a call of `up --keep-existing` keeps: the rows of destination tables that exist at this call.

Durable when
    The record has the call and its tables: a restarted controller uses the record, whatever tables exist by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.control.prepared_record import PreparedRecord

__all__ = ["KeptCall"]


class KeptCall:
    """One call of `up --keep-existing`, or none.

    Args:
        call: identifies the call; empty: none.
    """

    def __init__(self, record: PreparedRecord, call: str) -> None:
        self._record, self.call = record, call
        self._tables: dict[str, tuple[str, ...]] = {}  # identities, by apply process
        self._is_over = False  # a later call of `up` arrived, which keeps nothing

    def open(self) -> None:
        """Read the record. An earlier call does not count: a destination that was added since may hold an old copy."""
        desired = self._record.read()
        if self.call and desired.get("keep_call") == self.call:
            self._tables = {apply: tuple(kept) for apply, kept in desired.get("kept_at", {}).items()}

    @property
    def must_be_noted(self) -> bool:
        """Whether the tables of this call are not recorded yet."""
        return bool(self.call) and self._record.read().get("keep_call") != self.call

    def tables(self, apply: str) -> tuple[str, ...]:
        """Return the identities of the tables whose rows an apply process keeps."""
        return self._tables.get(apply, ())

    def note(self, tables: Mapping[str, tuple[str, ...]]) -> None:
        """Record the tables; durable when this returns.

        Args:
            tables: identities, by apply process.
        """
        self._tables = dict(tables)
        self._record.update({"keep_call": self.call, "kept_at": self._tables})

    def asked_again(self, call: str) -> None:
        """Note a call of `up`; a call other than this one ends what is kept (`drop`).

        Args:
            call: identifies the arriving call.
        """
        self._is_over |= call != self.call

    def drop(self) -> None:
        """Keep nothing from now on, if another call arrived."""
        if self._is_over:
            self._is_over = False
            if self._tables or self.must_be_noted:
                self.note({})
