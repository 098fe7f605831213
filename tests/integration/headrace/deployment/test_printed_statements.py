"""Statements that `check` prints are run as printed, by a superuser, in psql. Names in them give their owners nothing,
and the statements do what they say.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo, sql

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Finding
from headrace.deployment.inspection import check_topology
from tests.support.session.matrices import values
from tests.support.values.hostile_names import HOSTILE

pytestmark = [pytest.mark.postgres]

_BOB = "test_printed_bob"
_ROUNDS = 6  # of fixes: rights first, then the findings that they reveal
_FIRST_WORD = re.compile(r"(?:at the source: )?(?=(?:ALTER|CREATE|GRANT|REVOKE|DROP|SELECT|BEGIN|UPDATE)\b)")

_SOURCE = """
CREATE SCHEMA {n}; CREATE TYPE {n}.{kind} AS ENUM ({l}, 'last'); CREATE TYPE {n}.{lost} AS ENUM ({l});
CREATE TABLE {n}.{n} (id int PRIMARY KEY, {n} int, plain int, kind {n}.{kind}, {new} text, only_there {n}.{lost}, old
    int, CONSTRAINT {key} UNIQUE ({n}) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE {n}.{keyless} ({n} int);
CREATE TABLE {n}.{parted} ({n} int PRIMARY KEY) PARTITION BY RANGE ({n}); CREATE TABLE {n}.{part} PARTITION OF {n}.{parted} FOR VALUES FROM (0) TO (10);
"""
_DESTINATION = """
CREATE SCHEMA {n}; CREATE TYPE {n}.{kind} AS ENUM ('first');
CREATE FUNCTION {n}.{n}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;
CREATE TABLE {n}.{n} (id int PRIMARY KEY, {n} smallint, plain int, kind {n}.{kind}, old int, {own} int NOT NULL, CONSTRAINT {key} UNIQUE ({n}) DEFERRABLE);
CREATE TRIGGER {n} BEFORE INSERT ON {n}.{n} FOR EACH ROW EXECUTE FUNCTION {n}.{n}(); ALTER TABLE {n}.{n} ENABLE REPLICA TRIGGER {n};
CREATE UNLOGGED TABLE {n}.{keyless} ({n} int);
CREATE TABLE {n}.{parted} ({n} int PRIMARY KEY) PARTITION BY RANGE ({n});
"""


class World:
    """Two databases in which everything has one name, and a role of that name without rights."""

    def __init__(self, servers: Mapping[str, EmbeddedServer], dsns: Mapping[str, str], folder: Path, name: str) -> None:
        self.servers, self.dsns, self.name, self.loot = servers, dict(dsns), name, folder / "taken"
        self.file = folder / "printed.yaml"

    def make(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for site, script in (("a", _SOURCE), ("b", _DESTINATION)):
            self.execute(site, script)
            with psycopg.connect(self.dsns[site], autocommit=True) as connection:
                for role in (_BOB, self.name):
                    connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))
                    connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(role)))
                database = sql.Identifier(connection.info.dbname)
                connection.execute(
                    sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC; GRANT CONNECT ON DATABASE {} TO {}").format(
                        database,
                        database,
                        sql.Identifier(self.name),
                    )
                )
            monkeypatch.setenv(
                f"TEST_{site.upper()}_DSN", conninfo.make_conninfo(self.dsns[site], user=self.name, password="secret")
            )
        quoted = '"' + self.name.replace('"', '""') + '"'
        sites = "".join(
            f'  {site}: {{database: {{kind: postgres, dsn: "${{TEST_{site.upper()}_DSN}}"}}}}\n' for site in ("a", "b")
        )
        self.file.write_text(
            f"topology: printed\nstate_dir: state\nsites:\n{sites}replicate:\n  - {{schemas: [{json.dumps(quoted)}],"
            " from: a, to: [b]}\n"
        )

    def execute(self, site: str, script: str) -> None:
        names = {
            "n": sql.Identifier(self.name),
            "l": sql.Literal(self.name),
            **{
                each: sql.Identifier(f"{self.name[:40]}{each}")
                for each in ("lost", "new", "keyless", "parted", "part", "own", "kind", "key")
            },
        }
        with psycopg.connect(self.dsns[site], autocommit=True) as connection:
            connection.execute(sql.SQL(script).format(**names))

    def run(self, site: str, statement: str) -> str:
        """Run a statement as pasted by a superuser; return psql's error output."""
        done = subprocess.run(
            [self.servers[site].binary("psql"), "--no-psqlrc", "--quiet", self.dsns[site]],
            input=statement + "\n",
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
            cwd=self.loot.parent,
        )
        return done.stderr

    def assert_nothing_was_taken(self) -> None:
        for dsn in self.dsns.values():
            with psycopg.connect(dsn) as connection:
                assert connection.execute(
                    "SELECT to_regclass('public.taken'), (SELECT rolsuper FROM pg_roles WHERE rolname = %s)", (_BOB,)
                ).fetchone() == (None, False)
        assert not self.loot.exists()


@pytest.fixture
def world(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[Callable[[str], World]]:
    made: list[World] = []

    def make(name: str) -> World:
        servers = {"a": pg_source, "b": pg_destination}
        made.append(World(servers, {site: fresh_database(server) for site, server in servers.items()}, tmp_path, name))
        return made[-1]

    yield make
    for each in made:
        for dsn in each.dsns.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                there = {row[0] for row in connection.execute("SELECT rolname FROM pg_roles")}
                for role in there & {_BOB, each.name}:
                    connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(role)))
                    connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def statement_of(found: Finding) -> str:
    start = _FIRST_WORD.match(found.fix)
    return found.fix[start.end() :] if start else ""


@pytest.mark.parametrize("name", values(HOSTILE, *HOSTILE[:2]))
def test_printed_statement_does_its_work_and_nothing_that_a_name_says(
    world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch, name: str
):
    here = world(name)
    here.make(monkeypatch)
    answers: list[str] = []
    ran: set[tuple[str, str]] = set()
    for _ in range(_ROUNDS):
        found = check_topology(here.file, ask_databases=True).findings
        wanted = {
            (each.path[6], statement_of(each)) for each in found if statement_of(each) and "..." not in each.fix
        } - ran
        if not wanted:
            break
        for site, statement in sorted(wanted):
            answers.append(f"{statement!r}: {here.run(site, statement)}")
            here.assert_nothing_was_taken()
        ran |= wanted
    # Each statement has worked: its finding is gone.
    assert len(ran) > 20
    assert [each for each in found if each.is_error] == [], answers
