"""A destination joins a topology that runs, after the beginning of its redo log was purged; on the Ray of the shared one."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from actors.site.connection import embedded_server
from headrace.deployment import Deployment
from redo.segments import list_segments
from streams.errors import ApplyError
from tests.support.steady_load import make_notes_and_events
from tests.support.system import System, running, wait_until
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: test_added
state_dir: state
combined: never  # a second destination would end it; see test_combined_under_load
segment_bytes: 1MB
sites:
  src: {{database: {{kind: embedded}}}}
  old: {{database: {{kind: embedded}}}}
{sites}
replicate:
  - {{tables: [public.*], from: src, to: [{destinations}]}}
"""
TABLES = ("notes", "events")
ROWS = 500  # written at once: about a megabyte
ADDED = "apply:apply_from_src_at_new"


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="headrace-test-added-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def _spec(folder: Path, *added: str) -> TopologySpec:
    file = folder / "added.yaml"
    sites = "".join(f"  {site}: {{database: {{kind: embedded}}}}\n" for site in added)
    file.write_text(TOPOLOGY.format(sites=sites, destinations=", ".join(["old", *added])))
    return read_topology(file)


@contextlib.contextmanager
def _with_new(system: System) -> Iterator[System]:
    """The same topology with one more destination; not yet up."""
    spec = _spec(system.folder, "new")
    server = embedded_server(spec, spec.site("new"))
    server.start()
    make_notes_and_events({"new": server})
    deployment = Deployment(spec, system.deployment.address)
    try:
        yield System(deployment, {**system.servers, "new": server}, system.folder)
    finally:
        problems = deployment.down(purge=True)
    assert problems == []


def _write(system: System, first: int) -> None:
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
        _write(system, number)
        system.wait_caught_up()
        if list_segments(redo)[0].number > newest:
            return number + ROWS
    raise AssertionError("redo was never purged")


def _wait_until_old_has(system: System, first: int) -> None:
    """The destination that was there before goes on: it gets what `_write` wrote."""
    arrived = f"SELECT count(*) FROM events WHERE number >= {first}"
    wait_until("the other destination goes on", lambda: system.execute("old", arrived) == [(ROWS,)])


def test_destination_added_after_redo_was_purged_gets_everything_and_disturbs_nobody(one_way: System, folder: Path):
    with running(_spec(folder), folder, make_notes_and_events, address=one_way.deployment.cluster.address()) as system:
        first = _write_until_purged(system, 0)
        with _with_new(system) as grown:
            with psycopg.connect(system.servers["src"].dsn()) as user:
                # Open when the destination is added: its tables are copied when this is committed, and not before.
                for table in TABLES:
                    user.execute(f"INSERT INTO {table} VALUES (-1, 'open meanwhile')")
                assert grown.deployment.up(wait=False)["state"] == "RUNNING"
                grown.wait_state(ADDED, "INSTANTIATING")
                _write(grown, first)
                _wait_until_old_has(grown, first)
                assert grown.execute("new", "SELECT count(*) FROM events") == [(0,)]
            assert grown.deployment.up()["state"] == "RUNNING"
            _write(grown, first + ROWS)
            grown.assert_converged(TABLES)
            assert grown.execute("new", "SELECT count(*) FROM events") == [(first + 2 * ROWS + 1,)]
            # What the others have was not asked for again.
            assert [grown.status(c)["rewinds"] for c in ("capture:capture_src", "queue:q_src", "queue:q_old_in")] == [0, 0, 0]

            # Taken out, and added again when the redo it would need to go on is gone: it begins anew.
            assert system.deployment.up()["state"] == "RUNNING"
            first = _write_until_purged(system, first + 2 * ROWS)
            with pytest.raises(ApplyError, match="is not empty"):
                grown.deployment.up()
            _write(grown, first)
            _wait_until_old_has(grown, first)
            grown.execute("new", f"TRUNCATE {', '.join(TABLES)}")
            assert grown.deployment.up()["state"] == "RUNNING"
            grown.assert_converged(TABLES)
