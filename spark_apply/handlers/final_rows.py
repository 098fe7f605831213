"""The last attempt at a transaction: its rows one by one, with users' handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_apply.sets.conflicts import apply_rows, runs_of

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationSession
    from headrace.lcr.batch import LcrBatch
    from spark_apply.conversation.groups import Failure
    from spark_apply.handlers.running import Handling
    from spark_apply.sets.resolution import Resolution
    from spark_apply.sets.steps import FitOf

__all__ = ["apply_final"]


def apply_final(
    session: DestinationSession,
    batch: LcrBatch,
    fit_of: FitOf,
    resolution: Resolution,
    handling: Handling | None = None,
) -> Failure | None:
    """Apply rows one by one, with users' handlers; everything below is applied, so a failure is final.

    Args:
        session: in a transaction; its savepoint is used.
        batch: the rows of one transaction, or of a part of it.
        fit_of: returns the fit of a table version.
        resolution: resolves conflicts, and records their outcomes.
        handling: the handlers, one by one; None: there are none.

    Returns:
        None when all rows are applied; otherwise the failure, and the caller must roll back.
    """
    if handling is None:
        return apply_rows(session, batch, fit_of, resolution)
    handled = handling.handlers.handled(batch)
    if handled is None:
        return apply_rows(session, batch, fit_of, resolution, recover=handling.error)
    for is_handled, numbers in runs_of(handled):
        if not is_handled:
            failure = apply_rows(session, batch, fit_of, resolution, numbers=numbers, recover=handling.error)
            if failure is not None:
                return failure
            continue
        for number in numbers:
            failure = handling.dml(batch, number)
            if failure is not None:
                return failure
    return None
