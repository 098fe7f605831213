"""Downstream capture in a whole running topology: it replaces a local capture process under load, without a copy.

Then the source's machine is lost with all its files, and the destination gets every acknowledged commit.
"""

from __future__ import annotations

import shutil

import psutil
import pytest

from actors.state_folder import site_folder
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.faults.processes import kill, server_processes
from headrace.status.captures import CaptureStatus
from tests.support.clusters.sites import NAME, Sites
from tests.support.clusters.system import wait_until
from tests.support.databases.server_settings import reload_settings
from tests.support.ways.downstream_sites import ROWS, Writer

pytestmark = [pytest.mark.unit("sites", order=10), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
queues: {q: {site: b}}
captures: {c: {site: b, source: a, transport: sync, queue: q, rules: {include: [{table: down.rows}]}}}
applies: {apply_rows: {site: b, source: a, queue: q}}
"""
LOCAL = """
queues: {q_a: {site: a}, q: {site: b}}
captures: {c_local: {site: a, source: a, queue: q_a, rules: {include: [{table: down.rows}]}}}
propagations: {p: {from: q_a, to: q}}
applies: {apply_rows: {site: b, source: a, queue: q}}
"""
SCHEMA = "down"
COPIED = 500


@pytest.fixture
def system(sites_to_lose: Sites) -> Sites:
    sites_to_lose.free(SCHEMA)
    sites_to_lose.remake(SCHEMA, ROWS)
    sites_to_lose.execute("a", "INSERT INTO down.rows SELECT -n, 0 FROM generate_series(1, %s) n", (COPIED,))
    system = sites_to_lose.by(LOCAL)
    system.up()
    return system


def _lose_source(system: Sites) -> None:
    """Simulate a machine that burns: kill its processes and delete its disk."""
    site = psutil.Process(system.pid("site:a"))
    site.suspend()  # otherwise it restarts its server
    kill(server_processes(system.servers["a"]))
    shutil.rmtree(site_folder(system.spec, "a"))
    kill([site])


def _instantiated(system: Sites) -> list[tuple[object, ...]]:
    return system.execute("b", "SELECT i::text FROM headrace.instantiation i WHERE owner = 'down' ORDER BY 1")


def _replaced(local: Sites) -> tuple[Sites, set[int]]:
    """Replace the local capture process by the downstream one while writers commit; return the acknowledged commits."""
    writers = [Writer(local.servers["a"].dsn(), number, SCHEMA) for number in range(4, 7)]
    wait_until("they commit", lambda: all(len(writer.acknowledged) > 50 for writer in writers))
    wait_until("rows arrive", lambda: local.execute("b", "SELECT count(*) FROM down.rows WHERE id > 0")[0][0] > 0)
    before = _instantiated(local)
    system = local.by(TOPOLOGY)
    system.up()
    written = [len(writer.acknowledged) for writer in writers]
    wait_until(
        "they go on", lambda: all(len(w.acknowledged) > count + 50 for w, count in zip(writers, written, strict=True))
    )
    for writer in writers:
        writer.stop()
    # A duplicate row would be in the error queue, as its key exists already.
    system.assert_converged(("down.rows",))
    assert _instantiated(system) == before, "nothing was copied again"
    running = system.deployment.connect().names()
    assert "capture:c_local" not in running
    assert "capture:c" in running
    return system, {row for writer in writers for row in writer.acknowledged}


def test_downstream_capture_applies_acknowledged_commits_of_lost_source(
    system: Sites,
) -> None:
    system.wait_caught_up()
    system.assert_converged(("down.rows",))
    assert system.status("capture:c_local")["combined_with"] == "apply_rows"
    system, before = _replaced(system)

    def scns() -> CaptureStatus | None:
        found = next(each for each in system.deployment.overview().components if each.name == "capture:c")
        if isinstance(found, CaptureStatus) and found.start_scn and found.required_checkpoint_scn:
            return found
        return None

    shown = wait_until("it tells what it needs", scns)
    assert 0 < shown.first_scn <= shown.required_checkpoint_scn <= shown.applied_scn <= shown.captured_scn
    assert shown.start_scn >= shown.first_scn
    assert shown.max_checkpoint_scn <= shown.captured_scn
    assert system.status("redo:a@b")["transport"] == "sync"
    assert system.status("capture:c")["combined_with"] == "apply_rows"
    with system.connection("a") as user:
        user.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{slot_name(NAME, 'a')}'")
    reload_settings(system.servers["a"].dsn(), "synchronous_standby_names", slot_name(NAME, "a"))
    writers = [Writer(system.servers["a"].dsn(), number, SCHEMA) for number in range(1, 4)]
    wait_until("they commit", lambda: all(len(writer.acknowledged) > 50 for writer in writers))
    _lose_source(system)
    for writer in writers:
        writer.stop()
    acknowledged = before | {row for writer in writers for row in writer.acknowledged}

    def applied() -> set[int]:
        return {int(row) for (row,) in system.execute("b", "SELECT id FROM down.rows WHERE id > 0")}

    wait_until("every acknowledged commit is applied", lambda: acknowledged <= applied())
    assert len(acknowledged) > 150
    assert len(applied() - acknowledged) <= len(writers)  # commits whose answer was in flight
    assert system.execute("b", "SELECT count(*) FROM down.rows WHERE id < 0") == [(COPIED,)]
    system.wait_state("capture:c", "WAITING FOR REDO")  # it mines the copy to its end, without the source
