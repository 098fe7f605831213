"""What a capture process keeps of its apply process's refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.records.refusal import Refusal
from streams.errors import CaptureError
from streams.scn import Scn


def refusal(folder: Path, apply: str = "apply") -> Refusal:
    return Refusal(folder, "capture", apply)


def test_refusal_is_there_in_the_next_life_until_it_ends(tmp_path: Path) -> None:
    assert refusal(tmp_path).gone_scn is None
    refusal(tmp_path).record(Scn(40))
    refusal(tmp_path).record(Scn(60))
    assert refusal(tmp_path).gone_scn == 60
    refusal(tmp_path).record(None)
    assert refusal(tmp_path).gone_scn is None
    refusal(tmp_path).record(None)


def test_refusal_of_another_apply_process_does_not_count(tmp_path: Path) -> None:
    refusal(tmp_path).record(Scn(40))
    assert refusal(tmp_path, "other").gone_scn is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"apply": "apply", "gone_scn": "x"}'])
def test_damaged_file_does_not_stop_the_capture_process(tmp_path: Path, text: str) -> None:
    refusal(tmp_path).record(Scn(40))
    (file,) = (tmp_path / "components").iterdir()
    file.write_text(text)
    assert refusal(tmp_path).gone_scn is None


def test_refusal_that_cannot_be_written_is_an_error_and_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "components" / "capture.capture.refusal.json.new").mkdir(parents=True)
    kept = refusal(tmp_path)
    with pytest.raises(CaptureError, match=r"capture\.capture\.refusal\.json cannot be written"):
        kept.record(Scn(40))
    assert kept.gone_scn is None
