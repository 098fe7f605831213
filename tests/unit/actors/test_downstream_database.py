"""Downstream capture in the controller and the components: start order, calls between components, and leftovers."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.capture import CaptureHost
from actors.control.noted_receivers import NOTE_INTERVAL_S
from actors.downstream_database import RedoReceiver
from actors.hosting.processes import factory_of, process_of
from actors.intermediate_database import IntermediateSite
from actors.site.connection import redo_folder
from actors.source_database import DatabaseSite
from headrace.base.clock import VirtualClock
from headrace.base.errors import PropagationError, RedoError
from headrace.databases.ports import CapturedTable
from headrace.lcr.scn import ObjectNumber
from headrace.redo.standby.shipping import STALLED_S
from protos.links.grpc_links import GrpcLinks
from protos.links.redo_link import RedoWatchClient
from tests.support.actors.controllers import one_way_spec, reconfigured, started
from tests.support.redo.redo_logs import SOURCE, drain
from tests.support.redo.standby_redo import RECEIVER, cut_frames, log_bytes, standby_log
from tests.support.redo.standby_site import Site
from topology.edits.changes import changes, components_of
from topology.edits.receivers import Receivers
from topology.routing.ways import route
from topology.spec import TopologySpec


def downstream_spec(folder: Path, *, transport: str = "async") -> TopologySpec:
    """`one_way_spec`, but site b mines the redo of a."""
    spec = one_way_spec(folder)
    (capture,) = spec.captures
    return route(
        replace(
            spec,
            queues=tuple(replace(queue, site="b") for queue in spec.queues),
            captures=(replace(capture, site="b", transport=transport),),
            applies=tuple(replace(apply, combined=False) for apply in spec.applies),
        )
    )


@pytest.fixture
def spec(tmp_path: Path) -> TopologySpec:
    return downstream_spec(tmp_path)


def test_receiver_runs_downstream_and_shares_a_process_with_others(spec, actors):
    started(spec, actors)
    assert actors.running["redo:a@b"]["factory"] == "actors.downstream_database:build"
    (component,) = [each for each in components_of(spec) if each.kind == "redo"]
    assert process_of(spec, component) == "receivers:b@site_b=1"
    apart = replace(spec, processes_apart=True)
    assert process_of(apart, component) == "redo:a@b"
    assert {change.component: change.action for change in changes(spec, apart)}["redo:a@b"] == "restarts"
    assert factory_of(spec.site("b"), "redo") == "actors.downstream_database:build"


def test_capture_process_begins_after_its_receiver_adopted_an_edit(tmp_path, spec, actors):
    started(spec, actors)
    (capture,) = spec.captures
    edited = route(
        replace(
            spec,
            captures=(capture, replace(capture, name="c2", queue="qa2")),
            queues=(*spec.queues, replace(spec.queue("qa"), name="qa2")),
        )
    )
    actors.holds_back = {"redo:a@b"}
    controller = started(edited, actors, steps=12)
    assert "redo:a@b" in reconfigured(actors)
    assert "capture:c2" not in actors.running
    actors.holds_back = set()
    for _ in range(4):
        controller.step()
    assert "capture:c2" in actors.running


def test_receiver_records_the_apply_processes_of_each_table(spec, actors):
    actors.captured["site:a"] = (
        CapturedTable(identity="1", owner="public", name="t", object_numbers=(ObjectNumber(5),)),
    )
    clock = VirtualClock()
    controller = started(spec, actors, clock=clock)
    clock.advance(NOTE_INTERVAL_S)  # the receiver was about to begin at the first attempt
    controller.step()
    assert actors.noted["redo:a@b"] == actors.noted["site:a"]


def test_capture_process_watches_the_writer_of_redo_at_its_site(spec, tmp_path):
    assert CaptureHost(spec, "c", "")._redo_component == "redo:a@b"
    assert CaptureHost(one_way_spec(tmp_path), "c", "")._redo_component == "site:a"
    assert redo_folder(spec, source="a", site="b").relative_to(spec.state_dir) == Path("sites/b/standby_redo/a")
    assert redo_folder(spec, source="a", site="a").relative_to(spec.state_dir) == Path("sites/a/redo")


def test_receiver_answers_for_the_source_and_asks_it_only_once(spec, monkeypatch):
    noted = Receivers.of(
        spec, "a", [CapturedTable(identity="1", owner="public", name="t", object_numbers=(ObjectNumber(5),))]
    )
    asked = []

    def ask(self, method):
        asked.append(method)
        if len(asked) > 1:
            raise PropagationError("the source's machine is gone")
        return noted

    monkeypatch.setattr(RedoReceiver, "_ask_source", ask)
    receiver = RedoReceiver(spec, "a@b", "")
    assert receiver.receivers() == receiver.receivers() == noted
    assert RedoReceiver(spec, "a@b", "").receivers() == noted
    assert asked == ["receivers"]
    later = Receivers.of(spec, "a", [])
    receiver.note_receivers(later)
    assert RedoReceiver(spec, "a@b", "").receivers() == later


def test_receiver_that_returns_to_the_topology_begins_anew(spec):
    """The source kept nothing for it meanwhile."""
    folder = redo_folder(spec, source="a", site="b")
    for component, is_left in (("redo:other@b", True), ("redo:a@b", False)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "0000000000000001.redo").write_bytes(b"old")
        IntermediateSite(spec, "b", "").prepare(spec, (component,))
        assert folder.exists() == is_left
    shutil.rmtree(folder, ignore_errors=True)


def test_endpoint_is_given_only_while_redo_is_served(spec):
    with pytest.raises(PropagationError, match="does not serve redo yet"):
        RedoReceiver(spec, "a@b", "").endpoint()


class _Reception:
    """A stream without a wire, in place of `RedoShippingClient`."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def connect(self, place, *, shipped) -> None:
        incarnation = f"{next(self._site.incarnations):08d}"
        self._shipment = self._site.writer.shipping.begin(RECEIVER, incarnation, place, shipped)

    def take_nowait(self):
        return self._shipment.next_frame()

    def acknowledge(self, place) -> None:
        self._shipment.acknowledge(place)

    def grant(self, credit_bytes: int) -> None:
        pass

    def close(self) -> None:
        self._shipment.close()


class _Links(GrpcLinks):
    """Capture processes connect by gRPC; the redo of `site` arrives without a wire."""

    def __init__(self, spec: TopologySpec, site: Site) -> None:
        super().__init__(spec.name, "a@b", lambda component: component)
        self._site = site

    def reception(self, source: str) -> Any:
        return _Reception(self._site)


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path / "source")
    made.commit(20)
    return made


@pytest.fixture
def receiver(spec, site):
    """A receiver of the redo of `site`, driven by the test's own thread."""
    made = RedoReceiver(spec, "a@b", "", lambda *_: _Links(spec, site))
    made._receiver = replace(made._receiver, source=SOURCE)
    site.folder = made._folder
    yield made
    made.close()
    made.end()


def receive_all(receiver: RedoReceiver) -> None:
    while receiver.step() == 0.0:
        pass


@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "removed"])
def test_folder_restored_or_removed_while_receiver_was_stopped_is_reread(receiver, site, is_restored):
    """The disk counts, not the process's memory: the receiver must not acknowledge writes to a file that nobody can
    open.
    """
    receiver.open()
    receive_all(receiver)
    backup = site.folder.with_name("backup")
    shutil.copytree(site.folder, backup)
    endpoint = receiver.endpoint()
    site.commit(3)  # the segment being written grows
    receive_all(receiver)
    receiver.close()
    shutil.rmtree(site.folder)
    if is_restored:
        shutil.copytree(backup, site.folder)
    receiver.open()
    site.commit(3)
    receive_all(receiver)
    assert receiver.endpoint() == endpoint, "capture processes watch it at the same address"
    there = log_bytes(site.folder)
    assert max(there) == max(log_bytes(site.redo))
    assert there == {name: content for name, content in log_bytes(site.redo).items() if name in there}
    assert receiver._log.position == site.writer.position
    watch = RedoWatchClient(endpoint, topology=receiver._spec.name, capture="c", source=SOURCE, incarnation="1")
    try:
        found, written = watch.connect(), site.writer.position
        assert (found.segment, found.offset, found.scn) == (written.segment, written.offset, written.scn)
    finally:
        watch.close()


def test_refusal_ends_when_the_folder_is_removed_without_a_new_process(receiver, site, tmp_path):
    receiver.open()
    receive_all(receiver)
    receiver.close()
    shutil.rmtree(site.redo)
    site.restart()  # its redo was lost: this is another redo log
    site.commit(3)
    with pytest.raises(RedoError, match="another redo log"):
        receiver.open()
    receiver.close()
    shutil.rmtree(site.folder)
    receiver.open()
    receive_all(receiver)
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_segment_whose_archiving_failed_after_its_rename_is_archived(receiver, site, monkeypatch):
    receiver.open()

    def fails(folder):
        raise OSError(errno.EIO, "broken")

    site.commit(60)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.redo.segments.sync_folder", fails)
        with pytest.raises(RedoError):
            receive_all(receiver)
    receiver.close()
    receiver.open()
    receive_all(receiver)
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_new_topology_is_shown_after_its_capture_processes_are_registered(receiver, spec):
    receiver.open()
    receiver._receiver = replace(receiver._receiver, source="a")
    edited = downstream_spec(spec.state_dir.parent)
    (capture,) = edited.captures
    edited = route(
        replace(
            edited,
            captures=(capture, replace(capture, name="c2", queue="qa2")),
            queues=(*edited.queues, replace(edited.queue("qa"), name="qa2")),
        )
    )
    required = receiver._log.required_checkpoints
    shown = []
    required.forget_others = lambda captures: shown.append(receiver.details().fingerprint)
    receiver.adopt(edited, "edited")
    assert shown == [""], "the controller starts capture:c2 when it sees the new topology"
    assert receiver.details().fingerprint == "edited"
    assert required.register("c2") == required.lowest


def test_two_processes_of_a_receiver_do_not_write_one_folder(receiver, spec, site):
    """The old process, cut off and still alive, would truncate what the new one has acknowledged."""
    receiver.open()
    receive_all(receiver)
    other = RedoReceiver(spec, "a@b", "", lambda *_: _Links(spec, site))
    other._receiver = receiver._receiver
    with pytest.raises(PropagationError, match="another process"):
        other.open()
    other.close()
    site.commit(3)
    receive_all(receiver)
    receiver.close()
    other.open()
    with pytest.raises(PropagationError, match="another process"):
        receiver.open()
    site.commit(3)
    receive_all(other)
    other.close()
    other.end()
    assert log_bytes(site.folder) == log_bytes(site.redo)


def test_source_reports_commits_waiting_for_a_stalled_receiver(spec, site):
    host, shipping = DatabaseSite(spec, "a", ""), site.writer.shipping
    host.redo.writer = site.writer

    def problem() -> str:
        return host.details().problem

    shipping.register({RECEIVER: True})
    log = standby_log(site.folder)
    assert "dbs1@dbs3 is away" in problem()
    stream = site.stream(log)
    frames = list(cut_frames(stream.frames(), lambda: 3000))
    for frame in frames:  # slow, but it makes progress
        assert problem() == ""
        log.take(frame)
        log.sync()
        stream.acknowledge()
        site.clock.advance(STALLED_S)
    assert problem() == ""
    site.clock.advance(3600.0)  # an idle receiver is no problem
    site.commit(1)
    assert problem() == ""
    site.clock.advance(STALLED_S)
    told = problem()
    assert "dbs1@dbs3 is connected and takes nothing" in told
    assert "commits wait" in told
    shipping.register({RECEIVER: False})
    assert problem() == ""


def test_source_status_is_answered_while_its_log_writer_is_dropped(spec, site, monkeypatch):
    """The status is asked on a different thread than the component's own, which drops the log writer."""
    host, statistics = DatabaseSite(spec, "a", ""), site.writer.statistics
    host.redo.writer = site.writer

    def dropped_meanwhile():
        host.redo.writer = None
        return statistics()

    monkeypatch.setattr(site.writer, "statistics", dropped_meanwhile)
    assert host.details().redo_scn == site.writer.position.scn
    assert host.details().redo_scn is None


@pytest.mark.parametrize("is_sync", [True, False])
def test_full_receiver_reports_waiting_commits_and_whether_purging_helps(receiver, site, is_sync):
    receiver._spec = replace(receiver._spec, redo_bytes_max=15_000)
    receiver._receiver = replace(receiver._receiver, is_sync=is_sync)
    site.commit(60)
    receiver.open()
    while receiver.detail_state() != "PAUSED: REDO IS FULL":
        receiver.step()
    problem = receiver.details().problem
    assert "when the captures here need less of the copy" in problem
    assert ("commits at dbs1 that wait for the log writer wait until then" in problem) == is_sync


def test_receiver_filled_by_one_transaction_reports_purging_as_useless(receiver, site):
    receiver._spec = replace(receiver._spec, redo_bytes_max=30_000)
    receiver.open()
    receive_all(receiver)
    with site.source.transaction() as transaction:
        for number in range(2000):
            transaction.insert("hr.log", line=f"line {number}")
    drain(site.writer, site.source, site.clock)
    (capture,) = receiver._receiver.captures
    for _ in range(100):
        receiver._log.required_checkpoints.record(capture, receiver._log.position.scn)
        receiver.step()
    assert receiver.detail_state() == "PAUSED: REDO IS FULL"
    assert "one transaction fills redo_bytes_max (30000 bytes)" in receiver.details().problem


def test_full_source_reports_waiting_commits(site):
    site.writer.shipping.register({RECEIVER: True})
    site.writer._space.redo_bytes_max = 10_000
    site.commit(60)
    assert site.writer.state == "PAUSED: REDO IS FULL"
    assert "commits that wait for the log writer wait until then" in site.writer.statistics().problem
    site.writer.shipping.register({RECEIVER: False})
    assert "commits" not in site.writer.statistics().problem
