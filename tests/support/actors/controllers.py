"""A controller of a small one-way topology, over fake actors."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

from actors.controller import Controller
from headrace.base.clock import Clock
from headrace.databases.ports import CapturedTable
from headrace.rules.rule import Rule, RuleSet
from tests.support.actors.actor_system import FakeActors
from topology.routing.ways import route
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

__all__ = [
    "EVERYTHING",
    "call_again",
    "captured",
    "labels",
    "one_way_spec",
    "reconfigured",
    "started",
    "stop",
    "with_another_destination",
    "with_another_source",
]

EVERYTHING = {"site:a", "site:b", "queue:qa", "queue:qb", "capture:c", "propagation:p", "apply:x", "spark:b"}
"""The components of `one_way_spec`, none bypassed."""


_calls = itertools.count()


def one_way_spec(folder: Path) -> TopologySpec:
    """Return a topology from site a to site b whose queues and propagation are not bypassed."""
    rules = RuleSet(include=(Rule(owner="public"),))
    return TopologySpec(
        name="one_way",
        file=folder / "one_way.yaml",
        state_dir=folder / "state",
        sites=(
            SiteSpec(name="a", database=DatabaseSpec(kind="embedded")),
            SiteSpec(name="b", database=DatabaseSpec(kind="embedded"), node=(("site_b", 1.0),)),
        ),
        queues=(QueueSpec(name="qa", site="a"), QueueSpec(name="qb", site="b")),
        captures=(CaptureSpec(name="c", site="a", source="a", queue="qa", rules=rules),),
        propagations=(PropagationSpec(name="p", from_queue="qa", to_queue="qb", sources=("a",)),),
        applies=(ApplySpec(name="x", site="b", source="a", queue="qb"),),
    )


def started(
    spec: TopologySpec, actors: FakeActors, *, steps: int = 6, keep_call: str = "", clock: Clock | None = None
) -> Controller:
    controller = Controller(spec, actors=actors, environment={"E": "1"}, keep_call=keep_call, clock=clock)
    controller.open()
    for _ in range(steps):
        controller.step()
    return controller


def stop(spec: TopologySpec, name: str, *, enabled: bool = False) -> Path:
    """Do what the component's host does when an operator stops it."""
    file = spec.state_dir / "components" / f"{name.replace(':', '.')}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"enabled": enabled}))
    return file


def call_again(controller: Controller) -> None:
    """Call `headrace up` again."""
    controller.retry(f"call {next(_calls)}")


def captured(*names: str) -> tuple[CapturedTable, ...]:
    return tuple(
        CapturedTable(identity=f"id of {name}", owner="public", name=name, object_numbers=(1,)) for name in names
    )


def labels(actors: FakeActors) -> dict[str, str]:
    return {name: str(arguments["fingerprint"]) for name, arguments in actors.running.items()}


def reconfigured(actors: FakeActors) -> list[str]:
    return [name for name, method in actors.calls if method == "reconfigure"]


def with_another_destination(spec: TopologySpec) -> TopologySpec:
    return route(
        replace(
            spec,
            sites=(*spec.sites, SiteSpec(name="c", database=DatabaseSpec(kind="embedded"))),
            queues=(*spec.queues, QueueSpec(name="qc", site="c")),
            propagations=(*spec.propagations, PropagationSpec(name="p2", from_queue="qa", to_queue="qc")),
            applies=(*spec.applies, ApplySpec(name="y", site="c", source="a", queue="qc")),
        )
    )


def with_another_source(spec: TopologySpec) -> TopologySpec:
    """Add a site c that also sends to b, into the same queue; nothing bypasses that queue."""
    return route(
        replace(
            spec,
            sites=(*spec.sites, SiteSpec(name="c", database=DatabaseSpec(kind="embedded"))),
            queues=(*spec.queues, QueueSpec(name="qc", site="c")),
            captures=(*spec.captures, replace(spec.captures[0], name="c2", site="c", source="c", queue="qc")),
            propagations=(*spec.propagations, PropagationSpec(name="p2", from_queue="qc", to_queue="qb")),
            applies=(*spec.applies, ApplySpec(name="y", site="b", source="c", queue="qb")),
        )
    )
