"""The rows in which a table differs: found, compared again until they are judged, and named.

Each side is read under its own snapshot, and the destination is behind: under load some rows differ at every look, and
none of them is wrong. So rows that differ are looked at again, alone, by their keys:

    source is read -> a marker is written into its log -> the marker is applied -> destination is read

What the destination shows then is no older than what the source showed. A row *settles* when both show the same. It
*differs* when nothing has written it at the destination through `STEADY_LOOKS` looks, and the source showed another one
each time: what the source had at the last one has been applied, and did not touch it. That nothing wrote it is known by
the row's version; of a row that is missing there, or has none, by its values, which then are none that the source
showed. Whoever else writes the destination has that long for a change to arrive at the source. A row that is written
between all looks is *in flight*: nothing is said of it, and it is counted.

Looks, the wait for a marker and the rows that are read are bounded. What is beyond a bound is not judged, and the table
is neither equal nor different then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streams.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from databases.copying import KeyedRow, TableReader
    from databases.table_digest import TableDigest
    from streams.table_name import TableName

__all__ = [
    "DIFFERENCES_MAX",
    "STEADY_LOOKS",
    "FoundRows",
    "JudgedRows",
    "RowDifference",
    "Side",
    "differing_rows",
    "judged_rows",
]

# Which rows differ is found by digests of buckets of some hundred rows, in one scan of each side, then by the rows of a
# few.
_ROWS_READ_MAX = 10_000  # of each side
_BUCKET_ROWS_MAX = 100_000  # of one bucket: some 100 MB in the apply driver
DIFFERENCES_MAX = 20  # rows that are named: more than a person reads
# Looks at which the destination shows the same row and the source another one. One would do if nobody else wrote the
# destination; with pauses of a second, what others wrote there has two seconds to arrive at the source.
STEADY_LOOKS = 3

Key = tuple[str | None, ...]
_Shown = tuple["KeyedRow", ...]
"""The rows of one key, sorted: without a key, a row can be there more than once. Equal where their digests are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row that is not the same at both sides.

    Args:
        columns: names of the key columns; of a table without a key, of all.
        key: their values as text; None is NULL.
        what: "missing at the destination", "only at the destination" or "differs".
    """

    columns: tuple[str, ...]
    key: Key
    what: str


@dataclass(slots=True)
class Side:
    """A table at one side, for `differing_rows`.

    Args:
        reader: of the database.
        name: of the table there.
        key: columns that tell rows apart, as this side calls them.
        columns: that are compared, likewise.
        snapshot: under which it is read; empty: as it is.
        rows: the condition of the rows that are compared; empty: all.
    """

    reader: TableReader
    name: TableName
    key: tuple[str, ...]
    columns: tuple[str, ...]
    snapshot: str = ""
    rows: str = ""

    def digests(self, buckets: int) -> tuple[TableDigest, ...]:
        """Of each bucket."""
        return self.reader.bucket_digests(
            *self.name, self.key, self.columns, buckets=buckets, snapshot=self.snapshot, rows=self.rows
        )

    def read(self, buckets: int, wanted: Sequence[int], rows_max: int) -> tuple[KeyedRow, ...]:
        """The rows of some buckets.

        Args:
            buckets: into how many the rows are divided.
            wanted: numbers of buckets.
            rows_max: how many there are at most.
        """
        return self.reader.bucket_rows(
            *self.name,
            self.key,
            self.columns,
            buckets=buckets,
            wanted=wanted,
            rows_max=rows_max,
            snapshot=self.snapshot,
            rows=self.rows,
        )

    def shown(self, keys: Sequence[Key]) -> dict[Key, _Shown]:
        """What has these keys now."""
        found: dict[Key, list[KeyedRow]] = {}
        for row in self.reader.keyed_rows(*self.name, self.key, self.columns, keys=keys, rows=self.rows):
            found.setdefault(row.key, []).append(row)
        return {key: tuple(sorted(rows, key=lambda row: (row.digest, row.version))) for key, rows in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRows:
    """What became of rows that differed.

    Args:
        differences: rows that differ.
        in_flight: keys of rows that were changed between all looks.
        settled: how many were the same later.
        looks: at them.
    """

    differences: tuple[RowDifference, ...]
    in_flight: tuple[Key, ...] = ()
    settled: int = 0
    looks: int = 0


@dataclass(slots=True)
class _Looks:
    """What a key's rows were at either side, look by look."""

    there: set[_Shown] = field(default_factory=set)
    here: list[_Shown] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether nothing writes the destination's rows any more, and the source shows others."""
        latest = self.here[-STEADY_LOOKS:]
        if len(latest) < STEADY_LOOKS or any(rows != latest[0] for rows in latest):
            return False
        versions = {tuple(row.version for row in rows) for rows in latest}
        return (
            len(versions) == 1
            if latest[0] and all(row.version for rows in latest for row in rows)
            else latest[0] not in self.there
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """What `differing_rows` found.

    Args:
        differences: rows that differ, of the buckets that were read.
        unread: buckets that differ, too.
    """

    differences: tuple[RowDifference, ...] = ()
    unread: frozenset[int] = frozenset()


def differing_rows(
    sides: Sequence[Side], buckets: int, *, among: Collection[int] | None = None, buckets_max: int = DIFFERENCES_MAX
) -> FoundRows:
    """Rows in which a table differs, of a few buckets.

    Args:
        sides: source and destination.
        buckets: into how many the rows are divided.
        among: the buckets that count; None: all.
        buckets_max: how many are read at most.
    """
    source, destination = (side.digests(buckets) for side in sides)
    wanted: list[int] = []
    total = 0
    different = [
        number
        for number in (range(buckets) if among is None else sorted(among))
        if source[number] != destination[number]
    ]
    for number in different[:buckets_max]:
        size = max(source[number].row_count, destination[number].row_count)
        if size > _BUCKET_ROWS_MAX:
            continue  # equal rows of a table without a key: they are in one bucket however many there are
        total += size
        if wanted and total > _ROWS_READ_MAX:
            break
        wanted.append(number)
    if not wanted:
        return FoundRows(unread=frozenset(different))
    rows_max = max(sum(side[number].row_count for number in wanted) for side in (source, destination))
    there, here = (Counter(side.read(buckets, wanted, rows_max)) for side in sides)
    missing, extra = there - here, here - there
    missing_keys, extra_keys = {row.key for row in missing}, {row.key for row in extra}
    found = [
        RowDifference(columns=sides[-1].key, key=each, what=what)
        for keys, what in (
            (missing_keys & extra_keys, "differs"),
            (missing_keys - extra_keys, "missing at the destination"),
            (extra_keys - missing_keys, "only at the destination"),
        )
        for each in sorted(keys, key=_in_order)
    ]
    return FoundRows(differences=tuple(found), unread=frozenset(different) - frozenset(wanted))


def judged_rows(
    sides: Sequence[Side], found: Sequence[RowDifference], *, looks: int, catch_up: Callable[[], bool]
) -> JudgedRows:
    """Compare rows again, without a snapshot, until each has settled or differs; see the module.

    Args:
        sides: source and destination.
        found: rows that differed once.
        looks: how many at most.
        catch_up: waits until the destination has what the source has now; False: the caller waits no longer.

    Raises:
        DatabaseUnavailable: a database does not answer, or the destination does not catch up.
    """
    open_rows = {each.key: _Looks() for each in found}
    differing: dict[Key, str] = {}
    done = 0
    while done < looks and len(differing) < len(open_rows):
        keys = list(open_rows)
        there = sides[0].shown(keys)
        if not catch_up():
            raise DatabaseUnavailable("the comparison was stopped")
        here = sides[1].shown(keys)
        done += 1
        differing = {}
        for key in keys:
            at_source, at_destination = there.get(key, ()), here.get(key, ())
            if at_source == at_destination:
                del open_rows[key]
                continue
            open_rows[key].there.add(at_source)
            open_rows[key].here.append(at_destination)
            if open_rows[key].differs:
                differing[key] = _what(at_source, at_destination)
    return JudgedRows(
        differences=tuple(
            RowDifference(columns=sides[-1].key, key=key, what=differing[key])
            for key in sorted(differing, key=_in_order)
        ),
        in_flight=tuple(sorted(open_rows.keys() - differing.keys(), key=_in_order)),
        settled=len(found) - len(open_rows),
        looks=done,
    )


def _what(there: _Shown, here: _Shown) -> str:
    """What is wrong with rows of a key."""
    missing, extra = Counter(there) - Counter(here), Counter(here) - Counter(there)
    if missing and extra:
        return "differs"
    return "missing at the destination" if missing else "only at the destination"


def _in_order(key: Key) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for value in key]
