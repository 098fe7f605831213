"""What users of a simulated topology write: tables that its rules tell apart, and transactions at every site.

Transactions are with and without tags.

Streams
    A stream is what the users of one site do under one tag, or without one. Each stream has its own rows in every
    table. So concurrent changes of one row happen only in tables with conflict handlers
    (`headrace.simulation.contested`), and a table that may be truncated belongs to a single stream.
Tables that rules look into
    Tables whose rows conditions, subsets, transformations and functions read. Their columns and values come from
    `headrace.simulation.observing.shapes`, and `headrace.simulation.observing.expected` follows their changes one by
    one.
Other tables
    Each class of tables that the rules tell apart (`topology.routing.change_classes`) has one ledger. Each transaction
    inserts a row with its number there, and updates one of a few counters to that number. A site's content therefore
    shows which transactions have arrived, and whether dependent transactions arrived in order.
Reach
    The ways of `topology.proof` determine which sites a stream's changes reach, over which apply processes. Anywhere
    else, a single row of them is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.base.errors import ConfigError
from headrace.lcr.batch import Command, OldImage
from headrace.lcr.table_name import TableName
from headrace.rules.user_code.handlers import NO_HANDLERS
from headrace.simulation.contested import Contested
from headrace.simulation.observing.expected import Expected
from headrace.simulation.observing.history import Change, Row, Source, Table
from headrace.simulation.observing.shapes import is_shaped, shape_of
from topology.proof.hops import Hop
from topology.proof.reach import Proof
from topology.routing.change_classes import ChangeClasses
from topology.spec import TopologySpec

__all__ = ["COUNTERS", "Ledger", "Reach", "Stream", "Workload", "ledger_entry", "refuse_unsupported", "stream_of"]

# per stream and class: so few that transactions depend on each other, but enough that groups run in parallel
COUNTERS = 6
_CLASSES_MAX = 3  # classes of tables in one run; other seeds use others
_TAGGED_MAX = 2  # streams with a tag in all: more would not test anything new
_SHAPED_CHANGES = (0, 1, 2, 3, 4, 6)  # per transaction in tables that rules look into: also several of one row
_STREAM_SHIFT, _KIND_SHIFT = 20, 18
_ROWS, _JOURNAL, _COUNTER = 0, 1, 2
LEDGER_COLUMNS = ("id", "v", "big")
_SHAPES: tuple[tuple[str, OldImage, tuple[str, ...], dict[str, bool]], ...] = (
    ("full", OldImage.FULL, ("id", "v", "w"), {}),
    ("twice", OldImage.KEY, ("id", "u", "v"), {"unique": True}),
    ("twice_full", OldImage.FULL, ("id", "u", "v"), {"unique": True}),
    ("history", OldImage.FULL, ("a", "b"), {"keyless": True}),
)


def _key(stream: int, kind: int, number: int) -> bytes:
    return (stream << _STREAM_SHIFT | kind << _KIND_SHIFT | number).to_bytes(4, "big")


def stream_of(key: bytes) -> int:
    """Return the number of the stream that owns a row, from the row's first column."""
    return int.from_bytes(key, "big") >> _STREAM_SHIFT


def ledger_entry(key: bytes) -> tuple[str, int]:
    """Return what a ledger's row is, from its key.

    ("journal", number of a transaction), ("counter", number of a counter) or ("", 0).
    """
    number = int.from_bytes(key, "big")
    kind, rest = number >> _KIND_SHIFT & 3, number & (1 << _KIND_SHIFT) - 1
    return ("journal", rest) if kind == _JOURNAL else ("counter", rest) if kind == _COUNTER else ("", 0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The table of a class in which every transaction leaves an entry.

    Args:
        number: number of the class.
        bit: bit of the class in `ChangeClasses`.
        table: the ledger.
        wide: a table of the class that is altered while it is written; None: the rules leave room for one table only.
        others: other tables of the class, each with the only stream that writes it; None: every stream does.
    """

    number: int
    bit: int
    table: Table
    wide: Table | None
    others: tuple[tuple[Table, int | None], ...]


@dataclass(slots=True)
class Stream:
    """What the users of one site do under one tag.

    Args:
        number: from 1 on.
        site: where it commits.
        tag: tag of its transactions; None: no tag.
        history: its rows.
        committed: by class and transaction: the counter that the transaction updated.
    """

    number: int
    site: str
    tag: bytes | None
    history: Source
    counts: int = 0
    committed: dict[int, dict[int, int]] = field(default_factory=dict)
    wide_rows: dict[str, list[Row]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"users of {self.site}" + ("" if self.tag is None else f" with tag {self.tag.hex()}")


@dataclass(frozen=True, slots=True)
class Reach:
    """The destinations of a stream's changes in one class.

    Args:
        applies: by site reached, the apply processes on the way there.
    """

    applies: dict[str, tuple[str, ...]]


class Workload:
    """Tables and streams of one topology.

    Args:
        spec: checked and routed.
        rng: the simulation's generator.
        seed: the simulation's seed.

    Raises:
        ConfigError: the topology cannot be simulated; `refuse_unsupported` names the reason.
    """

    def __init__(self, spec: TopologySpec, rng: random.Random, seed: int) -> None:
        self._rng = rng
        self._classes = classes = ChangeClasses.of(spec)
        proof = Proof(spec, classes)
        places = {classes.class_of(*table): n for n, table in enumerate(classes.tables)}
        carried = [
            n for bit, n in places.items() if any(_carries(hop, bit) for hops in proof.hops.values() for hop in hops)
        ]
        # A table that these rules rename would arrive under another name at an added destination, which has the rules
        # of one of the file's apply processes.
        rule_sets = (*(each.rules for each in spec.captures), *(each.rules for each in spec.applies))
        renamed = {n for rules in rule_sets for n in classes.renamed_by(rules)}
        left_out = [n for n in places.values() if n not in carried and n not in renamed]
        shaped = [n for n in carried if is_shaped(spec, TableName(*classes.tables[n]))]
        if shaped:
            carried = [n for n in carried if n not in shaped]
            shaped = rng.sample(shaped, min(len(shaped), _CLASSES_MAX))
        self.expected = Expected(
            spec, [shape_of(spec, TableName(*classes.tables[n])) for n in sorted(shaped)], proof.origins
        )
        self.contested = Contested(spec, classes, proof, seed)
        taken = {(owner, name) for _, owner, name in self.expected.tables} | self.contested.names
        # a renamed table already has this name
        carried, left_out = ([n for n in group if classes.tables[n] not in taken] for group in (carried, left_out))
        chosen = sorted(rng.sample(carried, min(len(carried), _CLASSES_MAX)))
        if left_out and rng.random() < 0.7:
            chosen.append(rng.choice(left_out))
        self.streams: list[Stream] = []
        origins: list[tuple[str, bytes | None]] = [(site, None) for site in proof.origins]
        tagged: list[tuple[str, bytes | None]] = [(site, tag) for site in proof.origins for tag in classes.tags[1:]]
        origins += rng.sample(tagged, min(len(tagged), _TAGGED_MAX))
        # otherwise rows with a new column are errors
        waits_for_alter = all(apply.tables.column_mismatch == "wait" for apply in spec.applies)
        self.ledgers = [
            _ledger(classes, number, place, len(origins), is_altered=waits_for_alter)
            for number, place in enumerate(chosen)
        ]
        for number, (site, tag) in enumerate(origins, 1):
            mine = [t for ledger in self.ledgers for t, writer in ledger.others if writer in {None, number}]
            stream = Stream(number, site, tag, Source(rng, mine, first_key=number << _STREAM_SHIFT))
            stream.committed = {ledger.number: {} for ledger in self.ledgers}
            self.streams.append(stream)
        self._by_number = {stream.number: stream for stream in self.streams}
        self.wide_columns = {ledger.wide.place: 1 for ledger in self.ledgers if ledger.wide}

    def stream(self, number: int) -> Stream:
        """Return a stream by its number."""
        return self._by_number[number]

    @property
    def tables(self) -> Iterator[Table]:
        """All tables."""
        for ledger in self.ledgers:
            yield ledger.table
            yield from (table for table, _ in ledger.others)
            if ledger.wide is not None:
                yield ledger.wide

    @property
    def copies_rows(self) -> bool:
        """Whether a copy of each table equals the result of its changes.

        For contested rows, the change times of copied rows are unknown.
        """
        return self.expected.copies_rows and not self.contested.tables

    def ledger_of(self, owner: str, name: str) -> Ledger | None:
        """Return the ledger with this name; None: the table is not a ledger.

        Args:
            owner: its schema.
            name: its name.
        """
        return next((each for each in self.ledgers if (each.table.owner, each.table.name) == (owner, name)), None)

    def class_number(self, owner: str, name: str) -> int:
        """Return the number of a table's class.

        Args:
            owner: its schema.
            name: its name.
        """
        bit = self._classes.class_of(owner, name)
        return next(ledger.number for ledger in self.ledgers if ledger.bit == bit)

    def reach(self, spec: TopologySpec) -> dict[tuple[int, int], Reach]:
        """Return the reach of each stream and class under a version of the topology.

        Args:
            spec: routed; its rules tell the same tables apart as those of the first version.

        Returns:
            By stream number and class number.
        """
        classes = ChangeClasses.of(spec)
        proof = Proof(spec, classes)
        found = {}
        for stream in self.streams:
            for ledger in self.ledgers:
                bit = classes.class_of(ledger.table.owner, ledger.table.name)
                applies: dict[str, tuple[str, ...]] = {}
                start = (stream.site, classes.place_of(stream.tag) if stream.tag is not None else 0)
                pending: list[tuple[tuple[str, int], tuple[str, ...]]] = [(start, ())]
                for (site, place), path in pending:  # the loop appends to the list
                    for hop in proof.hops.get(site, ()):
                        if hop.carried[place] & bit and hop.site != stream.site and hop.site not in applies:
                            applies[hop.site] = (*path, hop.apply.name)
                            pending.append(((hop.site, hop.place), applies[hop.site]))
                found[stream.number, ledger.number] = Reach(applies)
        return found

    def next_transaction(self, stream: Stream, *, is_last: bool = False) -> list[Change]:
        """Make the next transaction of a stream, to be committed unchanged.

        Args:
            stream: one of `streams`.
            is_last: whether it may be small.
        """
        rng, history = self._rng, stream.history
        stream.counts += 1
        number = stream.counts
        kind = rng.random()
        # Half of the transactions depend on their counter only, so that groups run in parallel.
        size = 0 if kind < 0.5 or is_last else rng.randrange(1, 5) if kind < 0.9 else rng.randrange(12, 30)
        chosen = [ledger for ledger in self.ledgers if rng.random() < 0.7] or (
            [rng.choice(self.ledgers)] if self.ledgers else []
        )
        if number == 1:
            chosen = self.ledgers
        changes = list(history.transaction(number, size).changes)
        for ledger in chosen:
            if (
                ledger.wide is not None
                and ledger.wide.number % len(self.streams) + 1 == stream.number
                and rng.random() < 0.3
            ):
                changes.append(self._widen(stream, ledger.wide, number))
            changes += self._entries(stream, ledger, number)
        if self.expected.tables:
            made = [
                self.expected.next_change(rng, stream.site, stream.tag, stream.number, number)
                for _ in range(rng.choice(_SHAPED_CHANGES))
            ]
            changes += [each for each in made if each is not None]
        return changes

    def _widen(self, stream: Stream, wide: Table, number: int) -> Change:
        row: Row = (_key(stream.number, _ROWS, number), *(b"w",) * self.wide_columns[wide.place])
        stream.wide_rows.setdefault(wide.place, []).append(row)
        return Change(_with_columns(wide, len(row) - 1), Command.INSERT, new=row)

    def _entries(self, stream: Stream, ledger: Ledger, number: int) -> Iterator[Change]:
        table, counters = ledger.table, range(COUNTERS)
        if number == 1:
            for counter in counters:
                yield Change(table, Command.INSERT, new=(_key(stream.number, _COUNTER, counter), b"0", None))
        yield Change(table, Command.INSERT, new=(_key(stream.number, _JOURNAL, number), b"n", None))
        counter = self._rng.choice(counters)
        before = max((n for n, c in stream.committed[ledger.number].items() if c == counter), default=0)
        key = _key(stream.number, _COUNTER, counter)
        yield Change(
            table, Command.UPDATE, old=(key, str(before).encode(), None), new=(key, str(number).encode(), None)
        )
        stream.committed[ledger.number][number] = counter

    def counter_key(self, stream: int, counter: int) -> bytes:
        """Return the key of a counter's row in a ledger."""
        return _key(stream, _COUNTER, counter)

    def alter(self, table: Table) -> str:
        """Return the name of the next column of a wide table; from now on rows have it."""
        self.wide_columns[table.place] += 1
        return f"c{self.wide_columns[table.place] - 1}"

    def rows_of(self, stream: Stream, table: Table, ledger: Ledger) -> list[Row]:
        """Return a stream's rows of a table after all of its commits.

        Args:
            stream: one of `streams`.
            table: a table of the ledger's class.
            ledger: the ledger of that class.
        """
        if table is ledger.table:
            moved = stream.committed[ledger.number]
            last = {counter: number for number, counter in sorted(moved.items())}
            rows: list[Row] = [(_key(stream.number, _JOURNAL, n), b"n", None) for n in moved]
            return rows + [
                (_key(stream.number, _COUNTER, c), str(last.get(c, 0)).encode(), None)
                for c in range(COUNTERS)
                if stream.counts
            ]
        if table is ledger.wide:
            width = self.wide_columns[table.place] + 1
            return [(*row, *(None,) * (width - len(row))) for row in stream.wide_rows.get(table.place, [])]
        return list(stream.history.rows.get(table.place, []))


def _with_columns(wide: Table, columns: int) -> Table:
    return Table(
        wide.number,
        wide.name,
        ("id", *(f"c{n}" for n in range(columns))),
        wide.old_image,
        owner=wide.owner,
        may_truncate=False,
    )


def _carries(hop: Hop, bit: int) -> bool:
    return any(tables & bit for tables in hop.carried)


def _ledger(classes: ChangeClasses, number: int, place: int, streams: int, *, is_altered: bool) -> Ledger:
    """Return a class's tables: its example is the ledger; longer names that the rules treat alike are the others."""
    owner, name = classes.tables[place]
    bit = classes.class_of(owner, name)
    first = 10 * number + 1
    ledger = Table(first, name, LEDGER_COLUMNS, OldImage.KEY, owner=owner, may_truncate=False)

    def is_alike(suffix: str) -> bool:
        return classes.class_of(owner, f"{name}_{suffix}") == bit

    others: list[tuple[Table, int | None]] = []
    if is_alike("plain"):
        others.append(
            (Table(first + 1, f"{name}_plain", ("id", "v", "big"), OldImage.KEY, owner=owner, may_truncate=False), None)
        )
    for index, (suffix, image, columns, traits) in enumerate(_SHAPES):
        if is_alike(suffix):
            table = Table(first + 2 + index, f"{name}_{suffix}", columns, image, owner=owner, **traits)  # type: ignore[arg-type]
            others.append((table, (number + index) % streams + 1))
    wide = (
        Table(first + 8, f"{name}_wide", ("id", "c0"), OldImage.KEY, owner=owner, may_truncate=False)
        if is_altered and is_alike("wide")
        else None
    )
    return Ledger(number, bit, ledger, wide, tuple(others))


def _refuse_of_applies(spec: TopologySpec) -> None:
    for apply in spec.applies:
        if apply.handlers != NO_HANDLERS:
            raise ConfigError(
                f"applies.{apply.name}: handlers are not simulated: their statements and procedures run SQL at the"
                " destination, and in-memory databases have no SQL",
                hint="simulate the topology without dml_handlers, error_handlers and precommit_handler: the ways are"
                " the same",
            )


def refuse_unsupported(spec: TopologySpec) -> None:
    """Refuse a topology that cannot be simulated.

    Args:
        spec: checked and routed.

    Raises:
        ConfigError: names the part of the file and the reason.
    """
    if not spec.applies or not spec.captures:
        raise ConfigError(
            f"{spec.file}: nothing to simulate: no apply process receives the changes of a capture process",
            hint="a simulation needs at least one way from a capture process to an apply process; see `headrace plan`",
        )
    for capture in spec.captures:
        if capture.mode == "archived_log":
            raise ConfigError(
                f"captures.{capture.name}: capture of archived logs is not simulated yet",
                hint="simulate the topology with mode: real_time",
            )
        if capture.rules.names_ddl:
            raise ConfigError(
                f"captures.{capture.name}: DDL is not simulated yet",
                hint="simulate the topology without ddl: true: rows take the same ways",
            )
    _refuse_of_applies(spec)
    proof = Proof(spec)
    Contested(spec, proof.classes, proof, 0)
    for table in proof.classes.tables:
        if is_shaped(spec, TableName(*table)):
            shape_of(spec, TableName(*table))
    if not proof.hops:
        raise ConfigError(
            f"{spec.file}: nothing to simulate: no change reaches any apply process", hint="see `headrace plan`"
        )
    for origin in proof.origins:
        for place, tag in enumerate(proof.classes.tags):
            for site, there in proof.arrived((origin, place)).items():
                if there.twice or there.endless or (site == origin and there.once):
                    example = proof.classes.example(there.twice or there.endless or there.once)
                    raise ConfigError(
                        f"{spec.file}: changes of {example} made at"
                        f" {origin}{'' if tag is None else f' with tag {tag.hex()}'} arrive at {site} more than once: a"
                        " simulation would report only conflicts",
                        hint="fix what `headrace check` reports, or remove `allow_cycle`",
                    )
