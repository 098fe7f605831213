"""Starting the local cluster on a machine that is too busy for Ray's own time-out."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.cluster import local
from actors.cluster.local import ClusterError, LocalCluster

TOO_LATE = "the local Ray cluster did not start: Exception: The current node timed out during startup. This could happen because"


def test_node_that_was_not_up_in_rays_time_is_started_again_a_few_times_and_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    answers: list[str] = []

    def start(cluster: LocalCluster) -> str:
        answer = answers.pop(0)
        if answer.startswith("127."):
            return answer
        raise ClusterError(answer)

    monkeypatch.setattr(LocalCluster, "_start", start)
    answers[:] = [TOO_LATE, "127.0.0.1:1"]
    assert LocalCluster(tmp_path).start() == "127.0.0.1:1"
    answers[:] = ["the port is taken", "127.0.0.1:1"]
    with pytest.raises(ClusterError, match="port is taken"):
        LocalCluster(tmp_path).start()
    answers[:] = [TOO_LATE] * local._STARTS_MAX
    with pytest.raises(ClusterError, match="timed out"):
        LocalCluster(tmp_path).start()
    assert answers == []


def test_words_by_which_a_time_out_is_known_are_those_of_this_version_of_ray():
    node = Path(__import__("ray").__file__).parent / "_private" / "node.py"
    text = " ".join(node.read_text(encoding="utf-8").replace('"', " ").split())
    assert local._NODE_TIMED_OUT in text
