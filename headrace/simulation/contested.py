"""Tables whose rows are changed at several sites concurrently, and the results that conflict handlers must produce.

A table is contested if the topology sets conflict handlers for it, users of several sites write it, and every change
reaches every site that has it. Its users make only changes that its handlers can resolve (docs/how/conflicts.md, "Who
converges"):

    latest_timestamp    updates and inserts; with tombstones also deletes and changes of the key
    maximum, minimum    updates whose resolution column always rises, or falls; inserts, or deletes, where handlers of
                        these kinds are set
    delta               additions to a number
    site_priority       between two sites: updates of every column of a list, with values that are never reused

In the end every site must have the same rows, equal to those that follow from the history of all users: for each key
and column list, the values of the winning change, determined independently of the pipeline. For a list with
site_priority, only equality between sites is checked, because the winner depends on which changes met where.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.databases.memory.store import Row
from headrace.lcr.batch import Column, Command, OldImage
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.conflict_handlers import ConflictHandler, RowTimes
from headrace.simulation.observing.history import Change
from headrace.simulation.observing.shapes import ShapedTable, is_shaped
from headrace.simulation.observing.violations import Invariant, Violation
from topology.proof.reach import Proof
from topology.routing.change_classes import ChangeClasses
from topology.spec import ApplySpec, TopologySpec

if TYPE_CHECKING:
    from headrace.simulation.database import SiteDatabase

__all__ = ["Contested", "ContestedTable"]

_FIRST_NUMBER = 5000  # object numbers of these tables: those of all others are lower
_KEYS = 6  # so few that most changes conflict with another one
_SHARE = 0.7  # of users' transactions that change a contested row
_LEFT_ALONE_SHARE = 0.3  # of the columns of an UPDATE: the winning change must set them nevertheless
_CHANGES_MAX = 3  # of one transaction
_TIME_DIGITS = 9  # of a resolution column: zero-padded text, so that byte order is numeric order
_TIME_FIRST = 500_000_000  # in the middle: values can rise or fall from it equally far
_NUMBER_FIRST = 1000  # first value of a column that delta adds to
_BY_COLUMN = {"maximum": 1, "minimum": -1}  # direction in which the resolution column moves
_DELETE_WINS = (("delete_differs", "overwrite"), ("delete_missing", "discard"), ("update_missing", "discard"))
_PLAIN_COLUMNS = ("v", "w")  # for a list without names, which has every column outside the key
_Wins = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _List:
    """A column list and its conflict handler.

    Args:
        method: the handler's method.
        columns: positions in the table.
        by: position of the resolution column; 0: none.
    """

    method: str
    columns: tuple[int, ...]
    by: int = 0


@dataclass(slots=True)
class ContestedTable:
    """One contested table.

    Args:
        table: the table as every site has it.
        lists: its column lists.
        writes: what users do: update, insert, delete, move.
        sites: the sites that write it.
        times: the times of latest_timestamp; None: another method.
        won: by key and list, rank and values of the winning change; None as values: it deleted the row.
        values: number of values that users have made so far.
    """

    table: ShapedTable
    lists: tuple[_List, ...]
    writes: tuple[str, ...]
    sites: tuple[str, ...]
    times: RowTimes | None
    won: dict[tuple[bytes, int], tuple[_Wins, Row | None]] = field(default_factory=dict)
    values: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """The schema and the name."""
        return self.table.owner, self.table.name

    def rows_at_first(self) -> list[Row]:
        """Return the rows that every site has before the capture begins."""
        first = {"delta": _NUMBER_FIRST.to_bytes(4, "big"), "": b"first"}
        kinds = {place: each.method for each in self.lists for place in each.columns}
        resolution = {each.by for each in self.lists if each.by}
        width = len(self.table.columns)
        return [
            (
                _key(number),
                *(
                    _time(0) if place in resolution else first["delta" if kinds.get(place) == "delta" else ""]
                    for place in range(1, width)
                ),
            )
            for number in range(_KEYS // 2 if "insert" in self.writes else _KEYS)
        ]

    # ------------------------------------------------------------------ users

    def change(self, rng: random.Random, site: str, rows: dict[bytes, Row]) -> Change | None:
        """Return a user's next change; None: no change fits the rows.

        Args:
            rng: random source.
            site: the user's site.
            rows: the site's rows, by key.
        """
        kind, key = rng.choice(self.writes), _key(rng.randrange(_KEYS))
        old = rows.get(key)
        if kind == "insert" or old is None:
            if old is not None or "insert" not in self.writes:
                return None
            return Change(
                self.table,
                Command.INSERT,
                new=self._written(rng, site, (key, *self.rows_at_first()[0][1:]), self.lists, 0.0),
            )
        if kind == "delete":
            return Change(self.table, Command.DELETE, old=old)
        new = self._written(rng, site, old, [rng.choice(self.lists)], _LEFT_ALONE_SHARE)
        if kind == "move":
            free = [each for each in map(_key, range(_KEYS)) if each not in rows]
            if not free:
                return None
            new = (rng.choice(free), *new[1:])
        return Change(self.table, Command.UPDATE, old=old, new=new)

    def _written(self, rng: random.Random, site: str, row: Row, lists: Iterable[_List], left_alone: float) -> Row:
        """Return the row with new values in these lists, which no change has used before."""
        self.values += 1
        made = list(row)
        for each in lists:
            for place in each.columns:
                if each.method == "delta":
                    made[place] = (int.from_bytes(made[place] or b"", "big") + 1 + self.sites.index(site)).to_bytes(
                        4, "big"
                    )
                elif place == each.by:
                    # Beyond the row's value, and never used by another site. Sites do not know each other's
                    # values, so each advances at its own pace.
                    step = abs(int(made[place] or b"") - _TIME_FIRST) // len(self.sites) + 1
                    made[place] = _time((step * len(self.sites) + self.sites.index(site)) * _BY_COLUMN[each.method])
                elif each.method == "site_priority" or rng.random() >= left_alone:
                    made[place] = f"{self.values} {site}".encode()
        return tuple(made)

    # ------------------------------------------------------------------ expected result

    def made(self, change: Change, site: str, time_us: int) -> None:
        """Record a change that a user committed.

        Args:
            change: a change of this table.
            site: the user's site.
            time_us: commit time there, in microseconds.
        """
        old, new = change.old, change.new
        if old is not None and (new is None or new[0] != old[0]):
            # without times, a delete wins against every other change
            rank = (time_us, self.times.rank(site)) if self.times else (2 * _TIME_FIRST, 0)
            for number in range(len(self.lists)):
                self._take(old[0] or b"", number, rank, None)
        if new is None:
            return
        for number, each in enumerate(self.lists):
            key, values = (new[0] or b"", number), tuple(new[place] for place in each.columns)
            if self.times:
                self._take(*key, (time_us, self.times.rank(site)), values)
            elif each.by and (old is None or old[each.by] != new[each.by]):
                self._take(*key, ((int(new[each.by] or b"") - _TIME_FIRST) * _BY_COLUMN[each.method], 0), values)
            elif each.method == "delta" and old is not None:
                before = self.won[key][1] or ()
                added = [
                    int.from_bytes(new[place] or b"", "big") - int.from_bytes(old[place] or b"", "big")
                    for place in each.columns
                ]
                sums = (int.from_bytes(value or b"", "big") + more for value, more in zip(before, added, strict=True))
                self.won[key] = (0, 0), tuple(total.to_bytes(4, "big") for total in sums)

    def _take(self, key: bytes, number: int, rank: _Wins, values: Row | None) -> None:
        if (key, number) not in self.won or rank > self.won[key, number][0]:
            self.won[key, number] = rank, values

    def problem(self, rows: Sequence[Row]) -> str:
        """Return why a site's rows differ from the result of the history; empty: they are equal.

        Args:
            rows: the site's rows when everything has arrived.
        """
        found = {row[0] or b"": row for row in rows}
        for (key, number), (_, values) in sorted(self.won.items()):
            each, row = self.lists[number], found.get(key)
            there = None if row is None else tuple(row[place] for place in each.columns)
            if each.method != "site_priority" and there != values:
                return (
                    f"row {int.from_bytes(key, 'big')} has {_shown(there)}, but the change that wins by"
                    f" {each.method} left {_shown(values)}"
                )
        known = {key for key, _ in self.won}
        extra = [key for key in found if key not in known]
        return f"no user made row {int.from_bytes(extra[0], 'big')}" if extra else ""


class Contested:
    """The contested tables of a topology.

    Args:
        spec: checked and routed.
        classes: the classes of its tables.
        proof: the proof of its ways.
        seed: decides the contested changes, and nothing else.

    Raises:
        ConfigError: the handlers of a contested table do not make its sites equal.
    """

    def __init__(self, spec: TopologySpec, classes: ChangeClasses, proof: Proof, seed: int) -> None:
        self._rng = random.Random(f"{seed} contested")  # a separate generator: runs without conflicts stay the same
        self.tables: list[ContestedTable] = []
        self.log: dict[str, list[Scn]] = {}
        """By site: the commits of its users that changed contested rows."""
        rule_sets = (*(each.rules for each in spec.captures), *(each.rules for each in spec.applies))
        renamed = {n for rules in rule_sets for n in classes.renamed_by(rules)}
        for owner, name in sorted({table for apply in spec.applies for table in apply.conflicts.tables}):
            bit = classes.class_of(owner, name)
            if is_shaped(spec, TableName(owner, name)) or any(
                classes.class_of(*classes.tables[n]) == bit for n in renamed
            ):
                continue
            writers, sites, applies = _meeting(proof, bit)
            if len(writers) > 1 and sites:
                self.tables.append(
                    _contested(_FIRST_NUMBER + len(self.tables), TableName(owner, name), writers, sites, applies)
                )
        self.names = frozenset(each.key for each in self.tables)

    @property
    def are_timed(self) -> bool:
        """Whether commit times decide the winner in any table."""
        return any(each.times for each in self.tables)

    def create(self, database: SiteDatabase) -> None:
        """Create the tables at a site, with their first rows."""
        for each in self.tables:
            database.create(each.table)
            database.fill(each.table, each.rows_at_first())
            for row in each.rows_at_first():
                for number, columns in enumerate(each.lists):
                    each.won.setdefault(
                        (row[0] or b"", number), ((-1, 0), tuple(row[place] for place in columns.columns))
                    )
        if self.are_timed:
            database.keep_times()

    def changes(self, site: str, database: SiteDatabase) -> list[Change]:
        """Return a user's changes of these tables, to rows of different keys.

        There are none while an apply process has an open transaction at the site, which could block them.

        Args:
            site: the user's site.
            database: its database.
        """
        rng = self._rng
        made: list[Change] = []
        for each in self.tables:
            if site not in each.sites or database.store.locks or rng.random() > _SHARE:
                continue
            rows = {row[0] or b"": row for row in database.store.tables[each.key].rows.values()}
            touched: set[bytes | None] = set()
            for _ in range(rng.randrange(1, _CHANGES_MAX + 1)):
                change = each.change(rng, site, rows)
                keys = {row[0] for row in (change.old, change.new) if row is not None} if change else set()
                if change is not None and not touched & keys:
                    touched |= keys
                    made.append(change)
        return made

    def made(self, site: str, database: SiteDatabase, changes: Sequence[Change]) -> None:
        """Record changes that a user committed.

        Args:
            site: the user's site.
            database: its database, which records when its rows changed.
            changes: the transaction's changes, of any tables.
        """
        last = database.source.log[-1]
        time_us = last.commit_time_us
        for each in self.tables:
            for change in changes:
                if change.table is each.table:
                    self.log.setdefault(site, []).append(Scn(last.commit_scn))
                    each.made(change, site, time_us)
                    if each.times:
                        database.changed(change, time_us)

    def check(self, databases: dict[str, SiteDatabase]) -> None:
        """Check at the end that every site has the same rows, and the right ones.

        Args:
            databases: by site.

        Raises:
            Violation: a site does not.
        """
        for each in self.tables:
            rows = {site: database.store.rows(*each.key) for site, database in databases.items()}
            for site, found in rows.items():
                if problem := each.problem(found):
                    raise Violation(Invariant.CONVERGENCE, site, f"{each.table.qualified_name}: {problem}")
            first, *others = rows
            for other in others:
                if rows[other] != rows[first]:
                    different = next(
                        row for row in (*rows[other], *rows[first]) if (row in rows[other]) != (row in rows[first])
                    )
                    raise Violation(
                        Invariant.CONVERGENCE,
                        other,
                        f"{each.table.qualified_name} differs from {first}: {_shown(different)}",
                    )


def _meeting(proof: Proof, bit: int) -> tuple[tuple[str, ...], tuple[str, ...], tuple[ApplySpec, ...]]:
    """Return the sites that write a class of tables, the sites that have it, and the apply processes between them.

    The sites that have it are empty if any change fails to reach one of them.
    """
    reached: dict[str, set[str]] = {}
    applies: dict[str, ApplySpec] = {}
    for origin in proof.origins:
        pending, there = [(origin, 0)], {origin}
        for site, place in pending:  # the loop appends to the list
            for hop in proof.hops.get(site, ()):
                if hop.carried[place] & bit:
                    applies[hop.apply.name] = hop.apply
                    if hop.site not in there:
                        there.add(hop.site)
                        pending.append((hop.site, hop.place))
        if len(there) > 1:
            reached[origin] = there
    sites = set().union(*reached.values())
    meets = all(there == sites for there in reached.values())
    return tuple(sorted(reached)), tuple(sorted(sites)) if meets else (), tuple(applies.values())


def _contested(
    number: int, name: TableName, writers: tuple[str, ...], sites: tuple[str, ...], applies: Sequence[ApplySpec]
) -> ContestedTable:
    rules = [apply.conflicts.of(*name) for apply in applies]
    handlers = rules[0].handlers
    if any(each.handlers != handlers for each in rules):
        raise ConfigError(
            f"conflict handlers of {name} differ between {' and '.join(apply.name for apply in applies)}: the winner"
            " depends on the site",
            hint="set the same handlers for every apply process",
        )
    times = rules[0].times
    differing = [each for each in handlers if each.kind == "update_differs"]
    writes = _writes(differing, handlers, times, is_pair=len(sites) == 2)
    if not writes:
        raise ConfigError(
            f"conflict handlers of {name} ({', '.join(map(str, handlers))}) do not make {', '.join(sites)} equal when"
            " several of them change a row",
            hint="use handlers of the first table of docs/how/conflicts.md, 'Who converges'; to simulate the ways alone,"
            " simulate the topology without these handlers",
        )
    named = dict.fromkeys(column for each in differing for column in (*each.columns, each.resolution_column) if column)
    columns = tuple(named) if all(each.columns for each in differing) else (*named, *_PLAIN_COLUMNS)
    adds = {column for each in differing if each.method == "delta" for column in each.columns or columns}
    described = (
        Column(name="id", type_name="pg_catalog.int4", is_binary=True),
        *(
            Column(name=each, type_name=f"pg_catalog.{'int4' if each in adds else 'text'}", is_binary=True)
            for each in columns
        ),
    )
    place = {column: number for number, column in enumerate(columns, 1)}
    return ContestedTable(
        table=ShapedTable(
            number,
            name.name,
            ("id", *columns),
            OldImage.FULL,
            owner=name.owner,
            may_truncate=False,
            described=described,
        ),
        lists=tuple(
            _List(
                each.method,
                tuple(place[column] for column in each.columns or columns),
                place.get(each.resolution_column, 0),
            )
            for each in differing
        ),
        writes=writes,
        sites=writers,
        times=times,
    )


def _writes(
    differing: Sequence[ConflictHandler],
    handlers: Sequence[ConflictHandler],
    times: RowTimes | None,
    *,
    is_pair: bool,
) -> tuple[str, ...]:
    """Return what users can do so that these handlers make sites equal; empty: nothing."""
    if times is not None:
        return (
            ("update", "update", "insert", "delete", "move") if times.has_tombstones else ("update", "update", "insert")
        )
    methods = {each.method for each in differing}
    if not methods or not methods <= {*_BY_COLUMN, "delta", *(("site_priority",) if is_pair else ())}:
        return ()
    others = {(each.kind, each.method) for each in handlers if each.kind != "update_differs"}
    if len(differing) == 1 and methods <= set(_BY_COLUMN):
        if others >= set(_DELETE_WINS):
            return ("update", "update", "update", "delete")
        (method,) = methods
        if ("insert_exists", method) in others and (is_pair or ("update_missing", "overwrite") in others):
            return ("update", "update", "insert")
    return ("update",)


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _time(moved: int) -> bytes:
    return str(_TIME_FIRST + moved).zfill(_TIME_DIGITS).encode()


def _shown(row: Row | None) -> str:
    return "nothing" if row is None else ", ".join("NULL" if value is None else repr(value) for value in row)
