"""The components' notes about a label become one history and a verdict per destination; each cause is planted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.base.clock import VirtualClock
from headrace.base.errors import HeadraceError, PropagationError
from headrace.lcr.tracking import Label, TrackLog
from headrace.status.applies import ApplyStatus
from headrace.tracing.following import Arrival, Tracking, follow
from tests.support.topologies.files import read
from topology.spec import TopologySpec

LABEL = "order 7"
SCN = 1000


@pytest.fixture
def spec(tmp_path: Path) -> TopologySpec:
    """a -> relay -> b, and a -> c with rules of the propagation."""
    return read(
        tmp_path,
        """
        topology: t
        sites:
          a: {database: {kind: embedded}}
          relay: {database: {kind: none}}
          b: {database: {kind: embedded}}
          c: {database: {kind: embedded}}
        queues:
          q_a: {site: a}
          q_relay: {site: relay}
          q_b: {site: b}
          q_c: {site: c}
        captures:
          capture_a: {site: a, source: a, queue: q_a, rules: {include: [{table: public.t}]}}
        propagations:
          a_to_relay: {from: q_a, to: q_relay}
          relay_to_b: {from: q_relay, to: q_b}
          a_to_c: {from: q_a, to: q_c, rules: {exclude: [{table: public.u}]}}
        applies:
          apply_b: {site: b, source: a, queue: q_b}
          apply_c: {site: c, source: a, queue: q_c}
    """,
    )


class Notes:
    """Notes of components, one after the other, a second apart."""

    def __init__(self, *steps: tuple[str, str], rows: int = 3) -> None:
        self.clock = VirtualClock()
        self.logs: dict[str, TrackLog] = {}
        for component, action in steps:
            self.add(component, action, rows=rows)

    def add(self, component: str, action: str, *, rows: int = 3, detail: str = "", commit_scn: int = SCN) -> None:
        self.clock.advance(1.0)
        label = Label(text=LABEL, transaction_id=77, order_scn=SCN - 1, commit_scn=commit_scn, rows=rows)
        self.log(component).note(
            label, "a", action, peer="apply server 1" if action == "APPLIED" else "", detail=detail
        )

    def log(self, component: str) -> TrackLog:
        return self.logs.setdefault(component, TrackLog(self.clock))

    def follow(
        self,
        spec: TopologySpec,
        *,
        watermarks: Mapping[str, int] | None = None,
        queued: Any = None,
        silent: Mapping[str, HeadraceError] | None = None,
    ) -> Tracking:
        answers: dict[str, Any] = {name: log.answer(LABEL) for name, log in self.logs.items()} | dict(silent or {})
        statuses = {
            f"apply:{name}": ApplyStatus(name=f"apply:{name}", low_watermark_scn=scn)
            for name, scn in (watermarks or {}).items()
        }
        return follow(spec, LABEL, answers, statuses, queued=queued)


def to_b(found: Tracking) -> Arrival:
    (transaction,) = found.transactions
    return next(arrival for arrival in transaction.arrivals if arrival.apply == "apply_b")


def to_c(found: Tracking) -> Arrival:
    (transaction,) = found.transactions
    return next(arrival for arrival in transaction.arrivals if arrival.apply == "apply_c")


CAPTURED = (("capture:capture_a", "CAPTURED"), ("capture:capture_a", "ENQUEUED"), ("queue:q_a", "ENQUEUED"))
AT_B = (
    *CAPTURED,
    ("queue:q_a", "DEQUEUED"),
    ("propagation:a_to_relay", "SENT"),
    ("queue:q_relay", "ENQUEUED"),
    ("propagation:relay_to_b", "SENT"),
    ("queue:q_b", "ENQUEUED"),
    ("apply:apply_b", "DEQUEUED"),
)


def test_applied_has_place_component_and_time(spec: TopologySpec) -> None:
    notes = Notes(*AT_B, ("apply:apply_b", "APPLIED"))
    found = to_b(notes.follow(spec))
    assert (found.verdict, found.site, found.at_us) == ("APPLIED", "b", notes.clock.time_us())
    assert "apply server 1" in found.text


def test_in_flight_names_the_component_that_saw_it_last_on_that_way(spec: TopologySpec) -> None:
    found = Notes(*AT_B[:6], ("propagation:a_to_c", "SENT")).follow(spec)
    assert to_b(found).verdict == to_c(found).verdict == "ON THE WAY"
    assert "queue:q_relay: ENQUEUED" in to_b(found).text
    assert "propagation:a_to_c: SENT" in to_c(found).text
    assert not found.is_settled


def test_discard_at_a_propagation_concerns_only_destinations_behind_it(spec: TopologySpec) -> None:
    notes = Notes(*AT_B, ("apply:apply_b", "APPLIED"))
    notes.add("propagation:a_to_c", "DISCARDED", detail="by the rules of the propagation")
    found = notes.follow(spec)
    assert to_b(found).verdict == "APPLIED"
    assert (to_c(found).verdict, "a_to_c" in to_c(found).text) == ("DISCARDED", True)
    assert found.is_settled


def test_discard_at_capture_concerns_every_destination(spec: TopologySpec) -> None:
    notes = Notes()
    notes.add("capture:capture_a", "DISCARDED", rows=0, detail="it changed no row of a captured table")
    found = notes.follow(spec)
    assert {to_b(found).verdict, to_c(found).verdict} == {"DISCARDED"}
    assert "no row of a captured table" in to_b(found).text


def test_discard_by_the_apply_process_counts_when_its_low_watermark_passed(spec: TopologySpec) -> None:
    notes = Notes(*AT_B)
    notes.add("apply:apply_b", "DISCARDED", detail="as of its instantiation SCN the copy has it")
    assert to_b(notes.follow(spec)).verdict == "ON THE WAY"
    found = to_b(notes.follow(spec, watermarks={"apply_b": SCN}))
    assert (found.verdict, "instantiation SCN" in found.text) == ("DISCARDED", True)


def test_discarded_rows_of_an_applied_transaction_are_counted(spec: TopologySpec) -> None:
    notes = Notes(*AT_B)
    notes.add("capture:capture_a", "DISCARDED", rows=2, detail="by the rules of the capture process")
    notes.add("apply:apply_b", "APPLIED")
    assert "2 rows discarded at capture:capture_a" in to_b(notes.follow(spec)).text


def test_error_transaction_is_in_the_queue_until_executed_or_deleted(spec: TopologySpec) -> None:
    notes = Notes(*AT_B)
    notes.add("apply:apply_b", "ERROR QUEUE", detail="error transaction 3: update_missing")
    found = notes.follow(spec, queued={"apply_b": [SCN]}, watermarks={"apply_b": SCN})
    assert (to_b(found).verdict, "error transaction 3" in to_b(found).text) == ("ERROR QUEUE", True)
    assert not found.is_settled
    assert to_b(notes.follow(spec, queued={"apply_b": []})).verdict == "PASSED"
    assert to_b(notes.follow(spec)).verdict == "ERROR QUEUE", "unknown, so not claimed"


def test_restarted_apply_process_proves_no_more_than_its_position(spec: TopologySpec) -> None:
    notes = Notes(*AT_B[:-1])
    assert to_b(notes.follow(spec, watermarks={"apply_b": SCN - 1})).verdict == "ON THE WAY"
    assert to_b(notes.follow(spec, watermarks={"apply_b": SCN})).verdict == "PASSED"


def test_open_transaction_is_in_flight_whatever_the_low_watermark_is(spec: TopologySpec) -> None:
    notes = Notes()
    notes.add("capture:capture_a", "CAPTURED", commit_scn=0)
    assert to_b(notes.follow(spec, watermarks={"apply_b": SCN})).verdict == "ON THE WAY"


def test_unreachable_components_are_named(spec: TopologySpec) -> None:
    found = Notes(*CAPTURED).follow(spec, silent={"queue:q_b": PropagationError("queue:q_b is dead")})
    assert found.silent == {"queue:q_b": "queue:q_b is dead"}


def test_unknown_label_is_no_transaction_and_not_settled(spec: TopologySpec) -> None:
    found = Notes().follow(spec)
    assert (found.transactions, found.is_settled) == ((), False)
