"""Error transactions as a destination keeps them, and operators' edits of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.lcr.scn import Scn

__all__ = ["EDITS_AGE_MAX_S", "EDITS_KEPT_MAX", "ErrorEdit", "ErrorTransaction", "TakenErrors"]

# Edits whose error transaction was executed or deleted are kept for a quarter, to answer who changed a row. Edits of
# transactions still in the error queue are always kept.
EDITS_AGE_MAX_S = 92 * 86_400.0
EDITS_KEPT_MAX = 10_000  # some MB: an edit is a few lines of text


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTransaction:
    """A transaction in the error queue, for listings; row values only in `readable`.

    Args:
        number: identifies it at the destination; ascending in order of failure.
        apply: the apply process.
        source: source site.
        transaction_id, commit_scn, commit_time_us: of the source transaction.
        row_count: number of its LCRs.
        failed_position: 0-based position of the LCR that failed; -1: it waits for `depends_on`.
        depends_on: number of the error transaction that it waits for; 0: it failed itself.
        conflict_type: "update_missing", "insert_exists", ...; empty for other errors.
        sqlstate: of the database's error, if any.
        message: what happened, no row values.
        created_us: time of failure, microseconds since the epoch.
        readable: the failing LCR's values as text, "column=value"; only for `errors show`.
        edits: number of an operator's edits; a transaction that failed again after one has the new failure's cause.
    """

    number: int
    apply: str
    source: str
    transaction_id: int
    commit_scn: Scn
    commit_time_us: int
    row_count: int
    failed_position: int
    depends_on: int
    conflict_type: str
    sqlstate: str
    message: str
    created_us: int
    readable: tuple[str, ...] = ()
    edits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEdit:
    """What an operator changed in one LCR of an error transaction.

    Args:
        number: of the error transaction.
        edit: number of this edit of the error transaction: 1, 2, ...
        apply: the apply process.
        position: 0-based position of the LCR in the transaction.
        owner, name: the table.
        command: INSERT, UPDATE or DELETE.
        changes: "new.salary: 100 -> 200", one per value; "(absent)" where the LCR had none.
        edited_by: the operator.
        edited_us: time of the edit, microseconds since the epoch; 0: not stored yet.
        outcome: of the error transaction: EXECUTED or DELETED; empty: still in the error queue.
    """

    number: int
    edit: int
    apply: str
    position: int
    owner: str
    name: str
    command: str
    changes: tuple[str, ...]
    edited_by: str
    edited_us: int = 0
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenErrors:
    """Error transactions that a transaction has deleted, with the rows it is to apply.

    Args:
        count: how many of the requested ones, from the first, are deleted; the others are unchanged.
        batches: by number, the serialized LcrBatches of each one found, part by part.
    """

    count: int
    batches: Mapping[int, tuple[bytes, ...]]
