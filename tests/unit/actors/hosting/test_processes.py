"""Which components of a site share a process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.hosting.processes import APPLIES_TOGETHER, process_of
from tests.support.actors.controllers import one_way_spec
from topology.edits.changes import components_of
from topology.spec import ApplySpec, TopologySpec


@pytest.fixture
def spec(tmp_path: Path) -> TopologySpec:
    spec = one_way_spec(tmp_path)
    return replace(spec, sites=tuple(replace(site, node=()) for site in spec.sites))


def processes(spec: TopologySpec) -> dict[str, str]:
    return {component.name: process_of(spec, component) for component in components_of(spec)}


def with_applies(spec: TopologySpec, count: int) -> TopologySpec:
    (apply,) = spec.applies
    return replace(spec, applies=tuple(replace(apply, name=f"apply_{number:02}") for number in range(count)))


def test_apply_processes_of_a_site_share_a_process_by_fours(spec: TopologySpec):
    found = processes(with_applies(spec, 2 * APPLIES_TOGETHER + 1))
    site = spec.applies[0].site
    rooms = [found[f"apply:apply_{number:02}"] for number in range(2 * APPLIES_TOGETHER + 1)]
    assert rooms == [f"applies:{site}"] * APPLIES_TOGETHER + [f"applies:{site}:2"] * APPLIES_TOGETHER + [
        f"applies:{site}:3"
    ]


@pytest.mark.parametrize("at_the_end", [True, False])
def test_added_apply_processes_share_a_process_by_fours_wherever_added(spec: TopologySpec, *, at_the_end: bool):
    held: dict[str, set[str]] = {}
    (apply,), applies = spec.applies, tuple[ApplySpec, ...]()
    for number in range(2 * APPLIES_TOGETHER + 1):
        added = replace(apply, name=f"apply_{number:02}")
        applies = (*applies, added) if at_the_end else (added, *applies)
        edited = replace(spec, applies=applies)
        (component,) = [each for each in components_of(edited) if each.name == f"apply:{added.name}"]
        held.setdefault(process_of(edited, component, held), set()).add(component.name)
    assert sorted(len(each) for each in held.values()) == [1, APPLIES_TOGETHER, APPLIES_TOGETHER]


def test_site_has_a_process_of_its_own(spec: TopologySpec):
    assert {process for name, process in processes(spec).items() if name.startswith("site:")} == {
        f"site:{site.name}" for site in spec.sites
    }


def test_each_component_has_its_own_process_when_processes_are_apart(spec: TopologySpec):
    apart = replace(with_applies(spec, APPLIES_TOGETHER + 1), processes_apart=True)
    assert processes(apart) == {component.name: component.name for component in components_of(apart)}
    assert (
        process_of(apart, components_of(apart)[-1], {"applies:b": {"apply:apply_00"}}) == components_of(apart)[-1].name
    )


def test_site_that_moves_to_another_node_has_other_processes(spec: TopologySpec):
    site = spec.applies[0].site
    moved = replace(
        spec, sites=tuple(replace(each, node=(("site_x", 1.0),)) if each.name == site else each for each in spec.sites)
    )
    assert {name for name, process in processes(moved).items() if process != processes(spec)[name]} == {
        component.name
        for component in components_of(spec)
        if component.site == site and component.kind not in {"site", "spark"}
    }
