"""Downstream capture of a whole running topology: it takes the place of a local one under load, without a copy; then the source's machine is lost
with all its files, and the destination gets every acknowledged commit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from actors.site.connection import site_folder
from databases.embedded import EmbeddedServer
from databases.postgres.source.catalog import slot_name
from headrace.deployment import Deployment
from tests.support.downstream_sites import ROWS, Writer
from tests.support.server_settings import reload_settings
from tests.support.system import System, running, system_folder, wait_until
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("sites"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: test_downstream
state_dir: state
sites:
  src: {database: {kind: embedded}}
  dst: {database: {kind: embedded}}
queues:
  q: {site: dst}
captures:
  c: {site: dst, source: src, transport: sync, queue: q, rules: {include: [{table: public.rows}]}}
applies:
  a: {site: dst, source: src, queue: q}
"""
LOCAL = """
topology: test_downstream
state_dir: state
sites:
  src: {database: {kind: embedded}}
  dst: {database: {kind: embedded}}
queues:
  q_src: {site: src}
  q: {site: dst}
captures:
  c_local: {site: src, source: src, queue: q_src, rules: {include: [{table: public.rows}]}}
propagations:
  p: {from: q_src, to: q}
applies:
  a: {site: dst, source: src, queue: q}
"""
COPIED = 500


@pytest.fixture
def system() -> Iterator[System]:
    with system_folder("downstream") as folder:
        file = folder / "downstream.yaml"
        file.write_text(LOCAL)
        with running(read_topology(file), folder, _tables) as found:
            yield found


def _tables(servers: dict[str, EmbeddedServer]) -> None:
    for server in servers.values():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(ROWS)
    with psycopg.connect(servers["src"].dsn(), autocommit=True) as connection:
        connection.execute("INSERT INTO rows SELECT -n, 0 FROM generate_series(1, %s) n", (COPIED,))


def _lose_source(system: System) -> None:
    """What is left of a machine that burns: nothing of its processes, nothing of its disk."""
    site = system.pid("site:src")
    os.kill(site, signal.SIGSTOP)  # else it starts its server again
    postmaster = system.servers["src"].pid()
    assert postmaster is not None
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    for pid in (postmaster, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(site_folder(system.spec, "src"))
    os.kill(site, signal.SIGKILL)


def _instantiated(system: System) -> list[tuple[object, ...]]:
    return system.execute("dst", "SELECT i::text FROM headrace.instantiation i ORDER BY 1")


def _replaced(local: System) -> tuple[System, set[int]]:
    """The downstream capture process takes the place of the local one while writers commit; what they were acknowledged."""
    writers = [Writer(local.servers["src"].dsn(), number) for number in range(4, 7)]
    wait_until("they commit", lambda: all(len(writer.acknowledged) > 50 for writer in writers))
    wait_until("rows arrive", lambda: local.execute("dst", "SELECT count(*) FROM rows WHERE id > 0")[0][0] > 0)
    before = _instantiated(local)
    file = local.spec.file
    file.write_text(TOPOLOGY)
    system = System(Deployment(read_topology(file), local.deployment.address), local.servers, local.folder)
    overview = system.deployment.up()
    assert overview["state"] == "RUNNING", overview["findings"]
    written = [len(writer.acknowledged) for writer in writers]
    wait_until("they go on", lambda: all(len(w.acknowledged) > count + 50 for w, count in zip(writers, written, strict=True)))
    for writer in writers:
        writer.stop()
    # A row that came twice would be in the error queue, as its key is there already.
    system.assert_converged(("rows",))
    assert _instantiated(system) == before, "nothing was copied again"
    running = system.deployment.connect().names()
    assert "capture:c_local" not in running
    assert "capture:c" in running
    return system, {row for writer in writers for row in writer.acknowledged}


def test_downstream_capture_replaces_local_capture_and_every_acknowledged_commit_is_applied_when_the_source_is_lost(system: System) -> None:
    system.wait_caught_up()
    system.assert_converged(("rows",))
    assert system.status("capture:c_local")["combined_with"] == "a"
    system, before = _replaced(system)

    def scns() -> dict[str, Any] | None:
        found = next(each for each in system.deployment.overview()["components"] if each["name"] == "capture:c")
        return found if found.get("start_scn") and found["required_checkpoint_scn"] else None

    shown = wait_until("it tells what it needs", scns)
    assert 0 < shown["first_scn"] <= shown["required_checkpoint_scn"] <= shown["applied_scn"] <= shown["captured_scn"]
    assert shown["start_scn"] >= shown["first_scn"]
    assert shown["max_checkpoint_scn"] <= shown["captured_scn"]
    assert system.status("redo:src@dst")["transport"] == "sync"
    assert system.status("capture:c")["combined_with"] == "a"
    with system.connection("src") as user:
        user.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{slot_name('test_downstream', 'src')}'")
    reload_settings(system.servers["src"].dsn(), "synchronous_standby_names", slot_name("test_downstream", "src"))
    writers = [Writer(system.servers["src"].dsn(), number) for number in range(1, 4)]
    wait_until("they commit", lambda: all(len(writer.acknowledged) > 50 for writer in writers))
    _lose_source(system)
    for writer in writers:
        writer.stop()
    acknowledged = before | {row for writer in writers for row in writer.acknowledged}

    def applied() -> set[int]:
        return {int(row) for (row,) in system.execute("dst", "SELECT id FROM rows WHERE id > 0")}

    wait_until("every acknowledged commit is applied", lambda: acknowledged <= applied())
    assert len(acknowledged) > 150
    assert len(applied() - acknowledged) <= len(writers)  # a commit whose answer was on its way
    assert system.execute("dst", "SELECT count(*) FROM rows WHERE id < 0") == [(COPIED,)]
    system.wait_state("capture:c", "WAITING FOR REDO")  # it mines the copy to its end, and needs no source for that
