"""A source that was set back stays refused: later nothing tells its other history from the old one."""

from __future__ import annotations

import pytest

from databases.memory_source import MemorySource
from redo.set_back import SetBack
from streams.clock import VirtualClock
from streams.errors import DatabaseSetBack
from tests.support.redo_logs import drain, log_writer, write_redo


def test_refusal_is_kept_over_a_restart_and_ends_by_the_operators_hand(tmp_path):
    SetBack(tmp_path).check()
    SetBack(tmp_path).record(DatabaseSetBack("the log ends too early", hint="instantiate again"))
    with pytest.raises(DatabaseSetBack, match="refused before: the log ends too early") as refused:
        SetBack(tmp_path).check()
    assert "instantiate again" in refused.value.hint
    (tmp_path / "set_back.json").unlink()
    SetBack(tmp_path).check()


@pytest.mark.parametrize("segment_bytes", [1 << 20, 300])
def test_last_transaction_of_redo_is_known_after_a_restart(tmp_path, segment_bytes):
    source, clock = MemorySource(), VirtualClock()
    source.create_table("s.t", ["id"], key=["id"])
    writer = write_redo(tmp_path, source, clock=clock, segment_bytes=segment_bytes)
    assert writer.last_transaction == 0
    for number in range(5):
        with source.transaction() as transaction:
            transaction.insert("s.t", id=str(number))
        drain(writer, source, clock)
        source.other_activity()
        drain(writer, source, clock)
        assert writer.last_transaction == source.log[-1].transaction_id
        writer.close()
        writer = log_writer(tmp_path, source, clock=clock, segment_bytes=segment_bytes)
        assert writer.last_transaction == source.log[-1].transaction_id
        writer._switch_if_used()
