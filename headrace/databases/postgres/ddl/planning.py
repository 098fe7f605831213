"""The changes that a record asks for at a destination: what to run, what is there already, what is not replicated.

    before = read_structure(connection, table)
    plan = plan_changes(record, before, version, keys, rules=rules)   DataError: a part is neither as before nor as after
    if plan.refusal: not applied; elif not plan.has_work: passed over; else:
        run(plan.statements)
        run(plan.last_statements(read_structure(connection, table)))
        check_result(plan, read_structure(connection, table), read_kept_values(connection, table))

Nothing here talks to a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.base.errors import DataError
from headrace.databases.postgres.ddl import statements
from headrace.databases.postgres.ddl.comparison import Work, compare
from headrace.databases.postgres.ddl.proof import differences
from headrace.databases.postgres.ddl.refusals import concurrent_index, refusal
from headrace.lcr.ddl_record import CastRules, DdlRecord
from headrace.lcr.structure import ConstraintPart, IndexPart, PartKind, PartName, Structure, elements
from headrace.lcr.table_name import TableName

__all__ = ["Planned", "check_result", "other_values", "plan_changes"]

_NOTHING = Structure(owner="", name="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one DDL change means for the destination's table.

    Args:
        refusal: why it is not replicated, for the operator; empty: it is.
        is_left_out: the refusal has nothing but parts that are left out.
        passed_over: parts that have their new form already, as messages name them.
        left_out: why parts of it are not replicated while the others are.
        statements: the first statements to run, in this order; `last_statements` has those after them.
        beside: an index that is to be made outside the transaction, as the client made it; then there is nothing else to
            do. None: no such index.
    """

    refusal: str = ""
    is_left_out: bool = False
    passed_over: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    beside: IndexPart | None = None
    _record: DdlRecord
    _passed_over: tuple[PartName, ...] = ()
    _before: Structure = _NOTHING
    _work: Work = field(default_factory=Work)

    @property
    def has_work(self) -> bool:
        """Whether there are statements to run, first or last ones."""
        return bool(self._work)

    @property
    def changes_types(self) -> bool:
        """Whether a statement changes a column's type: it must not write the rows anew, unless `may_rewrite`."""
        return bool(self.converted)

    @property
    def may_rewrite(self) -> bool:
        """Whether the statements may write the rows anew: they give the same values as at the source."""
        return bool(self._record.rewritten)

    @property
    def converted(self) -> frozenset[str]:
        """Names of the columns to which the statements give another type."""
        return frozenset(column.name for column, attributes in self._work.altered if "type" in attributes)

    @property
    def rewrites_alike(self) -> bool:
        """Whether the source wrote the rows anew, and the statements give all values that only that gave."""
        record, made = self._record, self.converted | {column.name for column in self._work.added}
        before = {} if record.before is None else {part.number: part.type_name for part in record.before.columns}
        after = () if record.after is None else record.after.columns
        return bool(record.rewritten) and made >= {
            part.name for part in after if before.get(part.number) != part.type_name
        }

    @property
    def new_keys(self) -> tuple[ConstraintPart, ...]:
        """Foreign keys that are added; not those that are here in another form."""
        here = {*elements(self._before), *(PartName(each.kind, each.new) for each in self._work.renames)}
        return tuple(
            part
            for part in self._work.built
            if isinstance(part, ConstraintPart) and part.is_foreign_key and part.key not in here
        )

    @property
    def brings_types(self) -> bool:
        """Whether columns are added or get other types."""
        return bool(self._work.added) or self.changes_types

    def last_statements(self, here: Structure | None) -> tuple[str, ...]:
        """Return the statements that follow the first ones.

        Args:
            here: the destination's table, read again after the first statements ran.

        Raises:
            DataError: the table did not become what it should be by then.
        """
        return statements.last_statements(_name(self._before), self._work, here or _NOTHING, self._record.older)


def plan_changes(
    record: DdlRecord,
    here: Structure | None,
    version: int,
    keys: Mapping[str, str] | None = None,
    *,
    rules: CastRules | None = None,
) -> Planned:
    """Decide what a DDL change means for the destination's table.

    Args:
        record: the change at the source.
        here: the destination's table as it is now; None: there is none.
        version: major version of the destination.
        keys: for each foreign key of the table after the change, why it is not made here; empty: it may be. One that is
            not in it is left out.
        rules: by which it converts values. None: not asked for; a change that wrote the source's rows anew is refused.

    Raises:
        DataError: a part is neither as before the change nor as after it; the message has all three definitions.
    """
    reason = refusal(record, here, version, rules)
    if reason or here is None:
        return Planned(refusal=reason, _record=record)
    found = compare(record, here, keys or {})
    there = tuple(dict.fromkeys(found.passed_over))
    passed_over = tuple(str(key) for key in there)
    reasons = [*found.refusals]
    is_left_out = bool(found.left_out and not (reasons or found.work or found.conflicts))
    if found.left_out and not (found.work or found.conflicts):
        reasons += found.left_out
    if reasons:
        return Planned(
            refusal="; ".join(dict.fromkeys(reasons)),
            is_left_out=is_left_out,
            passed_over=passed_over,
            _record=record,
        )
    if found.conflicts:
        raise _refused(here, record, "; ".join(found.conflicts))
    beside = _beside(record, found.work, here)
    work = found.work if beside is None else Work()
    return Planned(
        passed_over=passed_over,
        left_out=found.left_out,
        statements=statements.first_statements(_name(here), work, here),
        beside=beside,
        _record=record,
        _passed_over=there,
        _before=here,
        _work=work,
    )


def _beside(record: DdlRecord, work: Work, here: Structure) -> IndexPart | None:
    """Return the index that a client made with CONCURRENTLY, if it is all that is to be done."""
    part = concurrent_index(record)
    if part is None or work.built != (part,) or replace(work, built=()):
        return None
    return part if part.key not in elements(here) else None


def other_values(planned: Planned, kept: Mapping[str, str | None]) -> tuple[str, ...]:
    """Describe columns that were there already, and have another value than the source's in rows that are older.

    Args:
        planned: the plan; none of its statements ran.
        kept: for each column that older rows lack, their value now, printed; a column that has NULL there, or a value
            in each row, has none.
    """
    record, added = planned._record, {part.key for part in planned._record.delta.added}  # noqa: SLF001 - as below
    names = [key.name for key in planned._passed_over if key in added and key.kind is PartKind.COLUMN]  # noqa: SLF001
    return tuple(
        f"{PartName(PartKind.COLUMN, name)}: rows that were there got {_shown(record.older.get(name))} at the source,"
        f" and {_shown(kept.get(name))} here"
        for name in names
        if kept.get(name) != record.older.get(name)
    )


def check_result(planned: Planned, after: Structure | None, kept: Mapping[str, str | None]) -> None:
    """Prove that the statements did what the source did, and nothing else.

    Args:
        planned: the plan; all its statements ran, in one transaction.
        after: the destination's table as it is now.
        kept: for each column that older rows lack, their value now, printed.

    Raises:
        DataError: the table differs from what it should be; the message says where. The transaction must not commit.
    """
    work, record, before = planned._work, planned._record, planned._before  # noqa: SLF001 - a function of the plan
    found = list(differences(work, record.after or _NOTHING, before, after or _NOTHING))
    found += [
        f"{column.key} has another value in rows that were there"
        for column in work.added
        if kept.get(column.name) != record.older.get(column.name)
    ]
    if found:
        raise _refused(before, record, f"the result is another one: {'; '.join(found)}")


def _name(structure: Structure) -> TableName:
    return TableName.of(structure)


def _shown(value: str | None) -> str:
    return "no value that is kept" if value is None else repr(value)


def _refused(here: Structure, record: DdlRecord, what: str) -> DataError:
    table = _name(here)
    return DataError(
        f"{record.tag} of table {table}: {what}",
        hint="give the destination's table the form that it had at the source before the change, or after it",
        table=str(table),
    )
