"""Marks of tables whose rows a DDL change wrote anew at both sides, in an apply server's transaction.

A mark has the source's file of the rows (`headrace.databases.ports.row_marks`). If it is the file that the statement
replaced, nothing else wrote the rows anew since the mark was recorded, and the file that the statement made has the rows
of this table here. Otherwise the mark stays: something that no log has may have come between.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError
from headrace.databases.ports import RowMark
from headrace.databases.postgres.compared.marked_columns import marked_columns_of

if TYPE_CHECKING:
    import psycopg

    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.lcr.ddl_record import Rewriting
    from headrace.lcr.scn import ObjectNumber
    from headrace.lcr.table_name import TableName

__all__ = ["take_over_file"]

# The number of the table is the third part of an identity (`RecordOf.is_numbered`).
_MARKS = """SELECT identity, mark FROM headrace.row_mark WHERE topology = %s AND apply = %s AND source = %s
  AND pg_catalog.split_part(identity, '.', 3) = %s ORDER BY identity FOR UPDATE"""
_RECORD = """UPDATE headrace.row_mark SET mark = %s, marked_at = pg_catalog.clock_timestamp()
WHERE topology = %s AND apply = %s AND source = %s AND identity = %s"""


def take_over_file(
    connection: psycopg.Connection[Any],
    identity: SessionIdentity,
    source: str,
    table: TableName,
    number: ObjectNumber,
    converted: Collection[str],
    rewriting: Rewriting,
) -> None:
    """Record the source's new file of a table in its mark, and the new types of columns.

    Args:
        connection: connection of the session, in its transaction, with its own rights.
        identity: of the session.
        source: site of the source.
        table: name of the table here, which has its new form.
        number: the source's number of the table.
        converted: names of the columns that got another type.
        rewriting: how the source wrote its rows anew.
    """
    of = (identity.topology, identity.apply, source)
    for named, text in connection.execute(_MARKS, (*of, str(number))).fetchall():
        try:
            mark = RowMark.from_text(text)
        except ConfigError:
            continue
        part = mark.parts.get(str(number))
        if part is None or not rewriting.from_file or part.file != rewriting.from_file:
            continue
        here = marked_columns_of(connection, [table]).get(table, {})
        columns = {
            name: replace(column, type_name=here[name].type_name) if name in converted and name in here else column
            for name, column in mark.columns.items()
        }
        parts = {**mark.parts, str(number): replace(part, file=rewriting.to_file)}
        connection.execute(_RECORD, (replace(mark, columns=columns, parts=parts).to_text(), *of, named))
