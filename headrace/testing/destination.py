"""A destination in memory for tests.

An apply process of a topology file applies row LCRs to it, with its handlers and conflict handlers.

The test defines what a handler's SQL does (`Destination.on`): the memory database runs no SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.errors import BugError, ConfigError, UnfitTableError
from headrace.databases.connectors import python_values, value_reader, value_types
from headrace.databases.memory.destination import MemoryDestination, MemorySession
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.lcr.batch import Column
from headrace.lcr.scn import Scn
from headrace.rules.evaluation import RuleEvaluation
from headrace.testing.lcrs import Table, Values, batch_of, stored
from protos import codec
from spark_apply.conversation.groups import GroupAssignment, GroupGo, GroupMode, GroupResult
from spark_apply.handlers.loaded import loaded_handlers
from spark_apply.server.apply_server import ApplyServer
from spark_apply.sets.conflict_settings import ConflictSettings
from topology.file.reading import read_topology

if TYPE_CHECKING:
    from headrace.lcr.row_lcr import RowLcr
    from topology.spec import ApplySpec

__all__ = ["Destination", "StatementTables"]

_TOPOLOGY = "test"
_KIND = "embedded"
_STEPS_MAX = 10_000  # bound of one transaction: each step bisects it or applies a row
_WAIT_S = 60.0  # virtual, per step: any wait ends at once

Row = dict[str, object]
Answer = Callable[..., Iterable[tuple[Any, ...]] | None]


class StatementTables:
    """The tables, for an answer to a handler's statement, inside the handler's transaction.

    Args:
        destination: the destination that has the tables.
        session: the session of the transaction.
    """

    def __init__(self, destination: Destination, session: MemorySession) -> None:
        self._destination, self._session = destination, session

    def rows(self, table: str) -> list[Row]:
        """Return the current rows of a table."""
        return self._destination.rows(table)

    def insert(self, table: str, row: Values) -> None:
        """Insert a row.

        Args:
            table: name with its schema.
            row: values by column; omitted columns are NULL.
        """
        owner, name = self._destination.name_of(table)
        self._session.put_row(owner, name, self._destination.packed(table, row))

    def update(self, table: str, where: Values, values: Values) -> int:
        """Change rows.

        Args:
            table: name with its schema.
            where: values that select the rows.
            values: new values.

        Returns:
            The number of changed rows.
        """
        found = [
            (number, row)
            for number, row in self._destination.numbered(table)
            if all(row[name] == value for name, value in where.items())
        ]
        owner, name = self._destination.name_of(table)
        for number, row in found:
            self._session.put_row(owner, name, self._destination.packed(table, {**row, **values}), instead_of=number)
        return len(found)


class Destination:
    """An apply process, and the tables to which it applies.

    Args:
        apply: apply process of a topology.
        tables: the destination's tables.
    """

    def __init__(self, apply: ApplySpec, tables: Sequence[Table]) -> None:
        self._apply = apply
        self._tables = {table.name: table for table in tables}
        self._store = MemoryStore(types=value_types())
        for table in tables:
            self._store.create_table(
                *table.owner_and_name, [_column(column) for column in table.version.columns], key=table.key
            )
        self._database = MemoryDestination(store=self._store, settings=apply.tables)
        self._epoch = self._database.raise_epoch(_TOPOLOGY, apply.name).epoch
        self._rules = RuleEvaluation(apply.rules, types=value_types())
        self._server = self._new_server()
        self._scn = 100

    @classmethod
    def from_file(cls, path: Path | str, apply: str = "", *, tables: Sequence[Table]) -> Destination:
        """Build a destination from an apply process of a topology file.

        Args:
            path: the file.
            apply: name of the apply process; empty: the only one.
            tables: the destination's tables, including those of handlers' SQL.

        Raises:
            TopologyError: the file is wrong; the error lists every problem.
            ConfigError: the file has no such apply process, or one of its functions cannot be loaded.
        """
        spec = read_topology(path)
        found = [each for each in spec.applies if apply in ("", each.name)]
        if len(found) != 1:
            raise ConfigError(
                f"the file has no apply process {apply}"
                if apply
                else f"the file has {len(spec.applies)} apply processes",
                hint=f"name one of {', '.join(each.name for each in spec.applies)}",
            )
        return cls(found[0], tables)

    def on(self, sql: str, answer: Answer) -> None:
        """Define the result of a statement.

        Args:
            sql: as the handler writes it, with $1, $2, ...; for a statement handler, with $1, $2, ... in place of its
                binds. Whitespace is ignored.
            answer: called with a `StatementTables` and the values. It returns the rows of the result, or one `()` per
                changed row; None: no row.
        """

        def run(session: MemorySession, values: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
            return answer(StatementTables(self, session), *values) or ()

        self._store.sql[" ".join(sql.split())] = run

    def insert(self, table: str, *rows: Values, committed: datetime | None = None) -> None:
        """Put rows into a table, as a user at the destination.

        Args:
            table: name with its schema.
            rows: values by column; omitted columns are NULL.
            committed: commit time, with a time zone, which `latest_timestamp` compares with an LCR's `source_time`;
                None: now.
        """
        known = self._known(table)
        packed = [self.packed(table, row) for row in rows]
        self._store.insert(*known.owner_and_name, packed)
        if known.owner_and_name in self._apply.conflicts.timed:
            places = [list(known.columns).index(name) for name in known.key]
            time_us = round((committed or datetime.now(UTC)).timestamp() * 1e6)
            for row in packed:
                self._store.changed_here(*known.owner_and_name, tuple(row[place] for place in places), time_us)

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table in ascending order of the key, or of all columns where it has no key."""
        key = self._known(table).key or tuple(self._known(table).columns)
        return sorted(
            (row for _, row in self.numbered(table)), key=lambda row: [str(row[name]).rjust(20) for name in key]
        )

    def apply(self, *lcrs: RowLcr) -> None:
        """Apply one transaction, as the apply process does when it dequeues it.

        The rules run first, then handlers and conflict handlers. A transaction that fails goes into the error queue
        (`errors`).

        Args:
            lcrs: the LCRs, in order.

        Raises:
            TransformationError: a transformation of the apply process failed: the apply process would stop.
            UnfitTableError: a table does not fit the LCRs, and the apply process would wait for an ALTER
                (`column_mismatch: wait`).
        """
        batch = self._rules.filter(batch_of(lcrs))
        if not batch.row_count:
            return
        if self._apply.tables.column_mismatch == "wait":
            for unfit in self._database.preflight_tables(batch.tables):
                if unfit.is_error:
                    raise UnfitTableError(
                        f"{unfit.path}: {unfit.problem}; the apply process would wait", hint=unfit.fix
                    )
        self._scn += 10
        scn, found = self._scn, batch.transactions
        scns = replace(found, order_scn=found.order_scn * 0 + scn - 1, commit_scn=found.commit_scn * 0 + scn)
        batch = replace(batch, previous_scn=Scn(scn - 10), through_scn=Scn(scn), transactions=scns)
        self._server.receive(
            GroupAssignment(
                group=scn,
                attempt=0,
                mode=GroupMode.SETS,
                streamed=False,
                batches=(codec.encode(batch),),
                after_scn=Scn(scn - 10),
                through_scn=Scn(scn),
            )
        )
        self._server.receive(GroupGo(group=scn, attempt=0, low_watermark=Scn(scn - 10), below_applied=True))
        now_s = 0.0
        for _ in range(_STEPS_MAX):
            if any(isinstance(report, GroupResult) for report in self._server.step(now_s).reports):
                return
            now_s += _WAIT_S
        raise BugError("a transaction is not applied and does not fail")

    @property
    def errors(self) -> list[str]:
        """Texts of the errors in the error queue, oldest first: the conflict type, if there is one, and the message."""
        found = self._database.errors(_TOPOLOGY, self._apply.name)
        return [f"{each.conflict_type}: {each.message}" if each.conflict_type else each.message for each in found]

    # ------------------------------------------------------------------ inside

    def name_of(self, table: str) -> tuple[str, str]:
        """Return schema and name of one of the tables."""
        return self._known(table).owner_and_name

    def packed(self, table: str, row: Values) -> tuple[bytes | None, ...]:
        """Return a row as the store holds it.

        Args:
            table: name with its schema.
            row: values by column.
        """
        known = self._known(table)
        if unknown := set(row) - set(known.columns):
            raise ConfigError(
                f"{table} has no column {', '.join(sorted(unknown))}", hint="add it to the table's columns"
            )
        values = (stored(column, row.get(column.name)) for column in known.version.columns)
        return tuple(value if isinstance(value, bytes) else None for value in values)

    def numbered(self, table: str) -> list[tuple[int, Row]]:
        """Return the rows of a table with their numbers in the store."""
        known, decode = self._known(table), python_values()[0]
        columns = known.version.columns
        return [
            (
                number,
                {
                    column.name: None if value is None else decode(column, value)
                    for column, value in zip(columns, row, strict=True)
                },
            )
            for number, row in self._store.tables[known.owner_and_name].rows.items()
        ]

    def _known(self, table: str) -> Table:
        if table not in self._tables:
            raise ConfigError(
                f"the destination has no table {table}",
                hint=f"it has {', '.join(self._tables) or 'none'}: name it in `tables`",
            )
        return self._tables[table]

    def _new_server(self) -> ApplyServer:
        apply, database = self._apply, self._database
        server = ApplyServer(
            apply=apply.name,
            source=apply.source,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=database.error_batches,
            open_session=lambda: database.open_session(
                _TOPOLOGY, apply.name, server=0, epoch=self._epoch, tag=apply.tag or b"", incarnation=1
            ),
            conflicts=ConflictSettings(
                apply=apply.name, source=apply.source, site=apply.site, rules=apply.conflicts, show=value_reader(_KIND)
            ),
            handlers=loaded_handlers(apply.handlers, *python_values()),
            tables=apply.tables,
        )
        server.connect()
        return server


def _column(column: Column) -> Any:  # noqa: ANN401 - a `DestinationColumn`
    made = destination_column(column.name, column.type_name, equality="bytes")
    return replace(
        made, type_number=column.type_number, is_number=made.is_number or column.type_name == "pg_catalog.numeric"
    )
