"""Random tables come and go at a source, and the destination follows the records that the source's event triggers write."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import DdlOutcomeKind
from headrace.databases.postgres.connection import quote
from headrace.lcr.ddl import DdlChange, ddl_of
from headrace.rules.rule import Rule, RuleSet
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.postgres_site import Site
from tests.support.databases.random_tables import NAMES, TYPES_TO_MAKE, random_table
from tests.support.session.seeds import scaled, seeds

pytestmark = [pytest.mark.postgres]

RULES = (RuleSet(include=(Rule(owner="hr", ddl=True),)),)

NOT_MADE = (
    "is not at the destination",  # a foreign key's table, which is one of the next
    "generated columns",  # of tables without a key, or of the key: users' UPDATE would fail
    "the destination has no such table",  # one of those
)


class Carrying:
    """A source that publishes its new tables, and a destination.

    Args:
        site: the source.
        destination: dsn.
    """

    def __init__(self, site: Site, destination: str) -> None:
        self.site, self.pair = site, CreatedPair(site.dsn, destination, "topo")
        self.pair.both("CREATE SCHEMA hr", *TYPES_TO_MAKE)
        site.prepare(RULES)
        self.seen = self.count = 0
        self.outcomes: Counter[DdlOutcomeKind] = Counter()
        self.new()

    def new(self) -> list[DdlChange]:
        """Return the changes that were recorded since the last call."""
        query = "SELECT number, content FROM headrace_ddl.log WHERE number > %s ORDER BY number"
        rows = self.site.run(query, self.seen).fetchall()
        self.seen = max([self.seen, *(int(str(number)) for number, _ in rows)])
        changes = [ddl_of(str(content).encode()) for _, content in rows]
        return [each for each in changes if each is not None]

    def carry(self) -> list[str]:
        """Carry what was recorded since the last call; return the reasons of what was not made."""
        self.count += 1
        outcomes = self.pair.apply(*self.new(), scn=1000 + self.count)
        self.outcomes.update(each.kind for each in outcomes)
        return [each.reason for each in outcomes if each.kind is DdlOutcomeKind.NOT_APPLIED]

    def is_captured(self, definition: str) -> bool:
        """Return whether the table that a foreign key refers to is published."""
        names = {f"hr.{quote(each.name)}(" for each in self.site.source.captured("topo")}
        names |= {f"hr.{each.name}(" for each in self.site.source.captured("topo")}
        return any(f" REFERENCES {name}" in definition for name in names)

    def assert_equal(self) -> None:
        """Assert that the destination has the source's published tables, each with its record, and no other one."""
        captured = self.site.source.captured("topo")
        query = "SELECT relname FROM pg_class WHERE relnamespace = 'hr'::regnamespace AND relkind IN ('r', 'p')"
        assert {name for (name,) in self.pair.admin.execute(query)} == {each.name for each in captured}
        for each in captured:
            assert each.is_made
            self.pair.assert_equal(each.name)
            there, here = self.pair.foreign_keys(each.name)
            assert here == {name: text for name, text in there.items() if self.is_captured(text)}
        records = self.pair.records().values()
        assert {(each.identity, each.name, each.state) for each in records} == {
            (each.identity, each.name, "DONE") for each in captured
        }


@pytest.fixture
def carrying(
    server: EmbeddedServer,
    make_site: Callable[[EmbeddedServer], Site],
    prepared_database: Callable[[EmbeddedServer], str],
) -> Iterator[Carrying]:
    found = Carrying(make_site(server), prepared_database(server))
    yield found
    found.pair.close()


def statements(rng: random.Random, names: list[str], version: int) -> Iterator[str]:
    """Yield statements, of which the source may refuse some."""
    name = rng.choice(names)
    of, other = f"hr.{quote(name)}", f"hr.{quote(rng.choice(names))}"
    kind = rng.choice(["make", "make", "make", "alter", "alter", "index", "drop", "refer", "like", "both"])
    if kind in {"make", "both"}:
        if kind == "both":
            yield f"DROP TABLE IF EXISTS {of} CASCADE"
        yield from random_table(rng, name, version)
    elif kind == "alter":
        column = quote(rng.choice(NAMES))
        yield rng.choice(
            [
                f"ALTER TABLE {of} ADD {column} text DEFAULT 'x', ADD UNIQUE ({column})",
                f"ALTER TABLE {of} DROP {column} CASCADE",
                f"ALTER TABLE {of} ADD later int NOT NULL DEFAULT 3, ALTER id DROP DEFAULT",
                f"ALTER TABLE {of} RENAME id TO number",
            ]
        )
    elif kind == "index":
        yield f"CREATE INDEX ON {of} (id) WHERE id > 0"
    elif kind == "drop":
        yield f"DROP TABLE {of} {rng.choice(['', 'CASCADE'])}"
    elif kind == "refer":
        yield f"ALTER TABLE {of} ADD FOREIGN KEY (id) REFERENCES {other}"
    else:
        yield f"CREATE TABLE {of} (LIKE {other} INCLUDING GENERATED INCLUDING IDENTITY INCLUDING INDEXES)"


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("recorded new tables", test=1, soak=8))
def test_destination_has_the_tables_that_the_source_has(carrying: Carrying, seed: int) -> None:
    """In transactions of several statements, with savepoints; a table is made and dropped within one, too."""
    rng, names = random.Random(seed), ["t", *NAMES[:3]]
    user, left_out = carrying.site.user, Counter[str]()
    for _ in range(scaled(test=80, soak=400)):
        with user.transaction(force_rollback=rng.random() < 0.1):
            for _ in range(rng.randint(1, 4)):
                with contextlib.suppress(psycopg.Error), user.transaction(force_rollback=rng.random() < 0.1):
                    for statement in statements(rng, names, carrying.pair.version):
                        user.execute(statement.encode())
        left_out.update(carrying.carry())
        carrying.assert_equal()
    made = carrying.outcomes[DdlOutcomeKind.APPLIED]
    assert made > scaled(test=30, soak=150)
    assert all(any(known in reason for known in NOT_MADE) for reason in left_out), left_out


def test_table_that_is_not_published_stays_away(carrying: Carrying) -> None:
    carrying.site.run("CREATE TABLE hr.jobs AS SELECT 1 AS id")
    carrying.site.run("ALTER TABLE hr.jobs ADD t text")
    carrying.site.run("DROP TABLE hr.jobs")
    (creating, altering) = carrying.carry()
    assert creating.startswith("it was made with rows")
    assert creating.endswith("; the next headrace up copies it")
    assert altering == "the destination has no such table"
    carrying.assert_equal()
