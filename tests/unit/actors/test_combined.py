"""A combined capture process's queue: where it begins, how much it takes, and what counts as committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.combined import AHEAD_BYTES, MountedQueue, mounted_core
from actors.staging.queue import QueueCore
from actors.staging.queue_sessions import REFUSED_HOLD_S, SubscriberSession
from headrace.base.clock import VirtualClock
from headrace.base.errors import LogGone, ProtocolError, QueueError, WouldBlock
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import header_of
from headrace.simulation.network import Unserved
from protos import codec
from protos.links.queue_link import DequeueClient, EnqueueClient, QueueServer
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.staging import one_way
from topology.spec import ApplySpec

CREDIT = 1 << 20
APPLY = ApplySpec(name="apply", site="dbs2", source="dbs1", queue="q_in")


class Combined:
    """The queue that the capture process mounts, with the tests' usual calls. Another instance on the same folder is
    its next life.
    """

    def __init__(self, folder: Path, acknowledged: int = 0, serve=Unserved) -> None:
        self.wakes = 0
        self.incarnations = 0
        self.folder = folder
        self.clock = VirtualClock()
        spec = one_way(folder)
        self.core: QueueCore = mounted_core(
            spec, spec.captures[0], APPLY, acknowledged=Scn(acknowledged), clock=self.clock
        )
        self.outlet = MountedQueue(self.core, spec.captures[0].name, "dbs1", serve, wake=self._woken, clock=self.clock)

    def _woken(self) -> None:
        self.wakes += 1

    def fill_disk(self) -> Path:
        """Block the recording of refusals; return the folder whose removal ends that."""
        in_the_way = self.folder / "components" / "capture.capture_dbs1~queue" / "refused.json.new"
        in_the_way.mkdir(parents=True)
        return in_the_way

    def subscribe(self, needed: int, credit: int = CREDIT) -> SubscriberSession:
        self.incarnations += 1
        return self.core.open_subscriber("apply", f"{self.incarnations:03d}", {"dbs1": Scn(needed)}, credit)

    def begin(self, needed: int, credit: int = CREDIT) -> SubscriberSession:
        """Subscribe, and let the capture process notice it."""
        session = self.subscribe(needed, credit)
        assert self.outlet.poll().rewind_scn == needed
        return session

    def offer(self, previous: int, through: int, size: int | None = None) -> int:
        found = _batch(previous, through)
        data = codec.encode(found) if size is None else bytes(size)
        self.outlet.send_nowait(header_of(found), data)
        return len(data)

    def offer_part(self, part: int, parts: int, previous: int = 10, commit: int = 20, size: int = 1 << 20) -> None:
        """Offer a part, of a megabyte by default, of a transaction of `parts` parts."""
        found = insert_batch(
            [commit], previous=previous, is_open=part < parts - 1, continues=part > 0, first_position=part
        )
        self.outlet.send_nowait(header_of(found), bytes(size))

    def unacknowledged_s(self) -> float:
        return float(self.outlet.status().unacknowledged_s)

    def taken(self, session: SubscriberSession) -> list[tuple[int, int]]:
        found = []
        while (delivery := self.core.dequeue(session)) is not None:
            found.append((int(delivery.header.previous_scn), int(delivery.header.through_scn)))
        return found


def _batch(previous: int, through: int) -> LcrBatch:
    return insert_batch([through], previous=previous)


def test_apply_process_sets_the_beginning_and_capture_gets_it_once(tmp_path: Path) -> None:
    combined = Combined(tmp_path, acknowledged=30)
    assert combined.outlet.poll().rewind_scn is None
    session = combined.subscribe(40)
    assert combined.wakes == 1
    assert combined.outlet.poll().rewind_scn == 40
    assert combined.outlet.poll().rewind_scn is None
    combined.offer(40, 50)
    assert combined.taken(session) == [(40, 50)]


def test_nothing_is_taken_while_the_apply_process_is_away(tmp_path: Path) -> None:
    combined = Combined(tmp_path)
    with pytest.raises(WouldBlock):
        combined.offer(0, 10)
    session = combined.begin(10)
    combined.offer(10, 20)
    combined.core.close_subscriber(session)
    assert not combined.outlet.is_connected
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)
    assert combined.outlet.status().waiting_bytes == 0


def test_status_shows_how_long_the_apply_process_has_lacked_changes(
    tmp_path: Path,
) -> None:
    combined = Combined(tmp_path)
    session = combined.begin(10)
    assert combined.unacknowledged_s() == 0.0
    for through in (20, 30, 40):
        combined.offer(through - 10, through)
        combined.clock.advance(5.0)
    assert combined.unacknowledged_s() == 15.0
    combined.taken(session)
    combined.core.acknowledge(session, "dbs1", Scn(20))
    assert combined.unacknowledged_s() == 10.0
    combined.core.acknowledge(session, "dbs1", Scn(40))
    assert combined.unacknowledged_s() == 0.0
    combined.core.close_subscriber(session)
    for _ in range(3):
        with pytest.raises(WouldBlock):
            combined.offer(40, 50)
        combined.clock.advance(5.0)
    assert combined.unacknowledged_s() == 15.0


def test_batch_mined_for_an_older_stream_is_not_taken_for_a_newer_one(tmp_path: Path) -> None:
    combined = Combined(tmp_path)
    older = combined.begin(10)
    combined.offer(10, 20)
    newer = combined.subscribe(10)
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)
    assert combined.outlet.poll().rewind_scn == 10
    combined.offer(10, 15)
    assert combined.taken(newer) == [(10, 15)]
    assert combined.taken(older) == []
    assert isinstance(older.ended, QueueError)


def test_older_incarnation_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    combined = Combined(tmp_path)
    combined.incarnations = 5
    combined.begin(10)
    combined.incarnations = 0
    with pytest.raises(QueueError, match="newer incarnation"):
        combined.subscribe(5)


@pytest.mark.parametrize(("component", "source"), [("other", "dbs1"), ("apply", "dbs2")])
def test_another_component_or_source_is_refused(tmp_path: Path, component: str, source: str) -> None:
    with pytest.raises(QueueError, match="is no subscriber of queue q_in"):
        Combined(tmp_path).core.open_subscriber(component, "001", {source: Scn(10)}, CREDIT)


def test_credit_of_the_apply_process_bounds_the_queue_and_more_wakes_it(
    tmp_path: Path,
) -> None:
    combined = Combined(tmp_path)
    session = combined.begin(10, credit=1)
    size = combined.offer(10, 20)
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)
    wakes = combined.wakes
    assert combined.taken(session) == [(10, 20)]
    assert combined.wakes == wakes + 1
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)
    combined.core.grant(session, size)
    assert combined.wakes == wakes + 2
    combined.offer(20, 30)
    assert combined.taken(session) == [(20, 30)]


def test_waiting_bytes_are_bounded_and_a_larger_batch_goes_alone(tmp_path: Path) -> None:
    combined = Combined(tmp_path)
    session = combined.begin(10, credit=1 << 30)
    combined.offer(10, 20, size=2 * AHEAD_BYTES)
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)
    assert combined.core.dequeue(session) is not None
    combined.offer(20, 30, size=AHEAD_BYTES // 2)
    combined.offer(30, 40, size=AHEAD_BYTES // 2)
    with pytest.raises(WouldBlock):
        combined.offer(40, 50)
    assert combined.outlet.status().waiting_bytes == AHEAD_BYTES


def test_only_acknowledgements_of_the_newest_session_count_as_committed(tmp_path: Path) -> None:
    combined = Combined(tmp_path, acknowledged=30)
    older = combined.begin(40)
    combined.offer(40, 50)
    assert combined.taken(older) == [(40, 50)]
    combined.core.acknowledge(older, "dbs1", Scn(50))
    assert combined.outlet.poll().durable_scn == 50
    newer = combined.begin(45)  # restored from a backup
    assert combined.outlet.poll().durable_scn == 45
    combined.core.acknowledge(older, "dbs1", Scn(50))
    assert combined.outlet.poll().durable_scn == 45
    combined.offer(45, 47)
    assert combined.taken(newer) == [(45, 47)]
    with pytest.raises(ProtocolError, match="was only sent those up to 0/0000002F"):
        combined.core.acknowledge(newer, "dbs1", Scn(48))
    combined.core.acknowledge(newer, "dbs1", Scn(47))
    assert combined.outlet.poll().durable_scn == 47
    with pytest.raises(ProtocolError, match="which it does not take"):
        combined.core.acknowledge(newer, "dbs2", Scn(60))


def test_destination_that_lost_commits_is_recorded_as_in_a_queue(tmp_path: Path) -> None:
    combined = Combined(tmp_path, acknowledged=30)
    combined.begin(20)
    lost = combined.outlet.status().lost
    assert (lost.acknowledged_scn, lost.found_scn) == (30, 20)
    assert combined.outlet.status().acknowledged_scn == 20


def test_apply_process_whose_redo_is_purged_is_refused_and_may_begin_anew(
    tmp_path: Path,
) -> None:
    combined = Combined(tmp_path, acknowledged=50)
    session = combined.begin(20)
    combined.outlet.gone(Scn(40))
    assert isinstance(session.ended, LogGone)
    assert combined.outlet.status().gone_scn == 40
    with pytest.raises(LogGone, match="apply needs the changes of dbs1"):
        combined.subscribe(20)
    assert combined.outlet.poll().rewind_scn == 50, (
        "up to here it has acknowledged everything, unless it really was restored"
    )
    combined.clock.advance(REFUSED_HOLD_S)
    combined.offer(50, 60)
    combined.offer(60, 70)
    assert combined.outlet.poll().durable_scn == 70  # the site can purge it
    combined.begin(FIRST_SCN)
    assert combined.outlet.status().gone_scn is None
    assert combined.outlet.poll().durable_scn == 70


def refused(tmp_path: Path) -> Combined:
    """A queue whose apply process needs 20, while redo begins at 40."""
    combined = Combined(tmp_path, acknowledged=50)
    combined.begin(20)
    combined.outlet.gone(Scn(40))
    return combined


def test_refusal_survives_a_restart_and_holds_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path)
    later = Combined(tmp_path, acknowledged=70)
    assert later.outlet.status().gone_scn == 40
    assert later.outlet.poll().rewind_scn == 70  # the capture process mines on without a session
    later.clock.advance(REFUSED_HOLD_S)
    later.offer(70, 80)
    assert later.outlet.poll().durable_scn == 80
    with pytest.raises(LogGone, match="apply needs the changes of dbs1"):
        later.subscribe(20)


def test_next_life_begins_with_redo_when_the_sites_record_is_older(tmp_path: Path) -> None:
    refused(tmp_path)
    assert Combined(tmp_path, acknowledged=20).outlet.poll().rewind_scn == 40


@pytest.mark.parametrize("needed", [FIRST_SCN, 75])
def test_apply_process_that_begins_anew_stays_admitted_after_a_restart(tmp_path: Path, needed: int) -> None:
    refused(tmp_path)
    later = Combined(tmp_path, acknowledged=70)
    later.begin(needed)  # before the capture process asked
    last = Combined(tmp_path, acknowledged=70)
    assert last.outlet.status().gone_scn is None
    assert last.outlet.poll().rewind_scn is None
    with pytest.raises(WouldBlock):
        last.offer(70, 80)


def test_apply_process_gets_its_refusal_only_when_that_is_durable(tmp_path: Path) -> None:
    combined = Combined(tmp_path, acknowledged=50)
    session = combined.begin(20)
    full = combined.fill_disk()
    with pytest.raises(QueueError, match="cannot be written"):
        combined.outlet.gone(Scn(40))
    assert session.ended is None
    assert combined.outlet.status().gone_scn is None
    full.rmdir()
    combined.outlet.gone(Scn(40))
    assert isinstance(session.ended, LogGone)


def test_apply_process_is_readmitted_when_its_refusals_end_is_durable(tmp_path: Path) -> None:
    combined = refused(tmp_path)
    full = combined.fill_disk()
    with pytest.raises(QueueError, match="cannot be written"):
        combined.subscribe(FIRST_SCN)
    assert combined.outlet.status().gone_scn == 40
    assert not combined.outlet.is_connected
    full.rmdir()
    combined.subscribe(FIRST_SCN)
    assert Combined(tmp_path, acknowledged=50).outlet.status().gone_scn is None


def test_refused_old_driver_releases_no_redo_that_the_newest_one_needs(
    tmp_path: Path,
) -> None:
    combined = Combined(tmp_path, acknowledged=50)
    combined.begin(60)
    newest = combined.begin(60)
    combined.offer(60, 65)
    combined.taken(newest)
    combined.core.acknowledge(newest, "dbs1", Scn(65))
    combined.core.close_subscriber(newest)
    combined.begin(20)  # an old driver, which slept since 20
    combined.outlet.gone(Scn(40))
    assert combined.outlet.poll().rewind_scn == 65
    combined.clock.advance(REFUSED_HOLD_S - 1)
    with pytest.raises(WouldBlock):
        combined.offer(65, 90)
    assert combined.outlet.poll().durable_scn == 65, "only what the newest driver has"
    again = combined.begin(65)
    combined.offer(65, 90)
    assert combined.taken(again) == [(65, 90)]


def test_restored_subscriber_begins_where_it_asked_if_redo_has_it(tmp_path: Path) -> None:
    combined = Combined(tmp_path, acknowledged=60)
    session = combined.begin(45)
    combined.outlet.gone(Scn(40))  # purged below while it was read
    assert session.ended is None
    assert combined.outlet.poll().rewind_scn == 45


def test_stream_that_begins_as_redo_of_another_is_found_purged_is_admitted(tmp_path: Path) -> None:
    combined = Combined(tmp_path)
    combined.begin(20)
    session = combined.subscribe(45)
    combined.outlet.gone(Scn(40))
    assert session.ended is None
    assert combined.outlet.poll().rewind_scn == 45


def test_combined_capture_process_serves_grpc_and_takes_no_publishers(tmp_path: Path) -> None:
    combined = Combined(tmp_path, serve=QueueServer)
    outlet = combined.outlet
    client = DequeueClient(outlet.endpoint, topology="t", component="apply", queue="q_in", incarnation="001")
    publisher = EnqueueClient(
        outlet.endpoint, topology="t", component="p", queue="q_in", incarnation="001", source="dbs1"
    )
    try:
        with pytest.raises(QueueError, match="takes no publishers"):
            publisher.connect()
        client.subscribe({"dbs1": Scn(10)}, CREDIT)
        assert outlet.poll().rewind_scn == 10
        assert outlet.is_connected
        found = _batch(10, 20)
        outlet.send_nowait(header_of(found), codec.encode(found))
        delivery = client.poll(10.0)
        assert delivery is not None
        assert (delivery.header, delivery.data) == (header_of(found), codec.encode(found))
        client.acknowledge("dbs1", Scn(20))
        for _ in range(200):
            if outlet.poll().durable_scn == 20:
                break
            client.poll(0.05)
        assert outlet.status().acknowledged_scn == 20
    finally:
        outlet.close()
        client.close()
        publisher.close()


def test_sent_parts_of_a_large_transaction_do_not_fill_the_queue(tmp_path: Path) -> None:
    """The transaction is not DURABLE before its end, and is many times larger than the queue's bound."""
    combined = Combined(tmp_path)
    session = combined.begin(10, credit=1 << 30)
    for part in range(12):
        combined.offer_part(part, 12)
        assert combined.core.dequeue(session) is not None
        assert combined.outlet.status().waiting_bytes == 0
    combined.core.acknowledge(session, "dbs1", Scn(20))
    assert combined.outlet.poll().durable_scn == 20
    combined.offer(20, 30)
    assert combined.taken(session) == [(20, 30)]


def test_sent_parts_are_released_whether_or_not_their_end_waits(tmp_path: Path) -> None:
    combined = Combined(tmp_path)
    session = combined.begin(10, credit=1 << 30)
    for part in range(4):
        combined.offer_part(part, 4, size=1000)
    combined.offer_part(0, 2, previous=20, commit=30, size=1000)
    for waiting in (4000, 3000, 2000, 1000, 0):
        assert combined.core.dequeue(session) is not None
        assert combined.outlet.status().waiting_bytes == waiting
    combined.offer_part(1, 2, previous=20, commit=30, size=1000)
    assert combined.taken(session) == [(20, 30)]


def test_large_transaction_is_dropped_for_a_refused_apply_process(tmp_path: Path) -> None:
    combined = refused(tmp_path)
    assert combined.outlet.poll().rewind_scn == 50
    combined.clock.advance(REFUSED_HOLD_S)
    combined.offer(50, 60)
    for part in range(12):
        combined.offer_part(part, 12, previous=60, commit=70)
    combined.offer(70, 80)
    assert combined.outlet.poll().durable_scn == 80


def test_stream_broken_in_a_large_transaction_gets_it_from_its_beginning(tmp_path: Path) -> None:
    combined = Combined(tmp_path)
    session = combined.begin(10, credit=1 << 30)
    combined.offer_part(0, 3)
    assert combined.taken(session) == [(10, 10)]
    combined.offer_part(1, 3)
    combined.core.close_subscriber(session)
    again = combined.begin(10, credit=1 << 30)
    assert combined.taken(again) == []
    for part in range(3):
        combined.offer_part(part, 3)
        assert combined.taken(again) == [(10, 10 if part < 2 else 20)]
