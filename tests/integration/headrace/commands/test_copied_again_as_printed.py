"""The printed remedies for copying everything again are followed as printed.

The cases are a source whose slot is lost before any capture, and three sites that write to each other, one of which has
older rows. Without Ray and Spark.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from itertools import permutations

import pytest

from headrace.base.errors import COPY_ONE_AGAIN, INSTANTIATE_AGAIN, LOST_AT_SOURCE, LogGone
from headrace.console.remedies import for_topology
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.lcr.scn import FIRST_SCN
from headrace.rules.rule import Rule, RuleSet
from spark_apply.copy import instantiation as module
from tests.support.copies.copying_pairs import ROOMS, TOPOLOGY, CopyingPair, at_once
from tests.support.databases.statements import execute
from tests.support.session.matrices import cases

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SITES = ("a", "b", "c")
FILL = "INSERT INTO rooms SELECT n, 'there' FROM generate_series(1, 100) n"


@pytest.fixture
def pairs(
    prepared_database: Callable[[EmbeddedServer], str], pg_source: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[tuple[str, str], CopyingPair]]:
    """Make the apply processes, by source and destination; each site has the same rows, which no copy made."""
    monkeypatch.setattr(module, "_WAITING_S", 0.1)
    monkeypatch.setattr(module, "_RETRY_S", 0.1)
    dsns = {site: prepared_database(pg_source) for site in SITES}
    for dsn in dsns.values():
        execute(dsn, ROOMS)
        execute(dsn, FILL)
    with contextlib.ExitStack() as opened:
        made = {}
        for source, destination in permutations(SITES, 2):
            made[source, destination] = CopyingPair(
                source, dsns[source], dsns[destination], site=destination, is_returned=True
            )
            opened.enter_context(made[source, destination].opened)
        yield made


def test_remedy_for_an_early_lost_slot_works_where_rows_were_kept(
    prepared_database: Callable[[EmbeddedServer], str], pg_source: EmbeddedServer
):
    """Users' writes between the two slots are in no log: kept rows are not kept again."""
    source, destination = prepared_database(pg_source), prepared_database(pg_source)
    for dsn in (source, destination):
        execute(dsn, ROOMS)
        execute(dsn, FILL)
    pair = CopyingPair("src", source, destination)
    with pair.opened:
        pair.keep_existing = True
        pair.run()
        assert pair.record is not None
        assert pair.record.state == "KEPT"
        execute(
            source,
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
            " AND NOT temporary",
        )
        execute(source, "UPDATE rooms SET v = 'in no log' WHERE id = 1; DELETE FROM rooms WHERE id = 2")
        with pytest.raises(LogGone, match="does not exist: everything after SCN") as refused:
            pair.source.open_stream(TOPOLOGY, FIRST_SCN)
        assert refused.value.hint == INSTANTIATE_AGAIN
        pair.source.remove(TOPOLOGY)
        pair.destination.remove(TOPOLOGY)
        execute(destination, "TRUNCATE rooms")
        pair.keep_existing = False
        pair.destination.prepare(TOPOLOGY)
        pair.source.prepare(TOPOLOGY, (RuleSet(include=(Rule(owner="public", name="rooms"),)),))
        pair.run()
        assert pair.record is not None
        assert pair.record.state == "DONE"
        pair.source.open_stream(TOPOLOGY, FIRST_SCN).close()
    rows = [execute(dsn, "SELECT * FROM rooms ORDER BY 1") for dsn in (source, destination)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 99


@pytest.mark.parametrize(
    "fix",
    cases(
        {"restored": COPY_ONE_AGAIN, "set back": f"{LOST_AT_SOURCE}: {INSTANTIATE_AGAIN}"},
        core=["restored"],
    ),
)
def test_remedy_for_one_of_three_sites_with_old_rows_makes_all_equal(
    pairs: dict[tuple[str, str], CopyingPair], fix: str
):
    for pair in pairs.values():
        pair.keep_existing = True
        pair.run()
    assert {pair.record.state for pair in pairs.values() if pair.record is not None} == {"KEPT"}
    dsns = {destination: pair.target for (_, destination), pair in pairs.items()}
    execute(dsns["a"], "DELETE FROM rooms WHERE id > 50")  # as in the backup
    execute(dsns["b"], "UPDATE rooms SET v = 'later' WHERE id < 10")

    said = for_topology(fix, [*pairs], at="a")
    steps = re.search(
        r"`headrace down --purge --keep-servers`, empty the replicated tables at (\w+), (\w+), and not at (\w+), then as"
        r" for a new site of an n-way topology \(docs/tasks/add-a-site\.md\): `headrace up`, and `headrace up --keep-existing`"
        r" once the copies are made",
        said,
    )
    assert steps, said
    *emptied, kept = steps.groups()
    assert kept != "a"
    for pair in pairs.values():
        pair.source.remove(TOPOLOGY)  # first, as `down --purge` does: origins stay as long as they are used by a slot
        pair.keep_existing = False
    for pair in pairs.values():
        pair.destination.remove(TOPOLOGY)
    for site in emptied:
        execute(dsns[site], "TRUNCATE rooms")
    for pair in pairs.values():
        pair.destination.prepare(TOPOLOGY)
        pair.source.prepare(TOPOLOGY, (RuleSet(include=(Rule(owner="public", name="rooms"),)),))
    at_once(*pairs.values())
    for pair in pairs.values():
        pair.keep_existing = True  # for tables that are FAILED
        pair.look_again()
        pair.run()
    assert {pair.record.state for pair in pairs.values() if pair.record is not None} == {"KEPT", "DONE"}
    rows = [execute(dsn, "SELECT * FROM rooms ORDER BY 1") for dsn in dsns.values()]
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == 100
    assert execute(dsns["a"], "SELECT count(*) FROM rooms WHERE v = 'later'") == [(9,)]
