"""DDL changes at a destination: where one stands in the source's log, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.lcr.batch import LcrBatch
    from headrace.lcr.ddl import DdlChange

__all__ = ["DDL_REFUSED", "DdlIn", "DdlJob", "DdlOutcome", "DdlOutcomeKind", "DdlPlace", "MissedDdl", "deleted_with"]

DDL_REFUSED = "ddl_refused"
"""Key in the context of a `DataError`: the destination refused the DDL change itself, not rows written before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlPlace:
    """Where a DDL LCR stands in its source's log: the same whenever the LCR is sent.

    Args:
        source: source site.
        transaction_id: of the source transaction.
        order_scn: of the source transaction; known before its end.
        position: 0-based position of the LCR in the transaction.
    """

    source: str
    transaction_id: int
    order_scn: int
    position: int

    @classmethod
    def of(cls, batch: LcrBatch) -> DdlPlace:
        """Return the place of the DDL LCR of a batch."""
        found = batch.transactions
        return cls(
            source=batch.source,
            transaction_id=int(found.transaction_id[0]),
            order_scn=int(found.order_scn[0]),
            position=batch.first_position,
        )


class DdlOutcomeKind(StrEnum):
    """What became of a DDL change at a destination."""

    APPLIED = "APPLIED"
    PASSED_OVER = "PASSED OVER"  # the table already has all of it
    NOT_APPLIED = "NOT APPLIED"  # it is not replicated, or cannot be expressed; the reason says which
    SKIPPED = "SKIPPED"  # the operator asked for that
    SCHEDULED = "SCHEDULED"  # a job makes it beside the rest (`DdlJob`), and then replaces this outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlJob:
    """An index that is being made at a destination outside the transactions of the data.

    Args:
        number: of the job, ascending.
        owner: schema of the table at the destination.
        name: the table.
        index: the index, in the schema of its table.
        state: WAITING; RUNNING; FAILED: it is tried again; CANCELLED: it is to be cleared away.
        attempts: how often it began.
        problem: why the last attempt failed; empty: it did not.
        fix: what an operator can do about that; empty: nothing to say.
        since_us: when the change was recorded, microseconds since the epoch.
    """

    number: int
    owner: str
    name: str
    index: str
    state: str = "WAITING"
    attempts: int = 0
    problem: str = ""
    fix: str = ""
    since_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedDdl:
    """Statements that a source could not record, so that no destination gets what they changed.

    Args:
        count: how many.
        last: the last one, in one line, and why; empty: there is none.
    """

    count: int = 0
    last: str = ""


DdlIn = Callable[[bytes], "tuple[DdlChange, DdlPlace] | None"]
"""Returns the DDL LCR of a part of an error transaction, and its place; None: the part has rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlOutcome:
    """What became of a DDL change.

    Args:
        kind: the outcome.
        statements: what was run, in order; of a change that was not applied: nothing.
        reason: why it was not applied, or not completely; empty: nothing to say.
    """

    kind: DdlOutcomeKind
    statements: tuple[str, ...] = ()
    reason: str = ""

    @classmethod
    def not_applied(cls, reason: str) -> DdlOutcome:
        """Return the outcome of a change that is only recorded, and why."""
        return cls(kind=DdlOutcomeKind.NOT_APPLIED, reason=reason)


def deleted_with(number: int) -> DdlOutcome:
    """Return what became of a DDL LCR whose error transaction an operator deleted.

    Args:
        number: of the error transaction.
    """
    return DdlOutcome(
        kind=DdlOutcomeKind.SKIPPED, reason=f"error transaction {number} was deleted from the error queue"
    )
