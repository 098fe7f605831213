"""A driver that was suspended does not disturb its successor at the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.staging.queue import QueueCore
from headrace.base.backoff import RETRY_DELAY_MIN_S
from headrace.base.clock import VirtualClock
from headrace.base.errors import PropagationError, QueueError
from headrace.databases.connectors import DatabaseAccess
from headrace.lcr.scn import Scn
from protos.wire.transport import epoch_incarnation
from spark_apply.apply_config import ApplyConfig
from spark_apply.driver.loop.dequeuing import Dequeuing
from tests.support.wire.staging import DirectLinks, one_way

CONFIG = ApplyConfig(
    topology="t",
    apply="apply_a",
    queue="q_dbs1",
    source=DatabaseAccess(site="dbs1", kind="memory", dsn=""),
    destination=DatabaseAccess(site="dbs2", kind="memory", dsn=""),
)


def test_late_stream_of_an_older_driver_does_not_move_its_successor(tmp_path: Path):
    """The destination was restored to SCN 25; the older driver, suspended before it connected, had acknowledged 60."""
    core = QueueCore(one_way(tmp_path), "q_dbs1", tmp_path / "q", VirtualClock())
    newest = core.open_subscriber("apply_a", epoch_incarnation(2), {"dbs1": Scn(25)}, 1)
    core.acknowledge(newest, "dbs1", Scn(25))
    core.close_subscriber(newest)
    older = Dequeuing(CONFIG, DirectLinks("apply_a", {"q_dbs1": core}.get, epoch_incarnation(1)), VirtualClock())
    older.begin(Scn(60))
    older.durable(Scn(60))  # its servers' last group
    assert older.has_opened()  # its host finds the newer epoch before it confirms the stream
    (subscriber,) = (each for each in core.status().subscribers if each.subscriber == "apply_a")
    assert subscriber.acknowledged_scn == 25
    core.open_subscriber("apply_a", epoch_incarnation(2), {"dbs1": Scn(25)}, 1)


def test_queue_refuses_an_older_driver_while_its_successor_is_connected(tmp_path: Path):
    """It would request acknowledged batches, as if the destination had lost commits."""
    core = QueueCore(one_way(tmp_path), "q_dbs1", tmp_path / "q", VirtualClock())
    for _ in range(2):  # its stream is reopened under the same epoch
        core.open_subscriber("apply_a", epoch_incarnation(1_700_000_000_001), {"dbs1": Scn(90)}, 1)
    with pytest.raises(QueueError, match="newer incarnation"):
        core.open_subscriber("apply_a", epoch_incarnation(1_700_000_000_000), {"dbs1": Scn(40)}, 1)


class _BrokenLinks(DirectLinks):
    """A queue that accepts each stream; the stream breaks before its reader polls."""

    def subscriber(self, queue: str) -> Any:
        stream = super().subscriber(queue)

        def poll(timeout_s: float = 0.0) -> None:
            raise PropagationError("the connection was lost")

        stream.poll = poll  # type: ignore[method-assign]  # of this stream alone
        return stream


def test_pause_between_streams_stays_short_while_the_queue_accepts_them(tmp_path: Path):
    core = QueueCore(one_way(tmp_path), "q_dbs1", tmp_path / "q", VirtualClock())
    clock = VirtualClock()
    dequeuing = Dequeuing(CONFIG, _BrokenLinks("apply_a", {"q_dbs1": core}.get, epoch_incarnation(1)), clock)
    for _ in range(4):
        assert dequeuing.begin(Scn(1)) is None
        assert dequeuing.hear() == pytest.approx(clock.monotonic() + RETRY_DELAY_MIN_S)
    assert "the connection was lost" in dequeuing.problem
