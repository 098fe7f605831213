"""A table that is emptied before it is copied again: what the log of its database shows, as a hub forwards it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.batch import Command
from headrace.lcr.tags import Tag
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from tests.support.redo.postgres_redo import RedoSite

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FORWARDED = RuleSet(include=(Rule(owner="public", tags=ANY_TAG),))


@pytest.fixture
def hub(
    pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], tmp_path: Path
) -> Iterator[RedoSite]:
    """A captured database, and the changes that apply processes write to it."""
    made = RedoSite(fresh_database(pg_source), tmp_path / "redo")
    made.user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    made.user.execute("CREATE TABLE other (id int PRIMARY KEY)")
    made.user.execute("CREATE TABLE inherits () INHERITS (t)")
    made.user.execute("INSERT INTO t VALUES (1), (2)")
    made.user.execute("INSERT INTO other VALUES (1)")
    made.user.execute("INSERT INTO inherits VALUES (3)")
    yield made
    made.close()
    with contextlib.closing(PostgresSource(made.dsn)) as source:
        source.remove("topo")


@pytest.mark.parametrize("how", [Command.TRUNCATE, Command.DELETE])
def test_emptying_empties_one_table_and_is_forwarded_with_the_same_tag(hub: RedoSite, how: Command) -> None:
    if how is Command.DELETE:  # a table that another one refers to cannot be truncated alone
        hub.user.execute("CREATE TABLE refers (id int REFERENCES t)")
    hub.source.prepare("topo", (FORWARDED,))
    hub.attach()
    with contextlib.closing(PostgresDestination(hub.dsn, site="hub")) as destination:
        destination.prepare("topo")
        epoch = destination.raise_epoch("topo", "from_spoke").epoch
        with contextlib.closing(
            destination.open_session("topo", "from_spoke", server=0, epoch=epoch, tag=b"\x1f")
        ) as session:
            # Only the name is used, as different sessions may describe tables and empty them.
            table = destination.describe("public", "t")
            assert table is not None
            session.empty_tables([table])
    assert hub.user.execute("SELECT tableoid::regclass::text, id FROM t").fetchall() == [("inherits", 3)]
    assert hub.user.execute("SELECT id FROM other").fetchall() == [(1,)]
    hub.catch_up()
    told = [
        (group.command, batch.tables[table_number].name, batch.tags[batch.transactions.tag[0]])
        for batch in hub.mine(hub.miner(rules=FORWARDED))
        if batch.row_count
        for group in batch.groups
        for table_number in [group.table]
    ] + [
        (Command.TRUNCATE, batch.tables[number].name, batch.tags[batch.transactions.tag[0]])
        for batch in hub.mine(hub.miner(rules=FORWARDED))
        for truncate in batch.truncates
        for number in truncate.tables
    ]
    tag = Tag(value=b"\x1f", topology="topo", apply="from_spoke")
    assert set(told) == {(how, "t", tag)}
    untagged = RuleSet(include=(Rule(owner="public"),))
    assert not any(batch.row_count for batch in hub.mine(hub.miner(rules=untagged))), "by default it is not forwarded"
