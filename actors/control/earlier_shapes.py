"""Shapes of tables that left the topology, as long as LCRs of these shapes may be in flight.

A table that is removed from the rules and added again with another transformation is copied anew. Earlier LCRs that a
propagation or a queue still holds have the old shape. A client with another transformation cannot transform them, and
would wait forever. So would a client whose condition or subset needs old values that were not logged then.

So the controller records the topology that a table left (`desired.json`, `earlier_shapes`). When its components run by
the next topology, it also records a marker of each source. When an apply process has let its queue forget everything up
to that marker, nothing of the old shape is in flight to it. Until then `up` refuses a topology that would block on LCRs
in flight; afterwards the record is removed. A renamed apply process takes the place of the former one.

    up 1   hr.employees with its salary deleted at capture
    up 2   hr.employees out of the rules: up 1's topology is recorded, with the marker 500
    up 3   hr.employees with its salary deleted by the propagation: refused while the apply process's queue keeps LCRs below 500
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError, HeadraceError
from headrace.databases.ports import Finding
from headrace.lcr.scn import scn_text
from topology.edits.stored import spec_from_json, spec_to_json
from topology.edits.subset_changes import counterpart, leaves_tables, strangers_on_the_way, transforms
from topology.spec import ApplySpec, TopologySpec

if TYPE_CHECKING:
    from actors.control.prepared_record import PreparedRecord
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock

__all__ = [
    "EARLIER_MAX",
    "EarlierShape",
    "EarlierShapes",
    "earlier_of",
    "forgotten",
    "left_shapes",
    "marked",
    "on_the_way",
    "shapes_as_json",
]

EARLIER_MAX = 20
"""Number of topologies recorded, each the size of `desired.json`: an operator who edits more often waits once.

Beyond it, topologies without a transformation are dropped first, because they hardly ever matter.
"""

_MARKER_TIMEOUT_S = 10.0  # a hanging site must not delay the controller for longer
_MARKER_INTERVAL_S = 5.0  # between two attempts, while a database is away


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierShape:
    """A topology that tables left.

    Args:
        spec: that topology, without secrets.
        markers: by source (name of its site) an SCN above every LCR of the old shape; a missing one is not known yet.
    """

    spec: TopologySpec
    markers: Mapping[str, int] = field(default_factory=dict)


def earlier_of(document: Mapping[str, Any]) -> tuple[EarlierShape, ...]:
    """Read the controller's record; entries of another version of Headrace are skipped.

    Args:
        document: `desired.json`.
    """
    found = []
    for each in document.get("earlier_shapes", ()):
        try:
            found.append(
                EarlierShape(
                    spec=spec_from_json(each["spec"]), markers={str(k): int(v) for k, v in each["markers"].items()}
                )
            )
        except ConfigError:
            continue
    return tuple(found)


def shapes_as_json(shapes: Sequence[EarlierShape]) -> list[dict[str, Any]]:
    """Convert shapes to the form that `earlier_of` reads."""
    return [{"spec": spec_to_json(each.spec), "markers": dict(each.markers)} for each in shapes]


def left_shapes(
    shapes: Sequence[EarlierShape], before: TopologySpec | None, after: TopologySpec
) -> tuple[EarlierShape, ...]:
    """Return the record for the time when another topology is prepared.

    Args:
        shapes: the record.
        before: the topology that was prepared last; None: none was.
        after: the topology that is prepared now.
    """
    if before is None or not leaves_tables(before, after):
        return tuple(shapes)
    kept = (*shapes, EarlierShape(spec=before))
    plain = next((each for each in kept if not transforms(each.spec)), None)
    return kept if len(kept) <= EARLIER_MAX or plain is None else tuple(each for each in kept if each is not plain)


def on_the_way(
    shapes: Sequence[EarlierShape],
    before: TopologySpec | None,
    after: TopologySpec,
    watermarks: Mapping[str, int],
) -> Iterator[Finding]:
    """Return why a topology must wait: tables would return in another shape than that of LCRs in flight.

    Args:
        shapes: the record.
        before: the topology that was prepared last; None: none was.
        after: the wanted topology.
        watermarks: the SCN up to which each apply process, by name, has let its queue forget; unknown ones are missing.
    """
    now = after if before is None else before
    for shape in shapes:
        for found in strangers_on_the_way(shape.spec, after):
            passing = counterpart(after.apply(found.apply), now.applies)
            name = found.apply if passing is None else passing.name
            marker, reached = shape.markers.get(found.source), watermarks.get(name, 0)
            if marker is None or reached < marker:
                until = f"a position that {found.source} has not reported yet"
                if marker is not None:
                    until = f"SCN {scn_text(marker)} (it is at {scn_text(reached)})"
                yield Finding(
                    path=f"applies.{found.apply}",
                    problem=f"{found.table} would arrive at {found.site} {found.wanted}, and changes of it that are"
                    f" still on the way are {found.was}: they could not be transformed, and everything behind them"
                    " would wait",
                    fix=f"go on with the earlier file (`headrace up EARLIER_FILE`) until {name} has applied up to"
                    f" {until}, which `headrace wait EARLIER_FILE --caught-up` waits for; then run `headrace up` with"
                    " this one",
                )
    if (
        len(shapes) >= EARLIER_MAX
        and all(transforms(each.spec) for each in shapes)
        and before is not None
        and leaves_tables(before, after)
    ):
        yield Finding(
            path="applies",
            problem=f"changes in {len(shapes)} earlier shapes of tables may still be in flight, and Headrace cannot"
            " track more",
            fix="run `headrace wait EARLIER_FILE --caught-up` with the earlier file, then `headrace up` with this one",
        )


def marked(shapes: Sequence[EarlierShape], write_marker: Callable[[str], int | None]) -> tuple[EarlierShape, ...]:
    """Return the record with the missing markers added.

    Args:
        shapes: the record.
        write_marker: writes a marker into a source's log, if every client of it runs by the topology that was prepared
            last; None: not now.
    """
    lacking = sorted(
        {apply.source for shape in shapes for apply in shape.spec.applies if apply.source not in shape.markers}
    )
    written = {source: marker for source in lacking if (marker := write_marker(source)) is not None}
    return tuple(
        replace(
            shape,
            markers={
                **shape.markers,
                **{
                    apply.source: written[apply.source]
                    for apply in shape.spec.applies
                    if apply.source in written and apply.source not in shape.markers
                },
            },
        )
        for shape in shapes
    )


def forgotten(
    shapes: Sequence[EarlierShape], applies: Collection[ApplySpec], watermarks: Mapping[str, int]
) -> tuple[EarlierShape, ...]:
    """Return the record without shapes that have passed: of each, the apply processes to which LCRs may be in flight.

    Args:
        shapes: the record.
        applies: the current apply processes. If none of them gets the same source's changes at the same site, one that
            is added again starts from scratch, possibly with another server as its source.
        watermarks: as for `on_the_way`.
    """

    def waits(shape: EarlierShape, apply: ApplySpec) -> bool:
        marker, there = shape.markers.get(apply.source), counterpart(apply, tuple(applies))
        return there is not None and (marker is None or watermarks.get(there.name, 0) < marker)

    kept = []
    for shape in shapes:
        waiting = tuple(apply for apply in shape.spec.applies if waits(shape, apply))
        sources = {apply.source for apply in waiting}
        if waiting:
            markers = {source: scn for source, scn in shape.markers.items() if source in sources}
            kept.append(EarlierShape(spec=replace(shape.spec, applies=waiting), markers=markers))
    return tuple(kept)


class EarlierShapes:
    """The recorded shapes in a running controller.

    Args:
        actors: runs the sites, which write markers.
        clock: spaces the attempts to have one written.

    Attributes:
        recorded: the shapes.
    """

    def __init__(self, record: PreparedRecord, actors: ActorSystem, clock: Clock) -> None:
        self._record, self._actors, self._clock = record, actors, clock
        self.recorded: tuple[EarlierShape, ...] = ()
        self._mark_at: dict[str, float] = {}  # by source, time of the next attempt to write a marker

    def open(self) -> None:
        """Read the record."""
        self.recorded = earlier_of(self._record.read())

    def take(self, wanted: TopologySpec) -> list[dict[str, Any]]:
        """Return the shapes for the write that puts the wanted topology in force.

        Args:
            wanted: that topology.
        """
        self.recorded = left_shapes(self.recorded, self._record.topology, wanted)
        return shapes_as_json(self.recorded)

    def follow(self, spec: TopologySpec, watermarks: Mapping[str, int], is_settled: Callable[[str], bool]) -> None:
        """Write missing markers, and drop shapes that have passed.

        Args:
            spec: the running topology.
            watermarks: as for the function `on_the_way`.
            is_settled: whether a source answers, and every client on the path of its changes has adopted `spec`. A
                silent client may be busy with LCRs that it took by its old rules.
        """
        if not self.recorded:
            return
        shapes = marked(
            forgotten(self.recorded, spec.applies, watermarks),
            lambda source: self._marker(source) if is_settled(source) else None,
        )
        if shapes != self.recorded:
            self._record.update({"earlier_shapes": shapes_as_json(shapes)})
            self.recorded = shapes

    def _marker(self, source: str) -> int | None:
        """Write a marker into a source's log and return its SCN; None: the source is away."""
        if self._clock.monotonic() < self._mark_at.get(source, 0.0):
            return None
        try:
            return int(self._actors.call(f"site:{source}", "write_marker", b"shapes", timeout_s=_MARKER_TIMEOUT_S))
        except HeadraceError:
            self._mark_at[source] = self._clock.monotonic() + _MARKER_INTERVAL_S
            return None
