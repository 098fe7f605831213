"""Each cause of a missing or different row at a destination is planted alone, and that cause is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.databases.ports import ErrorTransaction, Instantiation
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.redo.mining.key_search import FoundChange
from headrace.rules.conditions.condition import parse
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import Transformation
from headrace.status.component import ComponentStatus
from headrace.tracing.causes import Evidence, Verdict, explain
from tests.support.actors.overviews import component_status
from tests.support.apply.custom_functions import custom
from tests.support.topologies.files import read
from tests.support.values.lcr_batches import column_values, insert_batch
from topology.routing.ways import ways_to
from topology.spec import TopologySpec

SCN = 1000
T = TableName("public", "t")


def topology(
    folder: Path, *, capture: str = "", propagation: str = "", apply: str = "", combined: str = "never"
) -> TopologySpec:
    """a -> relay -> b, with rules of the clients."""

    def rules(text: str) -> str:
        return f", rules: {text}" if text else ""

    return read(
        folder,
        f"""
        topology: t
        sites:
          a: {{database: {{kind: embedded}}}}
          relay: {{database: {{kind: none}}}}
          b: {{database: {{kind: embedded}}}}
        queues:
          q_a: {{site: a}}
          q_relay: {{site: relay}}
          q_b: {{site: b}}
        captures:
          capture_a: {{site: a, source: a, queue: q_a{rules(capture or "{include: [{global: true}]}")}}}
        propagations:
          a_to_relay: {{from: q_a, to: q_relay{rules(propagation)}}}
          relay_to_b: {{from: q_relay, to: q_b}}
        applies:
          apply_b: {{site: b, source: a, queue: q_b{rules(apply)}}}
    """,
    )


def statuses(
    *,
    capture: int = 5000,
    q_a: int = 5000,
    q_relay: int = 5000,
    q_b: int = 5000,
    received: int = 5000,
    low_watermark: int = 5000,
) -> dict[str, ComponentStatus]:
    def queue(name: str, scn: int) -> ComponentStatus:
        return component_status(name, "ENABLED", sources={"a": {"position_scn": scn}})

    return by_name(
        component_status("capture:capture_a", "CAPTURING CHANGES", sent_scn=capture),
        queue("queue:q_a", q_a),
        queue("queue:q_relay", q_relay),
        queue("queue:q_b", q_b),
        component_status("propagation:a_to_relay", "SENDING"),
        component_status("propagation:relay_to_b", "RETRYING", last_error={"message": "queue:q_b is dead"}),
        component_status("apply:apply_b", "APPLYING", received_scn=received, low_watermark_scn=low_watermark),
    )


def by_name(*found: ComponentStatus) -> dict[str, ComponentStatus]:
    return {each.name: each for each in found}


def change(scn: int = SCN, *, tag: bytes | None = None, command: str = "INSERT") -> FoundChange:
    return FoundChange(
        command=command,
        transaction_id=7,
        order_scn=scn - 1,
        commit_scn=scn,
        commit_time_us=0,
        tag=tag,
        tagged_by="t/x" if tag else "",
    )


def copied(scn: int = 100, *, state: str = "DONE", digest: str = "d", problem: str = "") -> Instantiation:
    return Instantiation(
        source="a",
        identity="1",
        owner="public",
        name="t",
        scn=Scn(scn),
        state=state,
        digest=digest,
        problem=problem,
    )


def error(scn: int = SCN, *, depends_on: int = 0) -> ErrorTransaction:
    return ErrorTransaction(
        number=3,
        apply="apply_b",
        source="a",
        transaction_id=7,
        commit_scn=Scn(scn),
        commit_time_us=0,
        row_count=1,
        failed_position=0,
        depends_on=depends_on,
        conflict_type="insert_exists",
        sqlstate="",
        message="the row is there already",
        created_us=0,
    )


def evidence(spec: TopologySpec, **fields: Any) -> Evidence:
    """The evidence for a row that is missing at b, with no cause unless `fields` plant one."""
    (way,) = ways_to(spec, spec.applies[0])
    return Evidence(
        **{
            "spec": spec,
            "way": way,
            "table": T,
            "source_row": {"id": "7", "a": "x"},
            "destination_row": None,
            "is_captured": True,
            "searched": (50, 5000),
            "changes": (change(),),
            "left_out": 0,
            "source_scn": 5000,
            "instantiation": copied(),
            "errors": (),
            "statuses": statuses(),
            **fields,
        }
    )


@pytest.fixture
def spec(tmp_path: Path) -> TopologySpec:
    return topology(tmp_path)


def assert_found(found: Verdict, verdict: str, place: str, *words: str, scn: int | None = SCN) -> None:
    assert (found.verdict, found.place) == (verdict, place), found
    for word in words:
        assert word in found.text, found
    if scn is not None:
        assert found.scn == scn
    assert found.fix or found.is_fine
    assert found.evidence


def test_equal_rows_need_no_explanation(spec: TopologySpec) -> None:
    found = explain(evidence(spec, destination_row={"id": "7", "a": "x", "only_here": "z"}))
    assert_found(found, "SAME", "", scn=0)
    assert found.is_fine


def test_row_that_exists_nowhere_needs_no_explanation(spec: TopologySpec) -> None:
    assert explain(evidence(spec, source_row=None, changes=())).verdict == "SAME"


@pytest.mark.parametrize(
    ("client", "place"),
    [
        ("capture", "capture:capture_a"),
        ("propagation", "propagation:a_to_relay"),
        ("apply", "apply:apply_b"),
    ],
)
def test_rule_that_discards_the_table_is_named_with_its_client(tmp_path: Path, client: str, place: str) -> None:
    spec = topology(tmp_path, **{client: "{include: [{table: public.other}]}"})
    assert_found(explain(evidence(spec)), "RULE", place, "public.t", scn=0)


RENAMED = "{include: [{table: public.t, transform: [{rename_table: x.u}]}, {schema: other}]}"


@pytest.mark.parametrize(("client", "place"), [("propagation", "propagation:a_to_relay"), ("apply", "apply:apply_b")])
def test_clients_behind_a_rename_are_asked_for_the_new_name(tmp_path: Path, client: str, place: str) -> None:
    spec = topology(tmp_path, capture=RENAMED, **{client: "{include: [{schema: other}]}"})
    assert_found(explain(evidence(spec)), "RULE", place, "skip table public.t, which is called x.u there", scn=0)
    spec = topology(tmp_path, capture=RENAMED, **{client: "{include: [{table: x.u}]}"})
    assert_found(explain(evidence(spec)), "ARRIVED", "")
    assert_found(explain(evidence(spec, changes=(change(tag=b"\x01"),))), "TAG", "capture:capture_a")


@pytest.mark.parametrize(
    ("client", "place"),
    [
        ("capture", "capture:capture_a"),
        ("propagation", "propagation:a_to_relay"),
        ("apply", "apply:apply_b"),
    ],
)
def test_discarded_tag_is_named_with_its_origin(tmp_path: Path, client: str, place: str) -> None:
    takes_all = "{include: [{global: true, tagged: true}, {global: true}]}"
    spec = topology(
        tmp_path,
        **{
            "capture": takes_all,
            "propagation": takes_all,
            "apply": takes_all,
            client: '{include: [{global: true, not_tags: ["0b"]}]}',
        },
    )
    assert_found(explain(evidence(spec, changes=(change(tag=b"\x0b"),))), "TAG", place, "0b", "t/x")


def test_table_missing_from_the_sources_log_was_never_captured(spec: TopologySpec) -> None:
    found = explain(evidence(spec, is_captured=False, changes=()))
    assert_found(found, "NOT CAPTURED", "site:a", "created after", scn=0)
    assert found.fix.startswith("headrace up")


def test_change_older_than_redo_is_not_found(spec: TopologySpec) -> None:
    assert_found(explain(evidence(spec, changes=())), "NOT CAPTURED", "capture:capture_a", "0/00000032", scn=0)


def test_row_unchanged_since_its_copy_is_attributed_to_the_copy(spec: TopologySpec) -> None:
    found = explain(evidence(spec, changes=(), instantiation=copied(400)))
    assert_found(found, "NOT CAPTURED", "capture:capture_a", "copied as of SCN 0/00000190", scn=0)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "never copied"),
        (copied(0, state="PENDING"), "PENDING"),
        (copied(0, state="FAILED", problem="a column is missing"), "a column is missing"),
        (copied(state="LEFT"), "LEFT"),
    ],
)
def test_table_without_a_finished_copy_skips_its_changes(
    spec: TopologySpec, record: Instantiation | None, words: str
) -> None:
    assert_found(explain(evidence(spec, instantiation=record)), "NOT COPIED", "apply:apply_b", words)


def test_change_below_the_instantiation_scn_is_not_applied(spec: TopologySpec) -> None:
    assert_found(explain(evidence(spec, instantiation=copied(SCN))), "IN THE COPY", "apply:apply_b", "the copy had it")
    kept = copied(SCN, state="KEPT", digest="")
    assert_found(explain(evidence(spec, instantiation=kept)), "IN THE COPY", "apply:apply_b", "--keep-existing")
    assert explain(evidence(spec, instantiation=copied(SCN - 1))).verdict == "ARRIVED"


def test_error_transaction_is_named_with_its_reason(spec: TopologySpec) -> None:
    found = explain(evidence(spec, errors=(error(SCN - 500), error())))
    assert_found(found, "ERROR QUEUE", "apply:apply_b", "error transaction 3", "there already")
    assert "errors show" in found.fix
    assert_found(
        explain(evidence(spec, errors=(error(depends_on=2),))),
        "ERROR QUEUE",
        "apply:apply_b",
        "behind error transaction 2",
    )
    both = (replace(error(SCN - 500), number=2), error(depends_on=2))
    assert "errors show" in (fix := explain(evidence(spec, errors=both)).fix)
    assert fix.split(",", maxsplit=1)[0].endswith(" 2")  # the row that failed


@pytest.mark.parametrize(
    ("behind", "place", "words"),
    [
        ({"capture": 900, "q_a": 900, "q_relay": 900, "q_b": 900, "received": 900}, "capture:capture_a", "has sent"),
        ({"q_a": 900, "q_relay": 900, "q_b": 900, "received": 900}, "capture:capture_a", "q_a"),
        ({"q_relay": 900, "q_b": 900, "received": 900}, "propagation:a_to_relay", "q_relay"),
        ({"q_b": 900, "received": 900}, "propagation:relay_to_b", "queue:q_b is dead"),
        ({"received": 900}, "apply:apply_b", "has read what"),
        ({}, "apply:apply_b", "has read it"),
    ],
)
def test_change_in_flight_names_the_component_that_holds_it(
    spec: TopologySpec,
    behind: dict[str, int],
    place: str,
    words: str,
) -> None:
    spec = replace(spec, applies=tuple(replace(each, combined=False) for each in spec.applies))
    found = explain(evidence(spec, statuses=statuses(low_watermark=900, **behind)))
    assert_found(found, "ON THE WAY", place, words)


def test_change_in_flight_to_direct_dequeuing_skips_the_bypassed_queues(
    spec: TopologySpec,
) -> None:
    found = explain(evidence(spec, statuses=statuses(low_watermark=900, q_b=0, received=900)))
    assert_found(found, "ON THE WAY", "apply:apply_b", "has read what")


@pytest.mark.parametrize("changes", [(), (change(),)])
@pytest.mark.parametrize(
    ("state", "place"), [("WAITING FOR REDO", "site:a"), ("PAUSED FOR FLOW CONTROL", "capture:capture_a")]
)
def test_change_that_is_not_in_redo_yet_may_be_the_missing_one(
    spec: TopologySpec, changes: tuple[FoundChange, ...], state: str, place: str
) -> None:
    known = statuses() | by_name(
        component_status("capture:capture_a", state, sent_scn=5000), component_status("site:a", "RETRYING")
    )
    found = explain(evidence(spec, changes=changes, source_scn=5001, statuses=known))
    assert_found(found, "ON THE WAY", place, "in between", scn=0)
    assert explain(evidence(spec, errors=(error(),), source_scn=5001)).verdict == "ERROR QUEUE", (
        "known causes come first"
    )


def test_combined_capture_has_no_queues_to_be_behind(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        """
        topology: t
        sites:
          a: {database: {kind: embedded}}
          b: {database: {kind: embedded}}
        replicate:
          - {tables: [public.*], from: a, to: [b]}
    """,
    )
    (apply,), (capture,) = spec.applies, spec.captures
    found = explain(
        evidence(
            spec,
            statuses=by_name(
                component_status(f"capture:{capture.name}", "", sent_scn=5000),
                component_status(f"apply:{apply.name}", "", received_scn=900, low_watermark_scn=900),
            ),
        )
    )
    assert_found(found, "ON THE WAY", f"apply:{apply.name}", "has read what")


def test_applied_changes_point_to_the_destination_itself(spec: TopologySpec) -> None:
    found = explain(evidence(spec, destination_row={"id": "7", "a": "by hand"}))
    assert_found(found, "ARRIVED", "", "at b itself")
    assert any("different in a" in fact for fact in found.evidence)


def test_deleted_row_that_still_exists_is_explained_like_any_other(spec: TopologySpec) -> None:
    found = explain(
        evidence(
            spec,
            source_row=None,
            destination_row={"id": "7", "a": "x"},
            changes=(change(), change(2000, command="DELETE")),
            errors=(error(2000),),
        )
    )
    assert_found(found, "ERROR QUEUE", "apply:apply_b", scn=2000)


def test_first_change_that_stopped_is_reported(spec: TopologySpec) -> None:
    changes = (change(500), change(1000), change(2000))
    found = explain(evidence(spec, changes=changes, errors=(error(1000), replace(error(2000, depends_on=3), number=4))))
    assert_found(found, "ERROR QUEUE", "apply:apply_b", "error transaction 3", scn=1000)


@pytest.mark.parametrize(
    "fields",
    [
        {"searched": None, "changes": (), "unknown": ("capture_a: does not answer",)},
        {"statuses": {}, "unknown": ("apply:apply_b does not report its low watermark",)},
        {
            "instantiation": None,
            "errors": None,
            "unknown": ("the instantiation and the error queue at b: no connection",),
        },
    ],
)
def test_unanswered_question_is_unknown_and_no_cause_is_claimed(spec: TopologySpec, fields: dict[str, Any]) -> None:
    found = explain(evidence(spec, **fields))
    assert found.verdict == "UNKNOWN"
    assert fields["unknown"][0] in found.text


DOWN = {
    "is_destination_read": False,
    "instantiation": None,
    "errors": None,
    "unknown": ("the row at b: connecting: refused", "the instantiation and the error queue at b: refused"),
}


def test_change_is_located_while_the_destination_is_down(spec: TopologySpec) -> None:
    away = component_status("apply:apply_b", "WAITING FOR DATABASE", low_watermark_scn=SCN - 1, received_scn=SCN)
    behind = statuses() | by_name(away)
    found = explain(evidence(spec, statuses=behind, **DOWN))
    assert_found(found, "ON THE WAY", "apply:apply_b", "WAITING FOR DATABASE")
    assert "b now: unknown, its database does not answer" in found.evidence


@pytest.mark.parametrize("fields", [{}, {"source_row": None, "changes": ()}], ids=["applied", "no row at the source"])
def test_applied_row_is_unknown_while_the_destination_is_down(spec: TopologySpec, fields: dict[str, Any]) -> None:
    assert_found(explain(evidence(spec, **DOWN, **fields)), "UNKNOWN", "", "the row at b: connecting: refused", scn=0)


def test_change_discarded_by_a_condition_names_client_and_condition(spec: TopologySpec) -> None:
    rules = RuleSet(include=(Rule(owner="public", name="t", condition=parse("new.c0 = 5", "where")),))
    spec = replace(
        spec,
        propagations=tuple(
            replace(each, rules=rules) if each.name == "relay_to_b" else each for each in spec.propagations
        ),
    )
    left_out, kept = (replace(change(), alone=insert_batch([SCN], value=b"\0\0\0\1")) for _ in range(2))
    assert kept.alone is not None
    kept = replace(
        kept,
        alone=replace(
            kept.alone, groups=tuple(replace(g, new=column_values([[b"\0\0\0\5"], [b"x"]])) for g in kept.alone.groups)
        ),
    )
    found = explain(evidence(spec, changes=(binary(left_out),)))
    assert_found(found, "CONDITION", "propagation:relay_to_b", "new.c0 = 5")
    assert explain(evidence(spec, changes=(binary(kept),))).verdict == "ARRIVED"


def binary(found: FoundChange) -> FoundChange:
    """The change with its values in binary form."""
    assert found.alone is not None
    table = replace(
        found.alone.tables[0],
        columns=tuple(replace(column, is_binary=True) for column in found.alone.tables[0].columns),
    )
    return replace(found, alone=replace(found.alone, tables=(table,)))


def test_change_discarded_by_a_function_names_the_function(spec: TopologySpec) -> None:
    function = custom("def mask(lcr):\n    return []\n", is_at_capture=True)
    rules = RuleSet(include=(Rule(owner="public", name="t", transformation=Transformation(custom=function)),))
    spec = replace(
        spec, captures=tuple(replace(each, rules=rules) if each.name == "capture_a" else each for each in spec.captures)
    )
    found = explain(evidence(spec, changes=(binary(replace(change(), alone=insert_batch([SCN], value=b"\0\0\0\1"))),)))
    assert_found(found, "CONDITION", "capture:capture_a", "the function own:mask")
