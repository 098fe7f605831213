"""Tables that get another name or schema: what to run, and the proof that nothing else changed.

Indexes, constraints and owned sequences follow their table by themselves, at both databases. Their definitions name it: a
part that was equal to the source's must be equal again.

Nothing here talks to a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.base.errors import DataError
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.ddl.refusals import ATTRIBUTES, rename_refusal
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.structure import ColumnPart, Part, Structure, elements
from headrace.lcr.table_name import TableName

__all__ = ["check_renamed", "rename_statements", "renames", "unlike_rename"]

_DEFAULT = "default"  # it names a sequence, which follows the table


def renames(record: DdlRecord) -> bool:
    """Return whether a change gives a table another name or schema."""
    before, after = record.before, record.after
    return before is not None and after is not None and TableName.of(before) != TableName.of(after)


def unlike_rename(record: DdlRecord, here: Structure | None, version: int) -> str:
    """Return why a table is not renamed at a destination; empty: it may be.

    Args:
        record: a change that `renames`.
        here: the destination's table under its name of now; None: there is none.
        version: major version of the destination.
    """
    if reason := rename_refusal(record, here, version):
        return reason
    delta = record.delta
    others = [*(part.key for part in (*delta.dropped, *delta.added, *delta.recreated)), *delta.gone]
    others += [pair.after.key for pair in delta.altered if pair.is_renamed or not _is_alike(pair.before, pair.after)]
    return f"it also changes {', '.join(dict.fromkeys(map(str, others)))}" if others else ""


def rename_statements(was: TableName, now: TableName) -> tuple[str, ...]:
    """Return the statements that rename a table.

    Args:
        was: its name.
        now: its name to be.
    """
    statements = []
    if was.owner != now.owner:
        statements.append(f"ALTER TABLE {qualified(*was)} SET SCHEMA {quote(now.owner)}")
    if was.name != now.name:
        statements.append(f"ALTER TABLE {qualified(now.owner, was.name)} RENAME TO {quote(now.name)}")
    return tuple(statements)


def check_renamed(record: DdlRecord, before: Structure, after: Structure | None) -> None:
    """Prove that a table has its new name, and that nothing else changed.

    Args:
        record: the change.
        before: the destination's table before it.
        after: the destination's table under its new name.

    Raises:
        DataError: something else changed; the message says what. The transaction must not commit.
    """
    found = ["the table is not there"] if after is None else list(_differences(record, before, after))
    if found:
        table = TableName.of(before)
        raise DataError(
            f"{record.tag} of table {table}: the result is another one: {'; '.join(found)}",
            hint="rename the destination's table by hand",
            table=str(table),
        )


def _differences(record: DdlRecord, before: Structure, after: Structure) -> Iterator[str]:
    if _table(before) != _table(after):
        yield "the table itself changed"
    was, goal = elements(record.before), elements(record.after)
    old, now = elements(before), elements(after)
    for key in dict.fromkeys([*old, *now]):
        if key not in now:
            yield f"{key} went with it"
        elif key not in old:
            yield f"{key} is new"
        elif not _is_alike(old[key], now[key]):
            yield f"{key} is {now[key].definition}, not {old[key].definition}"
        elif (
            (source := was.get(key)) is not None
            and (wanted := goal.get(key)) is not None
            and old[key].shape == source.shape
            and now[key].shape != wanted.shape
        ):
            yield f"{key} is {now[key].definition}, not {wanted.definition}"


def _table(structure: Structure) -> Structure:
    return replace(structure, owner="", name="", columns=(), constraints=(), indexes=())


def _is_alike(one: Part, other: Part) -> bool:
    """Return whether two parts differ at most in definitions that follow a table's name."""
    if isinstance(one, ColumnPart) and isinstance(other, ColumnPart):
        if one.generated != other.generated or (one.default is None) != (other.default is None):
            return False
        return all(attribute(one) == attribute(other) for name, attribute in ATTRIBUTES.items() if name != _DEFAULT)
    return type(one) is type(other)
