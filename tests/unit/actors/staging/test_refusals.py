"""A queue's record of its subscribers' refusals, including the queue that a capture process mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.combined import forget_refusal
from actors.staging.refusals import Refusals
from headrace.base.errors import QueueError
from headrace.lcr.scn import Scn
from tests.support.wire.staging import one_way


def refusals(folder: Path) -> Refusals:
    return Refusals(folder / "q")


def record(folder: Path, gone_scn: int | None) -> None:
    refusals(folder).record("dbs1", {"apply": None if gone_scn is None else Scn(gone_scn)})


def gone_scn(folder: Path, subscriber: str = "apply") -> int | None:
    return refusals(folder).gone_scn("dbs1", subscriber)


def test_refusal_survives_a_restart_until_it_ends(tmp_path: Path) -> None:
    assert gone_scn(tmp_path) is None
    record(tmp_path, 40)
    record(tmp_path, 60)
    assert gone_scn(tmp_path) == 60
    record(tmp_path, None)
    assert gone_scn(tmp_path) is None
    record(tmp_path, None)


def test_refusal_of_another_subscriber_does_not_count(tmp_path: Path) -> None:
    record(tmp_path, 40)
    assert gone_scn(tmp_path, "other") is None
    refusals(tmp_path).forget_others({"other": ["dbs1"]})
    assert gone_scn(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"refused": {"dbs1": {"apply": "x"}}}'])
def test_damaged_file_does_not_stop_the_queue(tmp_path: Path, text: str) -> None:
    record(tmp_path, 40)
    (file,) = (tmp_path / "q").iterdir()
    file.write_text(text)
    assert gone_scn(tmp_path) is None


def test_refusal_that_cannot_be_written_is_an_error_and_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "q" / "refused.json.new").mkdir(parents=True)
    kept = refusals(tmp_path)
    with pytest.raises(QueueError, match=r"refused\.json of queue q cannot be written"):
        kept.record("dbs1", {"apply": Scn(40)})
    assert kept.gone_scn("dbs1", "apply") is None


def test_capture_process_that_is_no_longer_combined_forgets_the_refusal(tmp_path: Path) -> None:
    spec = one_way(tmp_path)
    Refusals(tmp_path / "components" / "capture.capture_dbs1~queue").record("dbs1", {"apply": Scn(40)})
    forget_refusal(spec, spec.captures[0])
    assert Refusals(tmp_path / "components" / "capture.capture_dbs1~queue").everyone() == {}
