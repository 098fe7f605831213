"""Effects of a topology edit: every field changes some component's part, and only parts that depend on the field."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.rules.rule import Rule, RuleSet
from tests.support.topologies.files import SITES, read
from topology.edits.changes import adopted_first, changes
from topology.edits.stored import KEY_FILE, spec_from_json, spec_to_json, with_secrets_of
from topology.edits.subset_changes import leaves_tables, shape_changes, strangers_on_the_way, subset_changes
from topology.routing.ways import route
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

EXAMPLES = Path(__file__).parents[4] / "examples"
NEVER = "combined: never\n"
ONE = NEVER + SITES + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs2]}]"
TWO_TABLES = NEVER + SITES + "replicate: [{tables: [hr.a, hr.b], from: dbs1, to: [dbs2]}]"
TWO_SITES = NEVER + SITES + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs2, dbs3]}]"
ONE_MORE_FOR_ANOTHER = (
    NEVER + SITES + "replicate: [{tables: [hr.a], from: dbs1, to: [dbs2]}, {tables: [hr.b], from: dbs1, to: [dbs3]}]"
)


def edit(folder: Path, before: str, after: str) -> dict[str, str]:
    """Return the action for every affected component."""
    found = changes(read(folder, before), read(folder, after))
    return {change.component: change.action for change in found if change.action != "same"}


def test_unchanged_topology_touches_nothing(tmp_path):
    assert edit(tmp_path, ONE, ONE) == {}


def test_added_destination_restarts_nothing(tmp_path):
    assert edit(tmp_path, ONE, TWO_SITES) == {
        "site:dbs1": "takes over",
        "queue:q_dbs1": "takes over",
        "site:dbs3": "takes over",
        "spark:dbs3": "new",
        "queue:q_dbs3_in": "new",
        "propagation:dbs1_to_dbs3": "new",
        "apply:apply_from_dbs1_at_dbs3": "new",
    }
    assert edit(tmp_path, TWO_SITES, ONE) == {
        "site:dbs1": "takes over",
        "queue:q_dbs1": "takes over",
        "site:dbs3": "takes over",
        "spark:dbs3": "ends",
        "queue:q_dbs3_in": "ends",
        "propagation:dbs1_to_dbs3": "ends",
        "apply:apply_from_dbs1_at_dbs3": "ends",
    }


def test_second_destination_ends_combined_capture_without_restarts(tmp_path):
    """Both apply processes dequeue from the queue of the source, so no other queue is needed."""
    one, two = ONE.removeprefix(NEVER), TWO_SITES.removeprefix(NEVER)
    grown = edit(tmp_path, one, two)
    between = {"queue:q_dbs1"}
    assert not {"queue:q_dbs3_in", "propagation:dbs1_to_dbs3"} & grown.keys()
    assert {
        name: action for name, action in grown.items() if not name.endswith("dbs3") and name != "queue:q_dbs3_in"
    } == {
        "site:dbs1": "takes over",
        "capture:capture_dbs1": "takes over",
        "apply:apply_from_dbs1_at_dbs2": "takes over",
        **dict.fromkeys(between, "new"),
    }
    shrunk = edit(tmp_path, two, one)
    assert {name: shrunk[name] for name in between} == dict.fromkeys(between, "ends")
    assert shrunk["capture:capture_dbs1"] == shrunk["apply:apply_from_dbs1_at_dbs2"] == "takes over"


def test_direct_dequeuing_begins_and_ends_without_restarts(tmp_path):
    parted = edit(tmp_path, TWO_SITES.removeprefix(NEVER), TWO_SITES)
    streams = ("propagation:dbs1_to_dbs2", "queue:q_dbs2_in", "propagation:dbs1_to_dbs3", "queue:q_dbs3_in")
    applies = ("apply:apply_from_dbs1_at_dbs2", "apply:apply_from_dbs1_at_dbs3")
    assert parted == {
        "queue:q_dbs1": "takes over",
        **dict.fromkeys(applies, "takes over"),
        **dict.fromkeys(streams, "new"),
    }
    joined = edit(tmp_path, TWO_SITES, TWO_SITES.removeprefix(NEVER))
    assert joined == {
        "queue:q_dbs1": "takes over",
        **dict.fromkeys(applies, "takes over"),
        **dict.fromkeys(streams, "ends"),
    }


def test_combined_never_is_taken_over_without_restarts(tmp_path):
    assert edit(tmp_path, ONE.removeprefix(NEVER), ONE) == {
        "capture:capture_dbs1": "takes over",
        "apply:apply_from_dbs1_at_dbs2": "takes over",
        "queue:q_dbs1": "new",
        "propagation:dbs1_to_dbs2": "new",
        "queue:q_dbs2_in": "new",
    }


def test_processes_apart_restarts_only_components_that_shared_a_process(tmp_path):
    apart = "processes: apart\n"
    shared = {
        "capture:capture_dbs1",
        "queue:q_dbs1",
        "propagation:dbs1_to_dbs2",
        "queue:q_dbs2_in",
        "apply:apply_from_dbs1_at_dbs2",
    }
    assert edit(tmp_path, ONE, apart + ONE) == edit(tmp_path, apart + ONE, ONE) == dict.fromkeys(shared, "restarts")
    assert edit(tmp_path, ONE.removeprefix(NEVER), apart + ONE.removeprefix(NEVER)) == dict.fromkeys(
        {"capture:capture_dbs1", "apply:apply_from_dbs1_at_dbs2"},
        "restarts",
    )
    assert edit(tmp_path, ONE, "processes: shared\n" + ONE) == {}


def test_an_added_table_restarts_the_apply_process_that_gets_it(tmp_path):
    assert edit(tmp_path, ONE, TWO_TABLES) == {
        "site:dbs1": "takes over",
        "capture:capture_dbs1": "takes over",
        "apply:apply_from_dbs1_at_dbs2": "restarts",
    }


def test_ddl_restarts_the_apply_process_that_gets_it(tmp_path):
    with_ddl = TWO_SITES.replace("[dbs2, dbs3]", "[dbs2, dbs3], ddl: true")
    expected = {
        "site:dbs1": "takes over",
        "capture:capture_dbs1": "takes over",
        "apply:apply_from_dbs1_at_dbs2": "restarts",
        "apply:apply_from_dbs1_at_dbs3": "restarts",
    }
    assert edit(tmp_path, TWO_SITES, with_ddl) == edit(tmp_path, with_ddl, TWO_SITES) == expected


def test_ddl_for_another_destination_leaves_an_apply_untouched(tmp_path):
    other = "{tables: [hr.a], from: dbs1, to: [dbs3]}"
    before, after = (
        ONE.replace("dbs2]}]", f"dbs2]}}, {text}]") for text in (other, other.replace("}", ", ddl: true}"))
    )
    touched = edit(tmp_path, before, after)
    assert touched["apply:apply_from_dbs1_at_dbs3"] == "restarts"
    assert "apply:apply_from_dbs1_at_dbs2" not in touched


def test_table_for_another_destination_leaves_an_apply_untouched(tmp_path):
    """More is captured, so the propagation to the first destination gets rules; its apply gets the same changes."""
    touched = edit(tmp_path, ONE, ONE_MORE_FOR_ANOTHER)
    assert touched["capture:capture_dbs1"] == touched["propagation:dbs1_to_dbs2"] == "takes over"
    assert "apply:apply_from_dbs1_at_dbs2" not in touched
    assert "queue:q_dbs2_in" not in touched


def test_change_names_the_changed_parts(tmp_path):
    found = {
        change.component: change.facets
        for change in changes(read(tmp_path, ONE), read(tmp_path, TWO_TABLES))
        if change.facets
    }
    assert found == {
        "site:dbs1": ("captures",),
        "capture:capture_dbs1": ("rules",),
        "apply:apply_from_dbs1_at_dbs2": ("tables",),
    }


EXPLICIT = (
    NEVER
    + SITES
    + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures: {c: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations: {p: {from: q1, to: q2}}
applies: {a: {site: dbs2, source: dbs1, queue: q2}}
"""
)
OTHER = RuleSet(include=(Rule(owner="other"),))
# Names and places in the file and exceptions of `check` are not part of a component. References change sites and
# queues. The controller alone decides on splitting, merging and alert recipients; its split streams show in their
# queues (`topology.split`).
UNTOUCHED = {
    "alerts",
    "allow_cycle",
    "file",
    "environment",
    "name",
    "sites",
    "queues",
    "captures",
    "propagations",
    "applies",
    "split_after_s",
    "merge_within_s",
    "held_in",
    "split_from",
}


def other_values(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, RuleSet):
        return OTHER
    if isinstance(value, Path):
        return value / "other"
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, int | float):
        return value + 1
    return ()


def variants(spec: TopologySpec) -> dict[str, TopologySpec]:
    """Return one topology for every field of every kind of part, with only this field changed."""
    found: dict[str, TopologySpec] = {}
    for each in dataclasses.fields(spec):
        if each.name not in UNTOUCHED:
            found[each.name] = replace(spec, **{each.name: other_values(getattr(spec, each.name))})
    for kind in ("sites", "queues", "captures", "propagations", "applies"):
        first, *others = getattr(spec, kind)
        for each in dataclasses.fields(first):
            value = getattr(first, each.name)
            if each.name in UNTOUCHED or each.name in {"site", "source", "queue", "from_queue", "to_queue", "database"}:
                continue
            if each.name == "executors":  # below: changes are applied at another site
                continue
            changed = (("x", 1.0),) if each.name == "node" else other_values(value)
            found[f"{kind}.{each.name}"] = replace(spec, **{kind: (replace(first, **{each.name: changed}), *others)})
    applying = {apply.site for apply in spec.applies}
    found["sites.executors"] = replace(
        spec, sites=tuple(replace(site, executors=1) if site.name in applying else site for site in spec.sites)
    )
    database = spec.sites[0].database
    for each in dataclasses.fields(database):
        if each.name not in UNTOUCHED:
            changed = replace(database, **{each.name: other_values(getattr(database, each.name))})
            found[f"database.{each.name}"] = replace(
                spec, sites=(replace(spec.sites[0], database=changed), *spec.sites[1:])
            )
    return found


def test_every_topology_field_changes_some_component(tmp_path):
    """A new field that this test does not cover would change the file and nothing else."""
    spec = read(tmp_path, EXPLICIT)
    for field, changed in variants(spec).items():
        assert any(change.action != "same" for change in changes(spec, changed)), field


def test_only_what_applies_at_a_site_restarts_with_its_executors(tmp_path):
    spec = read(tmp_path, EXPLICIT)
    changed = changes(spec, variants(spec)["sites.executors"])
    assert {each.component for each in changed if each.action != "same"} == {"spark:dbs2", "apply:a"}


def test_a_topology_survives_its_storage_without_its_secrets(tmp_path):
    text = EXPLICIT.replace(
        "dbs1: {database: {kind: embedded}}", 'dbs1: {database: {kind: postgres, dsn: "${D}"}, node: {big: 1}}'
    )
    spec = read(tmp_path, f"tls: none\n{text.lstrip()}", {"D": "password=hunter2"})
    stored = json.dumps(spec_to_json(spec))
    assert "hunter2" not in stored
    again = spec_from_json(json.loads(stored))
    assert with_secrets_of(again, spec) == spec
    assert all(change.action == "same" for change in changes(again, spec))
    other = read(tmp_path, f"tls: none\n{text.lstrip()}", {"D": "password=hunter3"})
    assert {c.component: c.action for c in changes(again, other) if c.action != "same"} == {
        "site:dbs1": "restarts",
        "apply:a": "restarts",
    }


@pytest.mark.parametrize(
    "written", ["department_id = 50", "new.status = 'shipped'", "old.id > 1 and command_type = 'DELETE'"]
)
def test_stored_topology_with_a_condition_refused_today_can_be_replaced(tmp_path, written):
    """An earlier build took comments to the end of the line. No `up` could bring the corrected file if the stored
    topology were unreadable.
    """
    text = (
        (EXAMPLES / "rules.yaml")
        .read_text(encoding="utf-8")
        .replace("\"command_type = 'DELETE'\"", "\"old.id > 1 and command_type = 'DELETE'\"")
    )
    corrected = read(tmp_path, text.replace("state_dir: ../.headrace/rules\n", ""))
    stored = json.dumps(spec_to_json(corrected))
    assert written in stored
    before = route(spec_from_json(json.loads(stored.replace(written, f"{written} -- and why"))))
    assert any(change.action != "same" for change in changes(before, corrected))
    assert not [*shape_changes(before, corrected)]
    assert bool([*strangers_on_the_way(before, corrected)]) is not written.startswith("new.")
    assert not [*subset_changes(before, corrected)]  # without the comment the condition is the same
    assert not leaves_tables(before, corrected)


@pytest.mark.parametrize("document", [None, {}, [], {"name": "t"}, {"name": "t", "unknown": 1}])
def test_invalid_stored_topology_is_refused(document):
    with pytest.raises(ConfigError, match="cannot be read"):
        spec_from_json(document)


def sent(folder: Path, *hops: str, sources: str = "a") -> TopologySpec:
    """Sites of one letter, each with a queue and an apply process for each source, and propagations such as "ab".

    Changes of a source do not arrive at sites without a path from it.
    """
    names = sorted({name for hop in hops for name in hop})
    return route(
        TopologySpec(
            name="t",
            file=folder / "t.yaml",
            state_dir=folder,
            sites=tuple(SiteSpec(name=name, database=DatabaseSpec(kind="none")) for name in names),
            queues=tuple(QueueSpec(name=f"q{name}", site=name) for name in names),
            captures=tuple(
                CaptureSpec(name=f"c{name}", site=name, source=name, queue=f"q{name}", rules=RuleSet())
                for name in sources
            ),
            propagations=tuple(
                PropagationSpec(name=hop, from_queue=f"q{hop[0]}", to_queue=f"q{hop[1]}") for hop in hops
            ),
            applies=tuple(
                ApplySpec(name=f"{source}_at_{name}", site=name, source=source, queue=f"q{name}", combined=False)
                for source in sources
                for name in names
                if name != source
            ),
        )
    )


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (("ab", "bc"), ("ab", "ac"), {"queue:qb": ("queue:qa",)}),
        (("ab", "ac"), ("ab", "bc"), {}),  # a does not hold less than before: sites behind b are behind a, too
        (("ab", "bc", "cd"), ("ab", "bc", "ad"), {"queue:qb": ("queue:qa",), "queue:qc": ("queue:qa",)}),
        (("ab", "bc", "cd"), ("ab", "bc", "bd"), {"queue:qc": ("queue:qb",)}),
        (("ab", "bc"), ("ab",), {}),
        (("ab", "bc"), ("ab", "bd", "dc"), {}),
    ],
)
def test_queue_releasing_a_site_waits_for_the_queue_that_adopts_it(tmp_path, before, after, found):
    assert adopted_first(sent(tmp_path, *before), sent(tmp_path, *after)) == found


def test_no_two_queues_wait_for_each_other(tmp_path):
    """The changes of a to c and those of b to d each went over the other site's queue, and now go directly."""
    before, after = (sent(tmp_path, "ab", "ba", *hops, sources="ab") for hops in (("bc", "ad"), ("ac", "bd")))
    before = replace(before, applies=tuple(each for each in before.applies if each.name not in {"b_at_c", "a_at_d"}))
    after = replace(after, applies=before.applies)
    assert adopted_first(route(before), route(after)) == {"queue:qa": ("queue:qb",)}


def test_digest_requires_the_key_of_its_state_folder(tmp_path: Path) -> None:
    """Without the key a weak password cannot be guessed from the digest; with it, an unchanged value stays the same."""
    text = EXPLICIT.replace("dbs1: {database: {kind: embedded}}", 'dbs1: {database: {kind: postgres, dsn: "${D}"}}')
    spec = read(tmp_path, text, {"D": "password=hunter2"})
    stored = json.dumps(spec_to_json(spec))
    guesses = {kind(b"password=hunter2").hexdigest()[:16] for kind in (hashlib.sha256, hashlib.md5, hashlib.sha512)}
    assert not [guess for guess in guesses if guess in stored]
    key = spec.state_dir / KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert json.dumps(spec_to_json(spec)) == stored
    key.unlink()
    assert json.dumps(spec_to_json(spec)) != stored


@pytest.mark.parametrize(("written", "action"), [("password=hunter2", "same"), ("password=hunter3", "restarts")])
def test_digest_of_an_earlier_version_is_recognised_and_replaced(tmp_path: Path, written: str, action: str) -> None:
    text = EXPLICIT.replace("dbs1: {database: {kind: embedded}}", 'dbs1: {database: {kind: postgres, dsn: "${D}"}}')
    spec = read(tmp_path, text, {"D": "password=hunter2"})
    old = json.loads(json.dumps(spec_to_json(spec)))
    (site,) = [each for each in old["sites"] if each["name"] == "dbs1"]
    site["database"]["dsn"] = "digest:" + hashlib.sha256(written.encode()).hexdigest()[:16]
    before = spec_from_json(old)
    assert {c.action for c in changes(before, spec) if c.component == "site:dbs1"} == {action}
    assert "digest:" not in json.dumps(spec_to_json(spec))
    assert all(change.action == "same" for change in changes(spec_from_json(spec_to_json(spec)), spec))
