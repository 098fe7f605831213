"""Labels of tracked transactions, which an apply server's session writes into this database's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.tracking import TRACK_PREFIX

if TYPE_CHECKING:
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction

__all__ = ["CommitLabels"]

# Sent as bytes: this database's encoding may lack a character of the source's, and a label must not make data fail.
_LABEL = f"SELECT pg_catalog.pg_logical_emit_message(true, '{TRACK_PREFIX}', $1::bytea)"
_MAY_LABEL = (
    "SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc"
    " WHERE proname = 'pg_logical_emit_message'"
)


class CommitLabels:
    """Labels of one session's commits.

    Args:
        transaction: transaction of the session.
    """

    def __init__(self, transaction: SessionTransaction) -> None:
        self._transaction = transaction
        self._may_write: bool | None = None  # None: not queried yet

    def written(self, labels: Sequence[str]) -> list[Statement]:
        """Return the statements that write labels, inside the transaction; without the right, labels are dropped."""
        return [Statement(sql=_LABEL, parameters=(label.encode(),)) for label in labels if self._may()]

    def _may(self) -> bool:
        if self._may_write is None:
            (found,) = self._transaction.run([Statement(sql=_MAY_LABEL)], "asking for the right to write labels")
            self._may_write = found.get_value(0, 0) == b"t"
        return self._may_write
