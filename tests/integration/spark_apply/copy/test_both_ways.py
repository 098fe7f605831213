"""One table that is replicated both ways between two real databases: which of them has the rows. Without Ray and Spark.

Longer than 500 lines: each way in which two copies meet is one more scene on the same two drivers.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import COPY_ONE_AGAIN, INSTANTIATE_AGAIN
from headrace.console.remedies import for_topology
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSnapshot
from headrace.lcr.scn import Scn
from headrace.rules.rule import Rule, RuleSet
from spark_apply.copy import instantiation
from spark_apply.copy.ways import returned_tables, shared_tables
from tests.support.copies.copying_pairs import ENDED_S, ROOMS, TOPOLOGY, CopyingPair, at_once
from tests.support.databases.destination_contract import error_transaction
from tests.support.databases.statements import execute
from tests.support.session.background import in_background
from tests.support.session.matrices import values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILL = "INSERT INTO rooms SELECT n, 'there' FROM generate_series(1, 100) n"
ROOT = Path(__file__).parents[4]
KEPT = "SELECT count(*), count(DISTINCT xmin::text), min(v) FROM rooms"


@dataclass
class Both:
    """Sites a and b, and the apply process at each of them."""

    at_a: CopyingPair
    at_b: CopyingPair

    @property
    def a(self) -> str:
        return self.at_a.target

    @property
    def b(self) -> str:
        return self.at_b.target

    def states(self) -> dict[str, str | None]:
        return {each.there: each.record.state if each.record else None for each in (self.at_a, self.at_b)}


@pytest.fixture
def both(
    prepared_database: Callable[[EmbeddedServer], str], pg_source: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Both]:
    monkeypatch.setattr(instantiation, "_WAITING_S", 0.1)
    monkeypatch.setattr(instantiation, "_RETRY_S", 0.1)
    monkeypatch.setattr(instantiation, "_FIRST_WAITS_MAX", 1000)
    a, b = prepared_database(pg_source), prepared_database(pg_source)
    for dsn in (a, b):
        execute(dsn, ROOMS)
    at_a = CopyingPair("b", b, a, site="a", is_returned=True)
    at_b = CopyingPair("a", a, b, site="b", is_returned=True)
    with at_a.opened, at_b.opened:
        yield Both(at_a, at_b)


@pytest.mark.parametrize("full", values(["a", "b"], "b"))
def test_rows_of_the_full_site_are_copied_to_the_empty_one_and_kept(both: Both, full: str):
    has, lacks = (both.at_a, both.at_b) if full == "a" else (both.at_b, both.at_a)  # named by the site where they apply
    execute(has.target, FILL)
    lacks.before_piece = lambda _: recorded.append(has.record)
    recorded: list[Instantiation | None] = []
    at_once(both.at_a, both.at_b)
    assert both.states() == {has.there: "KEPT", lacks.there: "DONE"}
    assert recorded
    assert all(each is not None and each.state == "KEPT" for each in recorded), (
        "rows reached the empty site before its emptiness was recorded"
    )
    assert execute(has.target, KEPT) == [(100, 1, "there")]
    assert execute(lacks.target, KEPT)[0][0] == 100


@pytest.fixture
def among_three(
    prepared_database: Callable[[EmbeddedServer], str], pg_source: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[tuple[str, str], CopyingPair]]:
    """Make the apply processes of sites a, b and c that all write: one for each pair, by source and destination."""
    monkeypatch.setattr(instantiation, "_WAITING_S", 0.1)
    monkeypatch.setattr(instantiation, "_GATHERING_S", 0.1)
    monkeypatch.setattr(instantiation, "_RETRY_S", 0.1)
    monkeypatch.setattr(instantiation, "_FIRST_WAITS_MAX", 1000)
    monkeypatch.setattr(instantiation, "_FIRST_GATHERINGS_MAX", 1000)
    databases = {site: prepared_database(pg_source) for site in "abc"}
    for dsn in databases.values():
        execute(dsn, ROOMS)
    with contextlib.ExitStack() as opened:
        pairs = {}
        for source, destination in permutations(databases, 2):
            pairs[source, destination] = pair = CopyingPair(
                source,
                databases[source],
                databases[destination],
                site=destination,
                is_returned=True,
                among=sorted({*databases} - {source, destination}),
            )
            opened.enter_context(pair.opened)
        yield pairs


def run_until_settled(pairs: Iterable[CopyingPair]) -> dict[tuple[str, str], Instantiation]:
    """Run the pairs at the same time, while each applies all changes to tables that exist.

    Returns their records, by source and destination.
    """
    running = list(pairs)

    def apply(over: threading.Event) -> None:
        while not over.wait(0.05):
            for pair in running:
                if pair.record is not None and pair.record.state in {"DONE", "KEPT"}:
                    pair.apply_all()

    with in_background(apply):
        at_once(*running)
    return {(pair.site, pair.there): pair.record for pair in running if pair.record is not None}


@pytest.mark.parametrize("late", values(["", "ab", "bc", "cb", "ac", "ca"], "", "ab"))
def test_full_site_fills_the_other_two_whichever_way_is_late(
    among_three: dict[tuple[str, str], CopyingPair], late: str
):
    full = among_three["a", "b"].dsn
    execute(full, FILL)
    before = execute(full, KEPT)
    if late:
        ways = [pair for way, pair in among_three.items() if way != tuple(late)]
        for pair in ways:  # until they wait for the late one, or have their rows
            pair.should_end = lambda: all(each.record is not None or each.shown for each in ways)
        run_until_settled(ways)
        for pair in ways:
            pair.should_end = lambda: False
    records = run_until_settled(among_three.values())
    states = {way: record.state for way, record in records.items()}
    assert states.keys() == among_three.keys()
    assert states["b", "a"] == states["c", "a"] == "KEPT"
    assert set(states.values()) <= {"KEPT", "DONE", "COPIED"}, {way: each.problem for way, each in records.items()}
    for site in ("b", "c"):  # one copied, and said where the other one resumes
        into = [way for way in records if way[1] == site]
        leader, other = sorted(into, key=lambda way: not among_three[way].destination.carried)
        carried = among_three[leader].destination.carried
        record = records[other]
        assert [(each.apply, each.identity, each.scn) for each in carried] == [
            (among_three[other].name, record.identity, record.scn)
        ]
        assert (record.state, record.row_count) == ("COPIED", 0)
        assert among_three[other].destination.carried == ()
    shown = {way: pair.shown[-1].state for way, pair in among_three.items()}
    assert shown == states, "a table's shown state is its recorded state"
    assert execute(full, KEPT) == before
    for site in ("b", "c"):
        assert execute(among_three["a", site].target, "SELECT count(*), min(v) FROM rooms") == [(100, "there")]


def test_empty_site_waits_until_the_other_way_is_recorded(both: Both):
    execute(both.a, FILL)
    both.at_b.should_end = lambda: any(each.problem for each in both.at_b.shown)
    both.at_b.run()
    said = next(each.problem for each in both.at_b.shown if each.problem)
    assert said == (
        "table public.rooms waits for the other way: apply process apply_from_b_at_a at a records the table first, as"
        " soon as it runs and has a snapshot of b"
    )
    assert both.states() == {"a": None, "b": None}
    both.at_a.run()
    both.at_b.should_end = lambda: False
    both.at_b.run()
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.b, "SELECT count(*) FROM rooms") == [(100,)]


def test_record_of_another_sources_table_is_not_waited_for(both: Both):
    """An apply process of that name once got its changes from a third site."""
    execute(both.a, FILL)
    epoch = both.at_a.destination.raise_epoch(TOPOLOGY, both.at_a.name).epoch
    both.at_a.destination.record_instantiation(
        TOPOLOGY,
        both.at_a.name,
        epoch,
        Instantiation(
            source="c",
            identity="1",
            owner="public",
            name="rooms",
            scn=Scn(100),
            state="LEFT",
        ),
    )
    both.at_b.should_end = lambda: any(each.problem for each in both.at_b.shown)
    both.at_b.run()
    assert both.states()["b"] is None
    assert execute(both.b, "SELECT count(*) FROM rooms") == [(0,)]


def test_uncopied_rows_at_both_sites_need_an_operator(both: Both):
    execute(both.a, FILL)
    execute(both.b, "INSERT INTO rooms VALUES (1, 'here')")
    at_once(both.at_a, both.at_b)
    assert both.states() == {"a": "FAILED", "b": "FAILED"}
    assert all(
        "other sites get their rows from here: delete none of them" in each.record.problem
        for each in (both.at_a, both.at_b)
        if each.record
    )


def test_users_rows_at_the_empty_site_before_the_copy_need_an_operator(both: Both):
    execute(both.a, FILL)
    both.at_a.run()
    execute(both.b, "INSERT INTO rooms VALUES (1001, 'early')")
    both.at_b.run()
    assert both.states() == {"a": "KEPT", "b": "FAILED"}
    assert both.at_b.record is not None
    assert "If it lacks some, docs/tasks/add-a-site.md" in both.at_b.record.problem


def emptied_alone(said: str) -> str:
    """Return the statement that deletes rows at one site alone, from the named section of the guide."""
    title = re.search(r'docs/tasks/add-a-site\.md, "([^"]+)"', said)
    assert title, said
    section = (ROOT / "docs" / "tasks" / "add-a-site.md").read_text(encoding="utf-8").partition(f"### {title[1]}\n")[2]
    statement = re.search(r"`(BEGIN; SELECT headrace\.set_tag[^`]+)`", section.partition("\n## ")[0])
    assert statement, title[1]
    return statement[1].replace("shop.rooms", "public.rooms")


@pytest.mark.parametrize("way", ["keep", "before step 3"])
def test_remedy_for_rows_at_both_sites_is_followed(both: Both, way: str):
    execute(both.a, FILL)
    execute(both.b, FILL if way == "keep" else "INSERT INTO rooms VALUES (1, 'there')")
    at_once(both.at_a, both.at_b)
    assert both.states() == {"a": "FAILED", "b": "FAILED"}
    assert both.at_b.record is not None
    said = both.at_b.record.problem
    for pair in (both.at_a, both.at_b):
        pair.look_again()
    assert "keep them with `headrace up --keep-existing`: changes made at the source before that are not" in said
    if way == "keep":
        both.at_a.keep_existing = both.at_b.keep_existing = True
        at_once(both.at_a, both.at_b)
        assert both.states() == {"a": "KEPT", "b": "KEPT"}
    else:
        # All rows of b exist at a.
        execute(both.b, emptied_alone(said[said.index("If it lacks some, ") :]))
        at_once(both.at_a, both.at_b)
        assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.a, "SELECT * FROM rooms ORDER BY 1") == execute(both.b, "SELECT * FROM rooms ORDER BY 1")
    assert execute(both.a, "SELECT count(*) FROM rooms") == [(100,)]


def test_two_empty_tables_are_not_copied(both: Both):
    at_once(both.at_a, both.at_b)
    assert both.states() == {"a": "DONE", "b": "DONE"}


def one_way_first(both: Both) -> None:
    """Set up a topology of one way, from a to b, that has copied the table."""
    execute(both.a, FILL)
    returned_by, both.at_b.returned_by = both.at_b.returned_by, ""
    both.at_b.run()
    both.at_b.returned_by = returned_by
    assert both.states() == {"a": None, "b": "DONE"}


def test_copy_of_one_way_is_kept_when_the_other_way_is_added(both: Both):
    one_way_first(both)
    execute(both.a, "INSERT INTO rooms VALUES (101, 'on the way')")  # it has not arrived: both are under load
    at_once(both.at_a, both.at_b)
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.a, "SELECT count(*) FROM rooms") == [(101,)]
    assert execute(both.b, "SELECT count(*) FROM rooms") == [(100,)]


def test_copy_in_progress_is_waited_for(both: Both):
    one_way_first(both)
    record(both.at_b, state="COPIED")
    both.at_a.should_end = lambda: any("waits" in each.problem for each in both.at_a.shown)
    both.at_a.run()
    assert both.states() == {"a": None, "b": "COPIED"}
    record(both.at_b, state="DONE")
    both.at_a.should_end = lambda: False
    both.at_a.run()
    assert both.states() == {"a": "KEPT", "b": "DONE"}


def test_rows_that_an_operator_kept_are_not_treated_as_a_copy(both: Both):
    one_way_first(both)
    record(both.at_b, state="KEPT")
    both.at_a.run()
    assert both.states() == {"a": "FAILED", "b": "KEPT"}


def test_copy_of_an_earlier_table_of_that_name_does_not_count(both: Both):
    one_way_first(both)
    execute(both.a, f"DROP TABLE rooms; {ROOMS}; {FILL}")
    both.at_b.source.prepare(TOPOLOGY, [RuleSet(include=(Rule(owner="public", name="rooms"),))])
    both.at_a.run()
    assert both.states() == {"a": "FAILED", "b": "DONE"}


def test_copy_mixed_with_another_sites_rows_is_not_kept(both: Both):
    one_way_first(both)
    begin_at_b_from_a_third_site(both)
    both.at_a.run()
    assert both.states() == {"a": "FAILED", "b": "DONE"}


def begin_at_b_from_a_third_site(both: Both) -> None:
    with contextlib.closing(PostgresDestination(both.b, site="b")) as destination:
        epoch = destination.raise_epoch(TOPOLOGY, "apply_from_c").epoch
        assert destination.record_instantiation(
            TOPOLOGY,
            "apply_from_c",
            epoch,
            Instantiation(
                source="c",
                identity="1",
                owner="public",
                name="rooms",
                scn=Scn(100),
                state="KEPT",
            ),
        )


def test_third_sites_row_before_the_snapshot_does_not_count_as_present(both: Both, monkeypatch: pytest.MonkeyPatch):
    """An open transaction there delays the snapshot for its whole duration. That row is newer than the check, and no
    stream sends it.
    """
    one_way_first(both)
    open_snapshot = both.at_a.source.open_snapshot

    def held_up(topology: str) -> PostgresSnapshot:
        begin_at_b_from_a_third_site(both)
        execute(both.b, "INSERT INTO rooms VALUES (1001, 'of c')")
        return open_snapshot(topology)

    monkeypatch.setattr(both.at_a.source, "open_snapshot", held_up)
    both.at_a.run()
    assert both.states() == {"a": "FAILED", "b": "DONE"}


@pytest.mark.parametrize("state", ["DONE", "COPIED"])
def test_rows_deleted_here_do_not_return_with_an_outdated_copy(both: Both, state: str):
    one_way_first(both)
    record(both.at_b, state=state)
    execute(both.a, "DELETE FROM rooms")  # in flight to b
    both.at_a.should_end = lambda: any("waits" in each.problem for each in both.at_a.shown)
    both.at_a.run()
    assert execute(both.a, "SELECT count(*) FROM rooms") == [(0,)]
    assert both.states() == {"a": "KEPT" if state == "DONE" else None, "b": state}


def test_original_rows_are_kept_when_the_way_to_them_ends_and_returns(both: Both):
    execute(both.a, FILL)
    at_once(both.at_a, both.at_b)
    both.at_a.destination.leave_out(TOPOLOGY, both.at_a.name, kept=())  # one way, from a to b
    assert both.states() == {"a": None, "b": "DONE"}
    both.at_a.run()
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.a, KEPT) == [(100, 1, "there")]


@pytest.mark.parametrize("kept", values(["a", "b"], "b"))
def test_remedy_for_a_lost_log_makes_both_sites_equal_again(both: Both, kept: str):
    """Executed as printed: `down --purge`, empty the tables at the named sites, `up`."""
    execute(both.a, FILL)
    at_once(both.at_a, both.at_b)
    # The slot is lost: nothing sends this change.
    execute(both.a if kept == "a" else both.b, "UPDATE rooms SET v = 'only here'")
    fix = for_topology(INSTANTIATE_AGAIN, [("a", "b"), ("b", "a")])
    here = re.search(r"tables at (\w+), and not at (\w+), then `headrace up`", fix)
    assert here is not None
    assert "(a or b can be the one" in fix
    for pair in (both.at_a, both.at_b):
        pair.source.remove(TOPOLOGY)  # first, as `down --purge` does: origins stay as long as they are used by a slot
    for pair in (both.at_a, both.at_b):
        pair.destination.remove(TOPOLOGY)
    execute(both.b if kept == "a" else both.a, "TRUNCATE rooms")
    for pair in (both.at_a, both.at_b):
        pair.destination.prepare(TOPOLOGY)
        pair.source.prepare(TOPOLOGY, (RuleSet(include=(Rule(owner="public", name="rooms"),)),))
    at_once(both.at_a, both.at_b)
    assert both.states() == ({"a": "KEPT", "b": "DONE"} if kept == "a" else {"a": "DONE", "b": "KEPT"})
    assert execute(both.a, "SELECT * FROM rooms ORDER BY 1") == execute(both.b, "SELECT * FROM rooms ORDER BY 1")
    assert execute(both.a, "SELECT count(*) FROM rooms WHERE v = 'only here'") == [(100,)]


@pytest.mark.parametrize("first", values(["a", "b"], "b"))
def test_remedy_for_a_site_restored_from_an_old_backup_makes_both_equal(both: Both, first: str):
    """Executed as printed: both ways leave the file, the tables are emptied at b, both ways return.

    Either site may have had the rows first: a, or b, in which case a has a copy of them.
    """
    execute(both.a if first == "a" else both.b, FILL)
    at_once(both.at_a, both.at_b)
    execute(both.a, "UPDATE rooms SET v = 'only here'")
    execute(both.b, "DELETE FROM rooms WHERE id > 50")  # as in the backup
    fix = for_topology(COPY_ONE_AGAIN, [("a", "b"), ("b", "a")], at="b")
    here = re.search(
        r"take what goes to (\w+) and comes from it out of the topology file, leave its site there and run `headrace up`,"
        r" empty the replicated tables at (\w+), and not at (\w+), put it back and run `headrace up`",
        fix,
    )
    assert here is not None, fix
    assert here.groups() == ("b", "b", "a")
    for pair in (both.at_a, both.at_b):
        pair.destination.leave_out(TOPOLOGY, pair.name, kept=())
    execute(both.b, "TRUNCATE rooms")
    at_once(both.at_a, both.at_b)
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.b, "SELECT * FROM rooms ORDER BY 1") == execute(both.a, "SELECT * FROM rooms ORDER BY 1")
    assert execute(both.a, "SELECT count(*) FROM rooms WHERE v = 'only here'") == [(100,)]


def test_outdated_copy_of_a_returning_way_is_repeated_after_its_deletion(both: Both):
    execute(both.a, FILL)
    at_once(both.at_a, both.at_b)
    both.at_b.destination.leave_out(TOPOLOGY, both.at_b.name, kept=())  # one way, from b to a
    both.at_b.run()
    assert both.states() == {"a": "KEPT", "b": "LEFT"}
    execute(both.b, emptied_alone(both.at_b.shown[-1].problem))
    both.at_b.run()
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.b, "SELECT count(*) FROM rooms") == [(100,)]


def test_outdated_copy_is_not_kept_after_its_source_deleted_the_rows(both: Both):
    """The way from a to b continued: b gets no copy, so the rows would stay at a alone."""
    execute(both.b, FILL)
    at_once(both.at_a, both.at_b)
    assert both.states() == {"a": "DONE", "b": "KEPT"}
    both.at_a.destination.leave_out(TOPOLOGY, both.at_a.name, kept=())
    execute(both.b, "DELETE FROM rooms")
    both.at_a.run()
    assert both.states() == {"a": "LEFT", "b": "KEPT"}
    assert "out of date" in both.at_a.shown[-1].problem


def test_copy_in_a_replaced_table_needs_an_operator(both: Both):
    """Users write at b. Until the new table is captured there, no stream sends their changes."""
    execute(both.a, FILL)
    at_once(both.at_a, both.at_b)
    execute(both.b, f"DROP TABLE rooms; {ROOMS}; {FILL}; INSERT INTO rooms VALUES (1001, 'not captured')")
    both.at_a.source.prepare(TOPOLOGY, [RuleSet(include=(Rule(owner="public", name="rooms"),))])
    record(both.at_b, is_remade=False)  # copied again
    both.at_a.run()
    assert [each.state for each in both.at_a.destination.instantiations(TOPOLOGY, both.at_a.name)] == ["KEPT", "FAILED"]


def test_rows_that_came_after_an_empty_copy_need_an_operator(both: Both):
    """Their origin is unknown: the site may have been the full one when that was recorded."""
    one_way_first(both)
    assert both.at_b.record is not None
    record(both.at_b, state="DONE", row_count=0)
    both.at_a.run()
    assert both.states() == {"a": "FAILED", "b": "DONE"}


def interrupted_with_a_row_of_a_user(both: Both) -> None:
    """Let the driver at b die with a piece, then let a user write a row there."""
    execute(both.a, FILL)
    both.at_a.run()
    has_died: list[bool] = []
    both.at_b.before_piece = lambda _: has_died.append(True)
    both.at_b.should_end = lambda: bool(has_died)
    both.at_b.run()
    assert both.states() == {"a": "KEPT", "b": "COPYING"}
    execute(both.b, "INSERT INTO rooms VALUES (1001, 'of a user')")
    both.at_b.before_piece, both.at_b.should_end = lambda _: None, lambda: False
    both.at_b.shown.clear()


@contextlib.contextmanager
def going_on(both: Both, *, behind: int = 0) -> Iterator[None]:
    """Let the apply process at a report that b has nothing left to apply, `behind` tenths of a second late."""
    positions: deque[Scn] = deque([Scn(1)] * behind)

    def go_on(has_ended: threading.Event) -> None:
        epoch = both.at_a.destination.raise_epoch(TOPOLOGY, both.at_a.name).epoch
        while not has_ended.wait(0.1):
            positions.append(both.at_b.position_here())
            both.at_a.destination.record_low_watermark(TOPOLOGY, both.at_a.name, epoch, positions.popleft())

    with in_background(go_on):
        yield


def wait_shown(pair: CopyingPair, said: str) -> bool:
    deadline = time.monotonic() + ENDED_S
    while not any(said in each.problem for each in pair.shown):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_users_rows_written_during_the_copy_survive_its_repetition(both: Both):
    interrupted_with_a_row_of_a_user(both)
    again = threading.Thread(target=both.at_b.run)
    again.start()
    assert wait_shown(
        both.at_b,
        "table public.rooms is copied again as soon as apply process apply_from_b_at_a at a has applied what was"
        " written into it here, up to SCN",
    )
    assert execute(both.b, "SELECT v FROM rooms WHERE id = 1001") == [("of a user",)], (
        "the row was removed while the source lacked it"
    )
    execute(both.a, "INSERT INTO rooms VALUES (1001, 'of a user')")
    with going_on(both):
        again.join(ENDED_S)
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    rows = execute(both.b, "SELECT * FROM rooms ORDER BY 1")
    assert rows == execute(both.a, "SELECT * FROM rooms ORDER BY 1")
    assert len(rows) == 101


def failed_at(pair: CopyingPair) -> int:
    """Put a transaction into the error queue of a pair's apply process; return its number."""
    epoch = pair.destination.raise_epoch(TOPOLOGY, pair.name).epoch
    with contextlib.closing(
        pair.destination.open_session(TOPOLOGY, pair.name, server=0, epoch=epoch, tag=b"\x00")
    ) as session:
        session.begin()
        number = session.put_error(
            error_transaction(apply=pair.name, source=pair.site), b"", np.empty(0, np.uint64), part=0
        )
        session.commit([], Scn(0))
    return number


def test_copy_is_not_repeated_while_the_source_has_users_rows_as_errors(both: Both):
    interrupted_with_a_row_of_a_user(both)
    number = failed_at(both.at_a)
    again = threading.Thread(target=both.at_b.run)
    again.start()
    with going_on(both):
        assert wait_shown(
            both.at_b,
            "has no error transaction: one may hold what was written into the table here. `headrace errors list FILE",
        )
        assert execute(both.b, "SELECT v FROM rooms WHERE id = 1001") == [("of a user",)]
        execute(both.a, "INSERT INTO rooms VALUES (1001, 'of a user')")
        both.at_a.destination.delete_errors(TOPOLOGY, [number])
        again.join(ENDED_S)
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.b, "SELECT count(*) FROM rooms") == [(101,)]


@pytest.mark.soak
def test_row_between_the_emptying_and_the_copy_causes_another_copy(both: Both, monkeypatch: pytest.MonkeyPatch):
    interrupted_with_a_row_of_a_user(both)
    execute(both.a, "INSERT INTO rooms VALUES (1001, 'of a user')")
    open_snapshot = both.at_b.source.open_snapshot

    def written_before(topology: str) -> PostgresSnapshot:
        snapshot = open_snapshot(topology)
        execute(both.b, "INSERT INTO rooms VALUES (1002, 'late')")
        return snapshot

    monkeypatch.setattr(both.at_b.source, "open_snapshot", written_before)
    with going_on(both):
        both.at_b.run()
    assert both.states()["b"] == "FAILED"
    assert both.at_b.record is not None
    assert both.at_b.record.scn > 0, "the rows belong to a copy that is repeated"
    assert both.at_b.record.problem.startswith("rows were written into the table before it was copied: ")
    assert execute(both.b, "SELECT * FROM rooms") == [(1002, "late")]


def test_source_that_is_behind_delays_a_copy_until_it_has_caught_up(both: Both, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(returned_tables, "_RETURN_S", 0.2)
    interrupted_with_a_row_of_a_user(both)
    execute(both.a, "INSERT INTO rooms VALUES (1001, 'of a user')")
    waits = 0

    def ends() -> bool:
        nonlocal waits
        waits = sum("copied again as soon as" in each.problem for each in both.at_b.shown)
        return waits > 40

    both.at_b.should_end = ends
    with going_on(both, behind=10):
        both.at_b.run()
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.b, "SELECT count(*) FROM rooms") == [(101,)]


def test_copy_interrupted_before_the_second_way_is_repeated(both: Both):
    """Each way would wait for the other one: for its record, and for its copy."""
    execute(both.a, FILL)
    has_died: list[bool] = []
    both.at_b.before_piece = lambda _: has_died.append(True)
    both.at_b.should_end = lambda: bool(has_died)
    both.at_b.returned_by, returned_by = "", both.at_b.returned_by
    both.at_b.run()
    both.at_b.before_piece, both.at_b.should_end, both.at_b.returned_by = lambda _: None, lambda: False, returned_by
    # a piece of the copy
    execute(both.b, "INSERT INTO rooms SELECT n, 'there' FROM generate_series(1, 10) n ON CONFLICT DO NOTHING")
    assert both.states() == {"a": None, "b": "COPYING"}
    again = threading.Thread(target=both.at_b.run)
    again.start()
    both.at_a.should_end = lambda: any("waits" in each.problem for each in both.at_a.shown)
    both.at_a.run()
    with going_on(both):
        again.join(ENDED_S)
    assert both.states() == {"a": "KEPT", "b": "DONE"}
    assert execute(both.b, "SELECT count(*) FROM rooms") == [(100,)]
    assert execute(both.a, KEPT) == [(100, 1, "there")]


def test_rows_of_a_new_table_stay_while_the_other_way_knows_the_old_one(both: Both):
    interrupted_with_a_row_of_a_user(both)
    execute(both.b, f"DROP TABLE rooms; {ROOMS}; INSERT INTO rooms VALUES (1001, 'of a user')")
    both.at_a.source.prepare(TOPOLOGY, [RuleSet(include=(Rule(owner="public", name="rooms"),))])
    both.at_b.should_end = lambda: any("copied again as soon as" in each.problem for each in both.at_b.shown)
    with going_on(both):
        both.at_b.run()
    assert execute(both.b, "SELECT * FROM rooms") == [(1001, "of a user")]


def test_table_that_cannot_be_emptied_delays_no_other_table(both: Both):
    interrupted_with_a_row_of_a_user(both)
    execute(both.a, "INSERT INTO rooms VALUES (1001, 'of a user')")
    execute(
        both.b,
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept by a trigger'; END $$;
        CREATE TRIGGER t BEFORE TRUNCATE ON rooms EXECUTE FUNCTION refuse(); CREATE TRIGGER d BEFORE DELETE ON rooms EXECUTE FUNCTION refuse();
        ALTER TABLE rooms ENABLE ALWAYS TRIGGER t, ENABLE ALWAYS TRIGGER d;
    """,
    )
    for dsn in (both.a, both.b):
        execute(dsn, "CREATE TABLE halls (id int PRIMARY KEY)")
    both.at_b.source.prepare(
        TOPOLOGY, [RuleSet(include=(Rule(owner="public", name="rooms"), Rule(owner="public", name="halls")))]
    )
    epoch = both.at_a.destination.raise_epoch(TOPOLOGY, both.at_a.name).epoch
    # Both are copied in one round then.
    both.at_a.destination.record_low_watermark(TOPOLOGY, both.at_a.name, epoch, Scn(1 << 60))
    both.at_b.run()
    found = {each.name: each.state for each in both.at_b.destination.instantiations(TOPOLOGY, both.at_b.name)}
    assert found == {"rooms": "FAILED", "halls": "DONE"}


def test_row_inserted_and_deleted_before_the_copy_does_not_return(both: Both, monkeypatch: pytest.MonkeyPatch):
    """The snapshot contains the row if its deletion has not reached the source: the row is not sent back."""
    interrupted_with_a_row_of_a_user(both)
    execute(both.a, "INSERT INTO rooms VALUES (1001, 'of a user')")
    open_snapshot, has_gone = both.at_b.source.open_snapshot, list[Any]()

    def written_before(topology: str) -> PostgresSnapshot:
        for dsn in (both.b, both.a) if not has_gone else ():
            execute(dsn, "INSERT INTO rooms VALUES (1002, 'of a moment')")
        snapshot = open_snapshot(topology)
        for dsn in (both.b, both.a) if not has_gone else ():
            execute(dsn, "DELETE FROM rooms WHERE id = 1002")
        has_gone.append(True)
        return snapshot

    monkeypatch.setattr(both.at_b.source, "open_snapshot", written_before)
    with going_on(both):
        both.at_b.run()
    assert execute(both.b, "SELECT * FROM rooms WHERE id = 1002") == []
    assert both.states()["b"] == "FAILED"
    assert both.at_b.record is not None
    assert both.at_b.record.problem.startswith("rows were written into the table before it was copied: ")


def record(pair: CopyingPair, **changed: Any) -> None:
    """Change the record as its driver has left it by now."""
    assert pair.record is not None
    epoch = pair.destination.raise_epoch(TOPOLOGY, pair.name).epoch
    assert pair.destination.record_instantiation(TOPOLOGY, pair.name, epoch, replace(pair.record, **changed))


def test_copy_waits_for_error_transactions_at_the_source_and_names_them(
    among_three: dict[tuple[str, str], CopyingPair],
):
    """The errors may be executed after the snapshot: the copy would lack their rows, and no stream would send them
    again.
    """
    execute(among_three["a", "b"].dsn, FILL)
    at_a, into_c = among_three["b", "a"], among_three["a", "c"]
    failed_at(at_a)
    for pair in among_three.values():
        pair.should_end = lambda: any("error transactions" in each.problem for each in into_c.shown)
    run_until_settled(among_three.values())
    said = next(each.problem for each in into_c.shown if "error transactions" in each.problem)
    assert said == (
        "table public.rooms waits for apply process apply_from_b_at_a at a, which has error transactions: they may hold"
        " changes of the table. `headrace errors list FILE --apply apply_from_b_at_a` lists them"
    )
    assert execute(into_c.target, "SELECT count(*) FROM rooms") == [(0,)]


@pytest.fixture
def filled_from_a(among_three: dict[tuple[str, str], CopyingPair]) -> dict[tuple[str, str], CopyingPair]:
    """Set up a topology of one way, from a to b and c, that has copied the table; now all three send to each other."""
    execute(among_three["a", "b"].dsn, FILL)
    for way in (("a", "b"), ("a", "c")):
        pair = among_three[way]
        (pair.returned_by, pair.shared_by), n_way = ("", ()), (pair.returned_by, pair.shared_by)
        pair.run()
        pair.returned_by, pair.shared_by = n_way
        assert pair.record is not None
        assert pair.record.state == "DONE"
    return among_three


@pytest.mark.parametrize("late", values(["", "ba", "ca", "bc", "cb"], "", "bc"))
def test_ways_between_two_filled_sites_ask_to_compare_both_with_the_third(
    filled_from_a: dict[tuple[str, str], CopyingPair], late: str
):
    b_to_c, c_to_b, full = filled_from_a["b", "c"], filled_from_a["c", "b"], filled_from_a["a", "b"].dsn
    at_once(*(pair for way, pair in filled_from_a.items() if way != tuple(late)))
    at_once(*filled_from_a.values())
    states = {way: pair.record.state for way, pair in filled_from_a.items() if pair.record is not None}
    assert states == {
        **dict.fromkeys([("a", "b"), ("a", "c")], "DONE"),
        **dict.fromkeys([("b", "a"), ("c", "a")], "KEPT"),
        **dict.fromkeys([("b", "c"), ("c", "b")], "FAILED"),
    }
    assert b_to_c.record is not None
    assert b_to_c.record.problem == (
        "apply process apply_from_a_at_c has rows in the destination table (DONE): what is there is a copy from site a."
        " It is neither emptied nor copied from b, because rows would be lost. a sends the table to b, too, but b and c"
        " may differ: what users of b change before this way is recorded does not come here. So let changes of the table"
        " at b and c rest (those at a may go on), and run `headrace verify FILE public.rooms`. If a -> b and a -> c are"
        " identical, with no row in flight, keep the rows with `headrace up FILE --keep-existing`; changes may resume"
        " when it has ended. If not, correct the rows that it names as it says, and compare again. If many rows differ,"
        ' docs/tasks/add-a-site.md, "Adding a site to an n-way topology", says how one of several sites is repaired'
    )

    # as printed, while a change of a is in flight to b and to c
    execute(full, "INSERT INTO rooms VALUES (1001, 'of a')")
    for pair in (b_to_c, c_to_b):
        pair.keep_existing = True
        pair.look_again()
    at_once(b_to_c, c_to_b)
    for pair in (b_to_c, c_to_b):
        assert pair.record is not None
        assert pair.record.state == "KEPT"
        assert execute(pair.target, "SELECT count(*), max(id) FROM rooms") == [(100, 100)]


def begins_after_a_user_of_b(ways: dict[tuple[str, str], CopyingPair]) -> None:
    ways["b", "a"].run()
    _written_at_b_and_a(ways)


def ends_before_a_row_of_b_arrives_and_returns(ways: dict[tuple[str, str], CopyingPair]) -> None:
    for way, pair in ways.items():
        pair.keep_existing = way[0] != "a"
    at_once(*ways.values())
    _written_at_b_and_a(ways)
    for way, pair in ways.items():
        pair.keep_existing = False
        if way[0] != "a":
            assert pair.record is not None
            assert pair.record.state == "KEPT"
            pair.destination.leave_out(TOPOLOGY, pair.name, kept=())
            assert pair.record is None


def _written_at_b_and_a(ways: dict[tuple[str, str], CopyingPair]) -> None:
    for dsn in (ways["b", "a"].dsn, ways["b", "a"].target):  # a user's row, and b -> a has applied it
        execute(dsn, "INSERT INTO rooms VALUES (1001, 'of b')")


@pytest.mark.parametrize("makes", [begins_after_a_user_of_b, ends_before_a_row_of_b_arrives_and_returns])
def test_way_between_two_filled_sites_asks_although_both_copies_are_complete(
    filled_from_a: dict[tuple[str, str], CopyingPair], makes: Callable[[dict[tuple[str, str], CopyingPair]], None]
):
    """Only a has sent what b and c have, by their records, yet c lacks a row: no way would bring it any more."""
    makes(filled_from_a)
    assert {pair.record.state for way, pair in filled_from_a.items() if way[0] == "a" and pair.record} == {"DONE"}
    at_once(filled_from_a["b", "a"], filled_from_a["b", "c"])
    record = filled_from_a["b", "c"].record
    assert record is not None
    assert (record.state, record.scn) == ("FAILED", 0)
    assert "If a -> b and a -> c are identical" in record.problem
    assert execute(filled_from_a["b", "c"].target, "SELECT FROM rooms WHERE id = 1001") == []


@pytest.mark.parametrize("differs", ["identity", "copying", "not shared"])
def test_comparison_with_a_third_site_is_named_only_where_it_answers_the_question(
    filled_from_a: dict[tuple[str, str], CopyingPair], differs: str
):
    a_to_b, b_to_c = filled_from_a["a", "b"], filled_from_a["b", "c"]
    if differs == "identity":  # of another table of a
        assert a_to_b.record is not None
        execute(a_to_b.target, f"UPDATE headrace.instantiation SET identity = '1' WHERE apply = '{a_to_b.name}'")
    elif differs == "copying":
        record(a_to_b, state="COMPARING")
    else:  # handlers, or a hub
        b_to_c.shared_by = ()
    b_to_c.run()
    assert b_to_c.record is not None
    assert b_to_c.record.state == "FAILED"
    assert "headrace verify" not in b_to_c.record.problem
    assert "If it holds the rows of b as they are now" in b_to_c.record.problem


def test_late_full_site_is_copied_only_when_an_operator_says_that_changes_rest(
    among_three: dict[tuple[str, str], CopyingPair], monkeypatch: pytest.MonkeyPatch
):
    """b and c went on without a. A copy of a at b could have a row of c that c's own apply process still brings there."""
    monkeypatch.setattr(shared_tables, "_MISSING_S", 0.0)
    a = among_three["a", "b"].dsn
    for place in (a, *(among_three["a", site].target for site in ("b", "c"))):
        execute(place, "ALTER TABLE rooms DROP CONSTRAINT rooms_pkey, REPLICA IDENTITY FULL")
    execute(a, FILL)
    at_once(among_three["b", "c"], among_three["c", "b"])
    at_once(among_three["b", "a"], among_three["c", "a"])
    row = "INSERT INTO rooms VALUES (1001, 'of c')"
    execute(among_three["c", "a"].dsn, row)
    execute(a, row)
    among_three["c", "a"].apply_all()

    late = among_three["a", "b"]
    late.run()
    assert late.record is not None
    assert late.record.state == "FAILED"
    assert "apply_from_c_at_b began without a" in late.record.problem
    assert "`headrace up FILE --keep-existing`: the table is copied from a" in late.record.problem
    assert execute(late.target, "SELECT count(*) FROM rooms") == [(0,)]

    # as printed: changes rest, and everything has arrived everywhere; here the row was deleted at c, too
    for place in (a, among_three["c", "a"].dsn):
        execute(place, "DELETE FROM rooms WHERE id = 1001")
    late.rests = True
    late.look_again()
    late.run()
    assert (late.record.state, late.record.row_count) == ("DONE", 100)
    assert execute(late.target, "SELECT count(*), count(DISTINCT id) FROM rooms") == [(100, 100)]
