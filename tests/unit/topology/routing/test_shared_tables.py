"""Tables that every site sends to every other site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.lcr.table_name import TableName
from headrace.rules.conditions.condition import parse
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from headrace.rules.user_code.handlers import HandlerRules
from topology.file.reading import read_topology
from topology.routing.ways import arriving, shared_by, ways_to
from topology.spec import ApplySpec, TopologySpec

PARTS = TableName("depot", "parts")
HANDLERS = "conflict_handlers: [{table: depot.parts, method: overwrite, columns: [amount], resolution_column: amount}]"


def _shared(
    folder: Path, ways: str, sites: str = "abc", *, change: Callable[[ApplySpec], ApplySpec] = lambda apply: apply
) -> dict[str, tuple[tuple[str, str], ...]]:
    listed = "".join(f"  {name}: {{database: {{kind: embedded}}}}\n" for name in sites)
    file = folder / "t.yaml"
    file.write_text(f"topology: t\nstate_dir: state\nsites:\n{listed}{ways}\n")
    spec = read_topology(file)
    spec = replace(spec, applies=tuple(change(a) if a.name == "apply_from_b_at_c" else a for a in spec.applies))
    return {
        f"{apply.source}{apply.site}": shared_by(spec, apply, table)
        for apply in spec.applies
        for table in _arriving(spec, apply)
    }


def _arriving(spec: TopologySpec, apply: ApplySpec):
    return arriving(ways_to(spec, apply), (PARTS,))


def test_each_further_source_is_named_with_its_two_applies(tmp_path: Path):
    found = _shared(tmp_path, "replicate: [{tables: [depot.*], between: [a, b, c]}]")
    assert found["ac"] == (("apply_from_b_at_c", "apply_from_b_at_a"),)
    assert found["cb"] == (("apply_from_a_at_b", "apply_from_a_at_c"),)
    assert all(len(pairs) == 1 for pairs in found.values())
    assert len(found) == 6
    four = _shared(tmp_path, "replicate: [{tables: [depot.*], between: [a, b, c, d]}]", "abcd")
    assert four["ad"] == (("apply_from_b_at_d", "apply_from_b_at_a"), ("apply_from_c_at_d", "apply_from_c_at_a"))


@pytest.mark.parametrize(
    "ways",
    [
        "replicate: [{tables: [depot.*], between: [a, b]}]",
        "replicate: [{tables: [depot.*], hub: a, spokes: [b, c]}]",
        "replicate: [{tables: [depot.*], from: a, to: [b, c]}]",
        "replicate: [{tables: [depot.*], between: [a, b]}, {tables: [depot.*], from: c, to: [b]}]",
        f"replicate: [{{tables: [depot.*], between: [a, b, c]}}]\n{HANDLERS}",
    ],
    ids=["two sites", "hub", "one way", "a feeder", "conflict handlers"],
)
def test_table_not_replicated_between_all_sites_is_not_shared(ways: str, tmp_path: Path):
    found = _shared(tmp_path, ways)
    assert found
    assert set(found.values()) == {()}


@pytest.mark.parametrize(
    "change",
    [
        lambda apply: replace(apply, handlers=HandlerRules(timeout_s=1.0)),
        lambda apply: replace(
            apply,
            rules=RuleSet(exclude=(Rule(owner="depot", condition=parse("command_type = 'DELETE'", "condition")),)),
        ),
    ],
    ids=["handlers", "a condition"],
)
def test_one_deviating_apply_makes_a_table_unshared(change: Callable[[ApplySpec], ApplySpec], tmp_path: Path):
    found = _shared(tmp_path, "replicate: [{tables: [depot.*], between: [a, b, c]}]", change=change)
    assert set(found.values()) == {()}


def test_forwarding_site_makes_a_table_unshared(tmp_path: Path):
    """Changes applied at b would arrive at c twice: from b and from their origin."""
    file = tmp_path / "t.yaml"
    sites = "".join(f"  {name}: {{database: {{kind: embedded}}}}\n" for name in "abc")
    file.write_text(
        f"topology: t\nstate_dir: state\nsites:\n{sites}replicate: [{{tables: [depot.*], between: [a, b, c]}}]"
    )
    spec = read_topology(file)
    every = RuleSet(include=(Rule(owner="depot", tags=ANY_TAG),))
    spec = replace(spec, captures=tuple(replace(c, rules=every) if c.source == "b" else c for c in spec.captures))
    assert {shared_by(spec, apply, table) for apply in spec.applies for table in _arriving(spec, apply)} == {()}
