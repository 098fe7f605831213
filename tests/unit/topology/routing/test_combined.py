"""Combined capture and apply: its conditions, the bypassed components, and those that still run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.topologies.files import SITES, problems, read
from topology.callers import subscribers_of
from topology.edits.changes import bypassed_of, components_of, interests_of, places_of, published_to
from topology.routing.combined import apply_of, bypassed, capture_of, combination, dequeued, direct, directs

ONE = SITES + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs2]}]"
EXPLICIT = (
    SITES
    + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}, qr: {site: relay}}
captures: {c: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations: {p: {from: q1, to: q2}}
applies: {a: {site: dbs2, source: dbs1, queue: q2}}
"""
)


def test_one_way_shorthand_is_combined_and_bypasses_queues_between(tmp_path: Path) -> None:
    spec = read(tmp_path, ONE)
    (capture,), (apply,) = spec.captures, spec.applies
    assert apply_of(spec, capture) is apply
    assert capture_of(spec, apply) is capture
    assert set(bypassed(spec)) == {"queue:q_dbs1", "propagation:dbs1_to_dbs2", "queue:q_dbs2_in"}
    assert {component.kind for component in components_of(spec)} == {"site", "spark", "apply", "capture"}
    assert {(c.name, c.site): by for c, by in bypassed_of(spec).items()} == dict.fromkeys(
        [("queue:q_dbs1", "dbs1"), ("propagation:dbs1_to_dbs2", "dbs1"), ("queue:q_dbs2_in", "dbs2")],
        "capture:capture_dbs1",
    )


def test_two_ways_are_combined_separately(tmp_path: Path) -> None:
    spec = read(tmp_path, SITES + "replicate: [{tables: [hr.a], between: [dbs1, dbs2]}]")
    assert {capture.name: apply_of(spec, capture).name for capture in spec.captures} == {
        "capture_dbs1": "apply_from_dbs1_at_dbs2",
        "capture_dbs2": "apply_from_dbs2_at_dbs1",
    }


def test_capture_and_apply_over_one_propagation_are_combined(tmp_path: Path) -> None:
    spec = read(tmp_path, EXPLICIT)
    assert combination(spec, spec.captures[0]).apply is spec.applies[0]
    assert not combination(spec, spec.captures[0]).hindrance


def test_capture_and_apply_of_an_unshared_queue_are_combined(tmp_path: Path) -> None:
    spec = read(tmp_path, EXPLICIT)
    shared = replace(spec, propagations=(), applies=(replace(spec.applies[0], queue="q1"),))
    assert combination(shared, shared.captures[0]).apply is shared.applies[0]
    assert set(bypassed(shared)) == {"queue:q1"}
    more = replace(shared, applies=(*shared.applies, replace(shared.applies[0], name="b")))
    assert combination(more, more.captures[0]).hindrance == "q1 has 2 subscribers: a, b"


HINDRANCES = {
    "a second propagation": (
        EXPLICIT,
        "{from: q1, to: q2}",
        "{from: q1, to: q2}, p2: {from: q1, to: qr}",
        "q1 has 2 subscribers: p, p2",
    ),
    "a second publisher": (
        EXPLICIT,
        "{from: q1, to: q2}",
        "{from: q1, to: q2}, p2: {from: qr, to: q1}",
        "q1 has another publisher: p2",
    ),
    "a propagation that compresses": (EXPLICIT, "to: q2}", "to: q2, compression: zstd}", "p compresses what it sends"),
    "a propagation with rules": (EXPLICIT, "to: q2}", "to: q2, rules: {exclude: [{table: hr.b}]}}", "p has rules"),
    "an intermediate queue": (
        EXPLICIT,
        "{from: q1, to: q2}",
        "{from: q1, to: qr}, p2: {from: qr, to: q2}",
        "qr is an intermediate queue: p2",
    ),
    "two apply processes of one source in one queue": (
        EXPLICIT,
        "queue: q2}}",
        "queue: q2, rules: {include: [{table: hr.a}]}}, b: {site: dbs2, source: dbs1, queue: q2, rules: {include:"
        " [{table: hr.b}]}}}",
        "q2 needs one apply process for dbs1, and has a, b",
    ),
    "the apply process says never": (
        EXPLICIT,
        "queue: q2}}",
        "queue: q2, combined: never}}",
        "the file says combined: never (a)",
    ),
    "the file says never": (
        EXPLICIT,
        "topology: t",
        "topology: t\ncombined: never",
        "the file says combined: never (a)",
    ),
    "the file says never for the shorthand": (
        ONE,
        "topology: t",
        "topology: t\ncombined: never",
        "the file says combined: never (apply_from_dbs1_at_dbs2)",
    ),
    "two destinations": (ONE, "to: [dbs2]", "to: [dbs2, dbs3]", "q_dbs1 has 2 subscribers: dbs1_to_dbs2, dbs1_to_dbs3"),
}


DIRECT = {
    "a second propagation": {"propagation:p", "queue:q2"},
    "a second publisher": {"propagation:p", "queue:q2"},
    "an intermediate queue": {"propagation:p2", "queue:q2"},
    "two destinations": {"propagation:dbs1_to_dbs2", "queue:q_dbs2_in", "propagation:dbs1_to_dbs3", "queue:q_dbs3_in"},
}


@pytest.mark.parametrize("case", HINDRANCES)
def test_first_unmet_condition_of_combined_capture_is_named(tmp_path: Path, case: str) -> None:
    text, old, new, hindrance = HINDRANCES[case]
    assert old in text
    spec = read(tmp_path, text.replace(old, new))
    found = combination(spec, spec.captures[0])
    assert (found.apply, found.hindrance) == (None, hindrance)
    assert set(bypassed(spec)) == DIRECT.get(case, set())
    running = {c.name for c in components_of(spec) if c.kind in {"queue", "propagation"}}
    assert running == {
        *(f"queue:{each.name}" for each in spec.queues),
        *(f"propagation:{each.name}" for each in spec.propagations),
    } - DIRECT.get(case, set())


# --------------------------------------------------------------------------- direct dequeuing

TWO = EXPLICIT.replace("{from: q1, to: q2}", "{from: q1, to: q2}, p2: {from: q1, to: qr}")


def test_applies_of_several_destinations_subscribe_to_the_source_queue(tmp_path: Path) -> None:
    spec = read(tmp_path, SITES + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs2, dbs3]}]")
    assert [(each.propagation.name, [apply.name for apply in each.applies]) for each in directs(spec)] == [
        ("dbs1_to_dbs2", ["apply_from_dbs1_at_dbs2"]),
        ("dbs1_to_dbs3", ["apply_from_dbs1_at_dbs3"]),
    ]
    assert interests_of(spec, "q_dbs1") == {"apply_from_dbs1_at_dbs2": ("dbs1",), "apply_from_dbs1_at_dbs3": ("dbs1",)}
    assert interests_of(spec, "q_dbs2_in") == {}
    assert {dequeued(spec, apply) for apply in spec.applies} == {"q_dbs1"}
    assert (
        subscribers_of(spec, "q_dbs1").items()
        >= {"apply_from_dbs1_at_dbs2": "dbs2", "apply_from_dbs1_at_dbs3": "dbs3"}.items()
    )
    assert bypassed(spec)["queue:q_dbs3_in"] == "apply:apply_from_dbs1_at_dbs3"
    combined_one = read(tmp_path, ONE)
    assert directs(combined_one) == ()
    assert dequeued(combined_one, combined_one.applies[0]) == "q_dbs2_in"


def test_propagation_of_several_sources_is_bypassed_by_each_sources_apply(tmp_path: Path) -> None:
    text = (
        SITES
        + """
queues: {q1: {site: dbs1}, qr: {site: relay}, q3: {site: dbs3}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}
  c2: {site: dbs2, source: dbs2, queue: q2, rules: {include: [{schema: crm}]}}
propagations: {p1: {from: q1, to: qr}, p2: {from: q2, to: qr}, p3: {from: qr, to: q3}}
applies: {a1: {site: dbs3, source: dbs1, queue: q3}, a2: {site: dbs3, source: dbs2, queue: q3}}
""".replace("queues: {", "queues: {q2: {site: dbs2}, ")
    )
    spec = read(tmp_path, text)
    assert {name: by for name, by in bypassed(spec).items() if name in {"propagation:p3", "queue:q3"}} == {
        "propagation:p3": "apply:a1",
        "queue:q3": "apply:a1",
    }
    assert interests_of(spec, "qr") == {"a1": ("dbs1",), "a2": ("dbs2",)}
    assert published_to(spec, "qr") == {"dbs1", "dbs2"}
    assert places_of(spec, "qr") == dict.fromkeys(
        ("dbs1", "dbs2"), dict.fromkeys(("p3", "a1", "a2"), frozenset({"dbs3"}))
    )
    without = read(tmp_path, text.replace("source: dbs2, queue: q3}", "source: dbs2, queue: q3, combined: never}"))
    assert direct(without, without.propagation("p3")).hindrance == "the file says combined: never (a2)"
    assert interests_of(without, "qr") == {"p3": ("dbs1", "dbs2")}


@pytest.mark.parametrize(
    ("old", "new", "hindrance"),
    [
        ("to: q2}", "to: q2, compression: zstd}", "p compresses what it sends"),
        ("to: q2}", "to: q2, bandwidth_max: 1MB}", "p has a bandwidth_max"),
        ("to: q2}", "to: q2, rules: {exclude: [{table: hr.b}]}}", "p has rules"),
        (
            "to: q2}, p2: {from: q1, to: qr}}\napplies: {",
            "to: q2}, p3: {from: q2, to: q3}, p2: {from: q1, to: qr}}\napplies: {b: {site: dbs3, source: dbs1, queue:"
            " q3}, ",
            "q2 is an intermediate queue: p3",
        ),
        ("queue: q2}}", "queue: q2, combined: never}}", "the file says combined: never (a)"),
        (
            "queue: q2}}",
            "queue: q2, rules: {include: [{table: hr.a}]}}, b: {site: dbs2, source: dbs1, queue: q2, rules: {include:"
            " [{table: hr.b}]}}}",
            "q2 needs one apply process for dbs1, and has a, b",
        ),
    ],
)
def test_hindrance_of_direct_dequeuing_is_named(tmp_path: Path, old: str, new: str, hindrance: str) -> None:
    assert old in TWO
    spec = read(tmp_path, TWO.replace(old, new, 1).replace("qr: {site: relay}", "qr: {site: relay}, q3: {site: dbs3}"))
    assert direct(spec, spec.propagation("p")).hindrance == hindrance
    assert "propagation:p" not in bypassed(spec)
    assert "p" in interests_of(spec, "q1")


def test_propagation_bypassed_by_a_capture_has_no_direct_dequeuing(tmp_path: Path) -> None:
    spec = read(tmp_path, EXPLICIT)
    assert direct(spec, spec.propagations[0]).hindrance == "c bypasses it (combined capture and apply)"


def test_shared_queue_runs_only_for_its_other_users(tmp_path: Path) -> None:
    """Two sources share the queue of one site; one of them has a second destination."""
    spec = read(
        tmp_path,
        SITES
        + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs3]}, {tables: [crm.a], from: dbs2, to: [dbs3, dbs1]}]",
    )
    assert set(bypassed(spec)) == {
        "queue:q_dbs1",
        "propagation:dbs1_to_dbs3",
        "propagation:dbs2_to_dbs3",
        "propagation:dbs2_to_dbs1",
        "queue:q_dbs3_in",
        "queue:q_dbs1_in",
    }
    half = replace(
        spec, applies=tuple(replace(each, combined=each.name != "apply_from_dbs2_at_dbs3") for each in spec.applies)
    )
    assert set(bypassed(half)) == {
        "queue:q_dbs1",
        "propagation:dbs1_to_dbs3",
        "propagation:dbs2_to_dbs1",
        "queue:q_dbs1_in",
    }
    assert interests_of(half, "q_dbs3_in") == {"apply_from_dbs2_at_dbs3": ("dbs2",)}
    assert published_to(half, "q_dbs3_in") == {"dbs2"}
    never = read(
        tmp_path,
        "combined: never\n"
        + SITES
        + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs3]}, {tables: [crm.a], from: dbs2, to: [dbs3, dbs1]}]",
    )
    assert set(interests_of(never, "q_dbs3_in")) == {"apply_from_dbs1_at_dbs3", "apply_from_dbs2_at_dbs3"}
    assert published_to(never, "q_dbs3_in") == {"dbs1", "dbs2"}


def test_invalid_value_of_combined_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, EXPLICIT.replace("topology: t", "topology: t\ncombined: maybe"))
    assert "combined" in found
    assert "auto" in found
    assert "never" in found
