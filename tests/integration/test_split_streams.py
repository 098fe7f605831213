"""A destination that is cut, on real servers, Ray and Spark: split off, the others go on without it, back, merged, equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from actors.controller import CONTROLLER
from databases.embedded import EmbeddedServer
from tests.support.steady_load import steady_load
from tests.support.system import System, running, system_folder, wait_until
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("sites"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

TOPOLOGY = """
topology: test_split
state_dir: state
split_threshold: 10
merge_threshold: 5
segment_bytes: 1MB
sites:
  src: {database: {kind: embedded}}
  near: {database: {kind: embedded}}
  far: {database: {kind: embedded}}
replicate:
  - {tables: [public.notes], from: src, to: [near, far]}
"""
CLONES = {"queue:q_src.src_to_far", "capture:capture_src.src_to_far"}
OTHERS = ("capture:capture_src", "queue:q_src", "apply:apply_from_src_at_near")
NEAR, FAR = "apply_from_src_at_near", "apply_from_src_at_far"  # they dequeue from q_src: propagations and their queues do not run


@pytest.fixture
def folder():
    with system_folder("split") as made:
        yield made


def _tables(servers: dict[str, EmbeddedServer]) -> None:
    for server in servers.values():
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE notes (id bigint PRIMARY KEY, body text)")


def _write(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute(f"INSERT INTO notes VALUES ({number}, repeat('x', 500))")
    connection.execute(f"UPDATE notes SET body = 'changed' WHERE id = {number // 2}")


def _phases(system: System) -> list[str]:
    return [str(each["phase"]) for each in system.deployment.overview()["splits"]]


def _subscribers(system: System) -> set[str]:
    return {str(each["subscriber"]) for each in system.status("queue:q_src")["subscribers"]}


def test_a_destination_that_is_cut_is_split_off_and_merged_again_and_the_others_go_on_as_if_it_were_not_there(ray_address: str, folder: Path):
    file = folder / "split.yaml"
    file.write_text(TOPOLOGY)
    with running(read_topology(file), folder, _tables, address=ray_address) as system:
        opens = {name: system.status(name)["opens_total"] for name in OTHERS}
        with steady_load(system, _write):
            wait_until("rows arrive", lambda: system.execute("far", "SELECT count(*) FROM notes") > [(20,)])
            system.call(f"apply:{FAR}", "stop_component")  # nothing gets there any more

            wait_until("it is split off", lambda: _phases(system) == ["split"])
            wait_until("the common queue has forgotten it", lambda: _subscribers(system) == {NEAR})
            cut_at = int(system.status("queue:q_src")["sources"]["src"]["durable_scn"])
            wait_until("the others' restart position moves on", lambda: system.status("capture:capture_src")["required_checkpoint_scn"] > cut_at)
            own = wait_until(
                "its own capture process runs", lambda: "required_checkpoint_scn" in (s := system.status("capture:capture_src.src_to_far")) and s,
            )
            assert own["required_checkpoint_scn"] < cut_at  # the redo that it needs is kept

            # A controller that begins again finds it split off, and so does everybody else.
            pid = system.kill(CONTROLLER)
            system.wait_restarted(CONTROLLER, pid)
            wait_until("the new controller knows it", lambda: _phases(system) == ["split"])

            system.call(f"apply:{FAR}", "start_component")
            wait_until("it is merged", lambda: _phases(system) == [])
            wait_until("the common queue has it", lambda: _subscribers(system) == {NEAR, FAR})
        wait_until("its clones have ended", lambda: not CLONES & system.deployment.connect().names())
        system.assert_converged(("notes",))
        assert {name: system.status(name)["opens_total"] for name in OTHERS} == opens  # nobody else's streams were interrupted
