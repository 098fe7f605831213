"""Edits of a running topology under load: what an edit does not touch keeps its process, and nothing is lost or doubled.

One topology for the whole module, on the Ray of the shared one; each test begins with the edit that makes the file its own.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from actors.site.connection import embedded_server
from databases.embedded import EmbeddedServer
from headrace.deployment import Deployment
from redo.segments import list_segments
from streams.errors import ApplyError, ConfigError
from tests.support.steady_load import make_notes_and_events, steady_load
from tests.support.system import System, running, system_folder, wait_until
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = [pytest.mark.unit("sites"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: test_edits
state_dir: state
segment_bytes: 1MB  # so small that a test can have the beginning of redo purged
{more}
sites:
  src: {{database: {{kind: embedded}}}}
  old: {{database: {{kind: embedded}}}}
{sites}
replicate:
  - {{tables: [{tables}], from: src, to: [{destinations}]}}
"""
PARTED = "combined: never"  # else a second destination would end the combination, and its components begin
EVERY_TABLE = ("notes", "items", "events")
CAPTURE, APPLY = "capture:capture_src", "apply:apply_from_src_at_old"
BETWEEN = {"queue:q_src", "propagation:src_to_old", "queue:q_old_in"}


def _spec(folder: Path, *added: str, more: str = "", tables: str = "public.*") -> TopologySpec:
    file = folder / "edits.yaml"
    sites = "".join(f"  {site}: {{database: {{kind: embedded}}}}\n" for site in added)
    file.write_text(TOPOLOGY.format(sites=sites, destinations=", ".join(["old", *added]), more=more, tables=tables))
    return read_topology(file)


def _tables(servers: dict[str, EmbeddedServer]) -> None:
    make_notes_and_events(servers)
    for server in servers.values():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE items (id bigint PRIMARY KEY, body text)")


@pytest.fixture(scope="module")
def edited(ray_address: str) -> Iterator[System]:
    """The topology, with one destination; the last file is taken down with it."""
    with system_folder("edits") as folder, running(_spec(folder), folder, _tables, address=ray_address) as system:
        yield system


def _edit(system: System, *added: str, more: str = "", tables: str = "public.*") -> System:
    """The same topology by another file, not yet up; the servers of destinations that it adds run, with empty tables."""
    spec = _spec(system.folder, *added, more=more, tables=tables)
    for site in set(added) - system.servers.keys():
        system.servers[site] = embedded_server(spec, spec.site(site))
        system.servers[site].start()
        _tables({site: system.servers[site]})
    system.deployment.spec = spec  # what `down` is to take away
    return replace(system, deployment=Deployment(spec, system.deployment.address))


def _begin(system: System, **file: str) -> System:
    """One destination, with all tables empty at both sites."""
    begun = _edit(system, **file)
    assert begun.deployment.up()["state"] == "RUNNING"
    begun.execute("src", f"TRUNCATE {', '.join(EVERY_TABLE)}")
    begun.wait_caught_up()
    begun.execute("old", f"TRUNCATE {', '.join(EVERY_TABLE)}")  # those that the file leaves out
    return begun


# --------------------------------------------------------------------------- combined capture and apply


def _write_all(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute(f"INSERT INTO notes VALUES ({number}, 'new')")
    connection.execute(f"INSERT INTO events VALUES ({number}, 'new')")
    connection.execute(f"UPDATE notes SET body = 'changed' WHERE id = {number // 2}")


def _wait_until_rows_arrive(system: System, *sites: str) -> None:
    """What is written from now on arrives."""
    (now,) = system.execute("src", "SELECT coalesce(max(id), 0) FROM notes")[0]
    for site in sites:
        wait_until(f"rows arrive at {site}", lambda site=site: (system.execute(site, "SELECT max(id) FROM notes")[0][0] or 0) > now)


def _wait_combined(system: System) -> None:
    """The apply process gets its batches from the capture process, and what is bypassed does not run."""
    wait_until("they are connected", lambda: system.status(CAPTURE).get("subscribers", [{}])[0].get("connected"))
    assert system.status(CAPTURE)["combined_with"] == APPLY.partition(":")[2]
    assert system.status(APPLY)["combined_with"] == CAPTURE.partition(":")[2]
    assert not BETWEEN & system.deployment.connect().names()
    shown = {c["name"]: (c["state"], c.get("bypassed_by")) for c in system.deployment.overview()["components"]}
    assert {name: shown[name] for name in BETWEEN} == dict.fromkeys(BETWEEN, ("BYPASSED", CAPTURE))


def test_capture_and_apply_are_combined_and_parted_and_killed_under_load_and_nothing_is_lost_or_doubled(edited: System):
    system = _begin(edited)
    with steady_load(system, _write_all):
        _wait_combined(system)
        _wait_until_rows_arrive(system, "old")
        with pytest.raises(ConfigError, match="q_src does not run: capture:capture_src sends"):
            system.deployment.component("q_src")

        # Killed: the capture process, then the apply process.
        for name in (CAPTURE, APPLY):
            system.wait_restarted(name, system.kill(name))
            _wait_combined(system)
            _wait_until_rows_arrive(system, "old")

        # A second destination ends it, and restarts nothing.
        before = {name: system.pid(name) for name in (CAPTURE, APPLY, "site:src")}
        epoch = system.execute("old", "SELECT max(epoch) FROM headrace.apply_process")
        grown = _edit(edited, "second")
        assert grown.deployment.up()["state"] == "RUNNING"
        wait_until("the capture process is parted", lambda: "combined_with" not in grown.status(CAPTURE))
        # Both apply processes dequeue from the source's queue: nothing else begins.
        assert BETWEEN & grown.deployment.connect().names() == {"queue:q_src"}
        assert grown.status(APPLY)["dequeues_from"] == "q_src"
        _wait_until_rows_arrive(grown, "old", "second")

        # It goes, and they are combined again.
        assert system.deployment.up()["state"] == "RUNNING"
        _wait_combined(system)
        _wait_until_rows_arrive(system, "old")
        assert {name: system.pid(name) for name in before} == before
        assert system.execute("old", "SELECT max(epoch) FROM headrace.apply_process") == epoch
    system.assert_converged(["notes", "events"])


# --------------------------------------------------------------------------- what an edit does not touch


def _write_with_keys(connection: psycopg.Connection[Any], number: int) -> None:
    for table in ("notes", "items"):
        connection.execute(f"INSERT INTO {table} VALUES ({number}, 'new')")
        connection.execute(f"UPDATE {table} SET body = 'changed' WHERE id = {number // 2}")


def _pids(system: System, names: set[str]) -> dict[str, int]:
    actors = system.deployment.connect()
    return {name: actors.pid(name) for name in names}


def _opens(system: System) -> list[int]:
    """How often each component between the two sites was opened: more than before, if its streams were interrupted."""
    names = (CAPTURE, "queue:q_src", "propagation:src_to_old", "queue:q_old_in", APPLY)
    return [int(system.status(name)["opens_total"]) for name in names]


def _footprint_mb(system: System, name: str) -> float:
    """What a component's process has for itself; its share of a library changes with the processes that have it too."""
    rollup = Path(f"/proc/{system.pid(name)}/smaps_rollup").read_text()
    return int(re.search(r"^Pss_Anon:\s+(\d+)", rollup, re.MULTILINE)[1]) / 1024


class _Gaps:
    """The longest time for which no row of `notes` arrived at a destination."""

    def __init__(self, system: System, site: str) -> None:
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
                (row,) = connection.execute("SELECT coalesce(max(id), 0) FROM notes").fetchall()
                if row[0] != seen:
                    seen, at = row[0], time.monotonic()
                self.longest_s = max(self.longest_s, time.monotonic() - at)


def test_components_that_an_edit_does_not_touch_keep_their_processes_under_load(edited: System):
    system = _begin(edited, more=PARTED, tables="public.notes")
    everything = {c["name"] for c in system.deployment.overview()["components"]}
    before = _pids(system, everything)
    application = system.status("spark:old")["application_pid"]
    grown = _edit(edited, "new", more=PARTED, tables="public.notes")
    with steady_load(grown, _write_with_keys):
        wait_until("rows arrive", lambda: grown.execute("old", "SELECT count(*) FROM notes") > [(20,)])

        # A destination more: nothing of what ran is another process, and its changes go on all the time.
        opens, footprint_mb = _opens(grown), _footprint_mb(grown, "queue:q_src")
        with _Gaps(grown, "old") as gaps:
            assert grown.deployment.up()["state"] == "RUNNING"
        print(f"the longest time without a row at the other destination: {gaps.longest_s:.1f} s")
        assert _pids(grown, everything) == before
        assert grown.status("spark:old")["application_pid"] == application
        assert _opens(grown) == opens
        # The propagation to it runs in the process of the other one and of their queue.
        assert grown.pid("propagation:src_to_new") == before["queue:q_src"]
        footprint_mb = _footprint_mb(grown, "queue:q_src") - footprint_mb
        print(f"one more propagation: {footprint_mb:.1f} MB")
        assert footprint_mb < 60

        # A table more: only the apply processes, which copy it, begin anew.
        wider = _edit(edited, "new", more=PARTED, tables="public.notes, public.items")
        assert wider.deployment.up()["state"] == "RUNNING"
        after = _pids(grown, everything)
        assert {name for name in everything if after[name] != before[name]} == {APPLY}
    wider.assert_converged(("notes", "items"))

    # A component is stopped alone, and stays so when its process begins again. What Ray restarts is of the topology
    # that it took over, not of the one that it was created with.
    wider.call("propagation:src_to_new", "stop_component")
    for name in (CAPTURE, "queue:q_src"):
        wider.kill(name)
    wider.wait_restarted("queue:q_src", before["queue:q_src"])
    wider.wait_state("propagation:src_to_new", "DISABLED")
    wider.wait_state("propagation:src_to_old", "WAITING FOR LCRS", "SENDING")
    wider.call("propagation:src_to_new", "start_component")
    wider.execute("src", "INSERT INTO items VALUES (-1, 'after the kills')")
    wider.assert_converged(("notes", "items"))
    assert wider.execute("new", "SELECT body FROM items WHERE id = -1") == [("after the kills",)]


# --------------------------------------------------------------------------- a destination joins after redo was purged


ROWS = 500  # written at once: about a megabyte


def _write_rows(system: System, first: int) -> None:
    with system.connection("src") as connection:
        for number in range(first, first + ROWS, 100):
            rows = f"generate_series({number}, {number + 99}) n"
            connection.execute(f"INSERT INTO notes SELECT n, repeat(md5(n::text), 30) FROM {rows}")
            connection.execute(f"INSERT INTO events SELECT n, repeat(md5(n::text), 30) FROM {rows}")
            connection.execute(f"UPDATE notes SET body = 'changed' WHERE id = {number}")


def _write_until_purged(system: System, first: int) -> int:
    """Write until all redo that is there now is gone; the number of the next row."""
    redo = system.folder / "state" / "sites" / "src" / "redo"
    newest = list_segments(redo)[-1].number
    for number in range(first, first + 40 * ROWS, ROWS):
        _write_rows(system, number)
        system.wait_caught_up()
        if list_segments(redo)[0].number > newest:
            return number + ROWS
    raise AssertionError("redo was never purged")


def _wait_until_old_has(system: System, first: int) -> None:
    """The destination that was there before goes on: it gets what `_write_rows` wrote."""
    arrived = f"SELECT count(*) FROM events WHERE number >= {first}"
    wait_until("the other destination goes on", lambda: system.execute("old", arrived) == [(ROWS,)])


def test_destination_added_after_redo_was_purged_gets_everything_and_disturbs_nobody(edited: System):
    tables, added, file = ("notes", "events"), "apply:apply_from_src_at_late", {"more": PARTED, "tables": "public.notes, public.events"}
    system = _begin(edited, **file)
    first = _write_until_purged(system, 0)
    asked = ("capture:capture_src", "queue:q_src", "queue:q_old_in")
    rewinds = [system.status(name)["rewinds"] for name in asked]
    grown = _edit(edited, "late", **file)
    with psycopg.connect(system.servers["src"].dsn()) as user:
        # Open when the destination is added: its tables are copied when this is committed, and not before.
        for table in tables:
            user.execute(f"INSERT INTO {table} VALUES (-1, 'open meanwhile')")
        assert grown.deployment.up(wait=False)["state"] == "RUNNING"
        grown.wait_state(added, "INSTANTIATING")
        _write_rows(grown, first)
        _wait_until_old_has(grown, first)
        assert grown.execute("late", "SELECT count(*) FROM events") == [(0,)]
    assert grown.deployment.up()["state"] == "RUNNING"
    _write_rows(grown, first + ROWS)
    grown.assert_converged(tables)
    assert grown.execute("late", "SELECT count(*) FROM events") == [(first + 2 * ROWS + 1,)]
    # What the others have was not asked for again.
    assert [grown.status(name)["rewinds"] for name in asked] == rewinds

    # Taken out, and added again when the redo it would need to go on is gone: it begins anew.
    assert system.deployment.up()["state"] == "RUNNING"
    first = _write_until_purged(system, first + 2 * ROWS)
    with pytest.raises(ApplyError, match="is not empty"):
        grown.deployment.up()
    _write_rows(grown, first)
    _wait_until_old_has(grown, first)
    grown.execute("late", f"TRUNCATE {', '.join(EVERY_TABLE)}")
    # `up` is patient for 20 s with what was stuck before it (tests/unit/headrace/test_deployment.py): a busy machine may need more.
    wait_until("its tables are looked at again", lambda: "FAILED" not in {table["state"] for table in grown.status(added)["instantiation"]})
    assert grown.deployment.up()["state"] == "RUNNING"
    grown.assert_converged(tables)
