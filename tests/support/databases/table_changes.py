"""DDL changes for the contract suite, recorded as if a source had made them to a table of the destination."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from headrace.databases.memory.store import StoredTable
from headrace.databases.ports import DdlOutcome, DdlPlace, DestinationSession
from headrace.databases.postgres.connection import connect, qualified
from headrace.databases.postgres.ddl.structure_query import read_kept_values, structure_query
from headrace.lcr.ddl import DdlChange
from headrace.lcr.table_name import TableName
from tests.support.databases.destination_contract import APPLY, TOPOLOGY, Harness, MemoryHarness
from tests.support.values.ddl_changes import NUMBER, column, ddl_change, structure

__all__ = [
    "Action",
    "add_column",
    "change",
    "created",
    "drop_column",
    "dropped",
    "history",
    "identity_of",
    "place",
    "recorded",
    "recorded_all",
    "recorded_at",
    "rename_column",
    "renamed",
    "skip",
    "unique",
]

_STRUCTURE = structure_query("pg_catalog.to_regclass(%s)::pg_catalog.oid").encode()
_PRINTED = {"int4": "integer", "int8": "bigint"}

_Edit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Action:
    """One ALTER TABLE.

    Args:
        sql: the statement behind the table's name.
        edit: does the same to a structure of the memory database.
        older: values of added columns in rows that were there, on the memory database.
    """

    sql: str
    edit: _Edit
    older: dict[str, str | None] = field(default_factory=dict)


def add_column(name: str, kind: str = "text", *, older: str | None = None, not_null: bool = False) -> Action:
    """Add a column; `older`: its default, and the value of rows that are there."""

    def edit(found: dict[str, Any]) -> None:
        number = 1 + max(each["number"] for each in found["columns"])
        default = None if older is None else f"'{older}'::text"
        found["columns"].append(column(number, name, _PRINTED.get(kind, kind), not_null=not_null, default=default))

    words = [f"ADD COLUMN {name} {kind}"]
    words += [] if older is None else [f"DEFAULT '{older}'"]
    words += ["NOT NULL"] if not_null else []
    return Action(" ".join(words), edit, {name: older})


def drop_column(name: str) -> Action:
    """Drop a column."""

    def edit(found: dict[str, Any]) -> None:
        found["columns"] = [each for each in found["columns"] if each["name"] != name]

    return Action(f"DROP COLUMN {name}", edit)


def rename_column(name: str, new_name: str) -> Action:
    """Rename a column that is in no key."""

    def edit(found: dict[str, Any]) -> None:
        for each in found["columns"]:
            each["name"] = new_name if each["name"] == name else each["name"]

    return Action(f"RENAME COLUMN {name} TO {new_name}", edit)


def unique(name: str, *columns: str) -> Action:
    """Add a unique constraint."""
    definition = f"UNIQUE ({', '.join(columns)})"

    def edit(found: dict[str, Any]) -> None:
        found["constraints"].append(
            {"number": 900, "name": name, "type": "u", "definition": definition, "calls": False}
        )

    return Action(f"ADD CONSTRAINT {name} {definition}", edit)


def recorded(harness: Harness, action: Action, name: str = "t", **attributes: Any) -> DdlChange:
    """Return the record of an ALTER TABLE of a table as it is at the destination now, which stays as it is.

    Args:
        harness: the database.
        action: what the source does.
        name: of the table.
        attributes: others of the record.
    """
    return recorded_all(harness, action, name=name, **attributes)[0]


def recorded_all(harness: Harness, *actions: Action, name: str = "t", **attributes: Any) -> list[DdlChange]:
    """Return the records of several ALTER TABLEs, one after another."""
    queries = [f"ALTER TABLE public.{name} {action.sql}" for action in actions]
    found: list[DdlChange] = []
    if isinstance(harness, MemoryHarness):
        before = _printed(harness._store.tables["public", name])
        for action, query in zip(actions, queries, strict=True):
            after = copy.deepcopy(before)
            action.edit(after)
            found.append(ddl_change(before, after, older=action.older, query=query, **attributes))
            before = after
        return found
    return recorded_at(harness._dsn, TableName("public", name), *queries, **attributes)


def created(
    harness: Harness, name: str = "v", *columns: dict[str, Any], number: int = NUMBER, **attributes: Any
) -> DdlChange:
    """Return the record of a CREATE TABLE whose rows are in the log; the destination stays as it is.

    Args:
        harness: the database, whose version the record has.
        name: of the table, in the schema public.
        columns: its columns; none: `id integer`, the primary key, and `a text`.
        number: of the table at the source, in the record and in the identity.
        attributes: others of the record, such as `made`.
    """
    found = columns or (column(1, "id", not_null=True), column(2, "a", "text"))
    key = {"number": 800, "name": f"{name}_pkey", "type": "p", "definition": "PRIMARY KEY (id)", "calls": False}
    after = structure(*found, owner="public", name=name, role=_role(harness), constraints=[key])
    made = {"identities": {TOPOLOGY: identity_of(number)}, "why_not": "", "sequences": {}}
    given = {"tag": "CREATE TABLE", "relation": number, "made": made, "version": _version(harness)}
    return ddl_change(None, after, **{**given, **attributes})


def dropped(harness: Harness, name: str = "v", *, number: int = NUMBER) -> DdlChange:
    """Return the record of the DROP TABLE of a table that `created` made; arguments as there."""
    before = json.loads(created(harness, name, number=number).content)["after"]
    return ddl_change(before, None, tag="DROP TABLE", relation=number, version=_version(harness))


def renamed(
    harness: Harness, name: str, later: str, *, made_as: str = "v", number: int = NUMBER, **attributes: Any
) -> DdlChange:
    """Return the record of an ALTER TABLE ... RENAME of a table that `created` made.

    Args:
        harness: the database, whose version the record has.
        name: of the table before it.
        later: its name after it.
        made_as: the name under which it was made, after which its key is named.
        number: of the table at the source.
        attributes: others of the record.
    """
    shape = json.loads(created(harness, made_as, number=number).content)["after"]
    given = {"relation": number, "version": _version(harness), **attributes}
    return ddl_change({**shape, "name": name}, {**shape, "name": later}, **given)


def identity_of(number: int = NUMBER) -> str:
    """Return the identity of a source's table with this number."""
    return f"77.16384.{number}.{number + 1}"


def _version(harness: Harness) -> int:
    return 1 if isinstance(harness, MemoryHarness) else harness._admin.info.server_version // 10000


def _role(harness: Harness) -> str:
    return "memory" if isinstance(harness, MemoryHarness) else harness._admin.info.user


def recorded_at(dsn: str, table: TableName, *queries: str, **attributes: Any) -> list[DdlChange]:
    """Return the records of statements about a table, which are rolled back.

    Args:
        dsn: of the database.
        table: its name.
        queries: one record for each.
        attributes: others of the records.
    """
    found: list[DdlChange] = []
    # With Headrace's settings, which definitions are printed with.
    with closing(connect(dsn, application_name="source")) as source, source.transaction(force_rollback=True):
        source.execute("SET LOCAL lock_timeout = '5s'")  # record before a transaction of the session has the table
        version = source.info.server_version // 10000
        before = _read(source, table)
        for query in queries:
            source.execute(query.encode())
            after, kept = _read(source, table), read_kept_values(source, table)
            known = {each["number"] for each in before["columns"]}
            new = [each["name"] for each in after["columns"] if each["number"] not in known]
            given = {"older": {each: kept[each] for each in new if each in kept}, "query": query, "version": version}
            found.append(ddl_change(before, after, **{**given, **attributes}))
            before = after
    return found


def _read(source: Any, table: TableName) -> dict[str, Any]:
    row = source.execute(_STRUCTURE, (qualified(*table),)).fetchone()
    found: dict[str, Any] = row[0]
    return found


def _printed(stored: StoredTable) -> dict[str, Any]:
    table = stored.table
    columns = [
        column(
            number,
            each.name,
            _PRINTED.get(each.type_name.removeprefix("pg_catalog."), each.type_name.removeprefix("pg_catalog.")),
            not_null=each.not_null,
        )
        for number, each in enumerate(table.columns, 1)
    ]
    constraints = [
        {
            "number": 800 + number,
            "name": f"{table.name}_{number}",
            "type": "p" if key == table.key else "u",
            "definition": f"{'PRIMARY KEY' if key == table.key else 'UNIQUE'} "
            f"({', '.join(table.columns[each].name for each in key)})",
            "calls": False,
        }
        for number, key in enumerate(table.unique_keys)
    ]
    return structure(*columns, owner=table.owner, name=table.name, constraints=constraints)


# --------------------------------------------------------------------------- at the destination


def place(number: int = 0) -> DdlPlace:
    """Return a place in the source's log: LCR `number` of one transaction."""
    return DdlPlace(source="a", transaction_id=77, order_scn=149, position=number)


def change(session: DestinationSession, *changes: DdlChange, first: int = 0) -> list[DdlOutcome]:
    """Make changes in a transaction of their own."""
    session.begin()
    outcomes = [session.change_table(each, place(first + number)) for number, each in enumerate(changes)]
    session.commit([], 0)
    return outcomes


def skip(harness: Harness, hint: str, number: int = 0) -> None:
    """Do what a hint says about leaving a change out; on the memory database, for LCR `number`."""
    if isinstance(harness, MemoryHarness):
        harness._store.ddl_skips.add((TOPOLOGY, APPLY, place().order_scn, number))
    else:
        harness._admin.execute(hint.split("or leave it out: ")[1].encode())


def history(harness: Harness, *, not_applied: bool = False) -> Sequence[tuple[str, str, int, str]]:
    """Return outcome, table, position and reason of the recorded changes, in order.

    Args:
        harness: the database.
        not_applied: only changes that were recorded only.
    """
    if isinstance(harness, MemoryHarness):
        return [
            (each.outcome.kind.value, str(each.table), each.place.position, each.outcome.reason)
            for each in harness._store.ddl_history
            if not not_applied or each.outcome.kind in {"NOT APPLIED", "SKIPPED"}
        ]
    view = "dba_ddl_not_applied" if not_applied else "dba_apply_ddl"
    query = f"SELECT outcome, object_owner || '.' || object_name, message_number - 1, reason FROM headrace.{view}"
    return harness._admin.execute(query.encode()).fetchall()
