"""Groups with rows that go to DML handlers; all other rows are still written as sets.

Transactions that do not depend on a handled one (by their keys and by the tables that handlers declare) are written
first, as sets. All others follow in source order, handled rows one after another. The rows between them, and the LCRs
that handlers execute, are pending and are written together as sets, at the latest before a handler's SQL can see them.
So a handler sees its own transaction up to the current row as at the source, and everything that the transaction
depends on. Of unrelated transactions it may see any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.cutting import row_transactions, select_rows
from spark_apply.dependencies.hashes import KeyHashes, hash_batch, held_transactions
from spark_apply.handlers.loaded import AttemptFailed
from spark_apply.sets.collapse import plan_sets
from spark_apply.sets.conflicts import execute_ahead, runs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.databases.ports import WriteSession
    from headrace.lcr.batch import LcrBatch
    from spark_apply.handlers.loaded import Handlers
    from spark_apply.handlers.running import Handling
    from spark_apply.sets.steps import FitOf, Step

__all__ = ["GroupPlan", "plan_group", "write_group", "write_in_order"]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group's rows: the sets to write first, and the rows that follow in source order."""

    first: Sequence[Step]
    rest: Sequence[LcrBatch]


def plan_group(batches: Sequence[LcrBatch], handlers: Handlers, fit_of: FitOf) -> GroupPlan:
    """Plan whole transactions with rows that go to DML handlers.

    Args:
        batches: consecutive transactions.
        handlers: decide which rows are handled.
        fit_of: returns the fit of a table version.
    """
    owners = [row_transactions(batch.transactions) for batch in batches]
    bases = np.cumsum([0, *[len(batch.transactions) for batch in batches]])
    masks = [handlers.handled(batch) for batch in batches]
    own = [owner[mask] + base for owner, mask, base in zip(owners, masks, bases, strict=False) if mask is not None]
    if not own:
        return GroupPlan(plan_sets(batches, fit_of), [])
    hashes = KeyHashes.joined([hash_batch(batch, fit_of, in_order=True) for batch in batches])
    behind = held_transactions(hashes, np.unique(np.concatenate(own)).tolist()) >= 0
    waits = [behind[owner + base] for owner, base in zip(owners, bases, strict=False)]
    first = plan_sets([_part(batch, ~late) for batch, late in zip(batches, waits, strict=True)], fit_of)
    return GroupPlan(first, [_part(batch, late) for batch, late in zip(batches, waits, strict=True)])


def write_group(session: WriteSession, plan: GroupPlan, handling: Handling) -> int | None:
    """Write whole transactions with handled rows; handlers run while the destination writes the sets before them.

    Args:
        session: in a transaction.
        plan: plan of the transactions.
        handling: the handlers, in an attempt.

    Returns:
        Rows written; None: roll back.

    Raises:
        DataError: the destination refused a value; roll back.
        UnfitTableError: a table was altered meanwhile.
    """
    first = execute_ahead(session, plan.first)
    handling.follow(first)
    rest = write_in_order(plan.rest, handling)
    written = first()  # whatever the rest returned: a table altered under these rows is not a failure of handlers
    return None if rest is None or written is None else written + rest


def write_in_order(batches: Sequence[LcrBatch], handling: Handling) -> int | None:
    """Write rows in source order, including rows of DML handlers.

    Args:
        batches: their rows, in order.
        handling: the handlers, in an attempt, in a transaction.

    Returns:
        Rows written or handled; None: roll back.
    """
    try:
        for batch in batches:
            handled = handling.handlers.handled(batch)
            handled = np.zeros(batch.row_count, np.bool_) if handled is None else handled
            for is_handled, numbers in runs_of(handled):
                if is_handled:
                    if any(handling.dml(batch, number) is not None for number in numbers):
                        return None
                    continue
                handling.plain(batch, numbers)
        handling.flush()
    except AttemptFailed:
        return None
    return sum(batch.row_count for batch in batches)


def _part(batch: LcrBatch, chosen: NDArray[np.bool_]) -> LcrBatch:
    return batch if chosen.all() else select_rows(batch, chosen)
