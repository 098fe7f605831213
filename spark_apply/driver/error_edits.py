"""Editing an error transaction: one row LCR gets other values, and the part that contains it is rebuilt.

This module writes nothing: `DestinationDatabase.edit_error` replaces the part and records the edit in one transaction.
An execution begins by locking the error transaction, so it sees the rows either before or after the edit.

A row with a new key depends on other transactions. The new keys are stored in addition to the old ones, and later
transactions with either wait behind it.

Worked flow
    error transaction 3: INSERT id=7 (insert_exists) -> errors edit 3 --set id=8 -> part 0 has id=8, keys {7, 8}, edit 1
    -> a later UPDATE of id 8 joins the error queue behind it -> errors execute 3 4 -> both are applied, in order
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.databases.ports import ErrorEdit
from headrace.lcr.building import batch_of_lcrs
from headrace.lcr.lcr_value import LcrValue
from headrace.lcr.row_lcr import RowLcr
from protos import codec
from spark_apply.dependencies.hashes import hash_batch, table_hashes
from spark_apply.dependencies.holds import bounded_hashes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.lcr.batch import LcrBatch, TableVersion
    from spark_apply.dependencies.hashes import KeyHashes
    from spark_apply.tables.fits import TableFit

__all__ = ["EditRequest", "EditedPart", "ValueEdit", "edited_part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueEdit:
    """A new value for one column of a row LCR.

    Args:
        kind: "old" or "new".
        column: column of the LCR's table.
        raw: value in the form of the LCR's column; None: NULL.
        before, after: display forms for the record of the edit.
    """

    kind: str
    column: str
    raw: bytes | None
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRequest:
    """An operator's edit of one row LCR of an error transaction.

    Args:
        number: number of the error transaction.
        edit: number of this edit of the transaction, from 1, as the operator saw it.
        position: 0-based position of the LCR in its transaction.
        values: new values.
        edited_by: the requesting user.
    """

    number: int
    edit: int
    position: int
    values: tuple[ValueEdit, ...]
    edited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedPart:
    """A part of an error transaction in the form that `DestinationDatabase.edit_error` stores."""

    edit: ErrorEdit
    part: int
    batch: bytes
    key_hashes: NDArray[np.uint64]


def edited_part(
    request: EditRequest,
    apply: str,
    batches: Iterable[bytes],
    fit_of: Callable[[TableVersion], TableFit],
) -> EditedPart:
    """Rebuild the part of an error transaction that contains the edited row LCR.

    Args:
        request: the edit.
        apply: name of the apply process.
        batches: the transaction's parts in order.
        fit_of: returns the fit of a table version.

    Raises:
        ConfigError: the transaction has no such row, or the row no such column.
        LcrError: the row's command has no values of this kind.
        UnfitTableError: a table of the transaction is not at the destination.
    """
    has_ddl = False
    for part, data in enumerate(batches):
        batch = codec.decode(data)
        has_ddl |= batch.ddl is not None
        row = request.position - batch.first_position
        if 0 <= row < batch.row_count:
            hashes_of = table_hashes if has_ddl else functools.partial(hash_batch, fit_of=fit_of)
            return _edited(request, apply, part, batch, row, hashes_of)
    raise ConfigError(
        f"error transaction {request.number} has no row {request.position}",
        hint="headrace errors show FILE N shows its rows, from 0",
    )


def _edited(
    request: EditRequest,
    apply: str,
    part: int,
    batch: LcrBatch,
    row: int,
    hashes_of: Callable[[LcrBatch], KeyHashes],
) -> EditedPart:
    if batch.ddl is not None:
        raise ConfigError(
            f"row {request.position} is a DDL LCR of {batch.ddl.base_table}: it has no values",
            hint="execute or delete the error transaction",
        )
    lcrs = [RowLcr(batch, number) for number in range(batch.row_count)]
    lcr = lcrs[row]
    if lcr.command_type == "TRUNCATE":
        raise ConfigError(
            f"row {request.position} is a TRUNCATE: it has no values", hint="execute or delete the error transaction"
        )
    for value in request.values:
        _set(lcr, value)
    made = batch_of_lcrs(batch, lcrs)
    # Keys of the whole part: those of its other rows are stored already, and duplicate hashes do no harm.
    hashes = bounded_hashes(hashes_of(made).stored())
    edit = ErrorEdit(
        number=request.number,
        edit=request.edit,
        apply=apply,
        position=request.position,
        owner=lcr.object_owner,
        name=lcr.object_name,
        command=lcr.command_type,
        edited_by=request.edited_by,
        changes=tuple(f"{value.kind}.{value.column}: {value.before} -> {value.after}" for value in request.values),
    )
    return EditedPart(edit=edit, part=part, batch=codec.encode(made), key_hashes=hashes)


def _set(lcr: RowLcr, value: ValueEdit) -> None:
    column = next((column for column in lcr.table.columns if column.name == value.column), None)
    if column is None:
        known = ", ".join(column.name for column in lcr.table.columns)
        raise ConfigError(
            f"{lcr.object_owner}.{lcr.object_name} has no column {value.column} at its source", hint=f"known: {known}"
        )
    given = LcrValue(column=column, raw=value.raw)
    if value.column in lcr.get_values(value.kind, use_old=False):
        lcr.set_value(value.kind, value.column, given)
    else:
        lcr.add_column(value.kind, value.column, given)
