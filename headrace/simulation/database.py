"""Database of a simulated site: a source and a destination with one content.

`MemorySource` has the users' tables and the log, and `MemoryStore` the transactions of apply processes. Users' commits
are copied to the store, and apply processes' commits to the log, with their tag: as in a real database, the log has
everything. Commits of apply processes need not wait for the disk: readers of the log get them when they are flushed,
and a crash loses those that are not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from headrace.base.clock import Clock
from headrace.databases.memory.source import MemorySource, MemoryTransaction
from headrace.databases.memory.store import (
    MemoryStore,
    Row,
    StoredChange,
    StoredCommit,
    StoredTable,
    destination_column,
)
from headrace.lcr.batch import Command
from headrace.lcr.scn import Scn
from headrace.lcr.tags import Tag
from headrace.simulation.observing.history import Change, Table

__all__ = ["SiteDatabase"]


class SiteDatabase:
    """One site's database.

    Args:
        site: its name.
        clock: the simulation's clock.
        gulp_bytes: returns the maximum bytes of the log in one read; called before each read.
        has_log: whether capture processes mine its log; if not, apply processes' commits need not be in it.
        flushing_share: share of its WAL writer's turns in which it flushes.
        committed: called with every commit: the site, the commit SCN (0: not in the log, or not yet), the apply process
            ("": a user) and the changes.
        logged: called when an apply process's commit is in the log: the site, the commit SCN and the changes.
    """

    def __init__(
        self,
        site: str,
        clock: Clock,
        gulp_bytes: Callable[[], int],
        *,
        has_log: bool,
        flushing_share: float,
        committed: Callable[[str, Scn, str, Sequence[StoredChange]], None],
        logged: Callable[[str, Scn, Sequence[StoredChange]], None],
    ) -> None:
        self.site, self.has_log, self._committed, self._logged = site, has_log, committed, logged
        self._flushing_share = flushing_share
        self.source = MemorySource(system_identifier=f"memory-{site}", gulp_bytes=gulp_bytes)
        self.store = MemoryStore(clock=clock)
        self.store.on_commit, self.store.on_durable = self._applied, self._flushed
        self.is_down = False  # its log does not answer
        self._time_us = 0  # time of its last commit, where commit times decide

    def create(self, table: Table) -> None:
        """Create an empty table."""
        columns = table.version.columns
        key = tuple(column.name for column in columns if column.is_key)
        self.source.create_table(table.qualified_name, columns, key=key, old_image=table.old_image)
        table.create(self.store)

    def fill(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert the rows that every site has before the capture begins.

        Args:
            table: a table of the site.
            rows: values in column order.
        """
        for row in rows:
            self.source.table(table.qualified_name).add(row)
        self.store.insert(table.owner, table.name, rows)

    def keep_times(self) -> None:
        """Assign increasing commit times, which decide the winner of a conflict.

        Each is later than the last commit here and than every change applied here; the product ensures the same.
        """
        self.source.commit_time = self._next_time_us

    def _next_time_us(self) -> int:
        noted = (each.noted_us or 0 for changes in self.store.changes.values() for each in changes.values())
        self._time_us = max(self.store.clock.time_us(), self._time_us + 1, max(noted, default=0) + 1)
        return self._time_us

    def changed(self, change: Change, time_us: int) -> None:
        """Record when a user changed a row, as a real server does.

        Args:
            change: the user's change.
            time_us: commit time, in microseconds.
        """
        table, old, new = change.table, change.old, change.new
        if old is not None and (new is None or new[0] != old[0]):
            self.store.changed_here(table.owner, table.name, old[:1], time_us, is_gone=True)
        if new is not None:
            self.store.changed_here(table.owner, table.name, new[:1], time_us)

    def add_column(self, table: Table, column: str) -> None:
        """ALTER TABLE ... ADD COLUMN, while no transaction is open.

        Args:
            table: a table of the site.
            column: its name; nothing is done if the table has it already.
        """
        names = [each.name for each in self.source.table(table.qualified_name).version.columns]
        if column in names:
            return
        self.source.add_column(table.qualified_name, column)
        columns = self.source.table(table.qualified_name).version.columns
        self.store.create_table(
            table.owner,
            table.name,
            key=("id",),
            columns=[
                destination_column(c.name, c.type_name, equality="integer" if n == 0 else "bytes")
                for n, c in enumerate(columns)
            ],
        )

    def commit(self, tag: bytes | None, changes: Sequence[Change]) -> Scn:
        """Commit a user's transaction.

        Args:
            tag: the tag that the user set; None: no tag.
            changes: changes of rows that no open transaction of an apply process has touched.
        """
        self.store.flush()  # a user's commit waits for the disk, and flushes all earlier commits
        made: list[StoredChange] = []
        with self.source.transaction(None if tag is None else Tag(value=tag)) as transaction:
            for change in changes:
                _make(transaction, change)
                made.append(self._store(change))
        scn = Scn(self.source.log[-1].commit_scn)
        self._committed(self.site, scn, "", made)
        return scn

    def _store(self, change: Change) -> StoredChange:
        table = change.table
        stored = self.store.tables[table.owner, table.name]
        if change.command is Command.TRUNCATE:
            for number in list(stored.rows):
                stored.put(number, None)
            return StoredChange(table.owner, table.name, change.command, None, None)
        old = _padded(stored, change.old)
        new = _padded(stored, change.new)
        if (
            change.command is Command.UPDATE
            and old is not None
            and new is not None
            and len(change.new or ()) < len(new)
        ):
            new = (*new[: len(change.new or ())], *old[len(change.new or ()) :])
        if old is None:
            self.store.next_row += 1
            number = self.store.next_row
        else:
            number = _find(stored, old)
        stored.put(number, new)
        return StoredChange(table.owner, table.name, change.command, old, new)

    def write_log(self, rng: random.Random) -> None:
        """Let the server's WAL writer take its turn.

        Args:
            rng: decides how much it flushes.
        """
        if self.store.unflushed and rng.random() < self._flushing_share:
            self.store.flush(rng.randrange(1, 4))

    def _applied(self, commit: StoredCommit) -> None:
        self._committed(self.site, Scn(0), commit.apply, commit.changes)

    def _flushed(self, commit: StoredCommit) -> None:
        if not self.has_log or not commit.changes:
            return
        tag = Tag(value=commit.tag, topology=commit.topology, apply=commit.apply) if commit.tag else None
        with self.source.transaction(tag) as transaction:
            transaction.labels += commit.labels
            for change in commit.changes:
                self._log(transaction, change)
        self._logged(self.site, Scn(self.source.log[-1].commit_scn), commit.changes)

    def _log(self, transaction: MemoryTransaction, change: StoredChange) -> None:
        name = f"{change.owner}.{change.name}"
        columns = [column.name for column in self.source.table(name).version.columns]
        old, new = (dict(zip(columns, row or (), strict=False)) for row in (change.old, change.new))
        if change.command is Command.TRUNCATE:
            transaction.truncate(name)
        elif change.command is Command.INSERT:
            transaction.insert(name, **new)
        elif change.command is Command.DELETE:
            transaction.delete(name, old)
        else:
            transaction.update(name, old, unchanged=(), **new)


def _padded(stored: StoredTable, row: Row | None) -> Row | None:
    return None if row is None else (*row, *(None,) * (len(stored.table.columns) - len(row)))


def _find(stored: StoredTable, row: Row) -> int:
    if stored.unique:
        return stored.unique[0][tuple(row[column] for column in stored.table.unique_keys[0])]
    return next(number for number, found in stored.rows.items() if found == row)


def _make(transaction: MemoryTransaction, change: Change) -> None:
    """Make one change of a random history at the source."""
    name, columns = change.table.qualified_name, change.table.columns
    old = dict(zip(columns, change.old or (), strict=False))
    new = dict(zip(columns, change.new or (), strict=False))
    if change.command is Command.INSERT:
        transaction.insert(name, **new)
    elif change.command is Command.DELETE:
        transaction.delete(name, old)
    elif change.command is Command.TRUNCATE:
        transaction.truncate(name)
    else:
        transaction.update(name, old, unchanged=[columns[c] for c in sorted(change.unchanged)], **new)
