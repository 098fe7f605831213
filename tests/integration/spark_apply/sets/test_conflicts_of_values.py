"""Conflicts on PostgreSQL where the LCR's value differs from the column's: converted by a function, or an equal key in
another form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest

from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.values.builtin_types import BUILTIN_TYPES
from headrace.lcr.batch import Command, LcrBatch, RowGroup
from headrace.rules.conflict_handlers import ConflictHandler, ConflictRules
from spark_apply.conversation.groups import Failure
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import apply_rows
from spark_apply.sets.resolution import Resolution
from spark_apply.tables.fits import TableFits
from tests.support.histories.conflicts import handler
from tests.support.values.lcr_batches import column_values, transactions
from tests.support.values.writes import int4, version_of

pytestmark = pytest.mark.postgres

Apply = Callable[..., Failure | None]
NUMBERS = {name: number for number, (name, _) in BUILTIN_TYPES.items()}
EUROS = "CREATE TABLE c (id int PRIMARY KEY, v numeric(10, 2)); INSERT INTO c VALUES (1, 15.00);"
OF_CENTS = 'CREATE FUNCTION headrace."public.c.v"(int4) RETURNS numeric LANGUAGE sql AS $$SELECT $1 / 100.0$$'
OF_TEXT = 'CREATE FUNCTION headrace."public.c.v"(text) RETURNS numeric LANGUAGE sql AS $$SELECT $1::numeric$$'


@pytest.fixture
def user(destination_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(destination_database, autocommit=True) as found:
        yield found


@pytest.fixture
def apply(destination_database: str, user: psycopg.Connection[Any]) -> Iterator[Apply]:
    """Return a function that applies one row LCR to table c, whose column v has another type at the source."""
    with closing(PostgresDestination(destination_database, site="b")) as destination:
        destination.prepare("top")
        with closing(
            destination.open_session("top", "a", server=0, epoch=destination.raise_epoch("top", "a").epoch, tag=b"\0")
        ) as session:

            def made(
                old: Sequence[bytes] | None, new: Sequence[bytes], by: ConflictHandler, *, v: str = ""
            ) -> Failure | None:
                table = session.describe("public", "c")
                assert table is not None
                version = version_of(table)
                if v:
                    version = replace(
                        version,
                        columns=tuple(
                            replace(column, type_name=f"pg_catalog.{v}", type_number=NUMBERS[v], type_modifier=-1)
                            if column.name == "v"
                            else column
                            for column in version.columns
                        ),
                    )
                group = RowGroup(
                    table=0,
                    command=Command.INSERT if old is None else Command.UPDATE,
                    row_numbers=np.array([0], np.int32),
                    old=None if old is None else column_values([[value] for value in old]),
                    new=column_values([[value] for value in new]),
                )
                batch = LcrBatch(
                    source="a",
                    previous_scn=90,
                    through_scn=100,
                    tables=(version,),
                    groups=(group,),
                    transactions=transactions([100], [1]),
                )
                rules = ConflictRules(handlers=(by,))
                resolution = Resolution(ConflictSettings(apply="a", source="a", site="b", rules=rules))
                session.begin()
                failure = apply_rows(
                    session, batch, TableFits(session.describe, session.missing_alter, rules).fit, resolution
                )
                if failure is None:
                    resolution.write(session)
                    session.commit((), 0)
                else:
                    session.rollback()
                return failure

            yield made


@pytest.mark.parametrize(
    ("function", "kind", "old", "new"), [(OF_CENTS, "int4", int4(1000), int4(1050)), (OF_TEXT, "text", b"10", b"10.50")]
)
def test_delta_does_not_add_values_that_a_function_converts(
    apply: Apply, user: psycopg.Connection[Any], function: str, kind: str, old: bytes, new: bytes
) -> None:
    """15 euros and 50 cents are 15.50; converted back into the source's form and again forward they were 0.16."""
    user.execute(EUROS + function)
    failure = apply((int4(1), old), (int4(1), new), handler("delta", "v"), v=kind)
    assert failure is not None
    assert failure.conflict_type == "update_differs"
    assert "a function of the schema headrace converts it" in failure.message
    assert user.execute("SELECT v::text FROM c").fetchone() == ("15.00",)


def test_insert_of_the_existing_converted_row_is_discarded(apply: Apply, user: psycopg.Connection[Any]) -> None:
    """The function gives 15.0, and the column stores 15.00."""
    user.execute(EUROS + OF_TEXT)
    assert apply(None, (int4(1), b"15.0"), handler("maximum", by="v", on="insert_exists"), v="text") is None
    assert user.execute("SELECT outcome, method_name FROM headrace.dba_apply_conflict_history").fetchall() == [
        ("LCR DISCARDED", "maximum(v): the row is the same")
    ]


@pytest.mark.parametrize("others", ["", ", v int DEFAULT 1"])
def test_winning_insert_brings_its_key_in_its_own_form(
    apply: Apply, user: psycopg.Connection[Any], others: str
) -> None:
    user.execute(f"CREATE TABLE c (id numeric PRIMARY KEY{others}); INSERT INTO c VALUES (2.0)")
    key = user.pgconn.exec_params(b"SELECT 2.00::numeric", None, result_format=1).get_value(0, 0)
    assert key is not None
    assert apply(None, (key, int4(2)) if others else (key,), handler("overwrite", on="insert_exists")) is None
    assert user.execute("SELECT * FROM c").fetchall() == [(2, 2) if others else (2,)]
    assert user.execute("SELECT id::text FROM c").fetchone() == ("2.00",)
    assert user.execute("SELECT outcome, applied_columns FROM headrace.dba_apply_conflict_history").fetchall() == [
        ("LCR APPLIED", ["id", "v"] if others else ["id"])
    ]


@pytest.mark.parametrize(
    ("old", "new", "on"),
    [
        (None, (1, 7, 2), "insert_exists"),
        ((1, 3, 1), (1, 3, 2), "update_differs"),
        ((1, 3, 1), (1, 7, 2), "update_differs"),
        ((1, 3, 1), (1, 5, 2), "update_differs"),
    ],
)
def test_winner_writes_an_identity_column_that_cannot_be_set(
    apply: Apply, user: psycopg.Connection[Any], old: tuple[int, ...] | None, new: tuple[int, ...], on: str
) -> None:
    """The row's value of it counts, not whether the LCR changed it."""
    user.execute(
        "CREATE TABLE c (id int PRIMARY KEY, v int GENERATED ALWAYS AS IDENTITY, w int); INSERT INTO c OVERRIDING"
        " SYSTEM VALUE VALUES (1, 5, 9)"
    )
    assert (
        apply(None if old is None else tuple(map(int4, old)), tuple(map(int4, new)), handler("overwrite", on=on))
        is None
    )
    assert user.execute("SELECT * FROM c").fetchall() == [new]
    assert user.execute("SELECT outcome, applied_columns FROM headrace.dba_apply_conflict_history").fetchall() == [
        ("LCR APPLIED", ["v", "w"])
    ]


def test_values_are_ordered_by_the_columns_collation_not_its_domains(
    apply: Apply, user: psycopg.Connection[Any]
) -> None:
    user.execute(
        'CREATE DOMAIN d AS text COLLATE "C"; CREATE TABLE c (id d COLLATE "POSIX" PRIMARY KEY, v d COLLATE "POSIX");'
        " INSERT INTO c VALUES ('k', 'm')"
    )
    assert apply((b"k", b"x"), (b"k", b"n"), handler("maximum", "v", by="v")) is None
    assert apply((b"k", b"x"), (b"k", b"a"), handler("maximum", "v", by="v")) is None
    assert apply(None, (b"k", b"o"), handler("maximum", by="v", on="insert_exists")) is None
    assert user.execute("SELECT * FROM c").fetchall() == [("k", "o")]
    assert user.execute("SELECT outcome FROM headrace.dba_apply_conflict_history").fetchall() == [
        ("LCR APPLIED",),
        ("LCR DISCARDED",),
        ("LCR APPLIED",),
    ]
