"""`check` and `plan` report in advance that `up` would refuse a table that returns in another shape too early."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from actors.control.earlier_shapes import EarlierShape, shapes_as_json
from headrace.deployment import inspection, open_databases
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import AddColumn, Transformation
from tests.support.actors.controllers import one_way_spec
from topology.edits.stored import PREPARED_FILE, spec_to_json
from topology.spec import DatabaseSpec, TopologySpec

CONSTANT = Transformation(operations=(AddColumn(name="phone", type_name="pg_catalog.text", value="none"),))


def people(spec: TopologySpec, captured: Transformation | None, sent: Transformation | None) -> TopologySpec:
    first, second = (
        RuleSet(include=(Rule(owner="public", name="people", transformation=each),)) for each in (captured, sent)
    )
    return replace(
        spec,
        captures=(replace(spec.captures[0], rules=first),),
        propagations=(replace(spec.propagations[0], rules=second),),
        sites=tuple(
            replace(site, database=DatabaseSpec(kind="postgres", dsn=f"dbname={site.name}")) for site in spec.sites
        ),
    )


@pytest.mark.parametrize(("reached", "refused"), [(400, True), (500, False)])
def test_shape_that_would_return_too_early_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: int, refused: bool
) -> None:
    spec = one_way_spec(tmp_path)
    first, third = people(spec, CONSTANT, None), people(spec, None, CONSTANT)
    out = replace(
        first, captures=(replace(first.captures[0], rules=RuleSet(include=(Rule(owner="public", name="others"),))),)
    )
    spec.state_dir.mkdir()
    document = {
        "spec": spec_to_json(out),
        "earlier_shapes": shapes_as_json([EarlierShape(spec=first, markers={"a": 500})]),
    }
    (spec.state_dir / PREPARED_FILE).write_text(json.dumps(document))
    destination = SimpleNamespace(
        progress=lambda topology, apply: SimpleNamespace(low_watermark=reached), close=lambda: None
    )
    monkeypatch.setattr(open_databases, "open_destination", lambda access: destination)
    for name in ("_table_findings", "_changed_rows", "_sequence_findings"):
        monkeypatch.setattr(inspection, name, lambda *_: [])
    monkeypatch.setattr("headrace.deployment.kept_redo.redo_findings", lambda spec, access: [])
    found = inspection._findings_between(third, open_databases.OpenDatabases(third), {}, [])
    assert bool(found) is refused
    assert all("still on the way" in each.problem for each in found)
