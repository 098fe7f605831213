"""An in-memory database that can be a source: tables, transactions with commit SCNs, a log with its own byte format.

Longer than 500 lines: it has the port's methods, and the user's side that tests drive.

For unit tests and simulations, verified by the same contract suite as the real connectors. It behaves like the real one
where capture could notice a difference. Transactions are sent whole and in commit order. Table descriptions are sent
once per stream and after every change of a table. A break in mid-transaction makes the next stream send the transaction
again. Confirmed log is gone. Values are bytes in text form unless a column says otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.base.errors import ConfigError, DatabaseUnavailable, LogGone
from headrace.databases.memory.ddl_log import MemoryDdlLog, altered, created, dropped
from headrace.databases.memory.log import Change, Committed, Row, frames_of, is_truncate
from headrace.databases.memory.source_table import MemoryTable
from headrace.databases.ports import (
    CapturedTable,
    ComputedColumn,
    DictionaryBuild,
    DictionaryTable,
    Finding,
    LogChunk,
    LoggedTable,
    LogNeed,
    MissedDdl,
    PlannedStatement,
    RowMark,
    SourceTable,
    StreamOptions,
    TableShape,
)
from headrace.databases.timelines import check_timeline
from headrace.lcr.batch import Column, Command, OldImage, TableVersion
from headrace.lcr.scn import FIRST_SCN, ObjectNumber, Scn, scn_text
from headrace.lcr.table_name import TableName, quoted
from headrace.lcr.tags import Tag
from headrace.rules.rule import RuleSet

__all__ = ["MemoryLogStream", "MemorySnapshot", "MemorySource", "MemoryTransaction"]

Value = bytes | str | None

GULP_BYTES_DEFAULT = 65536  # size of one read, like the real one
MARKER_PREFIX = "headrace.marker"
_FIRST_OBJECT_NUMBER = 16384  # numbers below belong to system tables in the imitated database
_FIRST_ROOT_NUMBER = 1 << 20  # of partitioned tables, which store no rows
_SCN_STEP = 8  # SCNs are byte positions in the real log: records have a length
_START_US = 1_700_000_000_000_000  # commit times move by a millisecond per transaction from here


# --------------------------------------------------------------------------- the database


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """An in-memory `headrace.databases.ports.Snapshot`. `rows`: contents of every table by qualified name, sorted."""

    scn: Scn
    name: str
    rows: Mapping[str, tuple[Row, ...]]
    source: MemorySource = field(repr=False, compare=False)

    def is_captured(self) -> bool:
        """See `headrace.databases.ports.Snapshot.is_captured`."""
        return self.source.confirmed_scn >= self.scn

    def close(self) -> None:
        """See `headrace.databases.ports.Snapshot.close`."""


class MemoryTransaction:
    """One transaction in progress; created by `MemorySource.transaction`."""

    def __init__(self, source: MemorySource) -> None:
        self._source = source
        self.labels: list[str] = []  # of a tracked transaction; see `headrace.lcr.tracking`
        self._changes: list[Change] = []
        self._undo: list[Callable[[], None]] = []

    def insert(self, table: str, /, **values: Value) -> None:
        """Insert a row; unnamed columns are NULL."""
        target = self._source.table(table)
        row = tuple(_bytes(values.pop(column.name, None)) for column in target.version.columns)
        _nothing_left(table, values)
        if any(column.is_key for column in target.version.columns) and target.key_of(row) in target.rows:
            raise ConfigError(f"duplicate key in {table}")
        target.add(row)
        self._undo.append(lambda: target.remove(row))
        self._log(target, Change(command=Command.INSERT, version=target.version, new=row))

    def update(
        self, table: str, key: Mapping[str, Value], /, *, unchanged: Sequence[str] = (), **values: Value
    ) -> None:
        """Change the row that `key` finds.

        Args:
            table: qualified name.
            key: values of the key columns; for a table without a key, of all columns.
            unchanged: unchanged columns whose values the log omits.
            values: new values.
        """
        target = self._source.table(table)
        old = self._find(target, key)
        names = [column.name for column in target.version.columns]
        new = tuple(
            _bytes(values.pop(name)) if name in values else value for name, value in zip(names, old, strict=True)
        )
        _nothing_left(table, values)
        left_alone = frozenset(names.index(name) for name in unchanged)
        if any(old[place] != new[place] or old[place] is None for place in left_alone):
            raise ConfigError(f"a column of {table} was changed, or is NULL: it cannot be UNCHANGED")
        is_keyed = any(column.is_key for column in target.version.columns)
        if is_keyed and target.key_of(new) != target.key_of(old) and target.key_of(new) in target.rows:
            raise ConfigError(f"duplicate key in {table}")
        target.remove(old)
        target.add(new)
        self._undo += [lambda: target.remove(new), lambda: target.add(old)][::-1]
        self._log(
            target, Change(command=Command.UPDATE, version=target.version, old=old, new=new, unchanged=left_alone)
        )

    def delete(self, table: str, key: Mapping[str, Value]) -> None:
        """Delete the row that `key` finds; the first of several equal ones.

        Args:
            table: qualified name.
            key: values of the key columns; for a table without a key, of all columns.

        Raises:
            ConfigError: no such table or row.
        """
        target = self._source.table(table)
        old = self._find(target, key)
        target.remove(old)
        self._undo.append(lambda: target.add(old))
        self._log(target, Change(command=Command.DELETE, version=target.version, old=old))

    def truncate(self, *tables: str, cascade: bool = False, restart_identity: bool = False) -> None:
        """Truncate tables together.

        Args:
            tables: qualified names, at least one; partitions too. All travel in one TRUNCATE.
            cascade: the flag in the LCR; no other table is truncated here.
            restart_identity: the flag in the LCR; sequences do not exist here.
        """
        targets = [self._source.table(table) for table in tables]
        for target in targets:
            rows, target.rows = target.rows, {}
            target.file += 1
            self._undo.append(lambda target=target, rows=rows: setattr(target, "rows", rows))  # type: ignore[misc]
        logged = [target.version for target in targets if target.is_logged]
        if logged:
            self._changes.append(
                Change(
                    command=Command.TRUNCATE,
                    version=logged[0],
                    cascade=cascade,
                    truncated=tuple(logged),
                    restart_identity=restart_identity,
                )
            )

    def _log(self, target: MemoryTable, change: Change) -> None:
        if target.is_logged:
            self._changes.append(change)

    # ------------------------------------------------------------------ DDL, as a source records it

    def create_table(
        self, name: str, columns: Sequence[str | Column], *, key: Sequence[str] = (), why_not: str = ""
    ) -> ObjectNumber:
        """CREATE TABLE; the log of DDL has it at its place, the log the rows, if rules with DDL take the table.

        Args:
            name: qualified name.
            columns: as for `MemorySource.create_table`.
            key: names of the key columns.
            why_not: why rules take it in vain, so that its rows are not in the log; empty: they are.
        """
        source = self._source
        if source.has_table(name):
            raise ConfigError(f"there is a table {name}")
        target = source.new_table(name, columns, key=key)
        takers = source.takers(target)
        number = target.version.object_number
        target.is_made, target.is_logged = bool(takers) and not why_not, not takers or not why_not
        identities = {} if why_not else dict.fromkeys(takers, source.identity_of(number))
        made = {"identities": identities, "why_not": why_not, "sequences": {}} if takers else None
        self._undo.append(lambda: source.remove_table(name))
        self.log_ddl(created(target, f"CREATE TABLE {target.name_in_sql}", made), number)
        return number

    def drop_table(self, name: str) -> None:
        """DROP TABLE; the log of DDL has it at its place."""
        target = self._source.table(name)
        self._source.remove_table(name)
        self._undo.append(lambda: self._source.put_table(name, target))
        self.log_ddl(dropped(target, f"DROP TABLE {target.name_in_sql}"), target.version.object_number)

    def rename_table(self, table: str, name: str) -> None:
        """ALTER TABLE ... RENAME, or SET SCHEMA; the log of DDL has it at its place.

        Args:
            table: current qualified name.
            name: new qualified name.
        """
        source, target = self._source, self._source.table(table)
        if source.has_table(name):
            raise ConfigError(f"there is a table {name}")
        owner, _, short = name.partition(".")

        def move() -> None:
            source.remove_table(table)
            target.version = replace(target.version, owner=owner, name=short)
            source.put_table(name, target)

        def undo() -> None:
            source.remove_table(name)
            source.put_table(table, target)

        self._undo.append(undo)
        self._alter(target, f"RENAME TO {name}", move)

    def add_column(self, table: str, column: str, default: str | None = None) -> None:
        """ALTER TABLE ... ADD COLUMN; the log of DDL has it at its place.

        Args:
            table: qualified name.
            column: name of the new, last column; of type text, nullable, in no key.
            default: value for existing rows; None: NULL. Later rows do not get it.
        """
        target = self._source.table(table)
        action = f"ADD COLUMN {quoted(column)} text"
        self._alter(target, action, lambda: target.add_column(column, _bytes(default)), older={column: default})

    def rename_column(self, table: str, column: str, name: str) -> None:
        """ALTER TABLE ... RENAME COLUMN; the log of DDL has it at its place."""
        target = self._source.table(table)
        action = f"RENAME COLUMN {quoted(column)} TO {quoted(name)}"
        self._alter(target, action, lambda: target.rename_column(column, name))

    def drop_column(self, table: str, column: str) -> None:
        """ALTER TABLE ... DROP COLUMN; the log of DDL has it at its place."""
        target = self._source.table(table)
        action = f"DROP COLUMN {quoted(column)}"
        self._alter(target, action, lambda: target.drop_column(column), gone=(column,))

    def log_ddl(self, content: str, relation: int = 0) -> None:
        """Write any record into the log of DDL.

        Args:
            content: the record.
            relation: number of the table that it is about; 0: none.
        """
        self._changes.append(self._source.ddl_log.insert(content, relation))

    def trim_ddl_log(self, number: int) -> None:
        """Delete a record from the log of DDL; `number`: 1 for the first one."""
        self._changes.append(self._source.ddl_log.delete(number))

    def _alter(
        self,
        target: MemoryTable,
        action: str,
        change: Callable[[], None],
        *,
        gone: Sequence[str] = (),
        older: Mapping[str, str | None] | None = None,
    ) -> None:
        before = target.saved()
        change()
        self._undo.append(lambda: target.restore(before))
        version = target.version
        query = f"ALTER TABLE {target.name_in_sql} {action}"
        self.log_ddl(altered(before, target, query, gone=gone, older=older or {}), version.object_number)

    # ------------------------------------------------------------------ undoing

    @contextmanager
    def rolled_back(self) -> Iterator[None]:
        """Run a block and undo what it did: ROLLBACK TO SAVEPOINT."""
        changes, undo = len(self._changes), len(self._undo)
        yield
        self._undo_from(changes, undo)

    def rollback(self) -> None:
        """Undo everything so far."""
        self._undo_from(0, 0)

    def _undo_from(self, changes: int, undo: int) -> None:
        for each in reversed(self._undo[undo:]):
            each()
        del self._undo[undo:]
        del self._changes[changes:]

    def changes(self) -> tuple[Change, ...]:
        """Return the changes so far, in order."""
        return tuple(self._changes)

    def _find(self, target: MemoryTable, key: Mapping[str, Value]) -> Row:
        columns = target.version.columns
        wanted = tuple(_bytes(key[column.name]) for column in columns if column.is_key) or tuple(
            _bytes(key[column.name]) for column in columns
        )
        if wanted not in target.rows:
            raise ConfigError(f"no row with this key in {target.version.qualified_name}")
        return target.rows[wanted][0]


class MemorySource:
    """An in-memory `headrace.databases.ports.SourceDatabase`, with methods that play its users.

    Args:
        system_identifier: of the imitated cluster.
        timeline: of its log.
        gulp_bytes: returns the most bytes of the next read; any cut between messages is possible.
    """

    def __init__(
        self,
        *,
        system_identifier: str = "memory-1",
        timeline: int = 1,
        gulp_bytes: Callable[[], int] = lambda: GULP_BYTES_DEFAULT,
    ) -> None:
        self.options = StreamOptions(
            database_kind="memory",
            system_identifier=system_identifier,
            timeline=timeline,
            binary=False,
            encoding="UTF8",
            server_version=1,
        )
        self.gulp_bytes = gulp_bytes
        self.left: dict[int, Scn] = {}  # earlier timelines, and where the log left them
        self.confirmed_scn = FIRST_SCN
        self.breaks: deque[int] = deque()
        # transactions that are in the log and that a synchronous standby still keeps invisible
        self.invisible: set[int] = set()
        self.log: list[Committed] = []
        self.roots: dict[int, tuple[str, str]] = {}  # partition's object number -> its table, kept after a drop
        self._tables: dict[str, MemoryTable] = {}
        self._root_numbers: dict[tuple[str, str], ObjectNumber] = {}
        self._tables_made = 0
        self._rules: dict[str, tuple[RuleSet, ...]] = {}  # of each prepared topology
        self.ddl_log = MemoryDdlLog()
        self.commit_time: Callable[[], int] = lambda: _START_US + 1000 * len(self.log)
        """Commit time of a transaction, microseconds since the epoch; called at each commit."""
        self._scn = 1000
        self._transaction_id = 700

    # ------------------------------------------------------------------ users' statements

    def create_table(
        self,
        name: str,
        columns: Sequence[str | Column],
        *,
        key: Sequence[str] = (),
        old_image: OldImage | None = None,
        root: str = "",
        holds: str = "",
        ddl: bool = False,
    ) -> ObjectNumber:
        """Create a table.

        Args:
            name: qualified name.
            columns: columns; a bare name is a text column.
            key: names of the key columns.
            old_image: default: KEY with a key, FULL without.
            root: qualified name of its partitioned table; empty: no partition.
            holds: which rows of it (`headrace.lcr.batch.Partition.rows`).
            ddl: the log of DDL has it, in a transaction of its own (`MemoryTransaction.create_table`); of a plain table.
        """
        if ddl:
            with self.transaction() as transaction:
                return transaction.create_table(name, columns, key=key)
        table = self.new_table(name, columns, key=key, old_image=old_image)
        number, table.holds = table.version.object_number, holds
        if root:
            root_owner, _, root_name = root.partition(".")
            table.root = (root_owner, root_name)
            self._put_under(number, table.root)
        self._advance()
        return number

    def new_table(
        self, name: str, columns: Sequence[str | Column], *, key: Sequence[str], old_image: OldImage | None = None
    ) -> MemoryTable:
        """Add a table of which nothing is in the log yet; arguments as for `create_table`."""
        owner, _, short = name.partition(".")
        described = tuple(
            replace(column, is_key=column.name in key)
            if isinstance(column, Column)
            else Column(name=column, type_name="pg_catalog.text", type_number=25, is_key=column in key)
            for column in columns
        )
        number = ObjectNumber(_FIRST_OBJECT_NUMBER + self._tables_made)
        self._tables_made += 1
        version = TableVersion(
            object_number=number,
            version=0,
            owner=owner,
            name=short,
            columns=described,
            old_image=old_image if old_image is not None else (OldImage.KEY if key else OldImage.FULL),
        )
        self._tables[name] = MemoryTable(version, None)
        return self._tables[name]

    def put_table(self, name: str, table: MemoryTable) -> None:
        """Add a table that was there before."""
        self._tables[name] = table

    def remove_table(self, name: str) -> None:
        """Remove a table."""
        del self._tables[name]

    def takers(self, table: MemoryTable) -> tuple[str, ...]:
        """Return the prepared topologies with a rule set that takes a table's DDL and cannot discard any of its rows."""
        version = table.version
        return tuple(
            topology
            for topology, rule_sets in self._rules.items()
            if any(_takes_new(rule_set, version.owner, version.name) for rule_set in rule_sets)
        )

    def identity_of(self, number: ObjectNumber) -> str:
        """Return the identity of a captured table with this number."""
        return f"{self.options.system_identifier}.{number}.{number}"

    def attach(self, partition: str, root: str) -> None:
        """ALTER TABLE ... ATTACH PARTITION: the log does not record it.

        Args:
            partition: qualified name of an existing table.
            root: qualified name of the partitioned table, which exists only through its partitions.
        """
        owner, _, name = root.partition(".")
        table = self.table(partition)
        table.root = (owner, name)
        self._put_under(table.version.object_number, table.root)
        self._advance()

    def _put_under(self, number: ObjectNumber, root: tuple[str, str]) -> None:
        self.roots[number] = root
        self._root_numbers.setdefault(root, ObjectNumber(_FIRST_ROOT_NUMBER + len(self._root_numbers)))

    def detach(self, partition: str) -> None:
        """ALTER TABLE ... DETACH PARTITION: the log does not record it."""
        table = self.table(partition)
        table.root = None
        del self.roots[table.version.object_number]
        self._advance()

    def add_column(self, table: str, column: str, default: str | None = None, *, ddl: bool = False) -> None:
        """ALTER TABLE ... ADD COLUMN: every row gets `default`.

        Args:
            table: qualified name.
            column: name of the new, last column; of type text, nullable, in no key.
            default: value for existing rows; None: NULL. Later rows do not get it.
            ddl: the log of DDL has it, in a transaction of its own.
        """
        if ddl:
            with self.transaction() as transaction:
                transaction.add_column(table, column, default)
            return
        self.table(table).add_column(column, _bytes(default))
        self._advance()

    def rename_column(self, table: str, column: str, name: str, *, ddl: bool = False) -> None:
        """ALTER TABLE ... RENAME COLUMN; `ddl` as for `add_column`."""
        if ddl:
            with self.transaction() as transaction:
                transaction.rename_column(table, column, name)
            return
        self.table(table).rename_column(column, name)
        self._advance()

    def drop_column(self, table: str, column: str, *, ddl: bool = False) -> None:
        """ALTER TABLE ... DROP COLUMN of a column in no key; `ddl` as for `add_column`."""
        if ddl:
            with self.transaction() as transaction:
                transaction.drop_column(table, column)
            return
        self.table(table).drop_column(column)
        self._advance()

    def log_ddl(self, content: str, relation: int = 0) -> None:
        """Write any record into the log of DDL, in a transaction of its own.

        Args:
            content: the record (`headrace.lcr.ddl`).
            relation: number of the table that it is about; 0: none.
        """
        with self.transaction() as transaction:
            transaction.log_ddl(content, relation)

    def rename_table(self, table: str, name: str, *, ddl: bool = False) -> None:
        """ALTER TABLE ... RENAME: the object number and the rows stay.

        Args:
            table: current qualified name.
            name: new name without a schema, which stays.
            ddl: the log of DDL has it, in a transaction of its own.
        """
        if ddl:
            with self.transaction() as transaction:
                transaction.rename_table(table, f"{table.partition('.')[0]}.{name}")
            return
        target = self._tables.pop(table)
        target.version = replace(target.version, name=name)
        self._tables[target.version.qualified_name] = target
        self._advance()

    @contextmanager
    def transaction(self, tag: Tag | None = None) -> Iterator[MemoryTransaction]:
        """Run a transaction: committed at the end of the block, rolled back if it raises."""
        transaction = MemoryTransaction(self)
        try:
            yield transaction
        except BaseException:
            transaction.rollback()
            raise
        self._commit(tag, transaction.changes(), labels=tuple(transaction.labels))

    def other_activity(self) -> None:
        """Advance the log by changes that are not captured."""
        self._advance()

    def table(self, name: str) -> MemoryTable:
        """Return a table by its qualified name."""
        if name not in self._tables:
            raise ConfigError(f"there is no table {name}")
        return self._tables[name]

    def has_table(self, name: str) -> bool:
        """Whether a table of this qualified name exists."""
        return name in self._tables

    def drop_table(self, name: str, *, ddl: bool = False) -> None:
        """DROP TABLE; `ddl` as for `create_table`."""
        if ddl:
            with self.transaction() as transaction:
                transaction.drop_table(name)
            return
        self.remove_table(name)
        self._advance()

    def rewrite(self, table: str) -> None:
        """VACUUM FULL: the rows move to another file."""
        self.table(table).file += 1

    def rows(self, table: str) -> tuple[Row, ...]:
        """Return a table's contents, sorted."""
        return _sorted(row for rows in self.table(table).rows.values() for row in rows)

    def break_after(self, *messages: int) -> None:
        """Make the next streams break, each after the given number of messages."""
        self.breaks.extend(messages)

    def _advance(self) -> int:
        self._scn += _SCN_STEP
        return self._scn

    def _commit(
        self,
        tag: Tag | None,
        changes: tuple[Change, ...],
        message: tuple[str, bytes] | None = None,
        labels: tuple[str, ...] = (),
    ) -> Scn:
        self._transaction_id += 1
        self._scn += _SCN_STEP * len(changes)
        order_scn, commit_scn = self._scn, self._advance()
        self.log.append(
            Committed(
                order_scn=order_scn,
                commit_scn=commit_scn,
                commit_time_us=self.commit_time(),
                transaction_id=self._transaction_id,
                tag=tag,
                changes=changes,
                message=message,
                labels=labels,
            )
        )
        return Scn(commit_scn)

    # ------------------------------------------------------------------ SourceDatabase

    def database_identity(self) -> str:
        """See `SourceDatabase.database_identity`."""
        return f"memory {self.options.system_identifier} {id(self)}"

    def release(self) -> int:
        """See `SourceDatabase.release`: there is one."""
        return 1

    def tables(self, rules: Sequence[object]) -> tuple[SourceTable, ...]:
        """See `SourceDatabase.tables`."""
        found: dict[tuple[str, str], SourceTable] = {}
        for table in self._tables.values():
            version = table.version
            owner, name = table.root or (version.owner, version.name)
            rule_sets = [rule_set for rule_set in rules if isinstance(rule_set, RuleSet)]
            if any(rule_set.keeps(owner, name) for rule_set in rule_sets):
                rows = sum(len(rows) for rows in table.rows.values())
                before = found.get((owner, name))
                found[owner, name] = SourceTable(
                    owner=owner,
                    name=name,
                    columns=tuple(column.name for column in version.columns),
                    is_partitioned=table.root is not None,
                    row_estimate=rows + (before.row_estimate if before else 0),
                    bytes=0,
                )
        return tuple(found[name] for name in sorted(found))

    def table_versions(self, tables: Sequence[SourceTable]) -> tuple[TableVersion, ...]:
        """See `SourceDatabase.table_versions`."""
        found: dict[tuple[str, str], TableVersion] = {}
        for table in self._tables.values():
            owner, name = table.root or (table.version.owner, table.version.name)
            found.setdefault((owner, name), replace(table.version, owner=owner, name=name))
        return tuple(found[table.owner, table.name] for table in tables if (table.owner, table.name) in found)

    def table_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """See `SourceDatabase.table_shapes`: shapes do not differ between in-memory databases."""
        return tuple(TableShape(owner=table.owner, name=table.name) for table in tables)

    def domain_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """See `SourceDatabase.domain_shapes`: such types do not exist here."""
        return ()

    def supplemental_logging(self, rules: Sequence[object], needs: Sequence[LogNeed]) -> tuple[LoggedTable, ...]:
        """See `SourceDatabase.supplemental_logging`: `create_table` decides what a table logs."""
        return ()

    def preflight(
        self,
        rules: Sequence[object],
        *,
        streams: int,
        needs: Sequence[LogNeed] = (),
        may_be_copied: Callable[[TableName], bool] = bool,
        topology: str = "",
    ) -> tuple[Finding, ...]:
        """See `SourceDatabase.preflight`: nothing is missing here."""
        return ()

    def plan(self, topology: str, rules: Sequence[object]) -> tuple[PlannedStatement, ...]:
        """See `SourceDatabase.plan`: nothing needs preparing."""
        return ()

    def prepare(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """See `SourceDatabase.prepare`: the log is always on; tables that DDL left out are in it from now on."""
        self._rules[topology] = tuple(rule_set for rule_set in rules if isinstance(rule_set, RuleSet))
        for table in self._tables.values():
            table.is_logged = True
        return ()

    def promoted(self) -> None:
        """Simulate the promotion of a standby that has everything: the log continues on a new timeline."""
        self.left[self.options.timeline] = self.current_scn()
        self.options = replace(self.options, timeline=self.options.timeline + 1, switches=tuple(self.left.items()))
        self._advance()

    def open_stream(
        self,
        topology: str,
        start: Scn,
        *,
        timeline: int = 0,
        allow_binary: bool = True,
        last_transaction: int = 0,
        last_commit_scn: Scn = FIRST_SCN,
    ) -> MemoryLogStream:
        """See `SourceDatabase.open_stream`."""
        check_timeline("memory", redo=timeline, start=start, now=self.options.timeline, left=self.left)
        if start != FIRST_SCN and start < self.confirmed_scn:
            raise LogGone(
                f"the log up to SCN {scn_text(self.confirmed_scn)} is gone",
                hint="instantiate again",
                scn=self.confirmed_scn,
            )
        return MemoryLogStream(self, start or self.confirmed_scn)

    def check_stream(
        self, options: StreamOptions, described: Sequence[TableVersion], *, describers: Collection[int]
    ) -> None:
        """See `SourceDatabase.check_stream`: every value has every form."""

    def check_prepared(self, topology: str, start: Scn) -> str:
        """See `SourceDatabase.check_prepared`: nothing can get lost."""
        return "the log"

    def retained_bytes(self, topology: str) -> int | None:
        """See `SourceDatabase.retained_bytes`: the log is kept for ever, for no topology."""
        return None

    def holding_up(self) -> tuple[str, ...]:
        """See `SourceDatabase.holding_up`: no call blocks here."""
        return ()

    def uncaptured(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """See `SourceDatabase.uncaptured`: only tables that DDL left out (`MemoryTransaction.create_table`)."""
        return tuple(sorted(name for name, table in self._tables.items() if not table.is_logged))

    def refused_changes(
        self, topology: str, rules: Sequence[object], needs: Sequence[LogNeed], *, is_written: bool
    ) -> tuple[Finding, ...]:
        """See `SourceDatabase.refused_changes`: every change is accepted."""
        return ()

    def captures_ddl(self, topology: str) -> bool:
        """See `SourceDatabase.captures_ddl`: whatever it is told to record is in the log."""
        return True

    def ddl_due(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """See `SourceDatabase.ddl_due`: nothing is missed."""
        return ()

    def missed_ddl(self, topology: str) -> MissedDdl | None:
        """See `SourceDatabase.missed_ddl`: nothing is missed."""
        return MissedDdl()

    def trim_ddl_log(self) -> bool:
        """See `SourceDatabase.trim_ddl_log`: the log keeps no rows."""
        return False

    def row_marks(self, topology: str, *, snapshot: str = "") -> dict[str, RowMark]:
        """See `SourceDatabase.row_marks`: every change of a row is in the log."""
        return {}

    def computed_columns(self, identity: str) -> dict[str, ComputedColumn]:
        """See `SourceDatabase.computed_columns`: nothing is computed."""
        return {}

    def was_written_anew(self, part: str, stamp: str = "") -> bool:
        """See `SourceDatabase.was_written_anew`: there are no marks, so it is never called."""
        return False

    def began_empty(self, part: str) -> bool:
        """See `SourceDatabase.began_empty`: every change of a row is in the log."""
        return True

    def is_default_part(self, part: str) -> bool:
        """See `SourceDatabase.is_default_part`: there are no marks, so it is never called."""
        return False

    def partition_rows(self, part: str) -> str:
        """See `SourceDatabase.partition_rows`: there are no marks, so it is never called."""
        return ""

    def has_part(self, part: str) -> bool:
        """See `SourceDatabase.has_part`: there are no marks, so it is never called."""
        return True

    def holds(self, table: TableName, rows: str) -> bool:
        """See `SourceDatabase.holds`: there are no marks, so it is never called."""
        return True

    def captured(self, topology: str) -> tuple[CapturedTable, ...]:
        """See `SourceDatabase.captured`: every table while it exists, a partitioned one while it has partitions."""
        found: dict[tuple[str, str], list[ObjectNumber]] = {}
        made = {table.version.object_number for table in self._tables.values() if table.is_made}
        for table in self._tables.values():
            version = table.version
            if not table.is_logged:
                continue
            if table.root is None:
                found[version.owner, version.name] = [version.object_number]
            else:
                found.setdefault(table.root, [self._root_numbers[table.root]]).append(version.object_number)
        return tuple(
            CapturedTable(
                identity=self.identity_of(numbers[0]),
                owner=owner,
                name=name,
                object_numbers=tuple(numbers),
                is_made=numbers[0] in made,
            )
            for (owner, name), numbers in sorted(found.items())
        )

    def dictionary_build(self, topology: str = "", *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        """See `SourceDatabase.dictionary_build`."""
        if not self.invisible.isdisjoint(seeing):
            return None
        tables = []
        for table in self._tables.values():
            stored = (table.version.owner, table.version.name)
            owner, name = table.root or stored
            tables.append(
                DictionaryTable(
                    object_number=table.version.object_number,
                    owner=owner,
                    name=name,
                    stored_owner=stored[0],
                    stored_name=stored[1],
                    rows=table.holds,
                    root_number=self._root_numbers[table.root] if table.root else table.version.object_number,
                )
            )
        if self.ddl_log.is_used:
            log = self.ddl_log.version
            tables.append(
                DictionaryTable(
                    object_number=log.object_number,
                    owner=log.owner,
                    name=log.name,
                    stored_owner=log.owner,
                    stored_name=log.name,
                    root_number=log.object_number,
                )
            )
        return DictionaryBuild(scn=self.current_scn(), tables=tuple(tables))

    def write_marker(self, content: bytes) -> Scn:
        """See `SourceDatabase.write_marker`."""
        return self._commit(None, (), (MARKER_PREFIX, content))

    def current_scn(self) -> Scn:
        """See `SourceDatabase.current_scn`."""
        return Scn(self._scn)

    def open_snapshot(self, topology: str) -> MemorySnapshot:
        """See `SourceDatabase.open_snapshot`."""
        rows = {name: self.rows(name) for name in self._tables}
        return MemorySnapshot(self.current_scn(), f"{topology}-{self._scn}", rows, self)

    def remove(self, topology: str) -> tuple[str, ...]:
        """See `SourceDatabase.remove`."""
        return ()

    def close(self) -> None:
        """See `SourceDatabase.close`."""


# --------------------------------------------------------------------------- the log


class MemoryLogStream:
    """An in-memory `headrace.databases.ports.LogStream`; created by `MemorySource.open_stream`."""

    def __init__(self, source: MemorySource, start: Scn) -> None:
        self._source = source
        self._start = start
        self._described: dict[int, TableVersion] = {}
        self._next = next((n for n, t in enumerate(source.log) if t.order_scn >= start), len(source.log))
        self._frames: Iterator[tuple[bytes, int, int]] = iter(())
        self._held: tuple[bytes, int, int] | None = None
        self._break_after = source.breaks.popleft() if source.breaks else -1
        self._told_scn = start
        self._is_open = self._is_closed = False

    @property
    def options(self) -> StreamOptions:
        """See `LogStream.options`."""
        return self._source.options

    @property
    def start_scn(self) -> Scn:
        """See `LogStream.start_scn`."""
        return self._start

    def read(self, timeout_s: float) -> LogChunk | None:
        """See `LogStream.read`."""
        if self._is_closed or self._break_after == 0:
            raise DatabaseUnavailable("the log stream broke", hint="open a new one")
        gulp_bytes, size = self._source.gulp_bytes(), 0
        parts: list[bytes] = []
        commit_scn = commit_end = transaction = 0
        objects: list[ObjectNumber] = []
        describers: dict[int, bool] = {}
        has_truncates = False
        while (frame := self._peek()) is not None and self._break_after != 0:
            data, described, commit = frame
            if parts and size + len(data) > gulp_bytes:
                break
            self._held = None
            self._break_after -= self._break_after > 0
            parts.append(data)
            size += len(data)
            has_truncates |= is_truncate(data)
            if described:
                objects.append(ObjectNumber(described))
            if described or is_truncate(data):
                describers[self._source.log[self._next - 1].transaction_id] = True
            self._is_open = not commit
            if commit:
                commit_scn, commit_end, transaction = commit, size, self._source.log[self._next - 1].transaction_id
        end_scn = self._source.current_scn() if self._peek() is None else Scn(commit_scn)
        if not parts and end_scn <= self._told_scn:
            return None
        self._told_scn = Scn(max(end_scn, self._told_scn))
        return LogChunk(
            data=b"".join(parts),
            end_scn=end_scn,
            commit_scn=Scn(commit_scn),
            is_open=self._is_open,
            objects=tuple(objects),
            commit_end=commit_end,
            has_truncates=has_truncates,
            describers=tuple(describers),
            transaction=transaction,
        )

    def confirm(self, scn: Scn) -> None:
        """See `LogStream.confirm`."""
        if self._is_closed:
            raise DatabaseUnavailable("the log stream broke", hint="open a new one")
        self._source.confirmed_scn = max(self._source.confirmed_scn, scn)

    def close(self) -> None:
        """See `LogStream.close`."""
        self._is_closed = True

    def _peek(self) -> tuple[bytes, int, int] | None:
        """Return the next frame: (bytes, object it describes or 0, commit SCN or 0); None at the log's end."""
        while self._held is None:
            self._held = next(self._frames, None)
            if self._held is None:
                if self._next >= len(self._source.log):
                    return None
                self._frames = frames_of(self._source.log[self._next], self._described)
                self._next += 1
        return self._held


def _takes_new(rule_set: RuleSet, owner: str, name: str) -> bool:
    return any(rule.ddl and rule.matches_object(owner, name) for rule in rule_set.include or ()) and not any(
        rule.matches_object(owner, name) for rule in rule_set.exclude
    )


def _bytes(value: Value) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _nothing_left(table: str, values: Mapping[str, Any]) -> None:
    if values:
        raise ConfigError(f"{table} has no column {', '.join(sorted(values))}")


def _sorted(rows: Iterator[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: tuple((value is not None, value or b"") for value in row)))
