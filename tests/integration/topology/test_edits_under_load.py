"""Edits of a running topology under load: components outside the edit keep their processes, and nothing is lost or
duplicated.

Each test begins with the edit that installs its own file.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from headrace.base.errors import ApplyError, ConfigError
from headrace.redo.segments import list_segments
from tests.support.clusters.processes_apart import pids, wait_processes
from tests.support.clusters.sites import Sites
from tests.support.clusters.system import wait_until
from tests.support.histories.steady_load import NOTES_AND_EVENTS, steady_load

pytestmark = [pytest.mark.unit("sites", order=6), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

SCHEMA = "edits"
TABLES = f"{NOTES_AND_EVENTS}CREATE TABLE items (id bigint PRIMARY KEY, body text)"
FILE = "replicate: [{{tables: [{tables}], from: a, to: [{destinations}]}}{more}]"
# After the first test c and its Spark application stay, through changes that do not matter here.
KEPT = ", {tables: [idle.rows], from: b, to: [c]}"
IDLE = f"replicate: [{{tables: [idle.rows], from: a, to: [b]}}{KEPT}]"
PARTED = "combined: never\n"  # otherwise a second destination would end the combination and restart its components
# An error of the destination's configuration: apply must ask for an operator.
_REFUSE = """
CREATE FUNCTION edits.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'the configuration is wrong' USING ERRCODE = 'F0000'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON edits.notes FOR EACH ROW EXECUTE FUNCTION edits.refuse();
ALTER TABLE edits.notes ENABLE ALWAYS TRIGGER refuse"""
EVERY_TABLE = tuple(f"{SCHEMA}.{table}" for table in ("notes", "items", "events"))
NOTES, ITEMS, EVENTS = EVERY_TABLE
CAPTURE, APPLY = "capture:capture_a", "apply:apply_from_a_at_b"
BETWEEN = {"queue:q_a", "propagation:a_to_b", "queue:q_b_in"}
ADDED = "apply:apply_from_a_at_c"


def _edit(sites: Sites, *added: str, more: str = "", tables: str = f"{SCHEMA}.*", keeps_c: bool = True) -> Sites:
    """Return the same topology with another file, before `up`. Its destinations are b and the added sites."""
    destinations, kept = ["b", *added], KEPT if keeps_c else ""
    body = FILE.format(tables=tables, destinations=", ".join(destinations), more=kept)
    return sites.by(body, sites=("a", "b", "c") if keeps_c else ("a", *destinations), more=more)


def _begin(sites: Sites, **file: Any) -> Sites:
    """Set up one destination, with empty tables at every site that will be one."""
    _edit(sites)  # all servers run
    sites.execute("c", "CREATE SCHEMA IF NOT EXISTS idle; CREATE TABLE IF NOT EXISTS idle.rows (id bigint PRIMARY KEY)")
    sites.free(SCHEMA, idle=IDLE, sites=["a", "b", "c"])
    sites.remake(SCHEMA, TABLES, sites=["a", "b", "c"])
    begun = _edit(sites, **file)
    begun.up()
    return begun


# --------------------------------------------------------------------------- components outside the edit


def _write_with_keys(connection: psycopg.Connection[Any], number: int) -> None:
    for table in (NOTES, ITEMS):
        connection.execute(f"INSERT INTO {table} VALUES ({number}, 'new')")
        connection.execute(f"UPDATE {table} SET body = 'changed' WHERE id = {number // 2}")


def _pids(system: Sites, names: set[str]) -> dict[str, int]:
    actors = system.deployment.connect()
    return {name: actors.pid(name) for name in names}


def _opens(system: Sites) -> list[int]:
    """Return how often each component between the two sites was opened. A higher count shows interrupted streams."""
    names = (CAPTURE, "queue:q_a", "propagation:a_to_b", "queue:q_b_in", APPLY)
    return [int(system.status(name)["opens_total"]) for name in names]


def _footprint_mb(system: Sites, name: str) -> float:
    """Return the private memory of a component's process; its share of a library changes with the processes that also
    use it.
    """
    rollup = Path(f"/proc/{system.pid(name)}/smaps_rollup").read_text()
    found = re.search(r"^Pss_Anon:\s+(\d+)", rollup, re.MULTILINE)
    assert found is not None, rollup
    return int(found[1]) / 1024


class _Gaps:
    """Measures the longest time in which no row of `notes` arrived at a destination."""

    def __init__(self, system: Sites, site: str) -> None:
        self._system, self._site, self.longest_s = system, site, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        seen, at = -1, time.monotonic()
        with self._system.connection(self._site) as connection:
            while not self._stop.wait(0.1):
                (row,) = connection.execute("SELECT coalesce(max(id), 0) FROM edits.notes").fetchall()
                if row[0] != seen:
                    seen, at = row[0], time.monotonic()
                self.longest_s = max(self.longest_s, time.monotonic() - at)


def test_components_outside_an_edit_keep_their_processes_under_load(sites: Sites):
    system = _begin(sites, more=PARTED, tables=NOTES, keeps_c=False)
    everything = {each.name for each in system.deployment.overview().components}
    before = _pids(system, everything)
    application = system.status("spark:b")["application_pid"]
    grown = _edit(sites, "c", more=PARTED, tables=NOTES, keeps_c=False)
    with steady_load(grown, _write_with_keys, site="a"):
        wait_until("rows arrive", lambda: grown.execute("b", "SELECT count(*) FROM edits.notes") > [(20,)])

        # Add a destination: no running component changes its process, and its changes keep arriving.
        opens, footprint_mb = _opens(grown), _footprint_mb(grown, "queue:q_a")
        with _Gaps(grown, "b") as gaps:
            grown.up()
        print(f"the longest time without a row at the other destination: {gaps.longest_s:.1f} s")
        assert _pids(grown, everything) == before
        assert grown.status("spark:b")["application_pid"] == application
        assert _opens(grown) == opens
        # The propagation to it runs in the process of the other propagation and of their queue.
        assert grown.pid("propagation:a_to_c") == before["queue:q_a"]
        footprint_mb = _footprint_mb(grown, "queue:q_a") - footprint_mb
        print(f"one more propagation: {footprint_mb:.1f} MB")
        assert footprint_mb < 60

        # Add a table: only the apply processes, which copy it, restart.
        wider = _edit(sites, "c", more=PARTED, tables=f"{NOTES}, {ITEMS}", keeps_c=False)
        wider.up()
        after = _pids(grown, everything)
        assert {name for name in everything if after[name] != before[name]} == {APPLY}
    wider.assert_converged((NOTES, ITEMS))

    # Stop one component; it stays stopped when its process restarts. The process that Ray restarts belongs to the
    # topology that it took over, not to the one that it was created with.
    wider.call("propagation:a_to_c", "stop_component")
    for name in (CAPTURE, "queue:q_a"):
        wider.kill(name)
    wider.wait_restarted("queue:q_a", before["queue:q_a"])
    wider.wait_state("propagation:a_to_c", "DISABLED")
    wider.wait_state("propagation:a_to_b", "WAITING FOR LCRS", "SENDING")
    wider.call("propagation:a_to_c", "start_component")
    wider.execute("a", "INSERT INTO edits.items VALUES (-1, 'after the kills')")
    wider.assert_converged((NOTES, ITEMS))
    assert wider.execute("c", "SELECT body FROM edits.items WHERE id = -1") == [("after the kills",)]


# shared processes: above; from and to separate ones: tests/faults/test_actors_killed.py, test_processes_apart.py
@pytest.mark.soak
def test_edits_with_separate_processes_touch_only_theirs_after_failures(sites: Sites):
    file = {"more": f"{PARTED}processes: apart\n", "keeps_c": False}
    system = _begin(sites, tables=NOTES, **file)
    before = pids(system)
    with steady_load(system, _write_with_keys, site="a"):
        wait_until("rows arrive", lambda: system.execute("b", "SELECT count(*) FROM edits.notes") > [(20,)])

        # Add a destination: its components get their own processes, and no running component changes its process.
        grown = _edit(sites, "c", tables=NOTES, **file)
        grown.up()
        assert set(wait_processes(grown)) > {*before, ADDED, "propagation:a_to_c", "queue:q_c_in"}
        with_c = pids(grown)
        assert {name: with_c[name] for name in before} == before

        # Remove it, while its apply process is aborted and a component of the other way is killed. Only those are gone
        # or in another process.
        grown.execute("c", _REFUSE)
        grown.wait_state(ADDED, "ABORTED")
        killed = grown.kill("queue:q_b_in")
        system.up()
        system.wait_restarted("queue:q_b_in", killed)
        assert not {ADDED, "propagation:a_to_c"} & set(wait_processes(system))
        after = pids(system)
        assert {name for name in before if after[name] != before[name]} == {"queue:q_b_in"}
        _wait_until_rows_arrive(system, "b")

        # Add a table: of the existing components only the apply process restarts, in the process of its name.
        wider = _edit(sites, tables=f"{NOTES}, {ITEMS}", **file)
        wider.up()
        wait_processes(wider)
        widened = pids(wider)
        assert {name for name in before if widened[name] != after[name]} == {APPLY}
    wider.assert_converged((NOTES, ITEMS))


# --------------------------------------------------------------------------- combined capture and apply


def _write_all(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute(f"INSERT INTO edits.notes VALUES ({number}, 'new')")
    connection.execute(f"INSERT INTO edits.events VALUES ({number}, 'new')")
    connection.execute(f"UPDATE edits.notes SET body = 'changed' WHERE id = {number // 2}")


def _wait_until_rows_arrive(system: Sites, *sites: str) -> None:
    """Wait until the rows written from now on arrive."""
    (now,) = system.execute("a", "SELECT coalesce(max(id), 0) FROM edits.notes")[0]
    for site in sites:
        wait_until(
            f"rows arrive at {site}",
            lambda site=site: (system.execute(site, "SELECT max(id) FROM edits.notes")[0][0] or 0) > now,
        )


def _wait_combined(system: Sites) -> None:
    """Wait until the apply process gets its batches from the capture process and the bypassed components do not run."""
    wait_until("they are connected", lambda: any(each["connected"] for each in system.status(CAPTURE)["subscribers"]))
    assert system.status(CAPTURE)["combined_with"] == APPLY.partition(":")[2]
    assert system.status(APPLY)["combined_with"] == CAPTURE.partition(":")[2]
    assert not BETWEEN & system.deployment.connect().names()
    shown = {each.name: (each.state, each.bypassed_by) for each in system.deployment.overview().components}
    assert {name: shown[name] for name in BETWEEN} == dict.fromkeys(BETWEEN, ("BYPASSED", CAPTURE))


@pytest.mark.soak  # without Ray: tests/integration/topology/test_combined_one_way.py
def test_combining_separating_and_killing_under_load_loses_nothing(sites: Sites):
    system = _begin(sites)
    with steady_load(system, _write_all, site="a"):
        _wait_combined(system)
        _wait_until_rows_arrive(system, "b")
        with pytest.raises(ConfigError, match="q_a does not run: capture:capture_a sends"):
            system.deployment.component("q_a")

        # Kill the capture process, then the apply process.
        for name in (CAPTURE, APPLY):
            system.wait_restarted(name, system.kill(name))
            _wait_combined(system)
            _wait_until_rows_arrive(system, "b")

        # A second destination ends the combination and restarts nothing.
        before = {name: system.pid(name) for name in (CAPTURE, APPLY, "site:a")}
        epoch = system.execute("b", "SELECT max(epoch) FROM headrace.apply_process")
        grown = _edit(sites, "c")
        grown.up()
        wait_until("the capture process is parted", lambda: not grown.status(CAPTURE).get("combined_with"))
        # Both apply processes dequeue from the source's queue: nothing else starts.
        assert BETWEEN & grown.deployment.connect().names() == {"queue:q_a"}
        assert grown.status(APPLY)["dequeues_from"] == "q_a"
        _wait_until_rows_arrive(grown, "b", "c")

        # Remove it, and they are combined again.
        system.up()
        _wait_combined(system)
        _wait_until_rows_arrive(system, "b")
        assert {name: system.pid(name) for name in before} == before
        assert system.execute("b", "SELECT max(epoch) FROM headrace.apply_process") == epoch
    system.assert_converged([NOTES, EVENTS], source="a")


# --------------------------------------------------------------------------- a destination joins after redo was purged


ROWS = 500  # written at once: about a megabyte


def _write_rows(system: Sites, first: int) -> None:
    with system.connection("a") as connection:
        for number in range(first, first + ROWS, 100):
            rows = f"generate_series({number}, {number + 99}) n"
            connection.execute(f"INSERT INTO edits.notes SELECT n, repeat(md5(n::text), 30) FROM {rows}")
            connection.execute(f"INSERT INTO edits.events SELECT n, repeat(md5(n::text), 30) FROM {rows}")
            connection.execute(f"UPDATE edits.notes SET body = 'changed' WHERE id = {number}")


def _write_until_purged(system: Sites, first: int) -> int:
    """Write until all present redo is gone; return the number of the next row."""
    redo = system.folder / "state" / "sites" / "a" / "redo"
    newest = list_segments(redo)[-1].number
    for number in range(first, first + 40 * ROWS, ROWS):
        _write_rows(system, number)
        system.wait_caught_up()
        if list_segments(redo)[0].number > newest:
            return number + ROWS
    raise AssertionError("redo was never purged")


def _wait_until_old_has(system: Sites, first: int) -> None:
    """Check that the earlier destination continues: it gets the rows of `_write_rows`."""
    arrived = f"SELECT count(*) FROM edits.events WHERE number >= {first}"
    wait_until("the other destination continues", lambda: system.execute("b", arrived) == [(ROWS,)])


@pytest.mark.soak  # the first test adds a destination
@pytest.mark.parametrize("times", ["once", "taken out and added again"])
def test_destination_added_after_a_purge_gets_all_rows_and_disturbs_nobody(sites: Sites, times: str):
    tables, file = (NOTES, EVENTS), {"more": PARTED, "tables": f"{NOTES}, {EVENTS}"}
    system = _begin(sites, **file)
    first = _write_until_purged(system, 0)
    asked = ("capture:capture_a", "queue:q_a", "queue:q_b_in")
    rewinds = [system.status(name)["rewinds_total"] for name in asked]
    grown = _edit(sites, "c", **file)
    with psycopg.connect(system.servers["a"].dsn()) as user:
        # This transaction is open when the destination is added: the tables are copied after its commit, not before.
        for table in tables:
            user.execute(f"INSERT INTO {table} VALUES (-1, 'open meanwhile')")
        grown.up(wait=False)
        grown.wait_state(ADDED, "INSTANTIATING")
        _write_rows(grown, first)
        _wait_until_old_has(grown, first)
        assert grown.execute("c", "SELECT count(*) FROM edits.events") == [(0,)]
    grown.up()
    _write_rows(grown, first + ROWS)
    grown.assert_converged(tables, source="a")
    assert grown.execute("c", "SELECT count(*) FROM edits.events") == [(first + 2 * ROWS + 1,)]
    # No changes were requested again for the others.
    assert [grown.status(name)["rewinds_total"] for name in asked] == rewinds

    if times == "once":
        return
    # If the redo that it would need is gone, the destination starts over.
    system.up()
    first = _write_until_purged(system, first + 2 * ROWS)
    with pytest.raises(ApplyError, match="is not empty"):
        grown.deployment.up()
    _write_rows(grown, first)
    _wait_until_old_has(grown, first)
    grown.execute("c", f"TRUNCATE {', '.join(EVERY_TABLE)}")
    # `up` waits 20 s for blocked work (tests/unit/headrace/deployment/test_deployment.py); a busy machine may need
    # more.
    wait_until(
        "its tables are looked at again",
        lambda: "FAILED" not in {table["state"] for table in grown.status(ADDED)["instantiation"]},
    )
    grown.up()
    grown.assert_converged(tables, source="a")
