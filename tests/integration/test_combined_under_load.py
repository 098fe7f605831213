"""Combined capture and apply on a cluster: kills in it, and edits that end it and bring it back, all under load."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from actors.site.connection import embedded_server
from headrace.deployment import Deployment
from streams.errors import ConfigError
from tests.support.steady_load import make_notes_and_events, steady_load
from tests.support.system import System, running, wait_until
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = [pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: test_combined
state_dir: state
sites:
  src: {{database: {{kind: embedded}}}}
  old: {{database: {{kind: embedded}}}}
{sites}
replicate:
  - {{tables: [public.*], from: src, to: [{destinations}]}}
"""
CAPTURE, APPLY = "capture:capture_src", "apply:apply_from_src_at_old"
BETWEEN = {"queue:q_src", "propagation:src_to_old", "queue:q_old_in"}


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="headrace-test-combined-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def _spec(folder: Path, *added: str) -> TopologySpec:
    file = folder / "combined.yaml"
    sites = "".join(f"  {site}: {{database: {{kind: embedded}}}}\n" for site in added)
    file.write_text(TOPOLOGY.format(sites=sites, destinations=", ".join(["old", *added])))
    return read_topology(file)


def _write(connection: psycopg.Connection[Any], number: int) -> None:
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


def test_capture_and_apply_are_combined_and_parted_and_killed_under_load_and_nothing_is_lost_or_doubled(one_way: System, folder: Path):
    with running(_spec(folder), folder, make_notes_and_events, address=one_way.deployment.cluster.address()) as system:
        spec = _spec(folder, "new")
        server = embedded_server(spec, spec.site("new"))
        server.start()
        make_notes_and_events({"new": server})
        grown = System(Deployment(spec, system.deployment.address), {**system.servers, "new": server}, system.folder)
        try:
            with steady_load(system, _write):
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
                assert grown.deployment.up()["state"] == "RUNNING"
                wait_until("the capture process is parted", lambda: "combined_with" not in grown.status(CAPTURE))
                assert grown.deployment.connect().names() >= BETWEEN
                _wait_until_rows_arrive(grown, "old", "new")

                # It goes, and they are combined again.
                assert system.deployment.up()["state"] == "RUNNING"
                _wait_combined(system)
                _wait_until_rows_arrive(system, "old")
                assert {name: system.pid(name) for name in before} == before
                assert system.execute("old", "SELECT max(epoch) FROM headrace.apply_process") == epoch
            system.assert_converged(["notes", "events"])
        finally:
            problems = grown.deployment.down(purge=True)
        assert problems == []
