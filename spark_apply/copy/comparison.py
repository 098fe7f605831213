"""Comparison of source and destination tables, as Spark jobs.

Each side is digested piece by piece under one snapshot, held by the driver, so that a comparison uses one moment per
side. Under load the two moments differ, and so can the tables: tables that differ are compared again with
new snapshots, as often as the caller wants. A table that never agrees while changes flow is a finding; after
`headrace wait --caught-up` on a quiet source, the result is definite.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from databases.connectors import open_reader
from databases.table_digest import TableDigest
from protos import apply_pb2 as pb
from rules.rule import Rule, RuleSet
from rules.transformation import TransformationError
from spark_apply.application.spark import SEE_LOG, SparkUnavailable
from spark_apply.copy.reshaped import ReshapedTable, has_function
from streams.errors import DatabaseError, DatabaseUnavailable
from streams.table_name import TableName

if TYPE_CHECKING:
    from databases.copying import TableReader
    from databases.ports import DestinationDatabase, SourceDatabase
    from spark_apply.driver.config import ApplyConfig, TableToInstantiate
    from spark_apply.driver.runs import TaskRunner

__all__ = ["Comparison", "RowDifference", "SideDigest", "TableComparison", "differing_rows", "tables_of_now"]

_WAIT_POLL_S = 0.1
# Which rows differ is found by digests of buckets of some hundred rows, in one scan of each side, then by the rows of a few.
_BUCKET_ROWS = 100
_BUCKETS_MIN, _BUCKETS_MAX = 16, 1 << 20
_ROWS_READ_MAX = 10_000  # of each side
DIFFERENCES_MAX = 20  # rows that are named: more than a person reads
_BEGIN_TIMEOUT_S = 120.0  # for an application that is being replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class SideDigest:
    """One side's number of rows, and the sums of their hashes as 32 hexadecimal digits."""

    rows: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A row that is not the same at both sides.

    Args:
        columns: names of the key columns; of a table without a key, of all.
        key: their values as text; None is NULL.
        what: "missing at the destination", "only at the destination" or "differs".
    """

    columns: tuple[str, ...]
    key: tuple[str | None, ...]
    what: str


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
        differences: rows that differ, some of them.
        has_more_differences: there are others.
    """

    table: TableToInstantiate
    is_equal: bool = False
    source: SideDigest = SideDigest()
    destination: SideDigest = SideDigest()
    checks: int = 0
    problem: str = ""
    is_final: bool = False
    differences: tuple[RowDifference, ...] = ()
    has_more_differences: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compares an apply process's tables; see the module.

    Args:
        runner: starts the tasks.
        config: of the apply process, with access to both databases.
        source: for its catalog.
        destination: for its catalog.
        tasks: number of concurrent Spark tasks.
        is_active: whether the caller still waits for results.
    """

    runner: TaskRunner
    config: ApplyConfig
    source: SourceDatabase
    destination: DestinationDatabase
    tasks: int
    is_active: Callable[[], bool]

    def run(
        self, tables: Sequence[TableToInstantiate], *, rechecks: int, recheck_delay_s: float
    ) -> Iterator[TableComparison]:
        """Compare tables; yields a table's result as soon as it is equal, or after the last check.

        Args:
            tables: of the apply process.
            rechecks: how often tables that differ are compared again.
            recheck_delay_s: pause between two checks, in seconds.

        Raises:
            DatabaseUnavailable: one of the databases does not answer.
            SparkUnavailable: the Spark application ended or did not start in time.
        """
        waiting = list(tables)
        for check in range(1, rechecks + 2):
            found = self._compare(waiting)
            is_last = check == rechecks + 1
            for each in found:
                if is_last and not each.is_equal and not each.problem:
                    yield replace(self._with_rows(each), checks=check)
                elif each.is_equal or each.is_final or is_last:
                    yield replace(each, checks=check)
            waiting = [each.table for each in found if not each.is_equal and not each.is_final]
            if not waiting or is_last or not _pause(recheck_delay_s, self.is_active):
                return

    def _with_rows(self, found: TableComparison) -> TableComparison:
        """A table that differs, with rows in which it does."""
        columns, problems = _common_columns([found.table], self.source, self.destination)
        target = self.destination.describe(*found.table.destination)
        if problems or target is None or has_function(found.table.transformations):
            return found  # rows that a function makes are in no database to be looked for
        sources, names = columns[0].source, columns[0].destination
        key = tuple(target.columns[place].name for place in target.key)
        key = key if key and set(key) <= set(names) else names
        source_of = dict(zip(names, sources, strict=True))
        buckets = min(max(max(found.source.rows, found.destination.rows) // _BUCKET_ROWS, _BUCKETS_MIN), _BUCKETS_MAX)
        try:
            with contextlib.ExitStack() as opened:
                sides = [
                    _Side(
                        opened.enter_context(contextlib.closing(open_reader(access, application_name="headrace compare"))), name, side_key, those,
                        rows=found.table.rows,
                    )
                    for access, name, side_key, those in (
                        (self.config.source, found.table.source, tuple(source_of[column] for column in key), sources),
                        (self.config.destination, found.table.destination, key, names),
                    )
                ]
                for side in sides:
                    side.snapshot = opened.enter_context(side.reader.export_snapshot())
                differences, has_more = differing_rows(sides, buckets)
        except DatabaseError as error:
            return replace(found, problem=f"different; its rows could not be compared: {error.message}")
        return replace(found, differences=differences, has_more_differences=has_more)

    def _compare(self, tables: Sequence[TableToInstantiate]) -> list[TableComparison]:
        """Compare each table once."""
        if not tables:
            return []
        columns, problems = _common_columns(tables, self.source, self.destination)
        totals: dict[tuple[int, bool], TableDigest] = {}
        reshaped = _reshaped(self.source, self.config.source.site, tables)
        with contextlib.ExitStack() as held:
            items: list[bytes] = []
            for is_source, access in ((True, self.config.source), (False, self.config.destination)):
                reader = held.enter_context(contextlib.closing(open_reader(access, application_name="headrace compare")))
                snapshot = held.enter_context(reader.export_snapshot())
                names = [(table.source if is_source else table.destination, table.rows) for table in tables]
                items += _plan(reader, snapshot, names, columns, problems, is_source=is_source, reshaped=reshaped if is_source else {})
            found = self._digest(items) if items else []
        for each in found:
            key, digest = (each.table, each.is_source), TableDigest.from_bytes(each.rows, each.digest)
            totals[key] = totals.get(key, TableDigest()) + digest
            if each.problem:
                problems.setdefault(each.table, (each.problem, each.is_final))
        return [_result(number, table, totals, *problems.get(number, ("", False))) for number, table in enumerate(tables)]

    def _digest(self, items: Sequence[bytes]) -> list[pb.DigestResult]:
        """Digest pieces in Spark tasks; Spark may repeat them, because they write nothing."""
        run = self.runner.start(pb.TASK_KIND_DIGEST, min(len(items), self.tasks), items=items)
        try:
            began = time.monotonic()
            while not run.join(_WAIT_POLL_S):
                if not self.is_active() or (run.problem and time.monotonic() - began > _BEGIN_TIMEOUT_S):
                    raise SparkUnavailable(f"comparison by {self.config.apply}: {run.problem or 'it was stopped'}", hint=SEE_LOG)
        finally:
            run.close()
        if run.error is not None:
            raise run.error
        return [pb.DigestResult.FromString(result) for result in run.results]


def tables_of_now(source: SourceDatabase, config: ApplyConfig) -> tuple[list[TableToInstantiate], dict[TableName, str]]:
    """Find the current names of an apply process's tables, without dropped tables.

    Args:
        source: the source database.
        config: of the apply process; its tables have their names from the start of the driver.

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
            found.append(replace(table, source=now, destination=_destination(table, now)))
        elif table.source in there:
            problems[table.source] = "the source has another table of this name now: `headrace up` copies it"
    names = {table.source for table in found}
    return found, {name: problem for name, problem in problems.items() if name not in names}


def _destination(table: TableToInstantiate, now: TableName) -> TableName:
    """The name at the destination of a table that the source calls `now`: as its changes arrive, in another schema for example."""
    was = table.source
    for each in table.transformations:
        was, now = each.named(was), each.named(now)
    return now if was == table.destination else table.destination


@dataclass(slots=True)
class _Side:
    reader: TableReader
    name: TableName
    key: tuple[str, ...]  # columns that tell rows apart, as this side calls them
    columns: tuple[str, ...]  # that are compared, likewise
    snapshot: str = ""
    rows: str = ""


def differing_rows(sides: Sequence[_Side], buckets: int) -> tuple[tuple[RowDifference, ...], bool]:
    """Rows in which a table differs, `DIFFERENCES_MAX` at most, and whether there are more.

    Args:
        sides: source and destination.
        buckets: into how many the rows are divided.
    """
    source, destination = (
        side.reader.bucket_digests(*side.name, side.key, side.columns, buckets=buckets, snapshot=side.snapshot, rows=side.rows) for side in sides
    )
    wanted: list[int] = []
    total = 0
    different = [number for number in range(buckets) if source[number] != destination[number]]
    for number in different:
        total += max(source[number].row_count, destination[number].row_count)
        if wanted and total > _ROWS_READ_MAX:
            break
        wanted.append(number)
        if len(wanted) > DIFFERENCES_MAX:
            break
    if not wanted:
        return (), False
    rows_max = max(sum(side[number].row_count for number in wanted) for side in (source, destination))
    there, here = (
        Counter(side.reader.bucket_rows(
            *side.name, side.key, side.columns, buckets=buckets, wanted=wanted, rows_max=rows_max, snapshot=side.snapshot, rows=side.rows,
        ))
        for side in sides
    )
    missing, extra = there - here, here - there
    missing_keys, extra_keys = {row.key for row in missing}, {row.key for row in extra}
    found = [
        RowDifference(columns=sides[-1].key, key=each, what=what)
        for keys, what in (
            (missing_keys & extra_keys, "differs"), (missing_keys - extra_keys, "missing at the destination"),
            (extra_keys - missing_keys, "only at the destination"),
        )
        for each in sorted(keys, key=lambda values: [(value is not None, value or "") for value in values])
    ]
    has_more = len(found) > DIFFERENCES_MAX or len(wanted) < len(different)
    return tuple(found[:DIFFERENCES_MAX]), has_more


def _pause(seconds: float, is_active: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_active():
            return False
        time.sleep(_WAIT_POLL_S)
    return True


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a table that come from the source, under their names at either side, one for each."""

    source: tuple[str, ...]
    destination: tuple[str, ...]


def _common_columns(
    tables: Sequence[TableToInstantiate], source: SourceDatabase, destination: DestinationDatabase,
) -> tuple[dict[int, _Columns], dict[int, tuple[str, bool]]]:
    """Columns both sides have, per table; why a table cannot be compared, and whether that is final."""
    rules = RuleSet(include=tuple(Rule(owner=table.source.owner, name=table.source.name) for table in tables))
    facts = {TableName.of(table): table for table in source.tables((rules,))}
    columns: dict[int, _Columns] = {}
    problems: dict[int, tuple[str, bool]] = {}
    for number, table in enumerate(tables):
        there, target = facts.get(table.source), destination.describe(*table.destination)
        if there is None or target is None:
            problems[number] = (f"the {'source' if there is None else 'destination'} has no such table", True)
            continue
        names = {column.name for column in target.columns}
        try:
            arriving = [(name, origin) for name, origin in table.columns(there.columns) if isinstance(origin, str)]
        except TransformationError as error:
            problems[number] = (error.message, True)
            continue
        missing = [name for name, _ in arriving if name not in names]
        if missing:
            problems[number] = (f"the destination table lacks columns of the source's: {', '.join(missing)}", True)
        else:
            columns[number] = _Columns(tuple(origin for _, origin in arriving), tuple(name for name, _ in arriving))
    return columns, problems


def _plan(
    reader: TableReader, snapshot: str, tables: Sequence[tuple[TableName, str]], columns: dict[int, _Columns],
    problems: dict[int, tuple[str, bool]], *, is_source: bool, reshaped: Mapping[int, bytes],
) -> list[bytes]:
    """Serialized `DigestItem`s of the tables that both sides have; adds to `problems` why a table cannot be read."""
    items: list[bytes] = []
    for number, both in columns.items():
        names = both.source if is_source and number not in reshaped else both.destination
        try:
            (owner, name), rows = tables[number]
            plan = reader.plan(owner, name, {}, snapshot=snapshot, rows=rows)
        except DatabaseError as error:
            problems.setdefault(number, (error.message, not isinstance(error, DatabaseUnavailable)))
            continue
        items += [
            pb.DigestItem(
                table=number, is_source=is_source, stored=pb.TableName(owner=piece.owner, name=piece.name), place=piece.place,
                bytes=piece.bytes, columns=names, snapshot=snapshot,
                reshaped=pb.ReshapedTable(document=reshaped[number]) if number in reshaped else None,
            ).SerializeToString()
            for piece in plan.pieces
        ]
    return items


def _reshaped(source: SourceDatabase, site: str, tables: Sequence[TableToInstantiate]) -> dict[int, bytes]:
    """What tasks need to make the rows of tables that have functions, by their numbers."""
    found: dict[int, bytes] = {}
    for number, table in enumerate(tables):
        if not has_function(table.transformations):
            continue
        facts = source.tables((RuleSet(include=(Rule(owner=table.source.owner, name=table.source.name),)),))
        versions = source.table_versions([each for each in facts if TableName.of(each) == table.source])
        if versions:
            found[number] = ReshapedTable(
                source=site, owner=table.source.owner, name=table.source.name, columns=versions[0].columns, transformations=table.transformations,
            ).to_bytes()
    return found


def _result(
    number: int, table: TableToInstantiate, totals: dict[tuple[int, bool], TableDigest], problem: str, is_final: bool,  # noqa: FBT001
) -> TableComparison:
    source, destination = (
        SideDigest(rows=total.row_count, digest=str(total))
        for total in (totals.get((number, is_source), TableDigest()) for is_source in (True, False))
    )
    return TableComparison(
        table=table, is_equal=not problem and source == destination, source=source,
        destination=destination, problem=problem, is_final=is_final,
    )
