"""latest_timestamp on real servers: three sites that write the same rows end equal, and concurrent decisions are made
once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headrace.base.errors import DataError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import PlannedApply
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.rules.conflict_handlers import ConflictRules
from spark_apply.sets.collapse import plan_sets
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import apply_rows, execute_steps
from spark_apply.sets.resolution import Resolution
from spark_apply.tables.fits import TableFits
from tests.support.histories.conflicts import Lcr, batch_of, by_time
from tests.support.session.seeds import is_soak, seeds
from tests.support.values.writes import version_of
from tests.support.ways.postgres_network import NetworkSite, PostgresNetwork
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[4] / "examples" / "latest_timestamp.yaml"
SITES = ("dbs1", "dbs2", "dbs3")
KEYS = 5
ROUNDS = 10
OVERTAKEN_MAX = 1000  # retries of one change: a busy machine needs some


@pytest.fixture
def network(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    pg_16: EmbeddedServer,
    prepared_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[PostgresNetwork]:
    """Make the example's three sites on three servers, with the same rows."""

    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute(
            "CREATE SCHEMA shop; CREATE TABLE shop.rooms (id int PRIMARY KEY, name text, guests int, note text)"
        )
        connection.execute("ALTER TABLE shop.rooms REPLICA IDENTITY FULL")
        # As a copy leaves them: no one at the site wrote them.
        connection.execute(
            "INSERT INTO shop.rooms SELECT n, 'first', 0, repeat('x', 20) FROM generate_series(1, %s) n", (KEYS,)
        )

    dsns = {
        site: prepared_database(server) for site, server in zip(SITES, (pg_source, pg_destination, pg_16), strict=True)
    }
    made = PostgresNetwork(read_topology(EXAMPLE, {}), dsns, tmp_path, tables)
    for site in made.sites.values():
        planned = PlannedApply(name="any", source="any", parallelism=1, tag=b"", tombstones=(("shop", "rooms"),))

        def is_planned(site: NetworkSite = site, planned: PlannedApply = planned) -> bool:
            steps = site.destination.plan(made.spec.name, [planned])
            (step,) = [
                step for step in steps if step.statement == 'SELECT headrace.keep_tombstones(\'"shop"."rooms"\')'
            ]
            return not step.is_done

        assert is_planned()
        conflicts = next(apply.conflicts for apply in made.spec.applies if apply.site == site.name)
        assert site.destination.preflight_times(conflicts.timed, has_tombstones=True) == ()
        (statement,) = site.destination.keep_tombstones(conflicts.timed)
        assert statement.startswith("SELECT headrace.keep_tombstones(")
        assert not is_planned()
        assert site.destination.keep_tombstones(conflicts.timed) == ()
    yield made
    made.close()


def write(rng: random.Random, user: psycopg.Connection, text: str) -> None:
    """Make a user's change of one of the rows that all sites change."""
    key, other, kind = rng.randrange(1, KEYS + 3), rng.randrange(1, KEYS + 3), rng.random()
    if kind < 0.4:
        user.execute("UPDATE shop.rooms SET name = %s WHERE id = %s", (text, key))
    elif kind < 0.6:
        user.execute("UPDATE shop.rooms SET guests = guests + 1 WHERE id = %s", (key,))
    elif kind < 0.75:
        user.execute("INSERT INTO shop.rooms VALUES (%s, %s, 1, 'new') ON CONFLICT DO NOTHING", (key, text))
    elif kind < 0.9:
        user.execute("DELETE FROM shop.rooms WHERE id = %s", (key,))
    else:
        user.execute(
            "UPDATE shop.rooms SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM shop.rooms WHERE id = %s)",
            (other, key, other),
        )


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("three servers, same rows", test=1, soak=30))
def test_three_servers_that_change_the_same_rows_at_once_end_equal(network: PostgresNetwork, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(ROUNDS):
        for site in SITES:
            for _ in range(rng.randrange(4)):
                write(rng, network.sites[site].user, f"{site} {number}")
        network.settle(held=[apply.name for apply in network.spec.applies if rng.random() < 0.5])
    network.settle()
    network.settle()
    for apply in network.spec.applies:
        assert network.sites[apply.site].destination.errors(network.spec.name, apply.name) == ()
    rows = [network.sites[site].user.execute("SELECT * FROM shop.rooms ORDER BY 1").fetchall() for site in SITES]
    assert rows[0] == rows[1] == rows[2]
    history = [
        record for site in SITES for record in network.sites[site].destination.conflicts(network.spec.name, last=1000)
    ]
    assert is_soak() or {record.outcome for record in history} >= {"LCR APPLIED", "LCR DISCARDED"}, (
        "known seeds meet both; a new one may not"
    )
    assert {record.handler for record in history} <= {"latest_timestamp"}


def test_objects_for_tombstones_are_removed_with_the_topology(network: PostgresNetwork) -> None:
    site = network.sites["dbs2"]
    for engine in network.engines.values():
        for server in engine.servers.values():
            server.close()
    site.destination.remove(network.spec.name)
    assert site.user.execute(
        "SELECT to_regnamespace('headrace'), count(*) FROM pg_trigger WHERE tgname = 'headrace_tombstones'"
    ).fetchone() == (None, 0)
    site.user.execute("DELETE FROM shop.rooms")


def test_objects_for_a_missing_table_do_not_keep_the_schema(destination_database: str) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TABLE c (id int4 PRIMARY KEY)")
        database = PostgresDestination(destination_database, site="b")
        database.prepare("top")
        database.keep_tombstones([("public", "c")])
        user.execute("DROP TABLE c")
        database.remove("top")
        assert user.execute("SELECT to_regnamespace('headrace')").fetchone() == (None,)
        database.close()


# ------------------------------------------------------------------ concurrent changes


class Applier:
    """An apply process of one source, with single transactions that it tries as sets first."""

    def __init__(self, database: PostgresDestination, source: str, sites: Sequence[str]) -> None:
        handlers, times = by_time(*sites)
        epoch = database.raise_epoch("top", source).epoch
        self.session = database.open_session("top", source, server=0, epoch=epoch, tag=b"\0")
        rules = ConflictRules(handlers=handlers, times=replace(times, site="b"))
        self.fits = TableFits(self.session.describe, self.session.missing_alter, rules)
        self.settings = ConflictSettings(apply=source, source=source, site="b", rules=rules)
        table = self.session.describe("public", "c")
        assert table is not None
        self.version, self.source, self.scn = version_of(table), source, 100

    def apply(self, lcr: Lcr, at: int) -> None:
        self.scn += 10
        batch = batch_of(self.version, [lcr], first_scn=self.scn, source=self.source, times_us=[at])
        self.session.begin()
        try:
            if execute_steps(self.session, plan_sets([batch], self.fits.fit)) is not None:
                self.session.commit((), 0)
                return
        except DataError:
            pass
        for _ in range(OVERTAKEN_MAX):
            self.session.rollback()
            self.session.begin()
            failure = apply_rows(self.session, batch, self.fits.fit, Resolution(self.settings))
            if failure is None:
                self.session.commit((), 0)
                return
            # The others change this one row all the time, so it is retried, as an error transaction would be.
            assert "kept changing the row" in failure.message, failure
        raise AssertionError(failure)


@pytest.mark.parametrize("sources", [("a",), ("a", "c")], ids=["one source", "two sources"])
@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("sources and a user", test=1, soak=16))
def test_concurrent_sources_and_a_user_leave_the_latest_change_of_a_row(
    destination_database: str, sources: tuple[str, ...], seed: int
) -> None:
    """Each writes in its own thread: in any order of waiting, the row ends with the last commit."""
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TABLE c (id int4 PRIMARY KEY, a text, b text, t int4, n int4, u text)")
        database = PostgresDestination(destination_database, site="b")
        database.prepare("top")
        database.keep_tombstones([("public", "c")])
        appliers = [Applier(database, source, ("b", *sources)) for source in sources]
        done: list[tuple[int, str | None]] = []
        own_changes: list[tuple[str, str | None]] = []
        failures: list[BaseException] = []

        def sends(applier: Applier, rng: random.Random) -> None:
            last = 0
            try:
                for number in range(100):
                    # Committed a while ago at the source, or just now: the user's change is later in some cases only.
                    at, text = (
                        max(last + 1, time.time_ns() // 1000 - rng.randrange(20_000)),
                        f"{applier.source}{number}",
                    )
                    last = at
                    old, new = (1, "old", "old", 1, 1, "old"), (1, text, text, number, 1, text)
                    gone = rng.random() < 0.3
                    lcr = Lcr(old=old) if gone else Lcr(new=new) if rng.random() < 0.3 else Lcr(old=old, new=new)
                    applier.apply(lcr, at)
                    done.append((at, None if gone else text))
            except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
                failures.append(error)

        def writes(rng: random.Random) -> None:
            try:
                with psycopg.connect(destination_database, autocommit=True) as own:
                    for number in range(100):
                        text, gone = f"user{number}", rng.random() < 0.3
                        if gone:
                            found = own.execute(
                                "DELETE FROM c WHERE id = 1 RETURNING pg_current_xact_id()::text"
                            ).fetchone()
                        else:
                            found = own.execute(
                                "INSERT INTO c VALUES (1, %(a)s, %(a)s, 1, 1, %(a)s) ON CONFLICT (id) DO UPDATE SET a ="
                                " %(a)s, b = %(a)s, u = %(a)s RETURNING pg_current_xact_id()::text",
                                {"a": text},
                            ).fetchone()
                        if found is not None:
                            own_changes.append((found[0], None if gone else text))
                        time.sleep(rng.random() / 100)
            except BaseException as error:  # noqa: BLE001 - as above
                failures.append(error)

        rngs = [random.Random(f"{seed} {number}") for number in range(3)]
        threads = [
            *(threading.Thread(target=sends, args=each) for each in zip(appliers, rngs, strict=False)),
            threading.Thread(target=writes, args=rngs[2:]),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failures == []
        for number, text in own_changes:
            (at,) = user.execute(
                "SELECT (extract(epoch FROM pg_xact_commit_timestamp(xid(%s::xid8))) * 1000000)::int8", (number,)
            ).fetchone() or (0,)
            done.append((at, text))
        _, latest = max(done, key=lambda each: (each[0], each[1] or ""))
        assert user.execute("SELECT a FROM c").fetchall() == ([] if latest is None else [(latest,)])
        noted = user.execute("SELECT count(*) FROM headrace.row_change WHERE relation <> 0 AND NOT is_gone").fetchone()
        assert noted == (0,) or len(sources) > 1
        for applier in appliers:
            applier.session.close()
        database.close()


def test_each_transaction_of_a_session_has_its_own_commit_time(destination_database: str) -> None:
    """If no time is set, PostgreSQL keeps the time of a session's first commit for all later ones, and logs the first
    one as of 2000-01-01.
    """
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TABLE c (id int4 PRIMARY KEY, a text, b text, t int4, n int4, u text)")
        user.execute("CREATE PUBLICATION every FOR TABLE c")
        user.execute("SELECT pg_create_logical_replication_slot('commit_times', 'pgoutput')")
        try:
            database = PostgresDestination(destination_database, site="b")
            database.prepare("top")
            applier = Applier(database, "a", ("b", "a", "c"))
            bounds = list[tuple[int, int]]()
            for number in (1, 2, 3):
                before = time.time_ns() // 1000
                applier.apply(Lcr(old=None, new=(number, "a", "b", 1, 1, "u")), before - 60_000_000)
                bounds.append((before, time.time_ns() // 1000))
            rows = user.execute(
                "SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::int8 FROM c ORDER BY id"
            ).fetchall()
            changes = user.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes('commit_times', NULL, NULL, 'proto_version', '1',"
                " 'publication_names', 'every')"
            ).fetchall()
            applier.session.close()
            database.close()
        finally:
            user.execute("SELECT pg_drop_replication_slot('commit_times')")
    begins = [
        int.from_bytes(data[9:17], "big", signed=True) + 946_684_800_000_000 for (data,) in changes if data[:1] == b"B"
    ]
    for (first, last), (kept,), logged in zip(bounds, rows, begins[-3:], strict=True):
        assert first <= kept <= last
        assert first <= logged <= last


@pytest.mark.parametrize("altered", [False, True], ids=["included column", "renamed key"])
def test_tombstones_use_the_key_as_defined_now(destination_database: str, altered: bool) -> None:
    """Columns that a key only includes are not part of it; a trigger for another key is recreated."""
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TABLE c (was int4, a text, b text, t int4, n int4, u text, PRIMARY KEY (was) INCLUDE (a))")
        database = PostgresDestination(destination_database, site="b")
        database.prepare("top")
        if altered:
            database.keep_tombstones([("public", "c")])
        user.execute("ALTER TABLE c RENAME was TO id")
        if altered:
            assert database.preflight_times([("public", "c")], has_tombstones=True) == ()  # `up` may recreate it
        assert len(database.keep_tombstones([("public", "c")])) == 1
        assert database.keep_tombstones([("public", "c")]) == ()
        applier = Applier(database, "a", ("b", "a", "c"))
        at = time.time_ns() // 1000 - 60_000_000
        user.execute("INSERT INTO c VALUES (1, 'user', 'b', 1, 1, 'u')")
        user.execute("DELETE FROM c")
        applier.apply(Lcr(old=None, new=(1, "a", "b", 1, 1, "u")), at)
        assert user.execute("SELECT id FROM c").fetchall() == []
        applier.session.close()
        database.close()


def test_check_names_the_settings_and_rights_that_a_server_lacks(
    fresh_database: Callable[[EmbeddedServer], str], postgres_folder: Path
) -> None:
    server = EmbeddedServer(
        postgres_folder / "untimed",
        version=18,
        name="untimed",
        settings={"shared_buffers": "16MB", "track_commit_timestamp": "off"},
    )
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as user:
            user.execute("CREATE TABLE c (id int4)")
        database = PostgresDestination(server.dsn(), site="b")
        findings = database.preflight_times([("public", "c")], has_tombstones=True)
        assert [finding.path for finding in findings] == ["sites.b", "sites.b table public.c"]
        assert findings[0].fix == "ALTER SYSTEM SET track_commit_timestamp = on; then restart the server"
        assert "primary key" in findings[1].problem
        database.close()
    finally:
        server.destroy()
