"""Split streams: the components of each phase, and propagations that cannot be split off."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.base.plain_data import from_json
from topology.edits.changes import changes, components_of, interests_of
from topology.edits.stored import spec_from_json, spec_to_json
from topology.file.reading import examine, read_topology
from topology.routing.combined import combination, dequeued, readers_of
from topology.spec import PropagationSpec, QueueSpec, TopologySpec
from topology.split import MERGING, SPLIT, SPLITTING, Split, hindrance, misfits, with_splits

SITES = "sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}, c: {database: {kind: embedded}}}\n"
FAN_OUT = f"topology: t\n{SITES}replicate: [{{tables: [s.*], from: a, to: [b, c]}}]\n"


QUEUED = FAN_OUT.replace("topology: t\n", "topology: t\ncombined: never\n")


def read(folder: Path, text: str) -> TopologySpec:
    file = folder / "t.yaml"
    file.write_text(text, encoding="utf-8")
    return read_topology(file)


def split_in(phase: str, propagation: str = "a_to_b") -> Split:
    return Split(
        propagation=propagation, queue="q_a", to_queue="q_b_in", phase=phase, merges=True, by="operator", since_us=1
    )


def edits(before: TopologySpec, after: TopologySpec) -> dict[str, str]:
    return {change.component: change.action for change in changes(before, after) if change.action != "same"}


@pytest.mark.parametrize(("text", "reader"), [(FAN_OUT, "apply:apply_from_a_at_b"), (QUEUED, "propagation:a_to_b")])
def test_each_split_phase_edits_only_its_components_and_merging_undoes_all(tmp_path, text, reader):
    file = read(tmp_path, text)
    splitting, split, merging = (with_splits(file, [split_in(phase)]) for phase in (SPLITTING, SPLIT, MERGING))
    assert edits(file, splitting) == {
        "site:a": "takes over",
        "queue:q_a.a_to_b": "new",
        "capture:capture_a.a_to_b": "new",
    }
    assert edits(splitting, split) == {"queue:q_a": "takes over", reader: "takes over"}
    assert edits(split, merging) == {"queue:q_a": "takes over"}
    assert edits(merging, file) == {
        "site:a": "takes over",
        reader: "takes over",
        "queue:q_a.a_to_b": "ends",
        "capture:capture_a.a_to_b": "ends",
    }
    assert with_splits(file, ()) == file


@pytest.mark.parametrize(
    ("phase", "original", "own"),
    [
        (SPLITTING, {"a_to_b", "a_to_c"}, {"a_to_b"}),
        (SPLIT, {"a_to_c"}, {"a_to_b"}),
        (MERGING, {"a_to_b", "a_to_c"}, {"a_to_b"}),
    ],
)
@pytest.mark.parametrize("is_direct", [True, False])
def test_propagation_changing_queues_subscribes_to_both(tmp_path, phase, original, own, is_direct):
    spec = with_splits(read(tmp_path, FAN_OUT if is_direct else QUEUED), [split_in(phase)])
    named = (
        {"a_to_b": "apply_from_a_at_b", "a_to_c": "apply_from_a_at_c"}
        if is_direct
        else {"a_to_b": "a_to_b", "a_to_c": "a_to_c"}
    )
    assert set(interests_of(spec, "q_a")) == {named[each] for each in original}
    assert set(interests_of(spec, "q_a.a_to_b")) == {named[each] for each in own}
    assert spec.propagations[0].name == "a_to_b"
    assert readers_of(spec, spec.propagations[0]) == (named["a_to_b"],)
    assert dequeued(spec, spec.applies[0]) == ({SPLITTING: "q_a"}.get(phase, "q_a.a_to_b") if is_direct else "q_b_in")


def test_two_split_streams_of_one_queue_are_separate_and_stored(tmp_path):
    spec = with_splits(read(tmp_path, FAN_OUT), [split_in(SPLIT), split_in(SPLIT, "a_to_c")])
    assert {each.name: each.from_queue for each in spec.propagations} == {
        "a_to_b": "q_a.a_to_b",
        "a_to_c": "q_a.a_to_c",
    }
    assert interests_of(spec, "q_a") == {}
    stored = spec_from_json(spec_to_json(spec))
    assert (stored.propagations, stored.queues, stored.captures) == (spec.propagations, spec.queues, spec.captures)


@pytest.mark.parametrize("phase", [SPLITTING, SPLIT, MERGING])
def test_split_stream_prevents_combined_capture(tmp_path, phase):
    spec = with_splits(read(tmp_path, FAN_OUT), [split_in(phase)])
    assert {combination(spec, capture).hindrance for capture in spec.captures} == {"a_to_b is split off"}
    assert {component.name for component in components_of(spec)} >= {
        "queue:q_a",
        "queue:q_a.a_to_b",
        "capture:capture_a.a_to_b",
    }


def test_unsplittable_propagation_reports_the_reason(tmp_path):
    one_way = read(tmp_path, f"topology: t\n{SITES}replicate: [{{tables: [s.*], from: a, to: [b]}}]\n")
    assert "capture_a sends its changes straight to" in hindrance(one_way, one_way.propagations[0])
    alone = read(tmp_path, f"topology: t\ncombined: never\n{SITES}replicate: [{{tables: [s.*], from: a, to: [b]}}]\n")
    assert hindrance(alone, alone.propagations[0]) == "nothing else reads q_a"
    relay = read(
        tmp_path,
        f"""
topology: t
{SITES}
queues: {{qa: {{site: a}}, qr: {{site: b}}, qc: {{site: c}}}}
captures: {{ca: {{site: a, source: a, queue: qa, rules: {{include: [{{table: s.*}}]}}}}}}
propagations: {{ab: {{from: qa, to: qr}}, bc: {{from: qr, to: qc}}}}
applies: {{at_b: {{site: b, source: a, queue: qr}}, at_c: {{site: c, source: a, queue: qc}}}}
""",
    )
    assert hindrance(relay, relay.propagation("bc")) == (
        "qr receives the changes of a from ab: no redo of a is there to be captured again"
    )


def test_split_propagation_is_not_renamed_before_it_is_merged(tmp_path):
    """The original queue no longer has its position: the new name would begin at the other subscribers' position."""
    file = read(tmp_path, FAN_OUT)
    renamed = dataclasses.replace(
        file,
        propagations=tuple(
            dataclasses.replace(each, name="another") if each.name == "a_to_b" else each for each in file.propagations
        ),
    )
    splits = [split_in(SPLIT)]
    assert misfits(file, splits) == ()
    (found,) = misfits(renamed, splits)
    assert found.path == "propagations.another"
    assert "takes the place of a_to_b" in found.problem
    gone = read(tmp_path, f"topology: t\n{SITES}replicate: [{{tables: [s.*], from: a, to: [c]}}]\n")
    assert misfits(gone, splits) == ()


@pytest.mark.parametrize(
    "change",
    [
        "its queue there is renamed, too",
        "its queue here is renamed, too",
        "it goes over another site",
        "another one goes on to there",
    ],
)
def test_split_propagation_is_not_replaced_before_it_is_merged(tmp_path, change):
    splits, file = [split_in(SPLIT)], read(tmp_path, FAN_OUT)
    before = with_splits(file, splits)

    def named(name: str, **changes: str) -> tuple[PropagationSpec, ...]:
        return tuple(
            dataclasses.replace(each, name=name, **changes) if each.name == "a_to_b" else each
            for each in file.propagations
        )

    def with_queue(old: str, new: str) -> TopologySpec:
        return dataclasses.replace(
            file,
            queues=tuple(dataclasses.replace(each, name=new) if each.name == old else each for each in file.queues),
        )

    if change == "its queue there is renamed, too":
        after, path = (
            dataclasses.replace(with_queue("q_b_in", "q_new"), propagations=named("another", to_queue="q_new")),
            "another",
        )
    elif change == "its queue here is renamed, too":
        after = with_queue("q_a", "q_new")
        after = dataclasses.replace(
            after, propagations=tuple(dataclasses.replace(each, from_queue="q_new") for each in named("another"))
        )
        path = "another"
    elif change == "it goes over another site":
        hub = dataclasses.replace(
            file,
            sites=(*file.sites, dataclasses.replace(file.sites[0], name="hub")),
            queues=(*file.queues, QueueSpec(name="q_hub", site="hub")),
        )
        after = dataclasses.replace(
            hub, propagations=(*named("to_hub", to_queue="q_hub"), *named("from_hub", from_queue="q_hub")[:1])
        )
        path = "to_hub"
    else:
        after, path = dataclasses.replace(file, propagations=named("on", from_queue="q_c_in")), "on"
    assert f"propagations.{path}" in {found.path for found in misfits(after, splits, before)}
    assert misfits(file, splits, before) == ()


@pytest.mark.parametrize("change", ["one site of two goes straight", "two propagations change places"])
def test_split_propagation_yields_no_site_before_it_is_merged(tmp_path, change):
    """The other one would begin at the common queue's current position, and the site's redo would be purged."""
    file = read(tmp_path, FAN_OUT)
    to_b, to_c = file.propagations
    if change == "one site of two goes straight":
        file = dataclasses.replace(file, propagations=(to_b, dataclasses.replace(to_c, from_queue="q_b_in")))
        after, path = dataclasses.replace(file, propagations=(to_b, to_c)), "a_to_c"
    else:
        after, path = (
            dataclasses.replace(
                file,
                propagations=(
                    dataclasses.replace(to_b, to_queue="q_c_in"),
                    dataclasses.replace(to_c, to_queue="q_b_in"),
                ),
            ),
            "a_to_c",
        )
    splits = [split_in(SPLIT)]
    assert {found.path for found in misfits(after, splits, with_splits(file, splits))} == {f"propagations.{path}"}
    if change == "two propagations change places":
        assert {found.path for found in misfits(after, splits)} == {f"propagations.{path}"}, (
            "even without the previous topology"
        )
    assert misfits(file, splits, with_splits(file, splits)) == ()


def test_split_propagation_can_be_removed_when_another_serves_its_site(tmp_path):
    file = read(tmp_path, FAN_OUT)
    second = dataclasses.replace(
        file,
        queues=(*file.queues, QueueSpec(name="q_b_too", site="b")),
        propagations=(
            *file.propagations,
            dataclasses.replace(file.propagation("a_to_b"), name="also", to_queue="q_b_too"),
        ),
    )
    splits = [split_in(SPLIT)]
    gone = dataclasses.replace(
        second, propagations=tuple(each for each in second.propagations if each.name != "a_to_b")
    )
    assert misfits(gone, splits, with_splits(second, splits)) == ()


def test_split_threshold_comes_from_propagation_or_file_unless_scheduled(tmp_path):
    spec = read(
        tmp_path,
        f"""
topology: t
split_threshold: 600
merge_threshold: 20
{SITES}
replicate: [{{tables: [s.*], from: a, to: [b, c]}}]
propagations:
  a_to_b: {{from: q_a, to: q_b_in, split_threshold: 90, merge_threshold: 5}}
""",
    )
    assert {each.name: (each.split_after_s, each.merge_within_s) for each in spec.propagations} == {
        "a_to_b": (90, 5),
        "a_to_c": (600, 20),
    }
    spec = read(
        tmp_path,
        f"""
topology: t
{SITES}
replicate: [{{tables: [s.*], from: a, to: [b, c]}}]
propagations:
  a_to_b: {{from: q_a, to: q_b_in, schedule: {{windows: [{{opens: "22:00", duration: 1h}}]}}}}
  a_to_c: {{from: q_a, to: q_c_in, split: never}}
""",
    )
    assert {each.split_after_s for each in spec.propagations} == {None}
    assert read(tmp_path, FAN_OUT).propagations[0].split_after_s == 1800


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            FAN_OUT + "split_threshold: 60\n",
            "merge_threshold: is split off when it is 60 s behind, and merged when it is 60 s behind",
        ),
        (FAN_OUT + "split: never\nsplit_threshold: 90\n", "split_threshold (line 5): has no meaning with split: never"),
        (
            FAN_OUT + "propagations: {a_to_b: {from: q_a, to: q_b_in, split: never, split_threshold: 90}}\n",
            "has no meaning with split: never",
        ),
        (
            FAN_OUT + "propagations: {a_to_b: {from: q_a, to: q_b_in, merge_threshold: 2000}}\n",
            "propagations.a_to_b (line 4): is split off when",
        ),
        (
            FAN_OUT.replace("[b, c]", "[b]") + "propagations: {a_to_b: {from: q_a, to: q_b_in, split_threshold: 90}}\n",
            "a_to_b is never split off: capture_a sends",
        ),
    ],
)
def test_check_reports_contradictory_thresholds(tmp_path, text, problem):
    file = tmp_path / "t.yaml"
    file.write_text(text, encoding="utf-8")
    found = [f"{finding.path}: {finding.problem}" for finding in examine(file).findings]
    assert sum(problem in line for line in found) == 1, found


def test_split_record_round_trips():
    assert from_json(
        Split,
        {
            "propagation": "p",
            "queue": "q",
            "to_queue": "r",
            "phase": "split",
            "merges": False,
            "by": "operator",
            "since_us": 7,
        },
    ) == Split(propagation="p", queue="q", to_queue="r", phase=SPLIT, merges=False, by="operator", since_us=7)
