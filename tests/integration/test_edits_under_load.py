"""Edits of a running topology under load: what an edit does not touch keeps its process, and nothing is lost."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from actors.site.connection import embedded_server
from databases.embedded import EmbeddedServer
from headrace.deployment import Deployment
from tests.support.steady_load import steady_load
from tests.support.system import System, running, wait_until
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: test_edits
state_dir: state
combined: never  # a second destination would end it; see test_combined_under_load
sites:
  src: {{database: {{kind: embedded}}}}
  old: {{database: {{kind: embedded}}}}
{sites}
replicate:
  - {{tables: [public.notes{tables}], from: src, to: [{destinations}]}}
"""
TABLES = ("notes", "events")
APPLY = "apply:apply_from_src_at_old"


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="headrace-test-edits-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def _spec(folder: Path, *added: str, tables: str = "") -> TopologySpec:
    file = folder / "edits.yaml"
    sites = "".join(f"  {site}: {{database: {{kind: embedded}}}}\n" for site in added)
    file.write_text(TOPOLOGY.format(sites=sites, destinations=", ".join(["old", *added]), tables=tables))
    return read_topology(file)


def _tables(servers: dict[str, EmbeddedServer]) -> None:
    for server in servers.values():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for table in TABLES:
                connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, body text)")


def _write(connection: psycopg.Connection[Any], number: int) -> None:
    for table in TABLES:
        connection.execute(f"INSERT INTO {table} VALUES ({number}, 'new')")
        connection.execute(f"UPDATE {table} SET body = 'changed' WHERE id = {number // 2}")


def _pids(system: System, names: set[str]) -> dict[str, int]:
    actors = system.deployment.connect()
    return {name: actors.pid(name) for name in names}


def _opens(system: System) -> list[int]:
    """How often each component between the two sites was opened: more than before, if its streams were interrupted."""
    names = ("capture:capture_src", "queue:q_src", "propagation:src_to_old", "queue:q_old_in", APPLY)
    return [int(system.status(name)["opens_total"]) for name in names]


def _footprint_mb(system: System, name: str) -> float:
    """Proportional set size of a component's process."""
    rollup = Path(f"/proc/{system.pid(name)}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1]) / 1024


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


def test_components_that_an_edit_does_not_touch_keep_their_processes_under_load(one_way: System, folder: Path):
    with running(_spec(folder), folder, _tables, address=one_way.deployment.cluster.address()) as system:
        everything = {c["name"] for c in system.deployment.overview()["components"]}
        before = _pids(system, everything)
        application = system.status("spark:old")["application_pid"]
        spec = _spec(folder, "new")
        server = embedded_server(spec, spec.site("new"))
        server.start()
        _tables({"new": server})
        grown = System(Deployment(spec, system.deployment.address), {**system.servers, "new": server}, system.folder)
        try:
            with steady_load(grown, _write):
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
                more = Deployment(_spec(folder, "new", tables=", public.events"), system.deployment.address)
                assert more.up()["state"] == "RUNNING"
                after = _pids(grown, everything)
                assert {name for name in everything if after[name] != before[name]} == {APPLY}
            wider = System(more, grown.servers, grown.folder)
            wider.assert_converged(TABLES)

            # A component is stopped alone, and stays so when its process begins again. What Ray restarts is of the topology
            # that it took over, not of the one that it was created with.
            wider.call("propagation:src_to_new", "stop_component")
            for name in ("capture:capture_src", "queue:q_src"):
                wider.kill(name)
            wider.wait_restarted("queue:q_src", before["queue:q_src"])
            wider.wait_state("propagation:src_to_new", "DISABLED")
            wider.wait_state("propagation:src_to_old", "WAITING FOR LCRS", "SENDING")
            wider.call("propagation:src_to_new", "start_component")
            wider.execute("src", "INSERT INTO events VALUES (-1, 'after the kills')")
            wider.assert_converged(TABLES)
            assert wider.execute("new", "SELECT body FROM events WHERE id = -1") == [("after the kills",)]
        finally:
            problems = Deployment(_spec(folder, "new", tables=", public.events"), system.deployment.address).down(purge=True)
        assert problems == []
