"""The rows in which a table differs: found, compared again until they are judged, and named.

Each side is read under its own snapshot, and the destination is behind. So under load some rows differ at every look
although none is wrong. So rows that differ are looked at again, alone, by their keys:

    destination is read -> the source has what was there -> source is read -> a marker is written into its log
      -> the marker is applied -> destination is read

So the source shows nothing older than the destination did before, and the destination nothing older than the source.
The first look is the one that finds the rows; it ends with the source. A row that differs there lacks a change at the
destination, and the destination writes the row when the change arrives.

    the destination wrote or removed the row, and both show the same                                settled
    nothing wrote it there, and the source showed another row at `STEADY_LOOKS` looks               differs
    nothing wrote it there, and both show the same: the source returned to the destination's state  in flight
    it was another row at each look                                                                 in flight

A row in flight is only named. A row's version tells whether it was written. If the row is missing, or the database has
no versions, its values tell: then the source must not have shown these values.

Looks, the wait for a marker and the rows that are read are bounded. Rows beyond a bound are not judged, and then the
table is neither equal nor different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.databases.ports.copying import KeyedRow, TableReader
    from headrace.databases.table_digest import TableDigest
    from headrace.lcr.table_name import TableName

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

# Digests of buckets of about a hundred rows, in one scan of each side, show where rows differ. Then the rows of a few
# buckets are read.
_ROWS_READ_MAX = 10_000  # of each side
_BUCKET_ROWS_MAX = 100_000  # of one bucket: some 100 MB in the apply driver
DIFFERENCES_MAX = 20  # named rows: more than a person reads
# Looks at which the destination shows the same row and the source another one. One would suffice if every change wrote
# its row, and if all changes of others at the destination returned by ways that are waited for (`WaysBack`).
STEADY_LOOKS = 3
_MOVING = "changed at each look"
_CAME_BACK = "the same by now, and not written at the destination since it differed"

Key = tuple[str | None, ...]
_Shown = tuple["KeyedRow", ...]
"""The rows of one key, sorted: without a key, a row can exist more than once. They are equal if their digests are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row that is not the same at both sides.

    Args:
        columns: names of the key columns; for a table without a key, of all.
        key: their values as text; None is NULL.
        what: "missing at the destination", "only at the destination" or "differs"; for a row in flight, why it is not
            judged.
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
        key: columns that identify rows, by this side's names.
        columns: compared columns, by this side's names.
        snapshot: to read under; empty: the current state.
        rows: the condition of the rows that are compared; empty: all.
    """

    reader: TableReader
    name: TableName
    key: tuple[str, ...]
    columns: tuple[str, ...]
    snapshot: str = ""
    rows: str = ""

    def digests(self, buckets: int) -> tuple[TableDigest, ...]:
        """Return the digest of each bucket."""
        return self.reader.bucket_digests(
            *self.name, self.key, self.columns, buckets=buckets, snapshot=self.snapshot, rows=self.rows
        )

    def read(self, buckets: int, wanted: Sequence[int], rows_max: int) -> tuple[KeyedRow, ...]:
        """Return the rows of some buckets.

        Args:
            buckets: number of buckets that the rows are divided into.
            wanted: numbers of buckets.
            rows_max: upper bound of their number.
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
        """Return the rows that have these keys now."""
        return _by_key(self.reader.keyed_rows(*self.name, self.key, self.columns, keys=keys, rows=self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRows:
    """The outcome for rows that differed.

    Args:
        differences: rows that differ.
        in_flight: rows that could not be judged, as the module describes.
        settled: how many were the same later.
        looks: number of looks at them.
    """

    differences: tuple[RowDifference, ...]
    in_flight: tuple[RowDifference, ...] = ()
    settled: int = 0
    looks: int = 0


@dataclass(slots=True)
class _Looks:
    """A key's rows at either side, look by look.

    Args:
        found: at the destination, when they were found to differ.
    """

    found: _Shown
    there: set[_Shown] = field(default_factory=set)
    here: _Shown | None = None
    different_looks: int = 0  # since the destination last wrote them
    what: str = ""  # the last difference
    is_equal: bool = False

    def add(self, there: _Shown, here: _Shown) -> None:
        """Add one look."""
        if self.here != here or _versions(self.here) != _versions(here):
            self.different_looks = 0
        self.here, self.is_equal = here, there == here
        self.there.add(there)
        if not self.is_equal:
            self.different_looks += 1
            self.what = _what(there, here)

    @property
    def is_settled(self) -> bool:
        """Whether both sides show the same, and the destination wrote it, as far as known."""
        versions = _versions(self.here)
        return self.is_equal and (versions is None or versions != _versions(self.found))

    @property
    def differs(self) -> bool:
        """Whether nothing writes the destination's rows any more while the source shows others."""
        return self.different_looks >= STEADY_LOOKS and (
            _versions(self.here) is not None or self.here not in self.there
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """The result of `differing_rows`.

    Args:
        differences: rows that differ, in the buckets that were read.
        here: their rows at the destination, with versions.
        unread: further buckets that differ.
    """

    differences: tuple[RowDifference, ...] = ()
    here: Mapping[Key, _Shown] = field(default_factory=dict)
    unread: frozenset[int] = frozenset()


def differing_rows(
    sides: Sequence[Side], buckets: int, *, among: Collection[int] | None = None, buckets_max: int = DIFFERENCES_MAX
) -> FoundRows:
    """Return rows in which a table differs, from a few buckets.

    Args:
        sides: source and destination.
        buckets: number of buckets that the rows are divided into.
        among: the buckets that count; None: all.
        buckets_max: number of buckets to read at most.
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
            continue  # equal rows of a table without a key: all of them are in one bucket
        total += size
        if wanted and total > _ROWS_READ_MAX:
            break
        wanted.append(number)
    if not wanted:
        return FoundRows(unread=frozenset(different))
    rows_max = max(sum(side[number].row_count for number in wanted) for side in (source, destination))
    read = [side.read(buckets, wanted, rows_max) for side in sides]
    there, here = map(Counter, read)
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
    keys = missing_keys | extra_keys
    return FoundRows(
        differences=tuple(found),
        here=_by_key(row for row in read[-1] if row.key in keys),
        unread=frozenset(different) - frozenset(wanted),
    )


def judged_rows(
    sides: Sequence[Side],
    found: FoundRows,
    *,
    looks: int,
    catch_up: Callable[[], None],
    returned: Callable[[], None] = lambda: None,
) -> JudgedRows:
    """Compare rows again, without a snapshot, until each has settled or differs.

    Args:
        sides: source and destination.
        found: rows that differed once.
        looks: maximum number of looks.
        catch_up: waits until the destination has what the source has now; raises to end the comparison.
        returned: waits until the source has what the destination has now; raises to end the comparison.

    Raises:
        DatabaseError: a database does not answer, or one side does not catch up.
    """
    open_rows = {each.key: _Looks(found.here.get(each.key, ())) for each in found.differences}
    done = 0
    while done < looks and not all(each.differs for each in open_rows.values()):
        keys = list(open_rows)
        returned()
        there = sides[0].shown(keys)
        catch_up()
        here = sides[1].shown(keys)
        done += 1
        for key in keys:
            open_rows[key].add(there.get(key, ()), here.get(key, ()))
            if open_rows[key].is_settled:
                del open_rows[key]
    ends = {key: open_rows[key] for key in sorted(open_rows, key=_in_order)}
    columns = sides[-1].key
    return JudgedRows(
        differences=tuple(
            RowDifference(columns=columns, key=key, what=each.what) for key, each in ends.items() if each.differs
        ),
        in_flight=tuple(
            RowDifference(columns=columns, key=key, what=_CAME_BACK if each.is_equal else _MOVING)
            for key, each in ends.items()
            if not each.differs
        ),
        settled=len(found.differences) - len(open_rows),
        looks=done,
    )


def _by_key(rows: Iterable[KeyedRow]) -> dict[Key, _Shown]:
    """Group rows by key, in an order that is the same at both sides."""
    found: dict[Key, list[KeyedRow]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    return {key: tuple(sorted(same, key=lambda row: (row.digest, row.version))) for key, same in found.items()}


def _versions(rows: _Shown | None) -> tuple[str, ...] | None:
    """Return the versions of a key's rows; None: no row, or unknown versions."""
    return tuple(row.version for row in rows) if rows and all(row.version for row in rows) else None


def _what(there: _Shown, here: _Shown) -> str:
    """Return how the rows of a key differ."""
    missing, extra = Counter(there) - Counter(here), Counter(here) - Counter(there)
    if missing and extra:
        return "differs"
    return "missing at the destination" if missing else "only at the destination"


def _in_order(key: Key) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for value in key]
