"""A source that was restored to an earlier state stays refused: later nothing distinguishes its histories."""

from __future__ import annotations

import pytest

from headrace.base.clock import VirtualClock
from headrace.base.errors import DatabaseSetBack, LogGone
from headrace.databases.memory.source import MemorySource
from headrace.redo.writing.source_refusal import SourceRefusal
from tests.support.redo.redo_logs import drain, log_writer, write_redo


def test_source_refusal_survives_restarts_until_the_operator_clears_it(tmp_path):
    SourceRefusal(tmp_path, "site:a").check()
    SourceRefusal(tmp_path, "site:a").record(DatabaseSetBack("the log ends too early", hint="instantiate again"))
    with pytest.raises(LogGone, match="refused before: the log ends too early") as refused:
        SourceRefusal(tmp_path, "site:a").check()
    assert "instantiate again" in refused.value.hint
    assert f"remove {tmp_path / 'refused.json'} and start the site: `headrace start FILE site:a`" in refused.value.hint
    (tmp_path / "refused.json").unlink()
    SourceRefusal(tmp_path, "site:a").check()


def test_source_with_a_recreated_publication_is_refused(tmp_path):
    SourceRefusal(tmp_path, "site:a").check_prepared("publication p (1)")
    SourceRefusal(tmp_path, "site:a").check_prepared("publication p (1)")
    with pytest.raises(LogGone, match=r"publication p \(2\), which was publication p \(1\)"):
        SourceRefusal(tmp_path, "site:a").check_prepared("publication p (2)")


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
        writer._log.switch_if_used()
