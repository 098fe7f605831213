"""Redo logs: a memory source is written into a folder, mined, and compared with its commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.site.asked_names import AskedNames
from headrace.base.clock import VirtualClock
from headrace.base.errors import DatabaseUnavailable
from headrace.databases.memory.log import MemoryLogDecoder
from headrace.databases.memory.source import MemorySource
from headrace.databases.ports import StreamOptions
from headrace.lcr.batch import Command, LcrBatch, OldImage
from headrace.lcr.ddl import DDL_LOG, ddl_of
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from headrace.redo.mining.miner import Miner
from headrace.redo.mining.names import NameOfNow
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import RuleSet, TruthValue
from topology.edits.receivers import Receivers

SOURCE = "dbs1"
TAG = Tag(value=b"\x00", topology="other", apply="apply_from_dbs2")

Row = tuple[str, str, tuple[Any, ...] | None, tuple[Any, ...] | None]
_WORDS = {NULL: "NULL", UNCHANGED: "UNCHANGED", ABSENT: "ABSENT"}


@dataclass(frozen=True)
class Transaction:
    """A transaction as a test compares it: (command, table, old values, new values) per row; for DDL the record."""

    transaction_id: int
    order_scn: int
    commit_scn: int
    tag: Tag | None
    rows: tuple[Row, ...]


def log_writer(folder: Path, source: MemorySource, **settings: Any) -> LogWriter:
    settings = {
        "segment_bytes": 1 << 20,
        "redo_bytes_max": 1 << 30,
        "clock": VirtualClock(),
        "decoder_factory": decoder,
        "dictionary_build": source.dictionary_build,
        **settings,
    }
    return LogWriter(folder, SOURCE, **settings)


def decoder(options: StreamOptions) -> MemoryLogDecoder:
    return MemoryLogDecoder(options)


def miner(folder: Path, start_scn: int = FIRST_SCN, rules: RuleSet | None = None, **settings: Any) -> Miner:
    return Miner(folder, SOURCE, Scn(start_scn), rules or RuleSet(), decoder, **{"clock": VirtualClock(), **settings})


class Names:
    """A capture process's view of its tables' names, asked of a memory source each time.

    In the product this is `headrace.redo.mining.names.NamesAtSource`.

    Args:
        source: the source.
        wanted: the rules of every capture process of the source.
        receivers: the receivers of each table when the topology was prepared.
    """

    def __init__(self, source: MemorySource, wanted: RuleSet, receivers: Receivers | None = None) -> None:
        self.source, self.wanted, self.questions = source, wanted, 0
        self.receivers = receivers or Receivers()
        self.is_captured = True
        self._asked = AskedNames(lambda method: self.receivers if method == "receivers" else self._now())
        self.of_now, self.lost_by, self.forget = self._asked.of_now, self._asked.lost_by, self._asked.forget

    def _now(self) -> dict[int, NameOfNow]:
        self.questions += 1
        return {
            number: NameOfNow(
                identity=t.identity,
                owner=t.owner,
                name=t.name,
                is_wanted=self.wanted.prefilter(t.owner, t.name) is not TruthValue.FALSE,
            )
            for t in self.source.captured("t")
            for number in t.object_numbers
            if self.is_captured
        }


def drain(writer: LogWriter, source: MemorySource, clock: VirtualClock | None = None) -> None:
    """Let the log writer read everything that the source has, over as many streams as necessary."""
    idle = 0
    while idle < 3:
        try:
            if writer.state == "DISABLED":
                writer.attach(source.open_stream("t", writer.start_scn))
            idle = 0 if writer.step(0.0) else idle + 1
        except DatabaseUnavailable:
            writer.detach()
        if clock is not None:
            clock.advance(1.0)


def write_redo(folder: Path, source: MemorySource, **settings: Any) -> LogWriter:
    """Drain `source` into `folder`; return the writer, still open."""
    clock = settings.pop("clock", None) or VirtualClock()
    writer = log_writer(folder, source, clock=clock, **settings)
    drain(writer, source, clock)
    return writer


def mine(miner: Miner, writer: LogWriter, **bounds: int) -> Iterator[LcrBatch]:
    while (batch := miner.next_batch(writer.position, **bounds)) is not None:
        yield batch


# --------------------------------------------------------------------------- what was committed


def committed(source: MemorySource, rules: RuleSet | None = None, after_scn: int = FIRST_SCN) -> list[Transaction]:
    """Return the transactions that a capture process with these rules must send, from the source's own record."""
    rules = rules or RuleSet()
    expected = []
    for transaction in source.log:
        if transaction.order_scn < after_scn:
            continue
        rows = [
            row
            for change in transaction.changes
            if (row := _expected_row(source, change, rules, transaction.tag)) is not None
        ]
        if rows:
            expected.append(
                Transaction(
                    transaction.transaction_id,
                    transaction.order_scn,
                    transaction.commit_scn,
                    transaction.tag,
                    tuple(rows),
                )
            )
    return expected


def _expected_row(source: MemorySource, change: Any, rules: RuleSet, tag: Tag | None) -> Row | None:
    def named(version: Any) -> tuple[str, str]:
        return source.roots.get(version.object_number, (version.owner, version.name))

    def keeps(version: Any) -> bool:
        owner, name = named(version)
        verdict = rules.prefilter(owner, name, tag=None if tag is None else tag.value)
        return owner not in {"headrace", "headrace_ddl"} and verdict is not TruthValue.FALSE

    if change.command is Command.TRUNCATE:
        names = [".".join(named(version)) for version in change.truncated if keeps(version)]
        tables = tuple(dict.fromkeys(names))
        return ("TRUNCATE", "", tables, (change.cascade, change.restart_identity)) if tables else None
    if (change.version.owner, change.version.name) == DDL_LOG:
        ddl = None if change.new is None else ddl_of(change.new[-1])
        is_kept = ddl is not None and rules.keeps_ddl(*ddl.base_table, tag=None if tag is None else tag.value)
        return ("DDL", str(ddl.base_table), (ddl.content,), None) if is_kept else None
    if not keeps(change.version):
        return None
    columns = change.version.columns
    old: tuple[Any, ...] | None = None
    new: tuple[Any, ...] | None = None
    if change.command is not Command.INSERT:
        image = change.version.old_image
        same_key = change.new is not None and all(
            a == b for a, b, c in zip(change.old, change.new, columns, strict=True) if c.is_key
        )
        if image is OldImage.NONE or (image is OldImage.KEY and same_key):
            old = ("ABSENT",) * len(columns)
        else:
            old = tuple(
                "ABSENT" if image is OldImage.KEY and not column.is_key else _word(value)
                for value, column in zip(change.old, columns, strict=True)
            )
    if change.new is not None:
        new = tuple("UNCHANGED" if n in change.unchanged else _word(value) for n, value in enumerate(change.new))
    return change.command.name, ".".join(named(change.version)), old, new


def _word(value: bytes | None) -> bytes | str:
    return "NULL" if value is None else value


# --------------------------------------------------------------------------- contents of batches


def received(batches: Iterable[LcrBatch], start_scn: int = FIRST_SCN) -> list[Transaction]:
    """Join batches as a receiver does; assert the chain and the rules of parts."""
    found: list[Transaction] = []
    position, is_open = start_scn, False
    open_rows: list[Row] = []
    for batch in batches:
        assert batch.previous_scn == position
        assert batch.through_scn >= position
        assert not (batch.continues and not is_open)
        if not batch.continues:
            open_rows = []
        assert batch.first_position == len(open_rows)
        transactions = batch.transactions
        if batch.is_open:
            assert len(transactions) == 1
            assert batch.through_scn == position
        if batch.continues:
            assert len(transactions) == 1
        rows = rows_of(batch)
        for n in range(len(transactions)):
            tag = int(transactions.tag[n])
            of_this = rows[transactions.first_row[n] : transactions.first_row[n + 1]]
            if int(transactions.commit_scn[n]) == 0:
                open_rows += of_this
                continue
            assert int(transactions.commit_scn[n]) <= batch.through_scn
            assert int(transactions.commit_scn[n]) > position
            found.append(
                Transaction(
                    int(transactions.transaction_id[n]),
                    int(transactions.order_scn[n]),
                    int(transactions.commit_scn[n]),
                    batch.tags[tag] if tag >= 0 else None,
                    tuple(open_rows + of_this),
                )
            )
            open_rows = []
        is_open = batch.is_open
        position = batch.through_scn
    return found


def rows_of(batch: LcrBatch) -> list[Row]:
    if batch.ddl is not None:
        assert (batch.row_count, len(batch.transactions)) == (1, 1)
        assert (batch.groups, batch.truncates, batch.tables) == ((), (), ())
        return [("DDL", str(batch.ddl.base_table), (batch.ddl.content,), None)]
    rows: list[Row | None] = [None] * batch.row_count
    for group in batch.groups:
        table = batch.tables[group.table]
        assert list(group.row_numbers) == sorted(group.row_numbers)
        for place, number in enumerate(group.row_numbers):
            assert rows[number] is None
            rows[number] = (
                group.command.name,
                table.qualified_name,
                None if group.old is None else _values(group.old, place),
                None if group.new is None else _values(group.new, place),
            )
    for truncate in batch.truncates:
        assert rows[truncate.row_number] is None
        tables = tuple(batch.tables[table].qualified_name for table in truncate.tables)
        rows[truncate.row_number] = ("TRUNCATE", "", tables, (truncate.cascade, truncate.restart_identity))
    assert None not in rows
    return rows  # type: ignore[return-value]


def _values(values: Any, row: int) -> tuple[Any, ...]:
    found = (values.value(column, row) for column in range(values.column_count))
    return tuple(_WORDS[value] if isinstance(value, int) else value for value in found)


__all__ = [
    "Names",
    "SOURCE",
    "TAG",
    "Transaction",
    "committed",
    "decoder",
    "drain",
    "log_writer",
    "mine",
    "miner",
    "received",
    "rows_of",
    "write_redo",
]
