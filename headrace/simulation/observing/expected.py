"""Expected rows, at every site, of the tables that rules look into.

They follow from the sources' history, change by change, independently of the pipeline.

Every change of a user is followed along all ways at once (`headrace.simulation.observing.reference`), from site to
site, under the tag of each apply process. A change that would conflict at any site is not made. A user can make
histories that the topology cannot follow, because `where` can skip a row's INSERT (docs/reference/rules.md: subsets exist for
this). Each stream writes its own rows, so the order of streams does not matter.

Every state that a row must go through is kept. A commit at a site is right when each of its rows is in the same state
as before or in a later one. Nothing is lost when each row is in the state of its last change below the low watermark,
or in a later one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.base.errors import ConfigError
from headrace.databases.memory.store import Row, StoredTable
from headrace.lcr.batch import Column, Command
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import AddColumn, RenameColumn, TransformationError
from headrace.simulation.observing.history import Change, Table
from headrace.simulation.observing.reference import RowChange, evaluated, followed
from headrace.simulation.observing.shapes import Shape, ShapedTable
from topology.routing.ways import ways_to
from topology.spec import TopologySpec

__all__ = ["Arrival", "Expected", "SiteTable"]

_FIRST_NUMBER = 1000  # object numbers of these tables: those of the other tables are lower
_KEYS = 8  # of a stream in a table: few, so that changes depend on each other
_STREAM_KEYS = 1000  # size of a stream's range of keys: more than `_KEYS`
_TRIES = 8  # attempts to find a change that conflicts nowhere
_UNCHANGED_SHARE = 0.3  # of the updates: the log lacks the large values that they do not change
_HOPS_MAX = 20  # of a change: more than the sites in a row of any topology; `check` refuses cycles

Key = tuple[str, str, str]
"""Site, schema and name of a table."""


@dataclass(slots=True)
class SiteTable:
    """A table at a site.

    Args:
        table: the table as its database has it.
        now: columns that get the current time: these differ at every site.
        rows: by key, the row that must be there when everything has arrived.
        states: by key, every state that the row must go through; None: the row is absent. The first state is absence.
        tags: by key, the tag under which the row's changes are made here.
        streams: by key, the stream that owns the row.
    """

    table: ShapedTable
    now: frozenset[str] = frozenset()
    rows: dict[bytes, Row] = field(default_factory=dict)
    states: dict[bytes, list[Row | None]] = field(default_factory=dict)
    tags: dict[bytes, bytes | None] = field(default_factory=dict)
    streams: dict[bytes, int] = field(default_factory=dict)

    def comparable(self, row: Row | None) -> Row | None:
        """Return a row without the values that differ from site to site."""
        if row is None or not self.now:
            return row
        return tuple(None if name in self.now else value for name, value in zip(self.table.columns, row, strict=True))

    def row_at(self, stored: StoredTable, key: bytes) -> Row | None:
        """Return a row as a database has it now; None: it is absent.

        Args:
            stored: the table there.
            key: the row's key.
        """
        number = stored.unique[0].get((key,))
        return None if number is None else self.comparable(stored.rows[number])


@dataclass(frozen=True, slots=True)
class Arrival:
    """A change that must arrive at a site.

    Args:
        apply: the apply process at the end of its last way.
        place: the table.
        key: the row's key.
        state: index of the resulting state among the row's states.
        stream: the stream that made the change.
        transaction: number of the transaction in the stream.
    """

    apply: str
    place: Key
    key: bytes
    state: int
    stream: int
    transaction: int


class _Conflict(Exception):  # noqa: N818 - not an error: the change is not made
    pass


@dataclass(slots=True)
class _Trial:
    """A change that is being followed but not made yet: what it leaves in each table."""

    rows: dict[tuple[Key, bytes], Row | None] = field(default_factory=dict)
    # table, key, row, tag, apply process, source
    made: list[tuple[Key, bytes, Row | None, bytes | None, str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Way:
    clients: tuple[RuleSet, ...]
    source: str
    site: str
    apply: str
    tag: bytes | None


class Expected:
    """The expected tables of all sites.

    Args:
        spec: a routed topology.
        shapes: shapes of the tables that users write.
        origins: the sites where users write them.

    Raises:
        ConfigError: a transformation cannot be applied to a table.
    """

    def __init__(self, spec: TopologySpec, shapes: Sequence[Shape], origins: Iterable[str]) -> None:
        self._shapes = {shape.table: shape for shape in shapes}
        self._ways = _ways_of(spec)
        self.tables: dict[Key, SiteTable] = {}
        self._arrivals: list[Arrival] = []
        self.log: dict[str, list[tuple[Scn, tuple[Arrival, ...]]]] = {}
        """By site: the arrivals of each transaction in its log, in ascending order of commit SCNs."""
        self.copies_rows = not any(
            _picks(rule)
            for way in self._ways
            for rules in way.clients
            for rule in (*(rules.include or ()), *rules.exclude)
        )
        """Whether a copy of a table equals the result of its changes: not so when rules let single changes pass."""
        columns: dict[Key, dict[str, Column]] = {}
        for site in origins if shapes else ():
            for shape in shapes:
                columns[site, *shape.table] = {column.name: column for column in shape.columns}
        self._origins = frozenset(columns)
        self._build(columns)

    def _build(self, columns: dict[Key, dict[str, Column]]) -> None:
        """Build the tables of every site: those written there and those that arrive there."""
        now = {place: set(table.now) for place, table in self.tables.items()}
        images = {
            key: self.tables[key].table.old_image if key in self.tables else self._shapes[TableName(*key[1:])].image
            for key in columns
        }
        pending = list(columns)
        for key in pending:  # the loop appends to the list
            for way in [each for each in self._ways if each.source == key[0]]:
                for place, arriving, times in _arriving(
                    way, TableName(*key[1:]), tuple(columns[key].values()), now.get(key, set())
                ):
                    there = columns.setdefault(place, {})
                    if arriving.keys() - there.keys():
                        there |= {name: column for name, column in arriving.items() if name not in there}
                        now.setdefault(place, set()).update(times)
                        images.setdefault(place, images[key])
                        pending.append(place)
        for number, (place, found) in enumerate(columns.items(), len(self.tables)):
            if place not in self.tables:
                self.tables[place] = SiteTable(
                    ShapedTable(
                        _FIRST_NUMBER + number,
                        place[2],
                        tuple(found),
                        images[place],
                        owner=place[1],
                        may_truncate=False,
                        described=tuple(found.values()),
                    ),
                    frozenset(now.get(place, ())),
                )

    # ------------------------------------------------------------------ tables

    def at(self, site: str) -> Iterator[tuple[Key, SiteTable]]:
        """Return the tables of a site."""
        return ((place, table) for place, table in self.tables.items() if place[0] == site)

    def find(self, site: str, owner: str, name: str) -> SiteTable | None:
        """Return one of these tables; None: no rule looks into it.

        Args:
            site: the site.
            owner: schema of the table.
            name: name of the table.
        """
        return self.tables.get((site, owner, name))

    def follow(self, spec: TopologySpec) -> None:
        """Follow an edit of the file that adds a destination, whose tables are copied, or removes one.

        Args:
            spec: the routed topology.
        """
        self._ways = _ways_of(spec)
        sites = {site.name for site in spec.sites}
        self.tables = {place: table for place, table in self.tables.items() if place[0] in sites}
        known = set(self.tables)
        self._build(
            {place: dict(zip(t.table.columns, t.table.described, strict=True)) for place, t in self.tables.items()}
        )
        for place in self.tables.keys() - known:
            for way in [each for each in self._ways if each.site == place[0]]:
                # Changes from other sites may still be in flight to the source. The copy then lacks them, and they
                # arrive afterwards, state by state.
                is_behind = any(each.site == way.source for each in self._ways)
                for (_, owner, name), source in list(self.at(way.source)):
                    for key, states in source.states.items():
                        last = source.rows.get(key)
                        self._copy_states(
                            place, way, owner, name, source, key, [*(states[1:-1] if is_behind else ()), last]
                        )

    def _copy_states(
        self, place: Key, way: _Way, owner: str, name: str, source: SiteTable, key: bytes, states: Sequence[Row | None]
    ) -> None:
        """Let a row of a new table go through the states of the row that it is copied from.

        Do nothing if no state of that row arrives there.
        """
        found = [
            None
            if row is None
            else next(
                (made for copied, made in self._copied(way, owner, name, source, key, row) if copied == place), None
            )
            for row in states
        ]
        for made in found if any(made is not None for made in found) else ():
            self._set(place, key if made is None else self._key_of(place, made), made, way.tag, source.streams[key])

    def copied(self, apply: str, table: Table, rows: Iterable[Row]) -> Iterator[tuple[Key, Row]]:
        """Return the rows that a copy of a source's rows has at a destination: those whose changes arrive there.

        Args:
            apply: the apply process.
            table: the source's table.
            rows: its rows.
        """
        for way in [each for each in self._ways if each.apply == apply]:
            source = self.tables[way.source, table.owner, table.name]
            for row in rows:
                assert row[0] is not None
                yield from self._copied(way, table.owner, table.name, source, row[0], row)

    def _copied(
        self, way: _Way, owner: str, name: str, source: SiteTable, key: bytes, row: Row
    ) -> Iterator[tuple[Key, Row]]:
        table = source.table
        change = RowChange(
            owner=owner,
            name=name,
            columns=table.described,
            command=Command.INSERT,
            new=dict(zip(table.columns, row, strict=True)),
        )
        for each in _through(way, change, source.tags.get(key)):
            assert each.new is not None
            place = way.site, each.owner, each.name
            yield place, tuple(each.new.get(name) for name in self.tables[place].table.columns)

    def _key_of(self, place: Key, row: Row) -> bytes:
        """Return the key of a row: its first column."""
        assert row[0] is not None, place
        return row[0]

    def _set(self, place: Key, key: bytes, row: Row | None, tag: bytes | None, stream: int) -> int:
        table = self.tables[place]
        if row is None:
            table.rows.pop(key, None)
        else:
            table.rows[key] = row
        table.tags[key], table.streams[key] = tag, stream
        states = table.states.setdefault(key, [None])
        states.append(table.comparable(row))
        return len(states) - 1

    # ------------------------------------------------------------------ what users do

    def next_change(
        self, rng: random.Random, site: str, tag: bytes | None, stream: int, transaction: int
    ) -> Change | None:
        """Make a change that conflicts nowhere and record its arrivals; None: no such change was found.

        Args:
            rng: random source.
            site: the user's site.
            tag: the transaction's tag.
            stream: the user's stream.
            transaction: number of the transaction in the stream.
        """
        mine = [place for place in self._origins if place[0] == site]
        for _ in range(_TRIES if mine else 0):
            place = rng.choice(sorted(mine))
            shape, table = self._shapes[TableName(*place[1:])], self.tables[place]
            change = _random_change(rng, shape, table, stream)
            if change is None or change.old == change.new:
                continue
            trial = _Trial()
            try:
                self._try(trial, place, tag, change)
            except _Conflict:
                continue
            for where, key, row, left, apply, source in trial.made:
                state = self._set(where, key, row, left, stream)
                if source == site:
                    self._arrivals.append(Arrival(apply, where, key, state, stream, transaction))
            return change
        return None

    def committed(self, site: str, scn: Scn) -> None:
        """Record that the changes made since the last call are in a site's log as one transaction.

        Args:
            site: the site.
            scn: commit SCN.
        """
        if self._arrivals:
            self.log.setdefault(site, []).append((scn, tuple(self._arrivals)))
            self._arrivals = []

    def _try(self, trial: _Trial, place: Key, tag: bytes | None, change: Change) -> None:
        """Follow a change to every site.

        Raises:
            _Conflict: it would conflict at a site.
        """
        described = self.tables[place].table.described
        names = [column.name for column in described]
        first = RowChange(
            owner=place[1],
            name=place[2],
            columns=described,
            command=change.command,
            old=None if change.old is None else dict(zip(names, change.old, strict=True)),
            new=None if change.new is None else dict(zip(names, change.new, strict=True)),
        )
        pending = [(place[0], tag, self._arrive(trial, place[0], first, tag, "", ""), 0)]
        for site, left, here, hops in pending:  # the loop appends to the list
            for way in [each for each in self._ways if each.source == site] if hops < _HOPS_MAX else ():
                for arriving in _through(way, here, left):
                    there = self._arrive(trial, way.site, arriving, way.tag, way.apply, site)
                    pending.append((way.site, way.tag, there, hops + 1))

    def _arrive(
        self, trial: _Trial, site: str, change: RowChange, tag: bytes | None, apply: str, source: str
    ) -> RowChange:
        """Apply a change to a site's table; return the change as that site's log then has it."""
        place = site, change.owner, change.name
        table = self.tables[place]
        names = table.table.columns
        old_key, new_key = (None if image is None else image.get(names[0]) for image in (change.old, change.new))
        before = after = None
        if change.old is not None:
            before = self._row(trial, place, old_key)
            if before is None or any(
                name in names and name not in table.now and before[names.index(name)] != value
                for name, value in change.old.items()
            ):
                raise _Conflict
        if change.new is not None:
            if new_key is None or (new_key != old_key and self._row(trial, place, new_key) is not None):
                raise _Conflict
            kept = dict(zip(names, before, strict=True)) if before is not None else {}
            after = tuple({**kept, **change.new}.get(name) for name in names)
        for key, row in {old_key: None, new_key: after}.items():
            if key is not None:
                trial.rows[place, key] = row
                trial.made.append((place, key, row, tag, apply, source))
        return RowChange(
            owner=change.owner,
            name=change.name,
            columns=table.table.described,
            command=change.command,
            old=None if before is None else dict(zip(names, before, strict=True)),
            new=None if after is None else dict(zip(names, after, strict=True)),
        )

    def _row(self, trial: _Trial, place: Key, key: bytes | None) -> Row | None:
        if key is None:
            return None
        return trial.rows[place, key] if (place, key) in trial.rows else self.tables[place].rows.get(key)


def _ways_of(spec: TopologySpec) -> list[_Way]:
    return [
        _Way(tuple(client.rules for client in way.clients), apply.source, apply.site, apply.name, apply.tag)
        for apply in spec.applies
        for way in ways_to(spec, apply)
    ]


def _picks(rule: Rule) -> bool:
    """Return whether a rule may let some changes of a row pass and discard others."""
    custom = None if rule.transformation is None else rule.transformation.custom
    return rule.condition is not None or (custom is not None and custom.is_at_capture)


def _through(way: _Way, change: RowChange, tag: bytes | None) -> list[RowChange]:
    """Return the changes that arrive at the end of a way."""
    found = [change]
    for rules in way.clients:
        found = [made for each in found for made in evaluated(rules, each, tag, way.source)]
    return found


def _arriving(
    way: _Way,
    table: TableName,
    columns: tuple[Column, ...],
    now: set[str],
) -> Iterator[tuple[Key, dict[str, Column], set[str]]]:
    """Yield a table as it arrives at the end of a way, if it does, and its columns that hold the time."""
    change = RowChange(
        owner=table.owner,
        name=table.name,
        columns=columns,
        command=Command.INSERT,
        new=dict.fromkeys(c.name for c in columns),
    )
    times = set(now)
    for rules in way.clients:
        if not rules.keeps(change.owner, change.name):
            return
        try:
            made = rules.transformation_of(change.owner, change.name)
            if made is None:
                continue
            made.shape([column.name for column in change.columns], table=f"{change.owner}.{change.name}")
        except TransformationError as error:
            raise ConfigError(f"{way.apply}: {error.message}", hint=error.hint) from error
        for step in made.operations:
            if isinstance(step, AddColumn) and step.is_now:
                times.add(step.name)
            elif isinstance(step, RenameColumn) and step.before in times:
                times = times - {step.before} | {step.after}
            (change,) = followed(type(made)(operations=(step,)), change, way.source)
    # In the order of the source's columns, so that the key comes first.
    yield (way.site, change.owner, change.name), {column.name: column for column in change.columns}, times


def _random_change(rng: random.Random, shape: Shape, table: SiteTable, stream: int) -> Change | None:
    """Return a change that the stream's user can make in the table of its site."""
    keys = [_key(shape, stream, number) for number in range(_KEYS)]
    there = [key for key in keys if key in table.rows]
    free = [key for key in keys if key not in table.rows]
    made, kind = table.table, rng.random()
    if free and (kind < 0.35 or not there):
        return Change(made, Command.INSERT, new=_row(rng, shape, made, rng.choice(free)))
    if not there:
        return None
    old = table.rows[rng.choice(there)]
    assert old[0] is not None
    if kind < 0.5:
        return Change(made, Command.DELETE, old=old)
    drawn = _row(rng, shape, made, rng.choice(free) if free and rng.random() < 0.15 else old[0])
    new = (
        drawn[0],
        *(after if rng.random() < 0.6 else before for before, after in zip(old[1:], drawn[1:], strict=True)),
    )
    unchanged: frozenset[int] = frozenset()
    if shape.may_leave_alone and rng.random() < _UNCHANGED_SHARE:
        unchanged = frozenset(
            place for place in range(1, len(new)) if old[place] == new[place] and new[place] is not None
        )
    return Change(made, Command.UPDATE, old=old, new=new, unchanged=unchanged)


def _key(shape: Shape, stream: int, number: int) -> bytes:
    found = stream * _STREAM_KEYS + number
    return str(found).encode() if shape.key.type_name != "pg_catalog.text" else f"k{found}".encode()


def _row(rng: random.Random, shape: Shape, table: ShapedTable, key: bytes) -> Row:
    return (key, *(rng.choice(shape.values[name]) if name in shape.values else None for name in table.columns[1:]))
