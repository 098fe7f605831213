"""Comparison of source and destination tables, as Spark jobs.

Both sides are digested chunk by chunk under a snapshot each, held by the driver, so that a table is compared as it was
at one moment per side. Under load the two moments differ, and so may the tables: what differs is compared again, with
new snapshots, as often as the caller wants. A table that never agrees while changes flow is a finding; after
`headrace wait --caught-up` on a quiet source it is the truth.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from databases.connectors import open_reader
from databases.table_digest import TableDigest
from rules.rule import Rule, RuleSet
from spark_apply.copy.tasks import DigestItem, digest_pieces
from streams.errors import DatabaseError, DatabaseUnavailable
from streams.table_name import TableName

if TYPE_CHECKING:
    from databases.copying import TableReader
    from databases.ports import DestinationDatabase, SourceDatabase
    from spark_apply.application.job_config import ApplyJobConfig, TableToInstantiate
    from spark_apply.server.task import TaskAccess

__all__ = ["Comparison", "SideDigest", "TableComparison", "tables_of_now"]

_WAIT_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SideDigest:
    """What one side has: rows, and the sums of their hashes as 32 hexadecimal digits."""

    rows: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """One table, compared `checks` times; the last result.

    Args:
        owner, name: the table.
        is_equal: both sides have the same rows.
        source, destination: what each side has.
        checks: how often it was compared.
        problem: why it could not be compared.
        is_final: it would not be possible the next time either.
    """

    table: TableToInstantiate
    is_equal: bool = False
    source: SideDigest = SideDigest()
    destination: SideDigest = SideDigest()
    checks: int = 0
    problem: str = ""
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compares an apply process's tables; see the module.

    Args:
        context: the SparkContext.
        config: of the apply process: where the two databases are.
        access: to the driver, for the tasks.
        source: for its catalog.
        destination: for its catalog.
        tasks: Spark tasks at once.
        is_active: somebody still wants to know.
    """

    context: Any
    config: ApplyJobConfig
    access: TaskAccess
    source: SourceDatabase
    destination: DestinationDatabase
    tasks: int
    is_active: Callable[[], bool]

    def run(
        self, tables: Sequence[TableToInstantiate], *, rechecks: int, recheck_delay_s: float
    ) -> Iterator[TableComparison]:
        """Compare tables; each one's answer comes as soon as it is equal, or for good after the last check.

        Args:
            tables: of the apply process.
            rechecks: how often tables that differ are compared again.
            recheck_delay_s: between two checks.

        Raises:
            DatabaseUnavailable: one of the databases does not answer.
        """
        waiting = list(tables)
        for check in range(1, rechecks + 2):
            found = self._compare(waiting)
            is_last = check == rechecks + 1
            for each in found:
                if each.is_equal or each.is_final or is_last:
                    yield replace(each, checks=check)
            waiting = [each.table for each in found if not each.is_equal and not each.is_final]
            if not waiting or is_last or not _pause(recheck_delay_s, self.is_active):
                return

    def _compare(self, tables: Sequence[TableToInstantiate]) -> list[TableComparison]:
        """Compare each table once."""
        if not tables:
            return []
        columns, problems = _common_columns(tables, self.source, self.destination)
        totals: dict[tuple[int, str], TableDigest] = {}
        with contextlib.ExitStack() as held:
            items: list[DigestItem] = []
            for side, access in (("source", self.config.source), ("destination", self.config.destination)):
                reader = held.enter_context(contextlib.closing(open_reader(access, application_name="headrace compare")))
                snapshot = held.enter_context(reader.export_snapshot())
                names = [table.source if side == "source" else table.destination for table in tables]
                items += _plan(reader, snapshot, side, names, columns, problems)
            slices = max(1, min(len(items), self.tasks))
            task = partial(digest_pieces, self.access)
            found = self.context.parallelize(items, slices).mapPartitions(task).collect() if items else []
        for each in found:
            totals[each.table, each.side] = totals.get((each.table, each.side), TableDigest()) + each.digest
            if each.problem:
                problems.setdefault(each.table, (each.problem, each.is_final))
        return [_result(number, table, totals, *problems.get(number, ("", False))) for number, table in enumerate(tables)]


def tables_of_now(source: SourceDatabase, config: ApplyJobConfig) -> tuple[list[TableToInstantiate], dict[TableName, str]]:
    """Find out what the tables of an apply process are called now; those that were dropped are forgotten.

    Args:
        source: the source database.
        config: of the apply process; its tables have the names they had when the driver started.

    Returns:
        The tables to compare, and why others cannot be compared.
    """
    captured = {table.identity: TableName.of(table) for table in source.captured(config.topology)}
    include = tuple(Rule(owner=table.source.owner, name=table.source.name) for table in config.tables)
    there = {TableName.of(table) for table in source.tables((RuleSet(include=include),))}
    found: list[TableToInstantiate] = []
    problems: dict[TableName, str] = {}
    for table in config.tables:
        now = captured.get(table.identity)
        if now is not None:
            is_same = table.source == table.destination  # a table that has one name keeps one name
            found.append(replace(table, source=now, destination=now if is_same else table.destination))
        elif table.source in there:
            problems[table.source] = "the source has another table of this name now: `headrace up` copies it"
    names = {table.source for table in found}
    return found, {name: problem for name, problem in problems.items() if name not in names}


def _pause(seconds: float, is_active: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_active():
            return False
        time.sleep(_WAIT_POLL_S)
    return True


def _common_columns(
    tables: Sequence[TableToInstantiate], source: SourceDatabase, destination: DestinationDatabase,
) -> tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, bool]]]:
    """Columns both sides have, per table; why a table cannot be compared, and whether that is final."""
    rules = RuleSet(include=tuple(Rule(owner=table.source.owner, name=table.source.name) for table in tables))
    facts = {TableName.of(table): table for table in source.tables((rules,))}
    columns: dict[int, tuple[str, ...]] = {}
    problems: dict[int, tuple[str, bool]] = {}
    for number, table in enumerate(tables):
        there, target = facts.get(table.source), destination.describe(*table.destination)
        if there is None or target is None:
            problems[number] = (f"the {'source' if there is None else 'destination'} has no such table", True)
            continue
        names = {column.name for column in target.columns}
        missing = [column for column in there.columns if column not in names]
        if missing:
            problems[number] = (f"the destination table lacks columns of the source's: {', '.join(missing)}", True)
        else:
            columns[number] = there.columns
    return columns, problems


def _plan(
    reader: TableReader, snapshot: str, side: str, tables: Sequence[TableName], columns: dict[int, tuple[str, ...]],
    problems: dict[int, tuple[str, bool]],
) -> list[DigestItem]:
    """Pieces of the tables that both sides have; adds to `problems` why a table cannot be read."""
    items: list[DigestItem] = []
    for number, names in columns.items():
        try:
            plan = reader.plan(*tables[number], {}, snapshot=snapshot)
        except DatabaseError as error:
            problems.setdefault(number, (error.message, not isinstance(error, DatabaseUnavailable)))
            continue
        items += [
            DigestItem(table=number, side=side, piece=piece, columns=names, snapshot=snapshot) for piece in plan.pieces
        ]
    return items


def _result(
    number: int, table: TableToInstantiate, totals: dict[tuple[int, str], TableDigest], problem: str, is_final: bool,  # noqa: FBT001
) -> TableComparison:
    source, destination = (
        SideDigest(rows=total.row_count, digest=str(total))
        for total in (totals.get((number, side), TableDigest()) for side in ("source", "destination"))
    )
    return TableComparison(
        table=table, is_equal=not problem and source == destination, source=source,
        destination=destination, problem=problem, is_final=is_final,
    )
