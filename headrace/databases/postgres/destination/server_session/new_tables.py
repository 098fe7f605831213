"""New and dropped tables in an apply server's transaction.

Main path
    create    the owner here -> nothing has the name: statements, proof -> record_created
                             -> an equal, empty table of nobody else: record_created
    drop      the recorded table of this name -> foreign keys of other tables of its source, sequences that these use
                             -> DROP TABLE -> its record

A table that is there already is never filled twice, and never overwritten: with rows, in another form, or of another
apply process it refuses the change. So does a table whose rows would run what other roles can replace: nobody decides
here whether these are trusted, as an operator does who reads `check` before a table is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.base.errors import DatabaseError, DataError
from headrace.databases.ports import DdlOutcome, DdlOutcomeKind
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.ddl.creation import PlannedCreation, check_creation, other_form, plan_creation
from headrace.databases.postgres.ddl.refusals import drop_refusal
from headrace.databases.postgres.ddl.structure_query import read_structure
from headrace.databases.postgres.destination.records.created_tables import (
    RecordOf,
    SharedSequence,
    creation_place,
    forget,
    numbered_records,
    record_created,
    records_of,
    referring_keys,
    shared_sequences,
)
from headrace.databases.postgres.destination.records.table_records import other_copies
from headrace.databases.postgres.destination.trust import functions_of_others, may_act
from headrace.databases.postgres.pipeline import Statement
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.databases.ports import DdlPlace
    from headrace.databases.postgres.destination.fencing import SessionIdentity
    from headrace.databases.postgres.destination.server_session.described_tables import DescribedTables
    from headrace.databases.postgres.destination.server_session.referenced_tables import ReferencedTables
    from headrace.databases.postgres.destination.server_session.transaction import SessionTransaction
    from headrace.lcr.ddl import Creation
    from headrace.lcr.ddl_record import DdlRecord
    from headrace.lcr.structure import Structure

__all__ = ["Dropping", "NewTables", "run_ddl"]

_SHOWN_MAX = 500  # characters of a statement in a message
_SET_FROM = 160000  # from this version on, a member of a role may be forbidden to take it
_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "S": "a sequence",
    "f": "a foreign table",
    "c": "a type",
    "i": "an index",
    "I": "an index",
    "p": "a partitioned table",
}
_KIND = """SELECT c.relkind::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s"""
# A role whose rights the session does not inherit could own a table that the session cannot write.
_OWNER = """SELECT current_user::text, (SELECT pg_catalog.pg_has_role(r.oid, %s) AND pg_catalog.pg_has_role(r.oid, 'USAGE')
  FROM pg_catalog.pg_roles r WHERE r.rolname = %s)"""
_LACKING = """SELECT ARRAY(SELECT p FROM unnest(ARRAY['USAGE', 'CREATE']) p WHERE NOT pg_catalog.has_schema_privilege(%s, n.oid, p))
FROM pg_catalog.pg_namespace n WHERE n.nspname = %s"""
_COPIED_NEXT = "the next headrace up copies it"
_NOT_CAPTURED = "its rows are not in the log"

_THERE_ALREADY = "42P07"
_DEPENDED_ON = "2BP01"  # its detail has names of objects, no rows

_T = TypeVar("_T")


class AsOwner(Protocol):
    """Runs something with the rights of a table's owner (`TableChanges`)."""

    def __call__(self, here: Structure, run: Callable[[], _T], /) -> _T:
        """Run it with the rights of the role of `here`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """A table that is to be dropped.

    Args:
        here: the table.
        record: the apply process's record of it.
        keys: foreign keys of other tables that go with it.
        sequences: its sequences that other tables need.
    """

    here: Structure
    record: RecordOf
    keys: tuple[tuple[TableName, str], ...]
    sequences: tuple[SharedSequence, ...]


class NewTables:
    """Creates and drops one session's tables, over the session's objects.

    Args:
        identity: identity of the session.
        transaction: transaction of the session.
        tables: tables of the session; their descriptions end with a change.
        as_owner: runs something with the rights of a table's owner.
        referenced: knows the tables that foreign keys refer to.
    """

    def __init__(
        self,
        identity: SessionIdentity,
        transaction: SessionTransaction,
        tables: DescribedTables,
        as_owner: AsOwner,
        referenced: ReferencedTables,
    ) -> None:
        self._identity, self._transaction, self._tables, self._as_owner = identity, transaction, tables, as_owner
        self._referenced = referenced
        # Of tables that their own transaction has renamed: the name under which each was made, by order SCN and number.
        self._made_as: dict[tuple[int, int], TableName] = {}

    # ------------------------------------------------------------------ creating

    def create(self, creation: Creation, record: DdlRecord, place: DdlPlace, *, is_in_order: bool) -> DdlOutcome:
        """Create a table, or take over the one that is here, and record it.

        Args:
            creation: how its rows get into the log.
            record: what the source recorded.
            place: of the change in the source's log.
            is_in_order: no change behind it was left out.

        Raises:
            DataError: the table cannot be created, or another one has its name.
        """
        made = creation.identities.get(self._identity.topology)
        if made is None or record.after is None:
            return DdlOutcome.not_applied(f"{creation.why_not or _NOT_CAPTURED}; {_COPIED_NEXT}")
        table = TableName.of(record.after)
        role, remark = self._role(record.after.role)
        keys = self._referenced.reasons(record, place, is_in_order=is_in_order)
        plan = plan_creation(record, role, self._transaction.connection.info.server_version // 10_000, keys)
        if plan.refusal:
            return DdlOutcome.not_applied(f"{plan.refusal}; {_COPIED_NEXT}")
        found = self._kind(table)
        if found is None:
            statements = self._make(plan, table)
            self.require_trusted(table, plan.structure.role)
            outcome = DdlOutcome(kind=DdlOutcomeKind.APPLIED, statements=statements, reason=_joined(remark, plan))
        elif self._is_recorded(plan, table, found, made, place):
            # Its copy has begun: whatever that needs follows from the record.
            return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER, reason="it is recorded already")
        else:
            self._require_empty(table)
            self.require_trusted(table, plan.structure.role)
            outcome = DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER, reason=_joined("", plan))
        with self._transaction.own_statements("recording a new table"):
            connection = self._transaction.connection
            record_created(connection, self._identity, table, made, place, is_in_order=is_in_order)
        if is_in_order:
            return outcome
        said = "; ".join(filter(None, [outcome.reason, "made from the error queue: the table is copied"]))
        return DdlOutcome(kind=outcome.kind, statements=outcome.statements, reason=said)

    def _role(self, wanted: str) -> tuple[str, str]:
        """Return the role that is to own a table, and why it is not the source's; empty: it is."""
        connection = self._transaction.connection
        right = "SET" if connection.info.server_version >= _SET_FROM else "MEMBER"
        with self._transaction.own_statements("asking who is to own a table"):
            row = connection.execute(_OWNER, (right, wanted)).fetchone()
        assert row is not None
        own, may = str(row[0]), row[1]
        if may or wanted == own:
            return wanted, ""
        why = f"there is no role {wanted}" if may is None else f"{own} may not act as {wanted}, or lacks its rights"
        return own, f"its owner here is {own}: {why}"

    def _kind(self, table: TableName) -> str | None:
        with self._transaction.own_statements(f"looking for {table}"):
            row = self._transaction.connection.execute(_KIND, table).fetchone()
        return None if row is None else str(row[0])

    def _make(self, plan: PlannedCreation, table: TableName) -> tuple[str, ...]:
        """Create the table and prove it; return the statements."""
        wanted = plan.structure
        self.require_schema(table, wanted.role)
        self._referenced.require_rights(wanted.role, plan.new_keys)
        # Also when it fails: descriptions from behind it are no use when it is undone.
        self._tables.changed()
        try:
            return self._as_owner(wanted, lambda: self._run_all(plan, table))
        except DatabaseError as error:
            if error.context.get("sqlstate") == _THERE_ALREADY:  # the name of a sequence or an index
                raise DataError(
                    error.message, hint="drop or rename what has this name here", **error.context
                ) from error
            raise

    def require_schema(self, table: TableName, role: str) -> None:
        """Check that a table can get its name.

        Args:
            table: the name.
            role: the one that owns it.

        Raises:
            DataError: there is no such schema, or the role may not create tables there.
        """
        schema = quote(table.owner)
        with self._transaction.own_statements("asking for rights"):
            row = self._transaction.connection.execute(_LACKING, (role, table.owner)).fetchone()
        if row is None:
            raise DataError(f"there is no schema {schema} here", hint=f"CREATE SCHEMA {schema}", table=str(table))
        if row[0]:
            grant = f"GRANT {', '.join(row[0])} ON SCHEMA {schema} TO {quote(role)}"
            message = f"{role}, who is to own it here, lacks {' and '.join(row[0])} on its schema"
            raise DataError(message, hint=grant, table=str(table))

    def _run_all(self, plan: PlannedCreation, table: TableName) -> tuple[str, ...]:
        run_ddl(self._transaction, plan.statements)
        last = plan.last_statements(self.structure(table))
        run_ddl(self._transaction, last)
        check_creation(plan, self.structure(table))
        return (*plan.statements, *last)

    def _is_recorded(self, plan: PlannedCreation, table: TableName, kind: str, made: str, place: DdlPlace) -> bool:
        """Return whether the table that has the name is recorded as the new one; else it may take its place.

        Raises:
            DataError: it may not.
        """
        if kind != "r":
            raise _taken(table, f"the destination has {_KINDS.get(kind, 'something else')} of that name")
        records = self._records(table)
        if any(each.is_of(self._identity, place.source) and each.identity == made for each in records):
            return True
        here = self.structure(table)
        if records:
            said = ", ".join(dict.fromkeys(map(str, records)))
            message = f"the destination's table of that name is recorded for another one: {said}"
            hint = (
                "if the source has renamed that one, rename it here, too, and do not drop it: its rows come from the"
                " log. Drop it only if the source has it no more"
            )
            raise DataError(message, hint=hint, table=str(table))
        others = self._others(table)
        if others:
            raise _taken(table, f"the destination's table of that name has rows of {others}")
        lacking = "the server does not show it" if here is None else other_form(plan, here)
        if lacking:
            raise _taken(table, f"the destination has another table of that name: {lacking}")
        with self._transaction.own_statements("asking whom a table belongs to"):
            is_trusted = here is None or may_act(self._transaction.connection, here.role)
        if here is not None and here.role != plan.structure.role and not is_trusted:
            role = plan.structure.role
            message = f"the destination's table of that name belongs to {here.role}, and not to {role}"
            raise DataError(
                message, hint=f"drop it, or ALTER TABLE {qualified(*table)} OWNER TO {quote(role)}", table=str(table)
            )
        return False

    def _require_empty(self, table: TableName) -> None:
        """Lock a table against writers until the transaction ends, and check that it has no rows.

        Raises:
            DataError: it has.
            DatabaseUnavailable: others use it.
        """
        lock = Statement(sql=f"LOCK TABLE ONLY {qualified(*table)} IN SHARE ROW EXCLUSIVE MODE NOWAIT")
        self._transaction.run([lock], f"locking {table}")
        with self._transaction.own_statements(f"looking whether {table} is empty"):
            query = f"SELECT EXISTS (SELECT FROM ONLY {qualified(*table)})"
            row = self._transaction.connection.execute(query.encode()).fetchone()
        if row is not None and row[0]:
            message = "the destination has a table of that name with rows"
            raise DataError(message, hint=f"TRUNCATE {qualified(*table)}, or drop it", table=str(table))

    # ------------------------------------------------------------------ dropping

    def dropping(self, table: TableName, record: DdlRecord, place: DdlPlace) -> Dropping | DdlOutcome:
        """Return what a dropped table means here: the table to drop, or why there is none.

        Args:
            table: its name.
            record: what the source recorded.
            place: of the change in the source's log.
        """
        identity, connection = self._identity, self._transaction.connection
        here = self.structure(table)
        if reason := drop_refusal(record.before, here):
            return DdlOutcome.not_applied(reason)
        if self._kind(table) is None:
            return self._drop_missing(record, place)
        records = self._records(table)
        own = [each for each in records if each.is_of(identity, place.source) and each.is_numbered(record.relation)]
        if not own or here is None:
            return DdlOutcome.not_applied("the destination's table of that name is not the one that was copied")
        others = ", ".join(dict.fromkeys(str(each) for each in records if each not in own)) or self._others(table)
        if others:
            return DdlOutcome.not_applied(f"it is dropped at one of its sources only: it has rows of {others}, too")
        with self._transaction.own_statements("looking for what depends on a table"):
            keys = referring_keys(connection, identity, place.source, table)
            sequences = shared_sequences(connection, identity, place.source, table)
        return Dropping(here=here, record=own[0], keys=keys, sequences=sequences)

    def _drop_missing(self, record: DdlRecord, place: DdlPlace) -> DdlOutcome:
        """Delete the record of a table that is gone, too; if only its name is, the table stays."""
        connection = self._transaction.connection
        with self._transaction.own_statements("looking for a table's record"):
            found = numbered_records(connection, self._identity, place.source, record.relation)
            for each, name in found:
                if name is not None:
                    return DdlOutcome.not_applied(
                        f"the table is called {name} here: drop it by hand if nobody needs it"
                    )
                forget(connection, each)
        return DdlOutcome(kind=DdlOutcomeKind.PASSED_OVER)

    def drop(self, found: Dropping) -> DdlOutcome:
        """Drop a table with the foreign keys that refer to it, and delete its record.

        At the source no foreign key can be left. Views, and foreign keys of tables that only the destination has, refuse.
        A sequence that another table uses passes to that table: at the source, that one goes, too, or owns it already.

        Args:
            found: what `dropping` returned; no check of its rows is pending.

        Raises:
            DataError: something here depends on the table.
        """
        self._tables.changed()
        statements: list[str] = []
        for table, key in found.keys:
            referring = self.structure(table)
            if referring is not None:
                statement = f"ALTER TABLE ONLY {qualified(*table)} DROP CONSTRAINT {quote(key)}"
                statements += self._run_as(referring, statement)
        for owner, name, table_name, column in found.sequences:
            needed_by = f"{qualified(owner, table_name)}.{quote(column)}"
            statements += self._run_as(found.here, f"ALTER SEQUENCE {qualified(owner, name)} OWNED BY {needed_by}")
        try:
            statements += self._run_as(found.here, f"DROP TABLE {qualified(found.here.owner, found.here.name)}")
        except DatabaseError as error:
            if error.context.get("sqlstate") == _DEPENDED_ON:
                raise _depended_on(error) from error
            raise
        with self._transaction.own_statements("deleting a table's record"):
            forget(self._transaction.connection, found.record)
        return DdlOutcome(kind=DdlOutcomeKind.APPLIED, statements=tuple(statements))

    def _run_as(self, here: Structure, statement: str) -> tuple[str, ...]:
        return self._as_owner(here, lambda: run_ddl(self._transaction, (statement,)))

    # ------------------------------------------------------------------ changing

    def made_at(self, record: DdlRecord, place: DdlPlace) -> DdlPlace | None:
        """Return where the table that a change changes was made, if that is in the change's transaction; else None.

        Args:
            record: what the source recorded.
            place: of the change in the source's log.
        """
        if record.before is None:
            return None
        was = self._made_as.get((place.order_scn, record.relation), TableName.of(record.before))
        with self._transaction.own_statements("asking where a table was made"):
            return creation_place(self._transaction.connection, self._identity, was, record.relation, place)

    def renamed(self, record: DdlRecord, place: DdlPlace) -> None:
        """Note that a table was renamed, for `made_at`.

        Args:
            record: what the source recorded; it renames the table.
            place: of the change in the source's log.
        """
        assert record.before is not None
        self._made_as = {key: name for key, name in self._made_as.items() if key[0] == place.order_scn}
        self._made_as.setdefault((place.order_scn, record.relation), TableName.of(record.before))

    # ------------------------------------------------------------------ trust

    def functions_of_others(self, table: TableName, role: str) -> dict[str, str]:
        """Return functions that a table's rows run as the applying role, and that others own: the owner of each.

        Args:
            table: the table.
            role: the one that owns it, or may own it; it could attach functions of its own later.
        """
        with self._transaction.own_statements("asking whose functions a table's rows run"):
            return functions_of_others(self._transaction.connection, table, role)

    def require_trusted(self, table: TableName, role: str, known: Collection[str] = ()) -> None:
        """Check that rows of a table run nothing of roles that cannot act as the applying role anyway.

        Args:
            table: the table.
            role: as in `functions_of_others`.
            known: functions that its rows ran before: an operator could read of them in `check`.

        Raises:
            DataError: they do.
        """
        found = {each: author for each, author in self.functions_of_others(table, role).items() if each not in known}
        if found:
            said = ", ".join(f"{function} of {author}" for function, author in found.items())
            message = (
                f"its rows would run functions of other roles here, with the rights of the role that applies: {said}"
            )
            fixes = " ".join(f"ALTER FUNCTION {function} OWNER TO {quote(role)};" for function in found)
            raise DataError(message, hint=f"read them, and: {fixes}", table=str(table))

    # ------------------------------------------------------------------ steps

    def structure(self, table: TableName) -> Structure | None:
        """Return the structure of a table as the session's transaction sees it; None: it is not there."""
        with self._transaction.own_statements(f"reading the structure of {table}"):
            return read_structure(self._transaction.connection, table)

    def _records(self, table: TableName) -> tuple[RecordOf, ...]:
        with self._transaction.own_statements("asking who has recorded a table"):
            return records_of(self._transaction.connection, table)

    def others_of(self, table: TableName, own: RecordOf) -> str:
        """Name who else has rows in a table, apart from an apply process's record of it; empty: nobody.

        Args:
            table: its name.
            own: the record.
        """
        others = [str(each) for each in self._records(table) if each != own]
        return ", ".join(dict.fromkeys(others)) or self._others(table)

    def _others(self, table: TableName) -> str:
        """Name other apply processes that have copied a table, or a table that it is a part of."""
        identity = self._identity
        with self._transaction.own_statements("asking which copies a table has"):
            found = other_copies(self._transaction.connection, identity.topology, identity.apply, *table)
        return ", ".join(f"apply process {each.apply} of topology {each.topology}" for each in found)


def run_ddl(transaction: SessionTransaction, statements: tuple[str, ...]) -> tuple[str, ...]:
    """Run statements in a session's transaction; return them.

    Not through psycopg: behind a DROP or an ALTER it deallocates the statements that others have prepared.
    """
    for statement in statements:
        shown = statement if len(statement) <= _SHOWN_MAX else f"{statement[:_SHOWN_MAX]}..."
        transaction.run([Statement(sql=statement)], shown)
    return statements


def _joined(remark: str, plan: PlannedCreation) -> str:
    return "; ".join(filter(None, [*plan.left_out, remark]))


def _taken(table: TableName, why: str) -> DataError:
    """Return the refusal of a table whose name is taken."""
    hint = "drop or rename what has the name, or create the table here, empty and as the source has it"
    return DataError(why, hint=hint, table=str(table))


def _depended_on(error: DatabaseError) -> DataError:
    """Return the refusal of a table that something of the destination's own depends on; the server lists it."""
    listed = "; ".join(error.detail.splitlines()) or error.message
    hint = (
        "at the destination, drop what depends on it, or make it depend on something else; its sequences stay after"
        " ALTER SEQUENCE ... OWNED BY NONE"
    )
    return DataError(f"it is needed here: {listed}", hint=hint, **error.context)
