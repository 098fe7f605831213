"""A propagation between two queues in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actors.staging.propagation import (
    CREDIT_BYTES,
    STEP_BATCHES,
    PropagationRunner,
)
from actors.staging.queue_sessions import SubscriberSession
from headrace.base.errors import LogGone, PropagationError
from headrace.lcr.batch import Command
from headrace.lcr.building import batch_of_values
from headrace.lcr.row_lcr import RowLcr, ValueType
from headrace.lcr.scn import Scn
from headrace.lcr.values import ABSENT
from headrace.rules.conditions.condition import parse
from headrace.rules.rule import Rule, RuleSet
from protos import codec
from protos.links.grpc_links import GrpcLinks
from tests.support.values.lcr_batches import insert_batch, table_version
from tests.support.wire.staging import one_way
from tests.support.wire.two_queues import TwoQueues
from topology.spec import PropagationSpec


def all_durable_then_restored(folder: Path) -> tuple[TwoQueues, SubscriberSession]:
    """Everything up to 40 was reported as durable; then the destination was restored from a backup that ends at 10."""
    queues = TwoQueues(folder)
    assert queues.far is not None
    queues.publish(insert_batch([10, 20, 30, 40]))
    queues.work()
    queues.arrived()
    queues.far.acknowledge(queues.subscriber, "dbs1", 40)
    queues.save()
    queues.work()
    queues.save()
    return queues, queues.far.open_subscriber("apply_far", "2", {"dbs1": Scn(10)}, 1 << 30)


def test_batches_arrive_in_order_and_byte_for_byte(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    sent = [
        queues.publish(insert_batch([10, 20])),
        queues.publish(insert_batch([30], previous=20, is_open=True)),
        queues.publish(insert_batch([30], previous=20, continues=True, first_position=1)),
    ]
    queues.work()
    assert queues.arrived() == sent
    assert queues.core.state == "WAITING FOR LCRS"


def test_propagation_sends_progress_marks(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    queues.publish(insert_batch([], through=70))
    queues.work()
    assert [codec.read_header(data).through_scn for data in queues.arrived()] == [70]


def test_rules_discard_tables_and_the_chain_of_batches_stays_whole(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path, RuleSet(include=(Rule(name="other"),)))
    queues.publish(insert_batch([10, 20], rows_each=3))
    queues.publish(insert_batch([30], previous=20, is_open=True))
    queues.publish(insert_batch([30], previous=20, continues=True, first_position=1))
    queues.work()
    batches = [codec.decode(data) for data in queues.arrived()]
    assert [(batch.previous_scn, batch.through_scn, batch.row_count) for batch in batches] == [
        (0, 20, 0),
        (20, 20, 0),
        (20, 30, 0),
    ]
    assert queues.statistics.rows_discarded_total == 8
    assert queues.statistics.rows_total == 0


def test_rules_that_keep_everything_leave_the_bytes_untouched(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path, RuleSet(include=(Rule(owner="public"),)))
    sent = queues.publish(insert_batch([10]))
    queues.work()
    assert queues.arrived() == [sent]


def test_subset_turns_rows_that_move_in_or_out_into_inserts_and_deletes(
    tmp_path: Path,
) -> None:
    """One transaction in two parts of four UPDATEs each: the destination queue gets the changes of the subset, and the
    chain has no gap.
    """
    queues = TwoQueues(tmp_path, RuleSet(include=(Rule(owner="public", name="t", subset=parse("c1 = 5", "subset")),)))
    moved = [(b"5", b"6"), (b"6", b"5"), (b"5", b"5"), (b"6", b"6")]
    olds, news = ([[b"%d" % (10 * row + place), value[place]] for row, value in enumerate(moved)] for place in (0, 1))
    whole = replace(
        batch_of_values(table_version(), Command.UPDATE, old=olds, new=news, source="dbs1", commit_scn=20),
        previous_scn=Scn(0),
    )
    first = replace(
        whole, transactions=replace(whole.transactions, commit_scn=np.zeros(1, np.int64)), through_scn=Scn(0)
    )
    rest = replace(whole, continues=True, first_position=4)
    for part in (first, rest):
        queues.publish(part)
    queues.work()
    arrived = [codec.decode(data) for data in queues.arrived()]
    found = [RowLcr(batch, row) for batch in arrived for row in range(batch.row_count)]
    assert [
        (lcr.command_type, *(lcr.stored(image) for image in (ValueType.OLD, ValueType.NEW))) for lcr in found
    ] == 2 * [
        ("DELETE", [b"0", b"5"], [ABSENT] * 2),
        ("INSERT", [ABSENT] * 2, [b"11", b"5"]),
        ("UPDATE", [b"20", b"5"], [b"21", b"5"]),
    ]
    assert [(batch.previous_scn, batch.through_scn, batch.is_open, batch.continues) for batch in arrived] == [
        (0, 0, True, False),
        (0, 20, False, True),
    ]
    assert (queues.statistics.rows_discarded_total, queues.statistics.rows_total) == (2, 6)


def test_durable_at_the_destination_is_acknowledged_at_the_source_queue(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    queues.publish(insert_batch([10]))
    queues.work()
    assert queues.near is not None
    assert queues.far is not None
    assert queues.near.status().batches == 1
    queues.far.acknowledge(queues.subscriber, "dbs1", 10)
    queues.work()
    assert queues.near.status().batches == 1  # the far queue has not saved it yet
    queues.save()
    queues.work()
    assert queues.near.status().batches == 0
    assert queues.statistics.acknowledged_scn == 10


def test_state_shows_waiting_sending_and_paused(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path, memory=1 << 20, spill=0)
    assert not queues.core.step()
    assert queues.core.state == "WAITING FOR LCRS"
    for k in range(STEP_BATCHES + 1):
        queues.publish(insert_batch([10 * k + 10], previous=10 * k))
    assert queues.core.step()
    assert queues.core.state == "SENDING"
    queues.work()
    assert queues.core.state == "WAITING FOR LCRS"
    assert queues.far is not None
    queues.far._space.bounds = one_way(tmp_path, memory=1, spill=0).queue("q_dbs2")
    queues.connect()
    queues.publish(insert_batch([10_000], previous=10 * (STEP_BATCHES + 1)))
    queues.work()
    assert queues.core.state == "PAUSED FOR FLOW CONTROL"


def test_full_destination_holds_back_the_source_queue_without_loss(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path, memory=100_000, spill=0)
    assert queues.far is not None
    assert queues.near is not None
    for k in range(8):
        queues.near.publisher_news(queues.publisher)  # its credit
        queues.publish(insert_batch([10 * k + 10], previous=10 * k, value=bytes(10_000)))
    queues.far._space.bounds = one_way(tmp_path, memory=30_000, spill=0).queue("q_dbs2")
    queues.connect()
    queues.work()
    assert queues.core.state == "PAUSED FOR FLOW CONTROL"
    assert queues.statistics.batches_total < 8
    through = 0
    while through < 80:
        arrived = queues.arrived()
        assert arrived
        through = codec.read_header(arrived[-1]).through_scn
        queues.far.acknowledge(queues.subscriber, "dbs1", through)
        queues.work()
    assert queues.statistics.batches_total == 8


def test_batch_without_credit_during_a_drain_is_sent_after_the_gate_opens(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    assert queues.far is not None
    roomy = queues.far._space.bounds
    queues.far._space.bounds = one_way(tmp_path, memory=1, spill=0).queue("q_dbs2")
    queues.connect()
    sent = [
        queues.publish(insert_batch([10], is_open=True)),
        queues.publish(insert_batch([10], is_open=True, continues=True, first_position=1)),
        queues.publish(insert_batch([10], continues=True, first_position=2)),
    ]
    queues.work()
    assert queues.core.state == "PAUSED FOR FLOW CONTROL"
    queues.core.drain()
    queues.far._space.bounds = roomy
    queues.work()
    assert queues.arrived() == sent


def test_purged_redo_found_while_draining_is_reported_to_the_destination(tmp_path: Path) -> None:
    queues, restored = all_durable_then_restored(tmp_path)
    assert queues.near is not None
    # The near queue learned of the purged redo from another stream of this propagation.
    held = queues.near.open_subscriber("to_dbs2", "9", {"dbs1": Scn(10)}, 1 << 30)
    queues.near.gone(queues.publisher, 30)
    assert isinstance(held.ended, LogGone)
    while not queues.core.drain():
        pass
    assert isinstance(restored.ended, LogGone)


def test_source_queue_gets_credit_back_only_as_the_destination_accepts(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    assert queues.near is not None
    sent = len(queues.publish(insert_batch([10], value=bytes(5000))))
    queues.core.step()
    credit = queues.near.status().subscribers[0].credit_bytes
    assert credit == CREDIT_BYTES - sent
    queues.core.step()
    assert queues.near.status().subscribers[0].credit_bytes == CREDIT_BYTES


def test_discarded_batch_returns_all_its_credit(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path, RuleSet(include=()))
    assert queues.near is not None
    for k in range(3):
        queues.publish(insert_batch([10 * k + 10], previous=10 * k, value=bytes(5000)))
    queues.work()
    queues.core.step()
    assert queues.near.status().subscribers[0].credit_bytes == CREDIT_BYTES


def test_reconnected_propagation_resumes_at_the_destinations_position(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    for k in range(4):
        queues.publish(insert_batch([10 * k + 10], previous=10 * k))
    queues.work()
    queues.publish(insert_batch([50], previous=40))
    queues.core.close()
    queues.connect()
    queues.work()
    assert [codec.read_header(data).through_scn for data in queues.arrived()] == [10, 20, 30, 40, 50]


def test_destination_queue_that_restarted_empty_gets_its_backlog_again(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    assert queues.far is not None
    queues.publish(insert_batch([10]))
    queues.publish(insert_batch([20], previous=10))
    queues.work()
    queues.arrived()
    queues.far.acknowledge(queues.subscriber, "dbs1", 10)
    queues.save()
    queues.start_far(needed=10)
    with pytest.raises(PropagationError):
        queues.core.step()
    queues.core.close()
    queues.connect()
    queues.work()
    assert [codec.read_header(data).through_scn for data in queues.arrived()] == [20]


def test_restarted_source_queue_is_asked_for_the_destinations_position(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    queues.publish(insert_batch([10]))
    queues.work()
    queues.start_near()  # nothing was acknowledged, so it begins at 0, now cut differently
    queues.core.close()
    queues.connect()
    queues.publish(insert_batch([10, 20]))
    queues.work()
    assert [list(codec.decode(data).transactions.commit_scn) for data in queues.arrived()] == [[10], [20]]


def test_rewind_at_the_destination_reaches_the_source(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    assert queues.near is not None
    assert queues.far is not None
    queues.publish(insert_batch([10, 20]))
    queues.work()
    queues.arrived()
    queues.far.acknowledge(queues.subscriber, "dbs1", 20)
    queues.save()
    queues.work()
    queues.save()
    assert queues.near.status().batches == 0
    queues.subscriber = queues.far.open_subscriber(
        "apply_far", "2", {"dbs1": Scn(10)}, 1 << 30
    )  # restored from a backup
    queues.work()
    news = queues.near.publisher_news(queues.publisher)
    assert news is not None
    assert news.rewind_scn == 10
    queues.publish(insert_batch([20, 30], previous=10))
    queues.work()
    assert [codec.read_header(data).through_scn for data in queues.arrived()] == [30]
    queues.save()
    queues.work()
    assert queues.statistics.acknowledged_scn == 10, "changes after the backup are no longer durable"


def test_purged_redo_refuses_only_the_subscriber_behind_the_relay(tmp_path: Path) -> None:
    queues, restored = all_durable_then_restored(tmp_path)
    assert queues.near is not None
    queues.work()
    queues.near.publisher_news(queues.publisher)
    queues.near.gone(queues.publisher, 30)
    queues.work()
    assert isinstance(restored.ended, LogGone)
    assert restored.ended.context["first_scn"] == 30
    queues.publish(insert_batch([40, 50], previous=30))
    queues.work()
    assert queues.far.status().sources["dbs1"].position_scn == 50
    queues.subscriber = queues.far.open_subscriber("apply_far", "3", {"dbs1": Scn(0)}, 1 << 30)
    queues.publish(insert_batch([60], previous=50))
    queues.work()
    assert [codec.read_header(data).through_scn for data in queues.arrived()][-1] == 60


def test_statistics_match_the_manuals(tmp_path: Path) -> None:
    queues = TwoQueues(tmp_path)
    size = len(queues.publish(insert_batch([10, 20], rows_each=2)))
    queues.work()
    queues.core.step()
    statistics = queues.statistics
    assert (statistics.sent_scn, statistics.accepted_scn, statistics.rows_total) == (20, 20, 4)
    assert (statistics.bytes_total, statistics.batches_total) == (size, 1)
    assert statistics.last_commit_time_us == 20_000


def test_runner_without_a_reachable_queue_reports_it_and_shows_its_state() -> None:
    def resolve(name: str) -> str:
        raise PropagationError(f"{name} does not answer")

    runner = PropagationRunner(
        PropagationSpec(name="p", from_queue="a", to_queue="b", sources=("dbs1",)), GrpcLinks("t", "p", resolve)
    )
    with pytest.raises(PropagationError, match="queue:b does not answer"):
        runner.open()
    runner.close()
    assert runner.status().state == "INITIALIZING"
    assert runner.status().sources["dbs1"].rows_total == 0
