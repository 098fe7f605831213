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

from databases.table_digest import TableDigest
from rules.rule import Rule, RuleSet
from spark_apply.copy.tasks import DigestItem, digest_chunks

if TYPE_CHECKING:
    from databases.ports import DestinationDatabase, SourceDatabase
    from spark_apply.application.job_config import ApplyJobConfig
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
    """One table, compared `checks` times; the last result. `problem`: it could not be compared."""

    owner: str
    name: str
    is_equal: bool = False
    source: SideDigest = SideDigest()
    destination: SideDigest = SideDigest()
    checks: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compares an apply process's tables; see the module.

    Args:
        context: the SparkContext.
        config: of the apply process: where the two databases are.
        access: to the driver, for the tasks.
        source: for its catalog.
        destination: likewise.
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
        self, tables: Sequence[tuple[str, str]], *, rechecks: int, recheck_delay_s: float
    ) -> Iterator[TableComparison]:
        """Compare tables; each one's answer comes as soon as it is equal, or for good after the last check.

        Args:
            tables: (owner, name).
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
                if each.is_equal or each.problem or is_last:
                    yield replace(each, checks=check)
            waiting = [(each.owner, each.name) for each in found if not each.is_equal and not each.problem]
            if not waiting or is_last or not _pause(recheck_delay_s, self.is_active):
                return

    def _compare(self, tables: Sequence[tuple[str, str]]) -> list[TableComparison]:
        """Compare each table once."""
        from databases.postgres.table_copy import exported_snapshot

        if not tables:
            return []
        columns, problems = _common_columns(tables, self.source, self.destination)
        totals: dict[tuple[int, str], TableDigest] = {}
        with contextlib.ExitStack() as held:
            items: list[DigestItem] = []
            for side, dsn in (("source", self.config.source.dsn), ("destination", self.config.destination.dsn)):
                connection, snapshot = held.enter_context(
                    exported_snapshot(dsn, application_name="headrace compare")
                )
                items += _plan(connection, snapshot, side, tables, columns)
            slices = max(1, min(len(items), self.tasks))
            task = partial(digest_chunks, self.access)
            found = self.context.parallelize(items, slices).mapPartitions(task).collect() if items else []
        for each in found:
            totals[each.table, each.side] = totals.get((each.table, each.side), TableDigest()) + each.digest
            if each.problem:
                problems.setdefault(each.table, each.problem)
        return [_result(number, table, totals, problems.get(number, "")) for number, table in enumerate(tables)]


def tables_of_now(
    source: SourceDatabase, config: ApplyJobConfig
) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]]:
    """Find out what the tables of an apply process are called now; those that were dropped are forgotten.

    Args:
        source: the source database.
        config: of the apply process; its tables have the names they had when the driver started.

    Returns:
        The identity of each table to compare by (owner, name), and why others cannot be compared.
    """
    captured = {table.identity: table for table in source.captured(config.topology)}
    include = tuple(Rule(owner=table.owner, name=table.name) for table in config.tables)
    names = {(table.owner, table.name) for table in source.tables((RuleSet(include=include),))}
    found: dict[tuple[str, str], str] = {}
    problems: dict[tuple[str, str], str] = {}
    for table in config.tables:
        now = captured.get(table.identity)
        if now is not None:
            found[now.owner, now.name] = table.identity
        elif (table.owner, table.name) in names:
            problems[table.owner, table.name] = "the source has another table of this name now: `headrace up` copies it"
    return found, {name: problem for name, problem in problems.items() if name not in found}


def _pause(seconds: float, is_active: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_active():
            return False
        time.sleep(_WAIT_POLL_S)
    return True


def _common_columns(
    tables: Sequence[tuple[str, str]], source: SourceDatabase, destination: DestinationDatabase,
) -> tuple[dict[int, tuple[str, ...]], dict[int, str]]:
    """Columns both sides have, per table; why a table cannot be compared."""
    rules = RuleSet(include=tuple(Rule(owner=owner, name=name) for owner, name in tables))
    facts = {(table.owner, table.name): table for table in source.tables((rules,))}
    columns: dict[int, tuple[str, ...]] = {}
    problems: dict[int, str] = {}
    for number, (owner, name) in enumerate(tables):
        there, target = facts.get((owner, name)), destination.describe(owner, name)
        if there is None or target is None:
            problems[number] = f"the {'source' if there is None else 'destination'} has no such table"
            continue
        names = {column.name for column in target.columns}
        missing = [column for column in there.columns if column not in names]
        if missing:
            problems[number] = f"the destination table lacks columns of the source's: {', '.join(missing)}"
        else:
            columns[number] = there.columns
    return columns, problems


def _plan(
    connection: Any, snapshot: str, side: str, tables: Sequence[tuple[str, str]], columns: dict[int, tuple[str, ...]],  # noqa: ANN401
) -> list[DigestItem]:
    from databases.postgres.table_copy import plan_chunks

    return [
        DigestItem(
            table=number, side=side, owner=chunk.owner, name=chunk.name, first_block=chunk.first_block,
            end_block=chunk.end_block, columns=names, snapshot=snapshot,
        )
        for number, names in columns.items()
        for chunk in plan_chunks(connection, *tables[number])
    ]


def _result(
    number: int, table: tuple[str, str], totals: dict[tuple[int, str], TableDigest], problem: str,
) -> TableComparison:
    source, destination = (
        SideDigest(rows=total.row_count, digest=str(total))
        for total in (totals.get((number, side), TableDigest()) for side in ("source", "destination"))
    )
    return TableComparison(
        owner=table[0], name=table[1], is_equal=not problem and source == destination, source=source,
        destination=destination, problem=problem,
    )
