"""Values of every type go the whole way: copied, then inserted, updated, found by their old values and deleted."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from databases.embedded import EmbeddedServer
from headrace.deployment import Deployment
from tests.support.system import System
from tests.support.type_literals import USER_TYPES, groups, literals_of, make_tables, without_exceptions
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("sites"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TYPES = """
topology: test_types_{form}
state_dir: state
sites:
  a: {{database: {{kind: postgres, dsn: "${{TEST_TYPES_A_DSN}}"}}}}
  b: {{database: {{kind: postgres, dsn: "${{TEST_TYPES_B_DSN}}"}}}}
replicate:
  - {{tables: [app.types_*], from: a, to: [b]}}
"""
# These keep a stream from being binary: numbers of one database's catalog inside other values, or forms PostgreSQL
# does not take back.
ONLY_TEXT = ("reg", "aclitem", "int2vector", "oidvector", "app.mood[]", "app.pair", "app.positive[]", "app.numbers[]", "app.span[]")

TYPES_MIN = {"binary": 130, "text": 150}  # or some were left out


def is_binary(spelled: str) -> bool:
    plain = spelled.removeprefix('pg_catalog."').removeprefix("_")
    return not plain.startswith(ONLY_TEXT)


@pytest.mark.parametrize("form", ["binary", "text"])
def test_every_type_survives_copying_and_every_kind_of_change(
    ray_address: str, pg_source: EmbeddedServer, pg_destination: EmbeddedServer, tmp_path: Path,
    fresh_database: Callable[[EmbeddedServer], str], monkeypatch: pytest.MonkeyPatch, form: str,
):
    dsns = {"a": fresh_database(pg_source), "b": fresh_database(pg_destination)}
    for site, dsn in dsns.items():
        monkeypatch.setenv(f"TEST_TYPES_{site.upper()}_DSN", dsn)
    file = tmp_path / "types.yaml"
    file.write_text(textwrap.dedent(TYPES.format(form=form)))
    deployment = Deployment(read_topology(file), ray_address)
    with psycopg.connect(dsns["a"], autocommit=True) as source, psycopg.connect(dsns["b"], autocommit=True) as target:
        for number in range(7):  # or user types had the same numbers at both sides
            target.execute(f"CREATE TYPE public.shift_{number} AS ENUM ()")
        source.execute(USER_TYPES)
        target.execute(USER_TYPES)
        literals = literals_of(source)
        if form == "binary":
            literals = {name: without_exceptions(name, found) for name, found in literals.items() if is_binary(name)}
        tables = {f"types_{number}": types for number, types in enumerate(groups(literals))}
        assert sum(map(len, tables.values())) > TYPES_MIN[form]
        for name, types in tables.items():
            make_tables(source, target, name, types)
            # Old values are compared one by one: those are what find and check a row.
            source.execute(f"ALTER TABLE app.{name} REPLICA IDENTITY FULL")

        def images(connection: psycopg.Connection) -> dict[str, list[tuple[str]]]:
            return {
                name: connection.execute(f"SELECT ROW(t.*)::text FROM app.{name} t ORDER BY id").fetchall() for name in tables
            }

        try:
            assert deployment.up()["state"] == "RUNNING"
            system = System(deployment, {}, tmp_path)
            assert images(target) == images(source), "copied"
            assert system.status("site:a")["stream_form"] == form
            for name in tables:
                source.execute(f"INSERT INTO app.{name} SELECT id + 1000, {columns(source, name)} FROM app.{name}")
                source.execute(f"INSERT INTO app.{name} SELECT id + 2000, {columns(source, name)} FROM app.{name} WHERE id < 1000")
                source.execute(f"UPDATE app.{name} SET id = id + 5000 WHERE id < 1000")
                source.execute(f"DELETE FROM app.{name} WHERE id BETWEEN 2000 AND 2999 AND id % 2 = 0")
            system.assert_converged()
            assert images(target) == images(source), "changed"
            # Every column is set to the value of another row.
            for name, types in tables.items():
                sets = ", ".join(f"c{number} = o.c{number}" for number in range(len(types)))
                rows = max(map(len, types.values()))
                source.execute(
                    f"UPDATE app.{name} t SET {sets} FROM app.{name} o"
                    f" WHERE t.id BETWEEN 1000 AND 1999 AND o.id = 5000 + (t.id + 1) % {rows}"
                )
            system.assert_converged()
            assert images(target) == images(source), "set to other values"
        finally:
            assert deployment.down(purge=True) == []


def columns(connection: psycopg.Connection, name: str) -> str:
    found = connection.execute(
        "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 1", (f"app.{name}",)
    ).fetchone()
    assert found is not None
    return str(found[0])
