"""Sequences before a switch-over: compare the destinations' with the sources', and advance them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from actors.site.connection import running_access
from headrace.base.errors import ConfigError
from headrace.databases.connectors import open_column_sequences, open_source
from headrace.lcr.table_name import quoted_name
from topology.problems import nearest
from topology.routing.ways import arriving, captured_by, ways_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.databases.connectors import DatabaseAccess
    from headrace.databases.ports.operator import ColumnSequence
    from headrace.lcr.table_name import TableName
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["AHEAD_MAX", "NAMED_MAX", "NotLookedAt", "SequenceLine", "Sequences", "compare_sequences"]

AHEAD_MAX = 1_000_000_000  # values left unused: a larger number is a typing error
NAMED_MAX = 20  # unexamined sequences listed per source; a count tells how many more there are


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLine:
    """One column's sequence at both ends.

    Args:
        source: site whose sequence has generated the values so far.
        destination: site whose sequence will take over.
        column: "owner.table.column".
        source_sequence: its name, as the source writes it in statements.
        destination_sequence: the same at the destination; None: the column has no sequence.
        source_next: the source's next value.
        destination_next: the destination's next value after this call; None: it has no sequence.
        wanted: the lowest next value that is safe at the destination.
        was_set: whether this call set the destination's sequence.
        problem: why the destination's sequence is not far enough ahead; empty: it is.
    """

    source: str
    destination: str
    column: str
    source_sequence: str
    destination_sequence: str | None
    source_next: int
    destination_next: int | None
    wanted: int
    was_set: bool = False
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    def text(self) -> str:
        """Return one line of text."""
        there = (
            "no sequence"
            if self.destination_next is None
            else f"next {self.destination_next} of {self.destination_sequence}"
        )
        state = self.problem or ("set" if self.was_set else "far enough ahead")
        here = f"{self.source} next {self.source_next} of {self.source_sequence}"
        return f"{self.column}: {here}, {self.destination} {there}: {state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLookedAt:
    """Sequences of a source, in the schemas of replicated tables, that no column's default names.

    A trigger, a function or an application may use them for replicated columns.

    Args:
        source: the site.
        names: at most `NAMED_MAX` names.
        count: number of all of them.
    """

    source: str
    names: tuple[str, ...]
    count: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    def text(self) -> str:
        """Return one line of text."""
        more = f" and {self.count - len(self.names)} more" if self.count > len(self.names) else ""
        return (
            f"not looked at: sequences {', '.join(self.names)}{more} of {self.source}, which no column's default names:"
            " set those that your triggers or applications use at the destination yourself"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Result of a comparison.

    Args:
        lines: one per apply process, column with a sequence at the source, and matching sequence.
        not_looked_at: one per source with sequences that were not examined.
    """

    lines: tuple[SequenceLine, ...]
    not_looked_at: tuple[NotLookedAt, ...]


def compare_sequences(spec: TopologySpec, *, advance: bool, ahead: int, at: str = "") -> Sequences:
    """Compare the sequences of all replicated columns; optionally advance the destinations'.

    Args:
        spec: the topology; only its databases must run.
        advance: set the sequences that are behind; False: change nothing.
        ahead: number of values to skip between the source's next value and the destination's; 0 to `AHEAD_MAX`.
        at: only this destination; empty: all.

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
    unnamed: dict[str, set[TableName]] = {}
    for apply in spec.applies:
        if not at or apply.site == at:
            source, destination = (running_access(spec, spec.site(name)) for name in (apply.source, apply.site))
            compared, others = _compare(spec, apply, source, destination, advance=advance, ahead=ahead)
            lines += compared
            unnamed.setdefault(apply.source, set()).update(others)
    looked_at = {(line.source, line.source_sequence) for line in lines}  # includes sequences that columns own
    not_looked_at = []
    for source_name, names in unnamed.items():
        left = sorted(str(name) for name in names if (source_name, quoted_name(name)) not in looked_at)
        if left:
            not_looked_at.append(NotLookedAt(source=source_name, names=tuple(left[:NAMED_MAX]), count=len(left)))
    return Sequences(lines=tuple(lines), not_looked_at=tuple(not_looked_at))


def _compare(
    spec: TopologySpec,
    apply: ApplySpec,
    source: DatabaseAccess,
    destination: DatabaseAccess,
    *,
    advance: bool,
    ahead: int,
) -> tuple[list[SequenceLine], tuple[TableName, ...]]:
    """Return the sequences of the columns that arrive, and the names of sequences that no column's default names."""
    ways = ways_to(spec, apply)
    with closing(open_source(source)) as database:
        arrive = arriving(ways, database.tables(captured_by(ways)))
    names = {
        (table.source.owner, table.source.name): (table.destination.owner, table.destination.name) for table in arrive
    }
    transformations = {(table.source.owner, table.source.name): table.transformations for table in arrive}
    with closing(open_column_sequences(source)) as ours, closing(open_column_sequences(destination)) as theirs:
        there: dict[tuple[str, str, str], list[ColumnSequence]] = {}
        for each in theirs.of(list(names.values())):
            there.setdefault((each.owner, each.table, each.column), []).append(each)
        given = ours.of(list(names))
        several = Counter((found.owner, found.table, found.column) for found in given)
        # What this call has set: one sequence may serve several columns, and is never set back.
        set_to: dict[str, int] = {}
        lines = []
        for found in given:
            column: str | None = found.column
            for transformation in transformations[found.owner, found.table]:
                column = None if column is None else transformation.after(column)
            if column is None:
                continue  # it does not arrive
            arrives_as = (*names[found.owner, found.table], column)
            is_alone = several[found.owner, found.table, found.column] == 1
            for match in _matches(found, there.get(arrives_as, []), is_alone=is_alone):
                if match is None:
                    lines.append(_line(apply, found, None, ahead))
                    continue
                now = replace(match, next_value=set_to.get(match.name, match.next_value))
                line = _line(apply, found, now, ahead)
                if advance and line.problem and now.least <= line.wanted <= now.most:
                    theirs.set_next(now, line.wanted)
                    set_to[now.name] = line.wanted
                    line = replace(line, destination_next=line.wanted, was_set=True, problem="")
                lines.append(line)
        return lines, ours.unnamed(sorted({owner for owner, _ in names}))


def _matches(
    found: ColumnSequence, there: Sequence[ColumnSequence], *, is_alone: bool
) -> Sequence[ColumnSequence | None]:
    """Return the destination's sequences that may generate values which a source's sequence has generated.

    Args:
        found: the source's sequence.
        there: sequences of the same column at the destination.
        is_alone: whether no other sequence serves the source's column; if others do, sequences of the same name match,
            because each may have its own range.
    """
    named = [] if is_alone else [each for each in there if each.name == found.name]
    return named or there or [None]


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
        source_sequence=found.name,
        destination_sequence=None if match is None else match.name,
        source_next=found.next_value,
        destination_next=None if match is None else match.next_value,
        wanted=wanted,
        problem=problem,
    )
