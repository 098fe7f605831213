"""What components remember about a label: the way of each labelled transaction, and where it arrived.

Job
    Combine the components' notes (`headrace.lcr.tracking`) and positions into one history per transaction, and one
    verdict per destination.

Verdicts, in the order in which they are checked
    APPLIED       an apply server reported it.
    ERROR QUEUE   an apply server put it there, and it has not been applied since.
    DISCARDED     every row of it was discarded on the way; the note says where and why.
    PASSED        the low watermark is above it, but the process that knew more was restarted. The transaction
                  is applied, in the error queue, or was discarded.
    ON THE WAY    none of that yet; it was last seen at the named component.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError
from headrace.status.applies import apply_status
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus
from topology.routing.combined import bypassed_on
from topology.routing.ways import ways_to

if TYPE_CHECKING:
    from topology.routing.ways import Way
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["SETTLED", "Arrival", "Followed", "Step", "Tracking", "follow", "low_watermark_of"]

SETTLED = frozenset({"APPLIED", "DISCARDED", "PASSED"})  # final: waiting longer changes nothing
_FORWARD = frozenset({"CAPTURED", "ENQUEUED", "DEQUEUED", "SENT", "APPLIED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one component did with a transaction; the fields are those of `headrace.lcr.tracking.Note`."""

    component: str
    action: str
    peer: str
    detail: str
    rows: int
    first_us: int
    last_us: int
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Result of a transaction at one destination.

    Args:
        site, apply: the destination and its apply process.
        verdict: one of the module's verdicts.
        at_us: time, in microseconds since the epoch; 0: unknown.
        text: the result for people, with the reason.
    """

    site: str
    apply: str
    verdict: str
    at_us: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """One labelled transaction.

    Args:
        source: site where it was committed.
        transaction_id: its identity at the source.
        commit_scn: its commit SCN; 0: it is not complete anywhere yet.
        steps: in order of first times.
        arrivals: one per apply process of the source.
    """

    source: str
    transaction_id: int
    commit_scn: int
    steps: tuple[Step, ...]
    arrivals: tuple[Arrival, ...]

    @property
    def is_settled(self) -> bool:
        """Whether it has arrived at every destination."""
        return all(arrival.verdict in SETTLED for arrival in self.arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """Everything that is known about a label.

    Args:
        label: the label.
        transactions: sorted by source and SCN.
        since_us: by component, the time since when it remembers; microseconds since the epoch.
        silent: by component, why it did not answer.
        captured: by capture process, the SCN up to which it has mined.
    """

    label: str
    transactions: tuple[Followed, ...]
    since_us: Mapping[str, int]
    silent: Mapping[str, str]
    captured: Mapping[str, int]

    @property
    def is_settled(self) -> bool:
        """Whether transactions were found, and all of them have arrived at every destination."""
        return bool(self.transactions) and all(each.is_settled for each in self.transactions)


def follow(
    spec: TopologySpec,
    label: str,
    answers: Mapping[str, Mapping[str, Any] | HeadraceError],
    statuses: Mapping[str, ComponentStatus],
    *,
    queued: Mapping[str, Iterable[int]] | None = None,
) -> Tracking:
    """Combine the components' answers.

    Args:
        spec: the topology.
        label: the label.
        answers: by component, the answer of `Host.tracked`, or the error.
        statuses: statuses by component.
        queued: by apply process, the commit SCNs in its error queue now; None or missing: unknown.
    """
    known = {name: answer for name, answer in answers.items() if not isinstance(answer, HeadraceError)}
    found: dict[tuple[str, int], list[tuple[str, Mapping[str, Any]]]] = {}
    for name, answer in known.items():
        for note in answer["notes"]:
            found.setdefault((note["source"], note["order_scn"]), []).append((name, note))
    transactions = (
        _followed(spec, source, notes, known, statuses, queued or {}) for (source, _), notes in sorted(found.items())
    )
    return Tracking(
        label=label,
        transactions=tuple(transactions),
        since_us={name: answer["since_us"] for name, answer in known.items()},
        silent={name: answer.message for name, answer in answers.items() if isinstance(answer, HeadraceError)},
        captured={
            f"capture:{each.name}": _captured_scn(statuses.get(f"capture:{each.name}")) for each in spec.captures
        },
    )


def low_watermark_of(statuses: Mapping[str, ComponentStatus], apply: str) -> int:
    """Return the low watermark of an apply process; 0: unknown.

    Args:
        statuses: statuses by component.
        apply: name of the apply process.
    """
    return apply_status(statuses.get(f"apply:{apply}")).low_watermark_scn or 0


def _captured_scn(status: ComponentStatus | None) -> int:
    return (status.captured_scn or 0) if isinstance(status, CaptureStatus) else 0


def _followed(
    spec: TopologySpec,
    source: str,
    notes: list[tuple[str, Mapping[str, Any]]],
    known: Mapping[str, Mapping[str, Any]],
    statuses: Mapping[str, ComponentStatus],
    queued: Mapping[str, Iterable[int]],
) -> Followed:
    steps = tuple(
        Step(
            component=name,
            **{key: note[key] for key in ("action", "peer", "detail", "rows", "first_us", "last_us", "times")},
        )
        for name, note in sorted(notes, key=lambda each: (each[1]["first_us"], each[0]))
    )
    commit_scn = max(note["commit_scn"] for _, note in notes)
    arrivals = []
    for apply in spec.applies:
        if apply.source != source:
            continue
        name = f"apply:{apply.name}"
        looked = _Looked(
            spec=spec,
            apply=apply,
            steps=steps,
            commit_scn=commit_scn,
            since_us=known.get(name, {}).get("since_us", 0),
            low_watermark_scn=low_watermark_of(statuses, apply.name),
            queued=None if apply.name not in queued else frozenset(queued[apply.name]),
        )
        arrivals.append(looked.arrival())
    return Followed(
        source=source,
        transaction_id=notes[0][1]["transaction_id"],
        commit_scn=commit_scn,
        steps=steps,
        arrivals=tuple(arrivals),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """One transaction from the view of one destination."""

    spec: TopologySpec
    apply: ApplySpec
    steps: tuple[Step, ...]
    commit_scn: int
    since_us: int
    low_watermark_scn: int
    queued: frozenset[int] | None

    def arrival(self) -> Arrival:
        mine = [step for step in self.steps if step.component == f"apply:{self.apply.name}"]
        applied = next((step for step in reversed(mine) if step.action == "APPLIED"), None)
        failed = next((step for step in reversed(mine) if step.action == "ERROR QUEUE"), None)
        if failed is not None and (applied is None or applied.last_us < failed.last_us):
            return self._failed(failed)
        if applied is not None:
            detail = f" ({applied.detail})" if applied.detail else ""
            return self._arrival("APPLIED", applied.last_us, f"applied by {applied.peer}{detail}{self._partly()}")
        is_past = 0 < self.commit_scn <= self.low_watermark_scn
        discarded = self._discarded()
        if discarded is not None and (is_past or not discarded.component.startswith("apply:")):
            text = f"discarded at {discarded.component}: {discarded.detail}"
            return self._arrival("DISCARDED", discarded.last_us, text)
        if is_past:
            return self._arrival(
                "PASSED",
                0,
                "its low watermark is above the transaction, but the apply process was restarted since and does not"
                " remember more: the transaction is applied, in the error queue, or was discarded (`headrace explain FILE TABLE KEY`"
                " shows it for a row)",
            )
        return self._under_way()

    def _failed(self, failed: Step) -> Arrival:
        if self.queued is not None and self.commit_scn not in self.queued:
            return self._arrival(
                "PASSED", failed.last_us, f"was in the error queue ({failed.detail}); executed or deleted since"
            )
        return self._arrival("ERROR QUEUE", failed.last_us, f"in the error queue: {failed.detail}")

    def _partly(self) -> str:
        """Return what was discarded of a transaction that arrived."""
        on_way = {component for components in self._ways() for component in components}
        left_out = [step for step in self.steps if step.action == "DISCARDED" and step.component in on_way]
        return "".join(f"; {step.rows} rows discarded at {step.component}: {step.detail}" for step in left_out)

    def _discarded(self) -> Step | None:
        """Return the step at which everything was discarded, if that holds on every way; None: it does not."""
        ends = []
        for components in self._ways():
            for name in components:
                mine = [step for step in self.steps if step.component == name]
                discarded = [step for step in mine if step.action == "DISCARDED"]
                # An apply process dequeues before it looks at rows, and notes every row that it discards wholly. A
                # part of a large transaction is forwarded even without rows.
                if name.startswith("apply:"):
                    gone = bool(discarded) and sum(step.rows for step in discarded) >= sum(
                        step.rows for step in mine if step.action == "DEQUEUED"
                    )
                else:
                    gone = bool(discarded) and not any(step.action in _FORWARD and step.rows for step in mine)
                if gone:
                    ends.append(discarded[-1])
                    break
            else:
                return None
        return ends[-1] if ends else None

    def _under_way(self) -> Arrival:
        """Return where it was last seen, on the way on which it got farthest."""
        farthest: tuple[int, Step] | None = None
        for components in self._ways():
            for place, name in enumerate(components):
                for step in self.steps:
                    if (
                        step.component == name
                        and step.action in _FORWARD
                        and (farthest is None or place >= farthest[0])
                    ):
                        farthest = place, step
        if farthest is None:
            return self._arrival("ON THE WAY", 0, "no component on the way to it remembers the transaction yet")
        step = farthest[1]
        peer = f" ({step.peer})" if step.peer else ""
        return self._arrival("ON THE WAY", step.last_us, f"last seen at {step.component}: {step.action}{peer}")

    def _ways(self) -> list[tuple[str, ...]]:
        return [_components(self.spec, way) for way in ways_to(self.spec, self.apply)]

    def _arrival(self, verdict: str, at_us: int, text: str) -> Arrival:
        return Arrival(site=self.apply.site, apply=self.apply.name, verdict=verdict, at_us=at_us, text=text)


def _components(spec: TopologySpec, way: Way) -> tuple[str, ...]:
    """Return the full names of the components on a way, in order, without bypassed ones."""
    without = bypassed_on(spec, way)
    return tuple(name for name in way.full_names if name not in without)
