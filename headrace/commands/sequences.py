"""Sequences before a switch-over: how far the destinations' are behind the sources', and setting them ahead."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from actors.site.connection import running_access
from headrace.base.errors import ConfigError
from headrace.databases.connectors import open_column_sequences, open_source
from topology.problems import nearest
from topology.routing.ways import arriving, captured_by, ways_to

if TYPE_CHECKING:
    from headrace.databases.connectors import DatabaseAccess
    from headrace.databases.ports.operator import ColumnSequence
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["AHEAD_MAX", "SequenceLine", "compare_sequences"]

AHEAD_MAX = 1_000_000_000  # values left unused: a larger number is a typing error


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLine:
    """One column's sequence at both sides.

    Args:
        source: site whose sequence has generated the values so far.
        destination: site whose sequence will take over.
        column: "owner.table.column".
        source_next: the source's next value.
        destination_next: the destination's next value after this call; None: it has no sequence.
        wanted: the lowest next value that is safe at the destination.
        was_set: this call set the destination's sequence.
        problem: why the destination's sequence is not far enough ahead; empty: it is.
    """

    source: str
    destination: str
    column: str
    source_next: int
    destination_next: int | None
    wanted: int
    was_set: bool = False
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """One line of text."""
        there = "no sequence" if self.destination_next is None else f"next {self.destination_next}"
        state = self.problem or ("set" if self.was_set else "far enough ahead")
        return f"{self.column}: {self.source} next {self.source_next}, {self.destination} {there}: {state}"


def compare_sequences(spec: TopologySpec, *, advance: bool, ahead: int, at: str = "") -> list[SequenceLine]:
    """Compare the sequences of all replicated columns, and set the destinations' ahead if wanted.

    Args:
        spec: the topology; only its databases must run.
        advance: set the sequences that are behind; False: change nothing.
        ahead: number of values to skip between the source's next one and the destination's; 0 to `AHEAD_MAX`.
        at: only this destination; empty: all.

    Returns:
        One entry per apply process and column with a sequence at the source.

    Raises:
        ConfigError: no such destination, `ahead` is out of bounds, or an embedded server does not run.
        DatabaseError: a right is missing, or a database does not answer.
    """
    destinations = sorted({apply.site for apply in spec.applies})
    if at and at not in destinations:
        raise ConfigError(f"nothing is applied at site {at!r}", hint=nearest(at, destinations))
    if not 0 <= ahead <= AHEAD_MAX:
        raise ConfigError(f"--ahead {ahead} is out of bounds", hint=f"0 to {AHEAD_MAX} values")
    lines: list[SequenceLine] = []
    for apply in spec.applies:
        if not at or apply.site == at:
            source, destination = (running_access(spec, spec.site(name)) for name in (apply.source, apply.site))
            lines += _compare(spec, apply, source, destination, advance=advance, ahead=ahead)
    return lines


def _compare(
    spec: TopologySpec,
    apply: ApplySpec,
    source: DatabaseAccess,
    destination: DatabaseAccess,
    *,
    advance: bool,
    ahead: int,
) -> list[SequenceLine]:
    ways = ways_to(spec, apply)
    with closing(open_source(source)) as database:
        arrive = arriving(ways, database.tables(captured_by(ways)))
    names = {
        (table.source.owner, table.source.name): (table.destination.owner, table.destination.name) for table in arrive
    }
    transformations = {(table.source.owner, table.source.name): table.transformations for table in arrive}
    with closing(open_column_sequences(source)) as ours, closing(open_column_sequences(destination)) as theirs:
        there = {(found.owner, found.table, found.column): found for found in theirs.of(list(names.values()))}
        lines = []
        for found in ours.of(list(names)):
            column: str | None = found.column
            for each in transformations[found.owner, found.table]:
                column = None if column is None else each.after(column)
            if column is None:
                continue  # it does not arrive
            match = there.get((*names[found.owner, found.table], column))
            line = _line(apply, found, match, ahead)
            if advance and line.problem and match is not None and match.least <= line.wanted <= match.most:
                theirs.set_next(match, line.wanted)
                line = SequenceLine(**{**asdict(line), "destination_next": line.wanted, "was_set": True, "problem": ""})
            lines.append(line)
    return lines


def _line(apply: ApplySpec, found: ColumnSequence, match: ColumnSequence | None, ahead: int) -> SequenceLine:
    wanted = found.next_value + ahead * found.increment
    problem = ""
    if match is None:
        problem = "the destination's column has no sequence: it gives out no values there"
    elif (match.next_value - wanted) * (1 if found.increment > 0 else -1) < 0:
        problem = f"behind {wanted}"
        if not match.least <= wanted <= match.most:
            problem += f", which is out of its bounds {match.least} to {match.most}: ALTER SEQUENCE {match.name} there"
    return SequenceLine(
        source=apply.source,
        destination=apply.site,
        column=f"{found.owner}.{found.table}.{found.column}",
        source_next=found.next_value,
        destination_next=None if match is None else match.next_value,
        wanted=wanted,
        problem=problem,
    )
