"""Two apply processes of a real destination that begin to copy one table at once, each from its own real source.

Without Ray and Spark.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.records.schema import CLAIM_LOCK
from headrace.lcr.scn import Scn
from spark_apply.copy import instantiation as module
from spark_apply.copy.records.tables import to_be_copied_again
from tests.support.copies.copying_pairs import ENDED_S, ROOMS, TOPOLOGY, CopyingPair, at_once
from tests.support.databases.statements import execute
from tests.support.session.matrices import cases

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture(params=cases({"one topology": TOPOLOGY, "two topologies": "another"}, {"one topology"}))
def pairs(
    request: pytest.FixtureRequest,
    fresh_database: Callable[[EmbeddedServer], str],
    destination_database: str,
    pg_source: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[CopyingPair, CopyingPair]]:
    # In place of the loop beside the apply servers, the second one waits for as long as the first one copies.
    monkeypatch.setattr(module, "_FIRST_ROUNDS_MAX", 1000)
    monkeypatch.setattr(module, "_WAITING_S", 0.1)
    destination = destination_database
    with contextlib.closing(PostgresDestination(destination, site="dst")) as prepared:
        prepared.prepare(TOPOLOGY)
        prepared.prepare(request.param)
    execute(destination, ROOMS)
    sources = [fresh_database(pg_source), fresh_database(pg_source)]
    for dsn in sources:
        execute(dsn, ROOMS)
    topologies = (TOPOLOGY, request.param)
    one, two = (
        CopyingPair(f"dbs{number}", dsn, destination, topology)
        for number, (dsn, topology) in enumerate(zip(sources, topologies, strict=True), 1)
    )
    with one.opened, two.opened:
        yield one, two


def test_one_of_two_concurrent_copies_proceeds_and_its_later_changes_stay(
    pairs: tuple[CopyingPair, CopyingPair],
) -> None:
    for each in pairs:
        execute(each.dsn, "INSERT INTO rooms SELECT n, 'copied' FROM generate_series(1, 500) n")
    at_once(*pairs)
    first, second = sorted(pairs, key=lambda each: each.record is None or each.record.state != "DONE")
    assert first.record is not None
    assert second.record is not None
    assert (first.record.state, first.record.row_count) == ("DONE", 500)
    assert (second.record.state, second.record.scn) == ("FAILED", 0)
    assert first.name in second.record.problem
    execute(first.target, "INSERT INTO rooms VALUES (501, 'applied')")
    second.run()
    second.run()
    assert execute(first.target, "SELECT count(*) FROM rooms") == [(501,)]
    # as an earlier version left them
    execute(first.target, "UPDATE headrace.instantiation SET state = 'COPYING', scn = 5")
    at_once(*pairs)
    assert execute(first.target, "SELECT count(*) FROM rooms") == [(501,)]
    assert execute(first.target, "SELECT DISTINCT state FROM headrace.instantiation") == [("FAILED",)]


def test_table_that_is_empty_everywhere_is_done_for_both(pairs: tuple[CopyingPair, CopyingPair]) -> None:
    at_once(*pairs)
    assert [(each.record.state, each.record.row_count) if each.record else None for each in pairs] == [("DONE", 0)] * 2


def test_rows_that_both_keep_at_once_stay_and_neither_copies_the_table(pairs: tuple[CopyingPair, CopyingPair]) -> None:
    """`up --keep-existing` of both, then `headrace copy` of both."""
    execute(pairs[0].target, "INSERT INTO rooms SELECT n, 'there' FROM generate_series(1, 100) n")
    for each in pairs:
        execute(each.dsn, "INSERT INTO rooms VALUES (1, 'at the source')")
        each.keep_existing = True
    at_once(*pairs)
    assert [each.record.state if each.record else None for each in pairs] == ["KEPT"] * 2
    assert execute(pairs[0].target, "SELECT count(*), min(v) FROM rooms") == [(100, "there")]
    assert [asked_to_copy_again(each) for each in pairs] == [False, False]


@pytest.mark.parametrize("pairs", [TOPOLOGY], indirect=True)
@pytest.mark.parametrize("way", ["keep", "delete"])
def test_remedy_for_rows_beside_another_copy_leaves_all_rows(pairs: tuple[CopyingPair, CopyingPair], way: str) -> None:
    one, two = pairs
    for each in pairs:
        execute(each.dsn, "INSERT INTO rooms SELECT n, 'copied' FROM generate_series(1, 500) n")
    one.run()
    execute(two.dsn, "INSERT INTO rooms VALUES (501, 'written meanwhile')")
    two.run()
    assert two.record is not None
    keep, _, delete = two.record.problem.partition(" If it may lack some")
    # Writes pause, and all changes have arrived everywhere.
    execute(one.dsn, "INSERT INTO rooms VALUES (501, 'written meanwhile')")
    if way == "keep":
        assert "keep them with `headrace up --keep-existing` while changes of this table at dbs2 rest" in keep
        execute(two.target, "INSERT INTO rooms VALUES (501, 'written meanwhile')")
        two.keep_existing = True
    else:
        assert delete.startswith(", and dbs2 has every row that dbs1 has"), delete
        printed = re.search(
            r"delete its rows at this site alone: (BEGIN;.*COMMIT;) \(docs/tasks/add-a-site.md, ", delete
        )
        assert printed, delete
        execute(two.target, printed[1])
    two.look_again()
    two.run()
    assert two.record is not None
    assert two.record.state == ("KEPT" if way == "keep" else "DONE"), two.record.problem
    rows = [execute(dsn, "SELECT * FROM rooms ORDER BY id") for dsn in (one.dsn, two.dsn, two.target)]
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("is_kept_first", [False, True])
def test_process_that_keeps_rows_notices_another_that_copies_them_again(
    pairs: tuple[CopyingPair, CopyingPair], is_kept_first: bool
) -> None:
    """Both have checked before either recorded a result."""
    one, two = pairs
    execute(one.dsn, "INSERT INTO rooms VALUES (1, 'copied')")
    one.run()
    seen = two.destination.other_copies(two.topology, two.name, "public", "rooms")
    assert [each.state for each in seen] == ["DONE"]

    def keep() -> bool:
        epoch = two.destination.raise_epoch(two.topology, two.name).epoch
        return two.destination.record_instantiation(
            two.topology,
            two.name,
            epoch,
            Instantiation(
                source=two.site,
                identity="1",
                owner="public",
                name="rooms",
                scn=Scn(100),
                state="KEPT",
            ),
            beside=seen,
        )

    asked = (keep, lambda: asked_to_copy_again(one)) if is_kept_first else (lambda: asked_to_copy_again(one), keep)
    assert [each() for each in asked] == [True, False]


def asked_to_copy_again(pair: CopyingPair) -> bool:
    """Record a `headrace copy` as the driver does; return False if it is refused."""
    assert pair.record is not None
    epoch = pair.destination.raise_epoch(pair.topology, pair.name).epoch
    return pair.destination.record_instantiation(
        pair.topology, pair.name, epoch, to_be_copied_again(pair.record), beside=()
    )


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_claim_that_waited_sees_the_other_one_at_any_isolation_level(
    level: str, pairs: tuple[CopyingPair, CopyingPair]
) -> None:
    """Its snapshot was older than its wait: both copied, and the second one deleted the rows that the first had applied
    since.
    """
    one, two = pairs
    execute(
        one.target,
        f"ALTER DATABASE {conninfo.conninfo_to_dict(one.target)['dbname']} SET default_transaction_isolation TO"
        f" '{level}'",
    )
    with psycopg.connect(one.target, autocommit=True) as holder, ThreadPoolExecutor(1) as pool:
        epochs = [each.destination.raise_epoch(each.topology, each.name).epoch for each in pairs]
        for each in pairs:
            each.destination.close()

        def record(each: CopyingPair, epoch: int, **how: Any) -> bool:
            return each.destination.record_instantiation(
                each.topology,
                each.name,
                epoch,
                Instantiation(
                    source=each.site,
                    identity=each.name,
                    owner="public",
                    name="rooms",
                    scn=Scn(100),
                    state="COPYING",
                ),
                **how,
            )

        holder.execute("SELECT pg_advisory_lock(%s)", (CLAIM_LOCK,))
        waiting = pool.submit(record, two, epochs[1], beside=())
        wait_until(
            lambda: (
                execute(one.target, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
                == [(1,)]
            )
        )
        assert record(one, epochs[0])
        holder.execute("SELECT pg_advisory_unlock(%s)", (CLAIM_LOCK,))
        assert not waiting.result(ENDED_S)


def test_partition_and_its_partitioned_table_exclude_each_other(pairs: tuple[CopyingPair, CopyingPair]) -> None:
    """One apply process writes the partitioned table, another one a partition by its own name. Each deleted the other's
    copy.
    """
    whole, part = pairs
    execute(
        whole.target,
        """
DROP TABLE rooms;
CREATE TABLE rooms (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE rooms_low PARTITION OF rooms FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
CREATE TABLE rooms_lowest PARTITION OF rooms_low FOR VALUES FROM (0) TO (10);
CREATE TABLE rooms_high PARTITION OF rooms FOR VALUES FROM (100) TO (1000);
CREATE TABLE others (id int PRIMARY KEY)
""",
    )
    epoch = whole.destination.raise_epoch(whole.topology, whole.name).epoch
    names = ("rooms", "rooms_low", "rooms_lowest", "rooms_high", "others")
    for name, are_shared in {
        "rooms": {"rooms", "rooms_low", "rooms_lowest", "rooms_high"},
        "rooms_low": {"rooms", "rooms_low", "rooms_lowest"},
        "rooms_lowest": {"rooms", "rooms_low", "rooms_lowest"},
        "rooms_high": {"rooms", "rooms_high"},
        "others": {"others"},
    }.items():
        assert whole.destination.record_instantiation(
            whole.topology,
            whole.name,
            epoch,
            Instantiation(
                source=whole.site,
                identity="1",
                owner="public",
                name=name,
                scn=Scn(100),
                state="DONE",
            ),
        )
        assert {
            each for each in names if part.destination.other_copies(part.topology, part.name, "public", each)
        } == are_shared


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDED_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("rows", ["kept", "none"])
def test_one_source_table_arrives_through_only_one_topology(
    rows: str, pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], destination_database: str
) -> None:
    """With both, each row of a table without a key was duplicated. The printed remedy is applied at the end."""
    source = fresh_database(pg_source)
    execute(source, ROOMS)
    execute(destination_database, ROOMS)
    if rows == "kept":
        execute(source, "INSERT INTO rooms VALUES (1, 'there')")
    with contextlib.closing(PostgresDestination(destination_database, site="dst")) as prepared:
        prepared.prepare(TOPOLOGY)
    # A driver that begins tries no table that is FAILED; the third topology looks at the same rows after the remedy.
    one, two, three = (
        CopyingPair(name, source, destination_database, topology)
        for name, topology in (("dbs1", TOPOLOGY), ("a", "another"), ("b", "third"))
    )
    with one.opened, two.opened, three.opened:
        two.keep_existing = three.keep_existing = rows == "kept"
        one.run()
        two.run()
        assert [each.record.state if each.record else "" for each in (one, two)] == ["DONE", "FAILED"]
        assert two.record is not None
        assert f"apply_from_dbs1_at_dst of topology {TOPOLOGY} gets the same table of this source" in two.record.problem
        assert f"end topology {TOPOLOGY} with `headrace down ITS_FILE --purge --keep-servers`" in two.record.problem
        one.destination.remove(TOPOLOGY)
        three.run()
        assert three.record is not None
        assert three.record.state == ("KEPT" if rows == "kept" else "DONE")
