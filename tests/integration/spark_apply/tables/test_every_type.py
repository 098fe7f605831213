"""Values of every type take the whole path: copied, then inserted, updated, found by their old values and deleted."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.clusters.sites import Sites
from tests.support.session.matrices import values
from tests.support.values.type_literals import USER_TYPES, groups, literals_of, make_tables, without_exceptions

pytestmark = [pytest.mark.unit("sites", order=3), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TYPES = "replicate: [{tables: [app.types_*], from: a, to: [b]}]"
# These keep a stream from being binary: they contain numbers of one database's catalog, or forms that PostgreSQL does
# not take back.
ONLY_TEXT = (
    "reg",
    "aclitem",
    "int2vector",
    "oidvector",
    "app.mood[]",
    "app.pair",
    "app.positive[]",
    "app.numbers[]",
    "app.span[]",
)

TYPES_MIN = {"binary": 130, "text": 150}  # with fewer, types were missed


def is_binary(spelled: str) -> bool:
    plain = spelled.removeprefix('pg_catalog."').removeprefix("_")
    return not plain.startswith(ONLY_TEXT)


@pytest.mark.parametrize("form", values(["binary", "text"], "binary"))
def test_every_type_survives_copying_and_every_kind_of_change(sites: Sites, form: str):
    sites.free("app")
    system = sites.by(TYPES)
    with sites.connection("a") as source, sites.connection("b") as target:
        for connection in (source, target):
            connection.execute("DROP SCHEMA IF EXISTS app CASCADE")
        for number in range(7):  # otherwise user types would have the same numbers at both sides
            target.execute(f"DROP TYPE IF EXISTS public.shift_{number}; CREATE TYPE public.shift_{number} AS ENUM ()")
        source.execute(USER_TYPES)
        target.execute(USER_TYPES)
        literals = literals_of(source)
        if form == "binary":
            literals = {name: without_exceptions(name, found) for name, found in literals.items() if is_binary(name)}
        tables = {f"types_{number}": types for number, types in enumerate(groups(literals))}
        assert sum(map(len, tables.values())) > TYPES_MIN[form]
        for name, types in tables.items():
            make_tables(source, target, name, types)
            # Old values are compared one by one: they find and check a row.
            source.execute(f"ALTER TABLE app.{name} REPLICA IDENTITY FULL")

        def images(connection: psycopg.Connection) -> dict[str, list[tuple[str]]]:
            return {
                name: connection.execute(f"SELECT ROW(t.*)::text FROM app.{name} t ORDER BY id").fetchall()
                for name in tables
            }

        system.up()
        assert images(target) == images(source), "the copies differ"
        for name in tables:
            source.execute(f"INSERT INTO app.{name} SELECT id + 1000, {columns(source, name)} FROM app.{name}")
            source.execute(
                f"INSERT INTO app.{name} SELECT id + 2000, {columns(source, name)} FROM app.{name} WHERE id < 1000"
            )
            source.execute(f"UPDATE app.{name} SET id = id + 5000 WHERE id < 1000")
            source.execute(f"DELETE FROM app.{name} WHERE id BETWEEN 2000 AND 2999 AND id % 2 = 0")
        system.assert_converged()
        assert images(target) == images(source), "the changed rows differ"
        # the first change of a column that must be in text switched a binary stream to text
        assert system.status("site:a")["stream_form"] == form
        # Every column is set to the value of another row.
        for name, types in tables.items():
            sets = ", ".join(f"c{number} = o.c{number}" for number in range(len(types)))
            rows = max(map(len, types.values()))
            source.execute(
                f"UPDATE app.{name} t SET {sets} FROM app.{name} o"
                f" WHERE t.id BETWEEN 1000 AND 1999 AND o.id = 5000 + (t.id + 1) % {rows}"
            )
        system.assert_converged()
        assert images(target) == images(source), "the rows set to other values differ"


def columns(connection: psycopg.Connection, name: str) -> str:
    found = connection.execute(
        "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 1",
        (f"app.{name}",),
    ).fetchone()
    assert found is not None
    return str(found[0])
