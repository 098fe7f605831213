"""Renamed tables: their records take the new names when the destination has them (`records.standing`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from spark_apply.copy.records.standing import Standing, is_exchanged, names_passed_on, occupied, rename_statement

if TYPE_CHECKING:
    from headrace.databases.ports import Instantiation
    from spark_apply.copy.records.tables import TableRecords

__all__ = ["RenamedTables"]


class RenamedTables:
    """Moves records of renamed tables to the new names.

    Args:
        records: of the apply process's tables.
    """

    def __init__(self, records: TableRecords) -> None:
        self._records = records

    def follow(self, found: Sequence[Standing]) -> tuple[bool, bool]:
        """Record the new names of tables that have them at the destination too.

        Returns whether any were recorded, and whether any were refused.

        Until then the old name stays recorded: it identifies the destination table that holds the rows. If the
        destination has both names, the new name belongs to another table: nothing is applied until the operator has
        renamed one.
        """
        wanted = {each.table.destination: each for each in found}
        self._records.twice.clear()
        exchanged = [each for each in found if is_exchanged(each, wanted)]
        passed_on = names_passed_on(found, wanted)
        renamed = [self._doubt(each) for each in exchanged]
        for each in found:
            if each.record is None or not each.is_renamed or each in exchanged:
                continue
            if not self._is_there(each.table.destination):
                if each.record.is_gone and each.part is None:
                    # The destination does not have its rows under any name: a table made under the new name is another
                    # one, and gets all rows.
                    renamed.append(replace(each.renamed_record(), state="FAILED", scn=Scn(0)))
                continue
            if each.record.state == "LEFT" and (
                any(transformation.renames for transformation in each.table.transformations)
                or self._is_at_old_name(each, wanted)
                or (each.table.identity not in passed_on and each.record.name_now != each.table.destination)
            ):
                # It came back with or without a transformation, or was renamed meanwhile: it is copied again in any
                # case. Unless the destination's table was renamed too, no row of the table with this name is ours to
                # remove: the table that we copied may be dropped.
                renamed.append(replace(each.renamed_record(), state="FAILED", scn=Scn(0)))
            elif self._is_at_old_name(each, wanted):
                self._records.twice[each.table.destination] = _twice(each)
                self._records.show_recorded(each.table.destination, each.record)
            elif not each.record.may_be(*each.table.destination):
                # The table with this name was never copied here: a user who may rename the source's table must not
                # reach it.
                self._records.twice[each.table.destination] = occupied(each.record, each.table.destination)
                self._records.show_recorded(each.table.destination, each.record)
            elif each.table.identity in passed_on:
                # Changes of both tables may still be in flight under one name, which cannot distinguish them.
                renamed.append(self._doubt(each))
            else:
                renamed.append(each.renamed_record())
        if renamed:
            self._doubt_takers(found, {record.identity for record in renamed}, passed_on)
        for record in renamed:
            self._records.put(record)
        return bool(renamed), bool(self._records.twice)

    def _doubt_takers(self, found: Sequence[Standing], renamed: Collection[str], passed_on: Collection[str]) -> None:
        """Also copy tables again that take a given-up name, before the table that gave it up is recorded elsewhere."""
        for each in found:
            if each.record is not None and each.table.identity in passed_on and each.table.identity not in renamed:
                self._doubt(each)

    def _doubt(self, each: Standing) -> Instantiation:
        """Record first that a table is out of date, so that a restart finds it; return the record with its new name."""
        assert each.record is not None
        self._records.put(replace(each.record, **_doubted(each.record)))
        return replace(each.renamed_record(), **_doubted(each.record))

    def _is_there(self, table: TableName) -> bool:
        return self._records.destination.describe(*table) is not None

    def _is_at_old_name(self, each: Standing, wanted: Mapping[TableName, Standing]) -> bool:
        """Return whether the destination still has the table under its old name, and no other table took that name."""
        last: Standing | None = each
        for _ in range(len(wanted) + 1):
            if last is None:
                return True  # no table takes the name, so the table that has it is the old one
            if last.record is None or not last.is_renamed or not self._is_there(TableName.of(last.record)):
                return False
            # This one has the name at the destination too, unless it is still under its own old name.
            last = wanted.get(TableName.of(last.record))
        return False


def _doubted(record: Instantiation) -> dict[str, Any]:
    """Return the changed record fields of a table that swapped names; the destination may not have swapped them."""
    if record.is_kept:
        # Kept rows belong to the operator: never remove them. Whether they are this table's is no longer known.
        return {"state": "FAILED", "scn": Scn(0)}
    return {"state": "LEFT"} if record.state in {"DONE", "JOINING", "COPIED"} else {}


def _twice(each: Standing) -> str:
    """Return why a renamed table cannot continue although the destination has a table of the new name."""
    assert each.record is not None
    old, new = TableName.of(each.record), each.table.destination
    rename = rename_statement(old, new)  # the schema exists: the destination has a table of the new name
    if each.occupant is not None:
        return (
            f"its rows are in {old} at the destination, and {new} has those of the table that the source calls"
            f" {each.occupant.source} now: {rename_statement(new, each.occupant.destination)}; then {rename}; then run"
            " `headrace up`"
        )
    return (
        f"the destination has it twice: its rows are in {old}, and the source renamed it: give the table {new}"
        f" another name (or drop it, if nobody uses it), then {rename}; then run `headrace up`"
    )
