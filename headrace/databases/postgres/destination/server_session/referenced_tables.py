"""Tables that foreign keys of a changed or new table refer to: whether a key can be made here, and who may make it.

The server checks all rows when it makes a foreign key. At the key's place in the source's log the rows of both tables are
the source's, so the check succeeds, but only if both are level: the referenced table is the one that the key refers to at
the source, and neither is still being copied, or behind the others. Else the key is left out.

The referenced table is known by the source's number of it, which the record has. A name alone could be that of another
table, where a RENAME was not replicated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.base.errors import DataError
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.ddl.key_text import key_text
from headrace.databases.postgres.destination.records.created_tables import RecordedTable, recorded_states
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import DdlPlace
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.lcr.ddl_record import DdlRecord
    from headrace.lcr.scn import ObjectNumber
    from headrace.lcr.structure import ConstraintPart

__all__ = ["ReferencedTables"]

_LEVEL = frozenset({"DONE", "KEPT"})
_NOT_RECORDED = "the source's record does not say which table it refers to: headrace up FILE"
_OUT_OF_ORDER = "it comes from the error queue: later changes of both tables may be here already"
_KIND = """SELECT c.relkind::text = 'r' AND NOT c.relispartition FROM pg_catalog.pg_class c
WHERE c.oid = pg_catalog.to_regclass(%s)::pg_catalog.oid"""
# The server takes the right to the columns instead of that to the table.
_LACKING = """SELECT pg_catalog.has_schema_privilege(%(role)s, c.relnamespace, 'USAGE'),
  pg_catalog.has_table_privilege(%(role)s, c.oid, 'REFERENCES') OR NOT EXISTS (
    SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (%(columns)s)
      AND NOT pg_catalog.has_column_privilege(%(role)s, c.oid, a.attnum, 'REFERENCES'))
FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass(%(relation)s)::pg_catalog.oid"""


class ReferencedTables:
    """What one session knows of the tables that foreign keys refer to.

    Args:
        identity: identity of the session.
        transaction: transaction of the session.
    """

    def __init__(self, identity: SessionIdentity, transaction: SessionTransaction) -> None:
        self._identity, self._transaction = identity, transaction

    def reasons(self, record: DdlRecord, place: DdlPlace, *, is_in_order: bool) -> dict[str, str]:
        """Return for each foreign key of a table after a change why it is not made here; empty: it may be.

        Args:
            record: what the source recorded.
            place: of the change in the source's log.
            is_in_order: no change behind it was made already.
        """
        keys = [part for part in (record.after.constraints if record.after else ()) if part.is_foreign_key]
        if not keys:
            return {}
        is_new = record.before is None
        if not is_in_order and not is_new:
            return {each.name: _OUT_OF_ORDER for each in keys}
        if record.before is not None and (reason := self._refusal(TableName.of(record.before), record.relation, place)):
            return {each.name: reason for each in keys}
        return {each.name: self._reason(each, record, place) for each in keys}

    def _reason(self, key: ConstraintPart, record: DdlRecord, place: DdlPlace) -> str:
        number, text = record.references.get(key.name), key_text(key)
        if number is None or text is None:
            return _NOT_RECORDED
        if number == record.relation:
            return ""
        with self._transaction.own_statements(f"looking for {text.table}"):
            row = self._transaction.connection.execute(_KIND, (qualified(*text.table),)).fetchone()
        if row is None:
            return f"{text.table} is not at the destination"
        if not row[0]:
            return f"{text.table} is a partitioned table or a partition at the destination, or no table"
        return self._refusal(text.table, number, place)

    def _refusal(self, table: TableName, number: ObjectNumber, place: DdlPlace) -> str:
        """Return why a table's rows may not be the source's at a place in its log; empty: they are.

        Args:
            table: its name here.
            number: the source's number of it.
            place: the place.
        """
        with self._transaction.own_statements("asking whether a table is copied"):
            found = recorded_states(self._transaction.connection, self._identity, place.source, table)
        own = [each for each in found if each.record.is_numbered(number)]
        if not own:
            return f"{table} here is not known as the source's table of that name"
        return next((_not_level(table, each) for each in own if each.state not in _LEVEL), "")

    def require_rights(self, role: str, keys: Iterable[ConstraintPart]) -> None:
        """Check that a role may make foreign keys.

        Args:
            role: the one that owns the table, as which they are made.
            keys: the keys.

        Raises:
            DataError: it may not; the hint has the GRANT.
        """
        for key in keys:
            text = key_text(key)
            assert text is not None
            values = {"role": role, "relation": qualified(*text.table), "columns": list(text.referred_columns)}
            with self._transaction.own_statements("asking for rights"):
                row = self._transaction.connection.execute(_LACKING, values).fetchone()
            grants = [] if row is None else _grants(text.table, role, has_usage=bool(row[0]), may_refer=bool(row[1]))
            if grants:
                message = (
                    f"{key.key} refers to {text.table}, for which {role}, the owner of this table here, lacks rights"
                )
                raise DataError(message, hint="; ".join(grants), table=str(text.table))


def _not_level(table: TableName, found: RecordedTable) -> str:
    return f"{table} is not level with the other tables here: its copy is {found.state}"


def _grants(table: TableName, role: str, *, has_usage: bool, may_refer: bool) -> list[str]:
    found = []
    if not has_usage:
        found.append(f"GRANT USAGE ON SCHEMA {quote(table.owner)} TO {quote(role)}")
    if not may_refer:
        found.append(f"GRANT REFERENCES ON TABLE {qualified(*table)} TO {quote(role)}")
    return found
