"""`up` and `down` for every situation that they can find, without a cluster.

Longer than 500 lines: all of it shares the deployment over scripted answers of the cluster.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import headrace.deployment.deployment
import headrace.deployment.endings
import headrace.deployment.failures
from actors.cluster import own_ray
from actors.cluster.known_process import known_process
from actors.cluster.local import ClusterFacts, LocalCluster
from actors.controller import Controller, fingerprint_of
from actors.intermediate_database import IntermediateSite
from actors.records.running import Running
from actors.records.wanted import Wanted
from headrace.base.errors import ApplyError, ConfigError, PropagationError
from headrace.console.exit_codes import FAILURE, FINDING
from headrace.console.output import Output, exit_code_of
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.demo.run import DemoOptions, _alone, run_demo
from headrace.deployment.administrators import Administrators
from headrace.deployment.deployment import Deployment, NotReady, NotUp
from headrace.deployment.failures import TablesNotCopied
from headrace.deployment.remembered_cluster import RememberedCluster
from headrace.deployment.removal import Removal
from headrace.status.overview import Overview
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.overviews import overview_from
from tests.support.databases.administered_source import AdministeredSource, administer, record
from tests.support.session.noted import noted
from tests.support.topologies.files import ONE_WAY, SITES, read
from topology.edits.changes import bypassed_of
from topology.edits.stored import KEY_FILE
from topology.links import CERTIFICATES

TWO_SOURCES = """
queues: {q1: {site: dbs1}, q2: {site: dbs2}, q3: {site: dbs3}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}
  c3: {site: dbs3, source: dbs3, queue: q3, rules: {include: [{schema: hr}]}}
propagations: {p1: {from: q1, to: q2}, p3: {from: q3, to: q2, compression: zstd}}
applies: {a1: {site: dbs2, source: dbs1, queue: q2}, a3: {site: dbs2, source: dbs3, queue: q2}}
"""


@pytest.fixture
def spec(tmp_path: Path):
    folder = tmp_path / "project"
    folder.mkdir()
    return read(folder, ONE_WAY)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_address_without_a_cluster_is_not_remembered(spec, nobody):
    with pytest.raises(ConfigError, match="no Ray cluster answers"):
        Deployment(spec, nobody).up()
    assert Deployment.read(spec.file).address == ""


def test_dead_cluster_is_distinguished_from_one_that_never_started(spec):
    with pytest.raises(NotUp, match="is not up"):
        Deployment(spec).connect()
    process = subprocess.Popen(["/bin/true"])
    created = psutil.Process(process.pid).create_time()
    process.wait()
    spec.state_dir.mkdir(parents=True)
    facts = {"address": "127.0.0.1:1", "temporary": "/nonexistent/headrace-ray-x/r", "ready": True}
    (spec.state_dir / "cluster.json").write_text(
        json.dumps({**facts, "processes": [{"pid": process.pid, "created": created, "name": "ray"}]})
    )
    with pytest.raises(NotUp, match="its Ray cluster died") as caught:
        Deployment(spec).connect()
    assert str(spec.state_dir / "logs") in caught.value.hint


def test_lost_cluster_is_named_with_the_fix_and_forgotten_by_down(spec, nobody):
    spec.state_dir.mkdir(parents=True)
    (spec.state_dir / "ray_address").write_text(nobody)
    gone = Deployment.read(spec.file)
    with pytest.raises(NotUp, match="was started on another Ray cluster") as caught:
        gone.connect()
    assert "headrace down" in caught.value.hint
    (problem,) = gone.down()
    assert "were not ended" in problem
    again = Deployment.read(spec.file)
    assert again.address == ""
    assert again.down() == []


class Clusters:
    """The user's Ray clusters by address, each with the state folder of the topology running there, or None."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path | None], *, same: str = "") -> None:
        self.folders, self._same, self._at, self.machines = folders, same, "", 1
        self.ended: list[str] = []
        monkeypatch.setattr(headrace.deployment.deployment, "_connect", self._connect)
        monkeypatch.setattr("actors.hosting.runtime.own_address", lambda: self._same or self._at)
        monkeypatch.setattr(Deployment, "_ensure_controller", lambda *_, **__: None)
        self.asked: dict[str, str] = {}
        monkeypatch.setattr(Deployment, "overview", lambda _: overview_from({**overview(), "calls": self.asked}))
        monkeypatch.setattr(
            Deployment, "_end_components", lambda deployment, *_, **__: (noted(self.ended, deployment.address), [])[1]
        )

    def _connect(self, address: str, _topology: str, _environment: dict[str, str]) -> Clusters:
        if address not in self.folders:
            raise ConfigError(f"no Ray cluster answers at {address}")
        self._at = address
        return self

    def call(self, _name: str, _method: str, asked: str, *_: Any) -> None:
        self.asked[asked] = "settled"

    def names(self) -> set[str]:
        return {"controller"} if self.folders[self._at] else set()

    def state_dir(self) -> Path | None:
        return self.folders[self._at]

    def nodes(self) -> list[dict[str, float]]:
        return [{"CPU": 1.0}] * self.machines


def test_up_makes_certificates_only_on_a_cluster_of_one_node(monkeypatch, spec):
    clusters, folder = Clusters(monkeypatch, {"head:6379": None}), spec.state_dir / CERTIFICATES
    clusters.machines = 2
    with pytest.raises(ConfigError, match="has 2 nodes") as caught:
        Deployment(spec, "head:6379").up()
    assert not folder.exists()
    assert Deployment.read(spec.file).address == ""
    _, line, _, files, _, none, _ = caught.value.hint.split("`")
    assert (line.split()[1], files[:5], none) == ("certs", "tls: ", "tls: none")
    text = spec.file.read_text()
    for said in (none, files):
        spec.file.write_text(f"{said}\n{text}")
        if said == files:
            subprocess.run(
                [str(Path(sys.executable).parent / "headrace"), *shlex.split(line)[1:]],
                check=True,
                capture_output=True,
                cwd="/",
            )
        Deployment.read(spec.file, "head:6379", to_start=True).up()
        assert not folder.exists()
    spec.file.write_text(text)
    clusters.machines = 1
    Deployment.read(spec.file, "head:6379", to_start=True).up()
    assert sorted(path.name for path in folder.glob("*.key")) == ["a.key", "b.key", "certificate-authority.key"]
    assert Deployment(spec).down(purge=True) == []
    assert not spec.state_dir.exists()


def test_copied_project_does_not_use_the_remembered_cluster(monkeypatch, spec):
    clusters = Clusters(monkeypatch, {"head:6379": spec.state_dir})
    Deployment(spec, "head:6379").up()
    assert Deployment.read(spec.file).address == "head:6379"
    copy = Path(shutil.copytree(spec.file.parent, spec.file.parent.with_name("copy"))) / spec.file.name
    assert Deployment.read(copy).address == ""
    with pytest.raises(NotUp, match="is not up"):
        Deployment.read(copy).connect()
    assert Deployment.read(copy).down(purge=True) == []
    assert not Deployment.read(copy).spec.state_dir.exists()
    assert clusters.ended == []
    # With its address given: the topology that runs there is not the copy's.
    named = Deployment.read(copy, "head:6379")
    for refused in (named.connect, named.up):
        with pytest.raises(ConfigError, match=f"from {spec.state_dir}, not from {named.spec.state_dir}"):
            refused()
    assert "were not ended" in named.down()[0]
    assert clusters.ended == []
    assert Deployment.read(spec.file).down() == []
    assert clusters.ended == ["head:6379"]


def test_purge_removes_remains_of_interrupted_writes(spec):
    spec.state_dir.mkdir(parents=True)
    for name in ("cluster.json", "desired.json", "ray_address", "split_requests.json", "chaos.json"):
        (spec.state_dir / name).with_suffix(f"{Path(name).suffix}.new").write_text("{", encoding="utf-8")
    for name in ("chaos.lock", KEY_FILE, f"{KEY_FILE}.17.new"):
        (spec.state_dir / name).touch()
    assert Deployment(spec).down(purge=True) == []
    assert not spec.state_dir.exists()


def test_moved_or_older_project_keeps_its_remembered_cluster(monkeypatch, spec):
    Clusters(monkeypatch, {"head:6379": None})
    Deployment(spec, "head:6379").up()
    moved = spec.file.parent.rename(spec.file.parent.with_name("moved")) / spec.file.name
    assert Deployment.read(moved).address == "head:6379"
    (moved.parent / ".headrace" / "t" / "ray_address").write_text("head:6379\n")
    again = Path(shutil.copytree(moved.parent, spec.file.parent)) / spec.file.name
    assert Deployment.read(again).address == "head:6379"


def test_truncated_cluster_address_is_not_taken_for_a_private_cluster(monkeypatch, spec):
    spec.state_dir.mkdir(parents=True)
    (spec.state_dir / "ray_address").write_text("")
    with pytest.raises(ConfigError, match="ray_address is empty") as caught:
        Deployment.read(spec.file)
    assert "--address" in caught.value.hint
    Clusters(monkeypatch, {"head:6379": None})
    Deployment.read(spec.file, "head:6379").up()
    assert Deployment.read(spec.file).address == "head:6379"


def test_up_does_not_start_a_second_copy_on_another_cluster(monkeypatch, spec):
    clusters = Clusters(monkeypatch, {"one:1": spec.state_dir, "two:2": None})
    begun: list[str] = []
    monkeypatch.setattr(Administrators, "begin", lambda _: begun.append("begun"))
    Deployment(spec, "one:1").up()
    with pytest.raises(ConfigError, match="runs on the Ray cluster at one:1, not on that at two:2") as caught:
        Deployment(spec, "two:2").up()
    assert "headrace down" in caught.value.hint
    assert len(begun) == 1, "a refused call changes no database"
    assert Deployment.read(spec.file).address == "one:1"
    clusters.folders["one:1"] = None  # the topology was ended there
    Deployment(spec, "two:2").up()
    assert Deployment.read(spec.file).address == "two:2"
    del clusters.folders["two:2"]  # that cluster is gone
    Deployment(spec, "one:1").up()


def test_up_recognises_a_cluster_under_another_address(monkeypatch, spec):
    Clusters(monkeypatch, {"10.0.0.1:6379": spec.state_dir, "head:6379": spec.state_dir}, same="10.0.0.1:6379")
    Deployment(spec, "10.0.0.1:6379").up()
    Deployment(spec, "head:6379").up()
    assert Deployment.read(spec.file).address == "head:6379"


def test_auto_is_resolved_at_the_call_and_an_ambiguous_one_is_kept(monkeypatch, spec):
    found = {"10.0.0.1:6379"}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(own_ray, "_addresses", lambda: found)
    Clusters(monkeypatch, {"10.0.0.1:6379": spec.state_dir})
    Deployment.read(spec.file, "auto").up()
    found.add("10.0.0.2:6379")  # a second cluster of this user, for example of a notebook
    assert Deployment.read(spec.file).address == "10.0.0.1:6379"
    RememberedCluster(spec.state_dir).remember("auto")  # as an earlier version did
    with pytest.raises(ConfigError, match="several Ray clusters have nodes here"):
        Deployment.read(spec.file)
    assert RememberedCluster(spec.state_dir).address() == "auto"


def test_up_elsewhere_is_refused_while_the_private_cluster_runs(monkeypatch, spec):
    clusters = Clusters(monkeypatch, {"one:1": None})
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        spec.state_dir.mkdir(parents=True)
        first = known_process(psutil.Process(process.pid))
        facts = ClusterFacts(
            address="127.0.0.1:1",
            temporary="/nonexistent/headrace-ray-x/r",
            folder=str(spec.state_dir),
            processes=(first,),
            ready=True,
        )
        LocalCluster(spec.state_dir)._save(facts)
        with pytest.raises(ConfigError, match="runs on its private cluster on this machine, not on that at one:1"):
            Deployment(spec, "one:1").up()
        assert Deployment.read(spec.file).address == ""
        # As an earlier build left it.
        (spec.state_dir / "ray_address").write_text("one:1\n")
        assert Deployment.read(spec.file).down() == []
        assert clusters.ended == ["one:1"]
        assert not psutil.pid_exists(process.pid)
    finally:
        process.kill()
        process.communicate()


def test_silent_controller_of_another_cluster_blocks_up_and_purge(monkeypatch, tmp_path):
    """It was forgotten while it was unreachable, and keeps running."""
    monkeypatch.setattr(headrace.deployment.deployment, "LOST_TIMEOUT_S", 0.0)
    monkeypatch.setattr(headrace.deployment.endings, "GONE_TIMEOUT_S", 0.0)
    spec = read(tmp_path, ONE_WAY.replace("{kind: embedded}", "{kind: postgres, dsn: 'host=127.0.0.1 port=1'}", 1))
    actors = FakeActors()
    monkeypatch.setattr(Deployment, "connect", lambda _: actors)
    elsewhere = [Running(spec.state_dir, name) for name in ("controller", "site:a")]
    with pytest.raises(
        ConfigError, match=f"runs on another Ray cluster: controller still runs in process {os.getpid()}"
    ):
        Deployment(spec)._ensure_controller({}, keep_call="")
    assert actors.created == []
    (problem,) = Removal(spec, print).from_databases(None)
    assert (
        f"a: what the topology made there could not be removed: site:a still runs in process {os.getpid()}" in problem
    )
    for each in elsewhere:
        each.release()
    Deployment(spec)._ensure_controller({}, keep_call="")
    assert actors.created == ["controller"]
    (problem,) = Removal(spec, print).from_databases(None)
    assert "connect" in problem


def test_purge_waits_for_the_process_of_a_site_to_end(monkeypatch, tmp_path):
    """Ray reports a process as dead before the kernel has ended it."""
    spec = read(tmp_path, ONE_WAY.replace("{kind: embedded}", "{kind: postgres, dsn: 'host=127.0.0.1 port=1'}", 1))
    ending = Running(spec.state_dir, "site:a")
    monkeypatch.setattr(
        headrace.deployment.endings,
        "time",
        SimpleNamespace(sleep=lambda _: ending.release(), monotonic=time.monotonic),
    )
    (problem,) = Removal(spec, print).from_databases(None)
    assert "connect" in problem, "the database was asked"


def test_purge_keeps_the_state_folder_until_every_database_is_cleared(monkeypatch, tmp_path):
    """The command needs the folder to distinguish its own objects from those of a copy."""
    spec = read(tmp_path, ONE_WAY.replace("{kind: embedded}", "{kind: postgres, dsn: 'host=127.0.0.1 port=1'}", 1))
    (spec.state_dir / "sites" / "a").mkdir(parents=True)
    cleared, stays = Deployment(spec).down(purge=True)
    assert "a: what the topology made there could not be removed" in cleared
    assert stays == f"{spec.state_dir} stays until everything else is removed"
    assert (spec.state_dir / "sites" / "a").exists()
    monkeypatch.setattr(
        "actors.site.connection.claim_on", lambda *_: SimpleNamespace(hold=lambda: None, close=lambda: None)
    )
    monkeypatch.setattr("actors.site.connection.remove_from", lambda *_: ("DROP PUBLICATION p",))
    told: list[str] = []
    assert Deployment(spec).down(purge=True, progress=told.append) == []
    assert "a: DROP PUBLICATION p" in told
    assert not spec.state_dir.exists()


def test_purge_without_a_lost_site_ends_and_says_what_is_left_there(monkeypatch, tmp_path):
    spec = read(tmp_path, ONE_WAY.replace("{kind: embedded}", "{kind: postgres, dsn: 'host=127.0.0.1 port=1'}", 1))
    (spec.state_dir / "sites" / "a").mkdir(parents=True)
    told: list[str] = []
    assert Deployment(spec).down(purge=True, lost=["a"], progress=told.append) == []
    (line,) = (each for each in told if each.startswith("a: "))
    assert "nothing was removed there" in line
    name = slot_name(spec.name, "a")
    assert f"WHERE slot_name = '{name}'" in line
    assert f'DROP PUBLICATION IF EXISTS "{name}"' in line
    assert not spec.state_dir.exists()


def component(state: str, *tables: str, **more: Any) -> dict[str, Any]:
    found = [{"owner": "public", "name": "t", "state": table, "rows": 0, "problem": "not empty"} for table in tables]
    return {
        "name": "apply:x",
        "kind": "apply",
        "state": state,
        "fingerprint": "new",
        "ready": all(t == "DONE" for t in tables),
        "instantiation": found,
        **more,
    }


def overview(*components: dict[str, Any]) -> dict[str, Any]:
    return {"state": "RUNNING", "components": list(components)}


class Looks:
    """A deployment with a scripted overview per look (the last one repeats) and its own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spec: Any, *seen: dict[str, Any]) -> None:
        self.calls: list[tuple[str, str]] = []
        looks = iter([*seen[:-1]])
        clock = itertools.count(0.0, 1.0)
        # In this module only: other threads of the process keep the real time.
        monkeypatch.setattr(
            headrace.deployment.deployment, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(clock))
        )
        monkeypatch.setattr(Deployment, "cluster", self)
        monkeypatch.setattr(Deployment, "connect", lambda _: self)
        monkeypatch.setattr(Deployment, "_ensure_controller", lambda *_, **__: None)
        monkeypatch.setattr(Deployment, "overview", lambda _: self.answered(next(looks, seen[-1])))
        self.deployment = Deployment(spec)
        self.asked: dict[str, str] = {}
        self.has_looked = False

    def address(self) -> str:
        """The address of the cluster, which already runs."""
        return "127.0.0.1:1"

    def answered(self, found: dict[str, Any]) -> Overview:
        """The overview with the fields that the controller of this file adds, unless the look sets them."""
        own = {"fingerprint": fingerprint_of(self.deployment.spec), "calls": self.asked}
        return overview_from(own | found)

    def start(self) -> None:
        """The cluster already runs."""

    def call(self, name: str, method: str, *arguments: Any, **_: Any) -> bool:
        if method == "retry":
            self.asked[arguments[0]] = "settled"
        else:
            self.calls.append((name, method))
        return self.has_looked


def test_up_waits_while_components_of_the_previous_file_run(monkeypatch, spec):
    old = overview(component("IDLE", "DONE", outdated=True))
    new = overview(component("IDLE", "DONE"))
    assert Looks(monkeypatch, spec, old, old, new).deployment.up().components == overview_from(new).components


def test_up_waits_for_a_table_that_was_just_fixed(monkeypatch, spec):
    failed, done = overview(component("INITIALIZING", "FAILED")), overview(component("IDLE", "DONE"))
    assert Looks(monkeypatch, spec, failed, failed, done).deployment.up().components == overview_from(done).components


def test_up_fails_late_for_an_old_failure_and_at_once_for_a_new_one(monkeypatch, spec):
    failed, copying = overview(component("INITIALIZING", "FAILED")), overview(component("INITIALIZING", "COPYING"))
    for looks in ((failed,), (copying, failed)):
        with pytest.raises(ApplyError, match=r"table public\.t: not empty"):
            Looks(monkeypatch, spec, *looks).deployment.up()


def test_up_asks_for_another_look_and_fails_when_it_confirms_the_failure(monkeypatch, spec):
    looks = Looks(monkeypatch, spec, overview(component("INITIALIZING", "FAILED")))
    looks.has_looked = True
    with pytest.raises(ApplyError, match=r"table public\.t: not empty"):
        looks.deployment.up()
    assert [method for _, method in looks.calls].count("look_at_tables") == 1
    assert vars(headrace.deployment.deployment)["time"].monotonic() < headrace.deployment.failures.STUCK_S


def test_up_reports_a_failed_table_after_the_other_components_started(monkeypatch, spec):
    failed, other = component("APPLYING", "FAILED"), {"kind": "apply", "name": "apply:y", "ready": True}
    starting, running = (overview(failed, {**other, "state": state}) for state in ("STARTING SPARK", "APPLYING"))
    looks = Looks(monkeypatch, spec, *[starting] * 8, running)
    looks.has_looked = True
    with pytest.raises(TablesNotCopied, match=r"table public\.t: not empty") as caught:
        looks.deployment.up()
    assert exit_code_of(caught.value) == FINDING
    looks = Looks(monkeypatch, spec, starting)
    looks.has_looked = True
    with pytest.raises(ApplyError, match=r"table public\.t: not empty") as failed_later:
        looks.deployment.up()
    assert exit_code_of(failed_later.value) == FAILURE, "the other component does not start within a minute"


@pytest.mark.parametrize(
    "before",
    [(), (component("INITIALIZING", "FAILED", started_us=1, outdated=True),)],
    ids=["not there yet", "about to be replaced"],
)
def test_up_ignores_table_failures_that_an_earlier_process_recorded(monkeypatch, spec, before):
    """A new process shows the recorded failures until it has looked at the tables; `up` used to end with them as if its
    own call had failed.
    """
    recorded, done = (
        overview(component("INITIALIZING", "FAILED", started_us=2)),
        overview(component("IDLE", "DONE", started_us=2)),
    )
    looks = Looks(monkeypatch, spec, overview(*before), *[recorded] * 3, done)
    assert looks.deployment.up(timeout_s=100).components == overview_from(done).components
    assert ("apply:x", "look_at_tables") in looks.calls


def test_up_fails_when_another_one_replaced_the_file(monkeypatch, spec):
    mine = overview(component("INITIALIZING", "COPYING"))
    others = {**overview(component("IDLE", "DONE")), "fingerprint": "another"}
    with pytest.raises(ConfigError, match="another `headrace up` has replaced this one"):
        Looks(monkeypatch, spec, mine, others).deployment.up()


def test_up_waits_for_its_own_call_and_repeats_it_for_a_new_controller(monkeypatch, spec):
    """Otherwise it would report RUNNING for a preparation that is older than the table it was called for."""
    looks = Looks(monkeypatch, spec, overview(component("IDLE", "DONE")))
    asked: list[tuple[str, bool]] = []
    states = iter(["asked", "begun", None, "asked", "settled"])

    def call(_: str, method: str, call: str, earlier: bool) -> None:
        assert method == "retry"
        asked.append((call, earlier))

    def look(_: Deployment) -> Overview:
        state = next(states) if asked else None
        calls = {} if state is None else {asked[0][0]: state}
        return overview_from({**overview(component("IDLE", "DONE")), "calls": calls})

    monkeypatch.setattr(looks, "call", call)
    monkeypatch.setattr(Deployment, "overview", look)
    looks.deployment.up()
    assert next(states, "nothing is left") == "nothing is left"
    assert [earlier for _, earlier in asked] == [False, True]
    assert len({call for call, _ in asked}) == 1


class Administered:
    """`up` for a topology whose source has an administrator and a new table. The controller takes up the tables that it
    finds in the log when it is called.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        content = ONE_WAY.replace("{kind: embedded}", '{kind: postgres, dsn: "${RUNS}", admin_dsn: "${ADMIN}"}', 1)
        monkeypatch.setenv("ADMIN", "postgresql://admin@127.0.0.1/x")
        spec = read(folder, content, {"RUNS": "postgresql://runs@127.0.0.1/x", "ADMIN": ""})
        self.source = AdministeredSource(["t", "new"], ["t"])
        self.taken_up, self.state = [{"t"}], "RUNNING"
        self.earlier: list[bool] = []  # whether each call declares itself an earlier one
        administer(monkeypatch, {"a": self.source})
        record(spec, {"a": ["t"]})
        looks = Looks(monkeypatch, spec, {**overview(component("IDLE", "DONE")), "findings": []})

        def call(_: str, method: str, call: str, earlier: bool) -> None:
            assert method == "retry"
            self.earlier.append(earlier)
            self.source.is_away = False  # waited for
            self.taken_up.append(set(self.source.published))
            if self.state != "REFUSED":
                record(spec, {"a": self.source.published})
            looks.asked[call] = "settled"

        monkeypatch.setattr(looks, "call", call)
        self.deployment = looks.deployment

    def up(self, **options: Any) -> list[str]:
        """Return the findings of the call."""
        return [f"{each.problem}: {each.fix}" for each in self.deployment.up(**options).findings]


@pytest.fixture
def administered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Administered:
    return Administered(monkeypatch, tmp_path)


def test_up_takes_up_a_table_whose_source_was_away_at_first(administered):
    administered.source.is_away = True
    assert administered.up() == []
    assert administered.source.published == {"t", "new"}
    assert administered.taken_up[1:] == [{"t"}, {"t", "new"}]
    assert administered.earlier == [False, True], "a call with --keep-existing in between stays in force"
    assert administered.up() == []
    assert administered.taken_up[3:] == [{"t", "new"}], "otherwise one call suffices"


def test_up_that_keeps_rows_names_a_table_whose_source_was_away(administered):
    """The controller has already recorded for which tables rows are kept."""
    administered.source.is_away = True
    *_, named = administered.up(keep_existing=True)
    assert "public.new" in named
    assert named.endswith(": headrace up FILE --keep-existing")
    assert administered.source.published == {"t"}


def test_up_names_a_table_once_whose_administrator_is_unreachable(administered):
    administered.source.is_admin_away = True
    (named,) = administered.up()
    assert "public.new" in named
    assert "password authentication failed" in named
    assert len(administered.taken_up) == 2


def test_late_publication_is_undone_after_a_refusal(administered, monkeypatch):
    administered.source.is_away = True
    answered = Deployment.overview

    def look(deployment: Deployment) -> Overview:
        return replace(answered(deployment), state=administered.state)

    monkeypatch.setattr(Deployment, "overview", look)
    prepare = administered.source.prepare

    def refused(*arguments: Any, **options: Any) -> tuple[str, ...]:
        administered.state = "REFUSED"
        return tuple(prepare(*arguments, **options))

    monkeypatch.setattr(administered.source, "prepare", refused)
    assert administered.up() == []
    assert administered.taken_up[1:] == [{"t"}, {"t", "new"}]
    assert administered.source.published == {"t"}


def test_up_reports_why_a_controller_cannot_begin(monkeypatch, spec):
    spec.state_dir.mkdir(parents=True)
    (spec.state_dir / "desired.json").write_text('{"prepared": "', encoding="utf-8")
    controller = Controller(spec, actors=FakeActors())
    controller._attempt(controller._run_once)
    with pytest.raises(ApplyError, match=r"desired\.json is damaged") as failed:
        Looks(monkeypatch, spec, controller.overview()).deployment.up()
    assert "remove it: then `headrace up` prepares everything anew" in failed.value.hint


def test_up_starts_an_aborted_component_once_more(monkeypatch, spec):
    aborted, done = overview(component("ABORTED")), overview(component("IDLE", "DONE"))
    looks = Looks(monkeypatch, spec, aborted, done)
    assert looks.deployment.up().components == overview_from(done).components
    assert looks.calls == [("apply:x", "start_component")]


def gave_up(at_us: int, message: str, call: str = "") -> dict[str, Any]:
    found = {**component("ABORTED", "DONE"), "last_error": {"message": message, "hint": "", "at_us": at_us}}
    return overview(found) if call == "settled" else {**overview(found), "calls": {}}


def test_up_retries_an_aborted_component_after_its_call_is_settled(monkeypatch, spec):
    """This call can fix the cause of an abort, and the first attempt comes before the fix and fails again."""
    looks = Looks(
        monkeypatch,
        spec,
        gave_up(1, "old"),
        *[gave_up(2, "old")] * 8,
        gave_up(2, "old", "settled"),
        done := overview(component("IDLE", "DONE")),
    )
    assert looks.deployment.up(timeout_s=100).components == overview_from(done).components
    assert looks.calls == [("apply:x", "start_component")] * 2


def test_up_reports_the_failure_after_that_retry_and_not_an_earlier_one(monkeypatch, spec):
    settled = [gave_up(2, "old", "settled")] * 4
    outdated = gave_up(3, "old part of the file", "settled")
    outdated["components"][0]["outdated"] = True
    settled.append(outdated)
    looks = Looks(monkeypatch, spec, gave_up(1, "old"), gave_up(2, "old"), *settled, gave_up(4, "new", "settled"))
    with pytest.raises(ApplyError, match="new"):
        looks.deployment.up(timeout_s=100)
    assert looks.calls == [("apply:x", "start_component")] * 2
    assert vars(headrace.deployment.deployment)["time"].monotonic() < headrace.deployment.failures.STUCK_S


def test_start_clears_the_stop_of_a_bypassed_component(monkeypatch, spec):
    actors = FakeActors()
    monkeypatch.setattr(Deployment, "connect", lambda _: actors)
    deployment = Deployment(spec)
    component, capture = next((c, by) for c, by in bypassed_of(spec).items() if c.kind == "propagation")
    name = component.name.removeprefix("propagation:")
    actors.running[f"site:{component.site}"] = {"spec": spec}
    for on in (True, False):
        with pytest.raises(ConfigError, match="does not run"):
            deployment.switch(name, on=on)
    stopped = Wanted(spec.state_dir, component.name)
    stopped.save(enabled=False)
    assert deployment.switch(name, on=True) == f"{component.name}: no longer stopped; {capture} bypasses it"
    assert stopped.is_enabled()

    actors.running[component.name] = {"spec": spec}
    switched: list[tuple[str, str]] = []
    monkeypatch.setattr(actors, "call", lambda name, method: switched.append((name, method)))
    assert deployment.switch(name, on=False) == f"{component.name}: stopped"
    assert deployment.switch(name, on=True) == f"{component.name}: started"
    assert switched == [(component.name, "stop_component"), (component.name, "start_component")]


def test_stopping_a_queue_names_the_apply_processes_that_bypass_it(monkeypatch, tmp_path):
    spec = read(tmp_path, SITES + TWO_SOURCES)
    actors = FakeActors()
    monkeypatch.setattr(Deployment, "connect", lambda _: actors)
    actors.running["queue:q2"] = {"spec": spec}
    monkeypatch.setattr(actors, "call", lambda *_: None)
    deployment = Deployment(spec)
    assert deployment.switch("q2", on=False) == "queue:q2: stopped; a1 bypasses it and continues"
    assert deployment.switch("q2", on=True) == "queue:q2: started"


class EndsActors(FakeActors):
    """A controller that creates another component while components are asked; `stays` never ends."""

    def __init__(self, *, stays: str = "") -> None:
        super().__init__()
        self.stays = stays
        self.running = {name: {"fingerprint": "f"} for name in ("controller", "site:src", "spark:dst", "apply:x")}

    def call_all(self, names: Iterable[str], method: str, *, timeout_s: float) -> dict[str, Any]:
        if "controller" in self.running:
            self.running[f"queue:q{len(self.running)}"] = {}
        return super().call_all(names, method, timeout_s=timeout_s)

    def kill(self, name: str) -> None:
        if name != self.stays:
            super().kill(name)


def test_down_ends_components_that_the_controller_created_last(monkeypatch, spec, nobody):
    actors = EndsActors()
    monkeypatch.setattr(Deployment, "connect", lambda _: actors)
    told: list[str] = []
    assert Deployment(spec, nobody).down(progress=told.append) == []
    assert not actors.running
    assert "components ended" in told


def test_down_names_components_that_it_could_not_end(monkeypatch, spec, nobody):
    actors = EndsActors(stays="spark:dst")
    monkeypatch.setattr(Deployment, "connect", lambda _: actors)
    monkeypatch.setattr(headrace.deployment.endings, "GONE_TIMEOUT_S", 0.1)
    told: list[str] = []
    (problem,) = Deployment(spec, nobody).down(progress=told.append)
    assert problem.startswith("still running after 0.1 s: spark:dst")
    assert "components ended" not in told


class RecreatingActors(FakeActors):
    """A controller that recreates an apply process while it lives, and once more as it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.running = {name: {"fingerprint": "f"} for name in ("controller", "site:src", "apply:x")}
        self.ends: list[str] = []

    def kill(self, name: str) -> None:
        super().kill(name)
        self.ends.append(name)
        if "controller" in self.running or self.ends == ["controller"] or self.ends == ["controller", "apply:x"]:
            self.running.setdefault("apply:x", {"fingerprint": "f"})

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float = 5.0) -> Any:
        return (
            {"name": name, "fingerprint": "f"}
            if method == "status"
            else super().call(name, method, *arguments, timeout_s=timeout_s)
        )


def test_up_that_keeps_rows_ends_the_controller_before_its_apply_processes(monkeypatch, spec, nobody):
    actors = RecreatingActors()
    monkeypatch.setattr(Deployment, "connect", lambda _: actors)
    monkeypatch.setattr(Deployment, "_check_no_other_controller", lambda _: None)
    monkeypatch.setattr(headrace.deployment.endings, "KILL_AGAIN_S", 0.1)
    Deployment(spec, nobody)._ensure_controller({}, keep_call="call")
    assert actors.ends == ["controller", "apply:x", "apply:x"]
    assert set(actors.running) == {"controller", "site:src"}
    assert actors.running["controller"]["keep_call"] == "call"


def test_up_does_not_continue_with_the_controller_of_another_file(monkeypatch, spec, nobody):
    actors = EndsActors(stays="controller")
    monkeypatch.setattr(actors, "call", lambda name, *_: {"name": name, "fingerprint": "another"})
    monkeypatch.setattr(Deployment, "connect", lambda _: actors)
    monkeypatch.setattr(headrace.deployment.endings, "GONE_TIMEOUT_S", 0.1)
    with pytest.raises(PropagationError, match=r"controller of topology t does not end within 0\.1 s"):
        Deployment(spec, nobody).up()


def test_up_does_not_fail_for_a_component_that_it_will_bypass(monkeypatch, spec):
    ends = {"name": "queue:q", "kind": "queue", "state": "ABORTED", "outdated": True, "to_be_bypassed_by": "capture:c"}
    before, done = overview(component("IDLE", "DONE"), ends), overview(component("IDLE", "DONE"))
    looks = [before] * 60
    assert Looks(monkeypatch, spec, *looks, done).deployment.up().components == overview_from(done).components


def test_private_cluster_does_not_inherit_connection_string_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_DSN", "postgresql://u:planted@h/db")
    monkeypatch.setenv("UNRELATED", "stays")
    content = ONE_WAY.replace("{kind: embedded}", '{kind: postgres, dsn: "${PLANTED_DSN}"}', 1)
    assert content != ONE_WAY
    environment = Deployment(read(tmp_path, content, os.environ)).cluster._environment()
    assert "planted" not in "".join(environment.values())
    assert environment["UNRELATED"] == "stays"


@pytest.mark.parametrize(
    ("value", "stays"),
    [
        ("postgresql://u:planted@h/db", False),
        ("postgres://u:planted@h/db", False),
        ("host=h user=u password=planted", False),
        ("postgresql://u:a@planted@h/db", False),  # a typing error: people may see it, processes must not
        ("postgresql://u@h/db", True),
        ("http://u:planted@proxy", True),  # a handler can need it
        ("the password is planted", True),
    ],
)
def test_private_cluster_does_not_inherit_connection_strings_of_others(tmp_path, monkeypatch, value, stays):
    monkeypatch.setenv("OF_ANOTHER_FILE", value)
    environment = Deployment(read(tmp_path, ONE_WAY, os.environ)).cluster._environment()
    assert environment.get("OF_ANOTHER_FILE") == (value if stays else None)


@pytest.mark.parametrize(("dsn", "is_taken"), [("postgresql://u@h/db", True), ("postgresql://u:own@h/db", False)])
def test_private_cluster_inherits_pgpassword_only_if_a_connection_needs_it(tmp_path, monkeypatch, dsn, is_taken):
    monkeypatch.setenv("PGPASSWORD", "of-the-shell")
    monkeypatch.setenv("PLANTED_DSN", dsn)
    content = ONE_WAY.replace("{kind: embedded}", '{kind: postgres, dsn: "${PLANTED_DSN}"}', 1)
    environment = Deployment(read(tmp_path, content, os.environ)).cluster._environment()
    assert ("PGPASSWORD" in environment) == is_taken


def test_lock_of_a_demo_does_not_follow_a_foreign_link(tmp_path):
    """In a shared folder such as /tmp, another user can create a file of that name first."""
    theirs = tmp_path / "theirs"
    theirs.write_text("what a demo must not touch")
    (tmp_path / "state.lock").symlink_to(theirs)
    with pytest.raises(ConfigError, match="cannot be opened"), _alone(tmp_path / "state"):
        pass
    assert theirs.read_text() == "what a demo must not touch"


def test_folder_that_others_may_write_is_refused_before_a_demo_locks_it(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="other users may write"), _alone(tmp_path / "open" / "state"):
        pass
    assert not list((tmp_path / "open").iterdir())


def test_second_demo_in_the_same_folder_is_refused_and_touches_nothing(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    with _alone(state), pytest.raises(ConfigError, match="another demo runs"):
        run_demo(DemoOptions(state_dir=state), Output(as_json=True))
    assert state.exists()
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_up_that_times_out_names_the_reason(monkeypatch, spec):
    site = {
        "name": "site:a",
        "kind": "site",
        "state": "STARTING DATABASE",
        "database_problem": "connecting: connection refused",
    }
    looks = Looks(monkeypatch, spec, {"state": "STARTING SITES", "components": [site]})
    with pytest.raises(
        NotReady, match=r"after 30 s: starting sites: .*site:a: connecting: connection refused"
    ) as caught:
        looks.deployment.up(timeout_s=30)
    assert "start the database" in caught.value.hint
    assert "headrace down" in caught.value.hint


def test_up_that_times_out_names_component_or_table_of_each_fix(monkeypatch, spec):
    failed = [
        {"owner": "hr", "name": name, "state": "FAILED", "rows": 0, "problem": "not empty"} for name in ("t", "u")
    ]
    components = [
        {
            "name": "site:a",
            "kind": "site",
            "state": "STARTING DATABASE",
            "database_problem": "connecting: connection refused",
        },
        {"name": "apply:x", "kind": "apply", "state": "INITIALIZING", "instantiation": failed},
    ]
    deployment = Looks(monkeypatch, spec, {"state": "STARTING SITES", "components": components}).deployment
    hint = deployment._not_ready(overview_from({"state": "STARTING SITES", "components": components}), 30).hint
    assert "site:a: start the database" in hint
    assert "table hr.t, table hr.u: correct it" in hint


def test_up_ends_with_the_error_of_an_aborted_controller(monkeypatch, spec):
    aborted = {"state": "ABORTED", "components": [], "problem": "publication p is not ours", "fix": "drop it"}
    with pytest.raises(ApplyError, match="publication p is not ours") as caught:
        Looks(monkeypatch, spec, aborted).deployment.up()
    assert caught.value.hint == "drop it"


def test_up_names_every_failed_table_and_waits_briefly_for_the_others(monkeypatch, spec):
    first, all_of_them = component("INITIALIZING", "FAILED", "PENDING"), component("INITIALIZING", "FAILED", "FAILED")
    for each in (first, all_of_them):
        each["instantiation"][1]["name"] = "u"
    with pytest.raises(ApplyError) as raised:
        Looks(monkeypatch, spec, overview(first), overview(first), overview(all_of_them)).deployment.up()
    assert "table public.t: not empty" in raised.value.message
    assert "table public.u: not empty" in raised.value.message
    with pytest.raises(ApplyError, match=r"table public\.t: not empty"):  # but not for ever
        Looks(monkeypatch, spec, overview(first)).deployment.up()


class Machines(FakeActors):
    """Sites whose actors end servers and remove files; the node of a silent one is away."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []
        self.running = {name: {} for name in names}

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float = 5.0) -> Any:
        if name in self.silent:
            raise PropagationError(f"{name} does not answer")
        self.asked.append((name, method))


def on_nodes(spec: Any) -> Any:
    return replace(spec, sites=tuple(replace(site, node=((f"site_{site.name}", 1.0),)) for site in spec.sites))


def clear(spec: Any, actors: Machines, *, purge: bool) -> tuple[list[str], list[str]]:
    """Return the problems and the progress lines."""
    told: list[str] = []
    return Removal(spec, told.append).clear_nodes(actors, actors.names(), purge=purge), told


def test_down_cleans_the_machines_of_sites_and_names_unreached_ones(spec):
    spec, machines = on_nodes(spec), Machines("site:a", "site:b")
    assert clear(spec, machines, purge=False) == (
        [],
        [f"{site}: embedded server stopped on its machine" for site in ("a", "b")],
    )
    assert [method for _, method in machines.asked] == ["status", "stop_server"] * 2
    machines.silent.add("site:a")
    del machines.running["site:b"]
    (away, ended), told = clear(spec, machines, purge=True)
    assert told == []
    assert away.startswith("a: site:a does not answer: what it keeps in ")
    assert ended.startswith("b: site:b does not run: what it keeps in ")


def test_down_leaves_the_heads_own_machine_to_the_command(spec):
    machines = Machines("site:a", "site:b")
    assert clear(spec, machines, purge=True) == ([], [])
    assert machines.asked == []


def test_site_removes_only_its_own_files_on_its_machine(spec):
    state = spec.state_dir
    for name in (
        "sites/a/redo/1.redo",
        "sites/b/queues/q/positions.json",
        "components/queue.q.json",
        "logs/site.a.log",
        "desired.json",
    ):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text("")
    IntermediateSite(spec, "a", "").clear_up()
    assert sorted(path.name for path in state.rglob("*") if path.is_file()) == ["desired.json", "positions.json"]
    (state / "desired.json").unlink()
    for _ in range(2):
        IntermediateSite(spec, "b", "").clear_up()
    assert not state.exists()
