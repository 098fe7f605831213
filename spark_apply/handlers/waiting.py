"""Pending writes of an attempt of handlers, and the batches in which they are written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.batch import LcrBatch
from headrace.lcr.building import batch_of_lcrs
from headrace.lcr.cutting import select_rows

if TYPE_CHECKING:
    from headrace.databases.ports import HandlerSql
    from spark_apply.handlers.lcrs import HandledLcr

__all__ = ["Rows", "Waiting", "batches_of"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Unchanged rows of a batch: their numbers, ascending."""

    batch: LcrBatch
    numbers: Sequence[int]


@dataclass(slots=True)
class Waiting:
    """Pending writes of an attempt, in order: LCRs and rows without handlers, or statements."""

    lcrs: list[HandledLcr | Rows] = field(default_factory=list)
    statements: list[HandlerSql] = field(default_factory=list)


def batches_of(waiting: Sequence[HandledLcr | Rows]) -> list[LcrBatch]:
    """Return LCRs and rows as batches, in order, without other rows of their batches.

    Args:
        waiting: in the order in which they are written.
    """
    made: list[LcrBatch] = []
    taken: list[int] = []  # unchanged rows of one batch
    taken_of: LcrBatch | None = None

    def end() -> None:
        if taken_of is not None and taken:
            chosen = np.zeros(taken_of.row_count, np.bool_)
            chosen[taken] = True
            made.append(select_rows(taken_of, chosen))
        taken.clear()

    for run in _runs(waiting):
        if isinstance(run, LcrBatch):
            end()
            made.append(run)
            continue
        if run.batch is not taken_of or (taken and run.numbers[0] <= taken[-1]):
            end()
            taken_of = run.batch
        taken += run.numbers
    end()
    return made


def _runs(waiting: Sequence[HandledLcr | Rows]) -> Iterator[Rows | LcrBatch]:
    """Yield adjacent LCRs as one run.

    A run is rows of their batch, or a separate batch if an LCR is changed or out of order.
    """
    start = 0
    while start < len(waiting):
        first, end = waiting[start], start + 1
        if isinstance(first, Rows):
            yield first
        else:
            run = [first]
            # A batch has LCRs in the order of transactions, and each transaction's LCRs with one tag.
            while (
                end < len(waiting)
                and not isinstance(lcr := waiting[end], Rows)
                and lcr.batch is first.batch
                and lcr.transaction >= run[-1].transaction
            ):
                run.append(lcr)
                end += 1
            numbers = [lcr.row for lcr in run]
            is_as_it_came = not any(lcr.is_changed for lcr in run) and all(
                low < high for low, high in itertools.pairwise(numbers)
            )
            yield Rows(first.batch, numbers) if is_as_it_came else batch_of_lcrs(first.batch, run)
        start = end
