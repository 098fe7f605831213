"""The hosted redo receiver over real gRPC: real time and archived logs, sent or copied as files, and changes of the
mode while it runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actors.downstream_database import RedoReceiver
from actors.site.connection import redo_folder
from headrace.base.errors import PropagationError
from headrace.lcr.scn import Scn
from headrace.redo.segments import SegmentFile, list_segments
from headrace.status.redo import RedoReceiverStatus
from protos.links.redo_link import RedoServer, RedoWatchClient
from protos.wire.transport import new_incarnation
from tests.support.actors.statuses import status_of
from tests.support.clusters.system import wait_until
from tests.support.redo.redo_logs import SOURCE
from tests.support.redo.served_redo import Source
from tests.support.redo.standby_redo import RECEIVER, log_bytes
from tests.support.ways.downstream_sites import topology
from tests.support.wire.links import loopback
from topology.spec import TopologySpec

pytestmark = [pytest.mark.slow, pytest.mark.long]


class Site:
    """A served source and the receiver of dbs3, which finds the source while `is_there` is true."""

    def __init__(self, folder: Path) -> None:
        self.source = Source(folder)
        self.source.server.stop()
        self.source.server = self.serve()
        self.is_there = True
        self.archive = folder / "archive"
        self.spec = topology(folder, "", transport="async")
        self.receiver = self.receiver_of(self.spec)

    def receiver_of(self, spec: TopologySpec) -> RedoReceiver:
        return RedoReceiver(spec, RECEIVER, "1", loopback(self.resolve))

    def serve(self) -> RedoServer:
        return RedoServer("topo", SOURCE, self.source.writer, shipper=self.source.writer.shipping)

    def resolve(self, name: str) -> str:
        assert name == "site:dbs1"
        if not self.is_there:
            raise PropagationError("site:dbs1 does not answer")
        return self.source.server.endpoint

    def spec_with(self, *, archive: bool, mode: str = "archived_log") -> TopologySpec:
        return replace(
            self.spec,
            captures=tuple(
                replace(each, mode=mode, archive=str(self.archive) if archive else "") for each in self.spec.captures
            ),
        )

    @property
    def standby(self) -> Path:
        return redo_folder(self.spec, source="dbs1", site="dbs3")

    def complete(self) -> list[SegmentFile]:
        return [file for file in list_segments(self.source.folder) if file.is_archived]

    def wait_copied(self, expected: Callable[[], dict[str, bytes]]) -> None:
        wait_until("the copy is where the source is", lambda: log_bytes(self.standby) == expected())

    def close(self) -> None:
        self.receiver.end()
        self.source.server.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def archived(site: Site) -> dict[str, bytes]:
    return {file.path.name: file.path.read_bytes() for file in site.complete()}


def test_receiver_switches_to_archived_logs_and_back_while_it_runs(site: Site) -> None:
    site.receiver.start()
    site.source.commit(30)
    site.wait_copied(lambda: log_bytes(site.source.folder))
    site.receiver.reconfigure(site.spec_with(archive=False), "2")
    wait_until(
        "it is taken over",
        lambda: (
            site.receiver.status().fingerprint == "2"
            and status_of(site.receiver, RedoReceiverStatus).mode == "archived_log"
        ),
    )
    number = site.source.writer.position.segment
    while site.source.writer.position.segment == number:
        site.source.commit(10)
    site.wait_copied(lambda: archived(site))
    site.receiver.reconfigure(site.spec, "3")
    site.source.commit(10)
    site.wait_copied(lambda: log_bytes(site.source.folder))
    assert site.receiver.status().opens_total == 1, "the receiver was not closed for that"


def test_files_are_taken_without_the_source_which_learns_of_them_later(site: Site) -> None:
    site.source.commit(150)
    site.is_there = False
    site.receiver = site.receiver_of(site.spec_with(archive=True))
    site.receiver.start()
    site.archive.mkdir()
    for file in site.complete():
        shutil.copy(file.path, site.archive)
    site.wait_copied(lambda: archived(site))
    watch = RedoWatchClient(
        site.receiver.endpoint(), topology="topo", capture="c_dbs3", source="dbs1", incarnation=new_incarnation()
    )
    assert watch.connect().segment == site.complete()[-1].number, "captures here mine it meanwhile"
    assert site.source.shipped().segment == 0
    site.is_there = True
    wait_until("the source knows", lambda: site.source.shipped().segment == site.complete()[-1].number)
    assert watch.checkpoint(Scn(5)) == 5
    watch.close()


def test_status_names_a_wrong_file_and_earlier_redo_is_served(site: Site) -> None:
    site.source.commit(150)
    first, second, third, *_ = site.complete()
    site.receiver = site.receiver_of(site.spec_with(archive=True))
    site.receiver.start()
    site.archive.mkdir()
    shutil.copy(first.path, site.archive)
    shutil.copy(third.path, site.archive / second.path.name)
    wait_until(
        "the status names the file", lambda: str(site.archive / second.path.name) in site.receiver.status().problem
    )
    assert status_of(site.receiver, RedoReceiverStatus).redo_segment == first.number
    shutil.copy(second.path, site.archive / second.path.name)
    wait_until(
        "it is taken",
        lambda: (
            (now := status_of(site.receiver, RedoReceiverStatus)).redo_segment == second.number and now.problem == ""
        ),
    )


def test_full_copy_stops_taking_redo_and_resumes_behind_its_captures(site: Site) -> None:
    site.receiver = site.receiver_of(replace(site.spec, redo_bytes_max=60_000))
    site.receiver.start()
    site.source.commit(200)
    wait_until("it is full", lambda: site.receiver.status().state == "PAUSED: REDO IS FULL")
    assert "raise redo_bytes_max" in site.receiver.status().problem
    watch = RedoWatchClient(
        site.receiver.endpoint(), topology="topo", capture="c_dbs3", source="dbs1", incarnation=new_incarnation()
    )
    watch.connect()

    def has_gone_on() -> bool:
        watch.checkpoint(watch.poll().scn)
        return bool(watch.poll().scn == site.source.writer.position.scn)

    wait_until("the receiver resumes", has_gone_on)
    watch.close()
