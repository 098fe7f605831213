"""The cluster's record of a topology's components when the process that changes it dies halfway."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.deployment.deployment import Deployment
from topology.file.reading import read_topology

pytestmark = [pytest.mark.unit("drivers"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

FILE = """\
topology: left_records
state_dir: {folder}
sites:
  a: {{database: {{kind: embedded}}}}
  b: {{database: {{kind: embedded}}}}
replicate: [{{tables: [some.*], from: a, to: [b]}}]
"""


class ControllerDiedError(Exception):
    pass


def deployed(folder: Path, address: str) -> Deployment:
    folder.mkdir()
    file = folder / "topology.yaml"
    file.write_text(FILE.format(folder=folder / "state"))
    return Deployment(read_topology(file), address)


def test_down_removes_component_whose_creator_died_before_its_process_ran(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A leftover record would make each `up` from another folder believe that the topology runs in this one."""
    import ray

    first, second = deployed(tmp_path / "first", ray_address), deployed(tmp_path / "second", ray_address)

    def dies(**_: object) -> None:
        raise ControllerDiedError

    actors = first.connect()
    monkeypatch.setattr(ray, "remote", dies)
    with pytest.raises(ControllerDiedError):
        actors.create(
            "queue:q",
            "actors.queue:build",
            {},
            process="queue:q",
            state_dir=first.spec.state_dir,
            node={},
            environment={},
        )
    monkeypatch.undo()
    assert actors.state_dir() == first.spec.state_dir
    assert first.down() == []
    assert second.connect().state_dir() is None
