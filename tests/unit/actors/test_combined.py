"""A combined capture process's end: where it begins, how much it takes, and what counts as committed."""

from __future__ import annotations

import pytest

from actors.combined import AHEAD_BYTES, CombinedCore, CombinedOutlet
from actors.staging.queue_sessions import REFUSED_HOLD_S, SubscriberSession
from protos import codec
from protos.queue_link import DequeueClient, EnqueueClient
from streams.clock import VirtualClock
from streams.errors import CaptureError, LogGone, ProtocolError, QueueError, WouldBlock
from streams.lcr_batch import LcrBatch
from streams.links import header_of
from streams.scn import FIRST_SCN, Scn
from tests.support.lcr_batches import insert_batch
from topology.spec import ApplySpec

CREDIT = 1 << 20
APPLY = ApplySpec(name="apply", site="dbs2", source="dbs1", queue="q_in")


class Record:
    """As `Refusal`, on a disk that may be full."""

    def __init__(self) -> None:
        self.gone_scn: Scn | None = None
        self.is_full = False

    def record(self, gone_scn: Scn | None) -> None:
        if self.is_full:
            raise CaptureError("no space left on device")
        self.gone_scn = gone_scn


class Combined:
    """The core, and what tests do to it all the time."""

    def __init__(self, acknowledged: int = 0, refusal: Record | None = None) -> None:
        self.wakes = 0
        self.incarnations = 0
        self.refusal = Record() if refusal is None else refusal
        self.clock = VirtualClock()
        self.core = CombinedCore(
            "t", APPLY, acknowledged=Scn(acknowledged), refusal=self.refusal, wake=self._woken, clock=self.clock,
        )

    def _woken(self) -> None:
        self.wakes += 1

    def subscribe(self, needed: int, credit: int = CREDIT) -> SubscriberSession:
        self.incarnations += 1
        return self.core.open_subscriber("apply", f"{self.incarnations:03d}", {"dbs1": Scn(needed)}, credit)

    def begin(self, needed: int, credit: int = CREDIT) -> SubscriberSession:
        """Subscribe, and let the capture process take note."""
        session = self.subscribe(needed, credit)
        assert self.core.progress().rewind_scn == needed
        return session

    def offer(self, previous: int, through: int) -> int:
        found = _batch(previous, through)
        data = codec.encode(found)
        self.core.offer(header_of(found), data)
        return len(data)

    def unacknowledged_s(self) -> float:
        return float(self.core.status()["unacknowledged_s"])

    def taken(self, session: SubscriberSession) -> list[tuple[int, int]]:
        found = []
        while (delivery := self.core.dequeue(session)) is not None:
            found.append((delivery.header.previous_scn, delivery.header.through_scn))
        return found


def _batch(previous: int, through: int) -> LcrBatch:
    return insert_batch([through], previous=previous)


def test_apply_process_says_where_to_begin_and_the_capture_process_hears_it_once() -> None:
    combined = Combined(acknowledged=30)
    assert combined.core.progress().rewind_scn is None
    session = combined.subscribe(40)
    assert combined.wakes == 1
    assert combined.core.progress().rewind_scn == 40
    assert combined.core.progress().rewind_scn is None
    combined.offer(40, 50)
    assert combined.taken(session) == [(40, 50)]


def test_nothing_is_taken_while_the_apply_process_is_away() -> None:
    combined = Combined()
    with pytest.raises(WouldBlock):
        combined.offer(0, 10)
    session = combined.begin(10)
    combined.offer(10, 20)
    combined.core.close_subscriber(session)
    assert not combined.core.is_connected
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)
    assert combined.core.status()["waiting_bytes"] == 0


def test_status_says_for_how_long_the_apply_process_has_lacked_something_whether_it_is_there_or_not() -> None:
    combined = Combined()
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


def test_batch_that_was_mined_for_an_older_stream_is_not_taken_for_a_newer_one() -> None:
    combined = Combined()
    older = combined.begin(10)
    combined.offer(10, 20)
    newer = combined.subscribe(10)
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)
    assert combined.core.progress().rewind_scn == 10
    combined.offer(10, 15)
    assert combined.taken(newer) == [(10, 15)]
    assert combined.taken(older) == []
    assert isinstance(older.ended, QueueError)


def test_older_incarnation_does_not_replace_a_newer_one() -> None:
    combined = Combined()
    combined.incarnations = 5
    combined.begin(10)
    combined.incarnations = 0
    with pytest.raises(QueueError, match="newer incarnation"):
        combined.subscribe(5)


@pytest.mark.parametrize(("component", "source"), [("other", "dbs1"), ("apply", "dbs2")])
def test_another_component_or_source_is_refused(component: str, source: str) -> None:
    with pytest.raises(QueueError, match="is not combined"):
        Combined().core.open_subscriber(component, "001", {source: Scn(10)}, CREDIT)


def test_no_more_is_taken_than_the_apply_process_gave_credit_for_and_it_is_told_when_there_is_more() -> None:
    combined = Combined()
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


def test_what_waits_is_bounded_but_a_batch_that_is_larger_goes_alone() -> None:
    combined = Combined()
    session = combined.begin(10, credit=1 << 30)
    header = header_of(_batch(10, 20))
    combined.core.offer(header, bytes(2 * AHEAD_BYTES))
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)
    assert combined.core.dequeue(session) is not None
    combined.core.offer(header, bytes(AHEAD_BYTES // 2))
    combined.core.offer(header, bytes(AHEAD_BYTES // 2))
    with pytest.raises(WouldBlock):
        combined.offer(20, 30)


def test_only_what_the_newest_session_acknowledged_counts_as_committed() -> None:
    combined = Combined(acknowledged=30)
    older = combined.begin(40)
    combined.offer(40, 50)
    assert combined.taken(older) == [(40, 50)]
    combined.core.acknowledge(older, "dbs1", Scn(50))
    assert combined.core.progress().durable_scn == 50
    newer = combined.begin(45)  # from a backup
    assert combined.core.progress().durable_scn == 45
    combined.core.acknowledge(older, "dbs1", Scn(50))
    assert combined.core.progress().durable_scn == 45
    combined.offer(45, 47)
    assert combined.taken(newer) == [(45, 47)]
    with pytest.raises(ProtocolError, match="was sent those up to 0/0000002F"):
        combined.core.acknowledge(newer, "dbs1", Scn(48))
    combined.core.acknowledge(newer, "dbs1", Scn(47))
    assert combined.core.progress().durable_scn == 47
    with pytest.raises(ProtocolError, match="which it does not take"):
        combined.core.acknowledge(newer, "dbs2", Scn(60))


def test_destination_that_lost_commits_is_noted_as_by_a_queue() -> None:
    combined = Combined(acknowledged=30)
    combined.begin(20)
    assert combined.core.status()["lost"][:2] == [30, 20]
    assert combined.core.status()["acknowledged_scn"] == 20


def test_apply_process_whose_redo_is_gone_is_refused_nothing_is_held_for_it_and_it_may_begin_anew() -> None:
    combined = Combined(acknowledged=50)
    session = combined.begin(20)
    combined.core.gone(Scn(40))
    assert isinstance(session.ended, LogGone)
    assert combined.core.status()["gone_scn"] == 40
    with pytest.raises(LogGone, match="apply needs the changes of dbs1"):
        combined.subscribe(20)
    assert combined.core.progress().rewind_scn == 50, "it has everything up to here, if it is not as old as it says"
    combined.clock.advance(REFUSED_HOLD_S)
    combined.offer(50, 60)
    combined.offer(60, 70)
    assert combined.core.progress().durable_scn == 70  # the site may purge it
    combined.begin(FIRST_SCN)
    assert combined.core.status()["gone_scn"] is None
    assert combined.core.progress().durable_scn == 70


def refused() -> Combined:
    """Its apply process needs 20, and redo begins at 40."""
    combined = Combined(acknowledged=50)
    combined.begin(20)
    combined.core.gone(Scn(40))
    return combined


def test_refusal_is_known_to_the_next_life_and_nothing_is_held_there_either() -> None:
    later = Combined(acknowledged=70, refusal=refused().refusal)
    assert later.core.status()["gone_scn"] == 40
    assert later.core.progress().rewind_scn == 70  # the capture process mines on with no session
    later.clock.advance(REFUSED_HOLD_S)
    later.offer(70, 80)
    assert later.core.progress().durable_scn == 80
    with pytest.raises(LogGone, match="apply needs the changes of dbs1"):
        later.subscribe(20)


def test_next_life_begins_where_redo_does_when_the_sites_record_is_older() -> None:
    assert Combined(acknowledged=20, refusal=refused().refusal).core.progress().rewind_scn == 40


@pytest.mark.parametrize("needed", [FIRST_SCN, 75])
def test_apply_process_that_begins_anew_in_the_next_life_is_not_refused_in_the_one_after(needed: int) -> None:
    record = refused().refusal
    later = Combined(acknowledged=70, refusal=record)
    later.begin(needed)  # before the capture process asked
    last = Combined(acknowledged=70, refusal=record)
    assert last.core.status()["gone_scn"] is None
    assert last.core.progress().rewind_scn is None
    with pytest.raises(WouldBlock):
        last.offer(70, 80)


def test_apply_process_learns_of_its_refusal_only_when_that_is_durable() -> None:
    combined = Combined(acknowledged=50)
    session = combined.begin(20)
    combined.refusal.is_full = True
    with pytest.raises(CaptureError):
        combined.core.gone(Scn(40))
    assert session.ended is None
    assert combined.core.status()["gone_scn"] is None
    combined.refusal.is_full = False
    combined.core.gone(Scn(40))
    assert isinstance(session.ended, LogGone)


def test_apply_process_that_begins_anew_is_admitted_only_when_the_end_of_its_refusal_is_durable() -> None:
    combined = refused()
    combined.refusal.is_full = True
    with pytest.raises(CaptureError):
        combined.subscribe(FIRST_SCN)
    assert combined.core.status()["gone_scn"] == 40
    assert not combined.core.is_connected
    combined.refusal.is_full = False
    combined.subscribe(FIRST_SCN)
    assert combined.refusal.gone_scn is None


def test_old_driver_that_is_refused_while_the_newest_ones_stream_is_broken_frees_no_redo_that_this_one_needs() -> None:
    combined = Combined(acknowledged=50)
    combined.begin(60)
    newest = combined.begin(60)
    combined.offer(60, 65)
    combined.taken(newest)
    combined.core.acknowledge(newest, "dbs1", Scn(65))
    combined.core.close_subscriber(newest)
    combined.begin(20)  # of the old one, which slept since 20
    combined.core.gone(Scn(40))
    assert combined.core.progress().rewind_scn == 65
    combined.clock.advance(REFUSED_HOLD_S - 1)
    with pytest.raises(WouldBlock):
        combined.offer(65, 90)
    assert combined.core.progress().durable_scn < 65
    again = combined.begin(65)
    combined.offer(65, 90)
    assert combined.taken(again) == [(65, 90)]


def test_restored_subscriber_is_not_begun_above_what_it_asked_for_when_redo_has_it() -> None:
    combined = Combined(acknowledged=60)
    session = combined.begin(45)
    combined.core.gone(Scn(40))  # purged below, while it was read
    assert session.ended is None
    assert combined.core.progress().rewind_scn == 45


def test_stream_that_begins_while_redo_is_found_gone_for_another_one_is_not_refused() -> None:
    combined = Combined()
    combined.begin(20)
    session = combined.subscribe(45)
    combined.core.gone(Scn(40))
    assert session.ended is None
    assert combined.core.progress().rewind_scn == 45


def test_combined_capture_process_serves_over_grpc_as_the_queue_does_and_takes_no_publishers() -> None:
    combined = Combined()
    outlet = CombinedOutlet(combined.core)
    client = DequeueClient(outlet.endpoint, topology="t", component="apply", queue="q_in", incarnation="001")
    publisher = EnqueueClient(outlet.endpoint, topology="t", component="p", queue="q_in", incarnation="001", source="dbs1")
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
        assert outlet.status()["acknowledged_scn"] == 20
    finally:
        outlet.close()
        client.close()
        publisher.close()
