"""A component that Ray restarts begins with the topology that it adopted last, not with that of its creation."""

from __future__ import annotations

from dataclasses import replace

from actors.records.taken_over import TakenOver
from tests.support.topologies.files import ONE_WAY, read


def test_restarted_component_has_its_adopted_topology_and_a_new_one_not(tmp_path):
    spec = replace(read(tmp_path, ONE_WAY), state_dir=tmp_path)
    changed = replace(spec, heartbeat_s=77.0)
    created = {"spec": spec, "name": "q", "fingerprint": "first"}
    life = TakenOver(tmp_path, "queue:q", "creation 1")
    assert life.arguments(created) == created
    life.save(changed, "second")
    assert TakenOver(tmp_path, "queue:q", "creation 1").arguments(created) == {
        "spec": changed,
        "name": "q",
        "fingerprint": "second",
    }
    assert TakenOver(tmp_path, "queue:q", "creation 2").arguments(created) == created
    assert TakenOver(tmp_path, "queue:other", "creation 1").arguments(created) == created


def test_connection_string_comes_from_the_creation(tmp_path):
    text = ONE_WAY.replace("b: {database: {kind: embedded}}", 'b: {database: {kind: postgres, dsn: "${D}"}}')
    spec = replace(read(tmp_path, text, {"D": "password=hunter2"}), state_dir=tmp_path)
    life = TakenOver(tmp_path, "site:b", "creation")
    life.save(spec, "second")
    assert "hunter2" not in (tmp_path / "components" / "site.b~topology.json").read_text()
    assert life.arguments({"spec": spec, "fingerprint": "first"}) == {"spec": spec, "fingerprint": "second"}
