"""Comparison of source and destination tables, as Spark jobs.

Each side is digested piece by piece under one snapshot, held by the driver, so a comparison uses one moment per side.
Under load the two moments differ, and so do the tables. So rows that differ are compared again, alone, until each has
settled or is known to differ (`spark_apply.copy.comparison.differing_rows`). A change in flight is no difference, in
either direction (`spark_apply.copy.comparison.catching_up`).

Tables whose rows cannot be looked up (functions make them) are compared again as a whole, and so are tables that could
not be read. For these, a difference is definite only on a quiet source.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.databases.connectors import open_reader
from headrace.databases.ports import BEGUN, PartOf
from headrace.databases.table_digest import TableDigest
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.transformation import AddColumn, TransformationError
from protos import apply_pb2 as pb
from spark_apply.application.spark import SEE_LOG, SparkUnavailable
from spark_apply.copy.comparison.catching_up import POLL_S, CatchingUp, WaysBack
from spark_apply.copy.comparison.differing_rows import (
    DIFFERENCES_MAX,
    STEADY_LOOKS,
    FoundRows,
    RowDifference,
    Side,
    differing_rows,
    judged_rows,
)
from spark_apply.copy.pieces.padded_columns import why_padded
from spark_apply.copy.pieces.reshaped import ReshapedTable, has_function
from spark_apply.copy.records.parts import here

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, MarkedPart, RowMark, SourceDatabase
    from headrace.databases.ports.copying import SeenTable, TableReader
    from spark_apply.application.task_runs import TaskRunner
    from spark_apply.apply_config import ApplyConfig, TableToInstantiate

__all__ = ["ComparedColumns", "Comparison", "SideDigest", "TableComparison", "compared_columns", "tables_of_now"]

_BUCKET_ROWS = 100  # rows per bucket of `differing_rows`
_BUCKETS_MIN, _BUCKETS_MAX = 16, 1 << 20
_BEGIN_TIMEOUT_S = 120.0  # for an application that is being replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class SideDigest:
    """One side's number of rows, and the sums of their hashes as 32 hexadecimal digits."""

    rows: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """The last result for one table, compared `checks` times.

    Args:
        table: the table.
        is_equal: both sides have the same rows.
        source, destination: the rows and the digest of each side.
        checks: how often it was compared.
        problem: why it could not be compared.
        is_final: the next attempt would fail too.
        mark: of the source's table, as the comparison's snapshot sees it; None: it has none.
        differences: some of the rows that differ.
        has_more_differences: further rows differ.
        settled: how many rows differed at first, and were the same when they were compared again.
        in_flight, in_flight_rows: some of the rows in flight, which could not be judged, and their number
            (`spark_apply.copy.comparison.differing_rows`).
        left_out: what a SELECT shows at either side but was not compared, each with the reason.
        computed: names of compared columns that the destination computes itself: no copy changes them.
        padded: why columns padded to different lengths differ, for the operator; empty: no such column.
    """

    table: TableToInstantiate
    is_equal: bool = False
    source: SideDigest = SideDigest()
    destination: SideDigest = SideDigest()
    checks: int = 0
    problem: str = ""
    is_final: bool = False
    mark: RowMark | None = None
    differences: tuple[RowDifference, ...] = ()
    has_more_differences: bool = False
    settled: int = 0
    in_flight: tuple[RowDifference, ...] = ()
    in_flight_rows: int = 0
    left_out: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    padded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compares an apply process's tables.

    Args:
        runner: starts the tasks.
        config: of the apply process, with access to both databases.
        source: for its catalog.
        destination: for its catalog.
        tasks: number of concurrent Spark tasks.
        is_active: whether the caller still waits for results.
        applied: returns the SCN of the source up to which the destination has everything; None: unknown, and rows that
            differ are not compared again.
        back: how changes of other sites at the destination reach the source; None: they do not.
    """

    runner: TaskRunner
    config: ApplyConfig
    source: SourceDatabase
    destination: DestinationDatabase
    tasks: int
    is_active: Callable[[], bool]
    applied: Callable[[], int] | None = None
    back: WaysBack | None = None
    _waits: CatchingUp = field(init=False, repr=False)

    def __post_init__(self) -> None:
        waits = CatchingUp(
            self.config.apply, is_active=self.is_active, source=self.source, applied=self.applied, back=self.back
        )
        object.__setattr__(self, "_waits", waits)

    def run(
        self, tables: Sequence[TableToInstantiate], *, rechecks: int, recheck_delay_s: float
    ) -> Iterator[TableComparison]:
        """Compare tables; yield each table's result when it is known.

        Args:
            tables: of the apply process.
            rechecks: how often differing tables or rows are compared again.
            recheck_delay_s: pause between two checks, in seconds.

        Raises:
            ApplyError: the comparison was stopped: tables that were not yielded yet have no result.
            DatabaseUnavailable: one of the databases does not answer.
            SparkUnavailable: the Spark application ended or did not start in time.
        """
        waiting = list(tables)
        for check in range(1, rechecks + 2):
            is_last = check == rechecks + 1
            again = []
            copies = self._copies()
            for compared in self._compare(waiting):
                self._waits.go_on()
                found = each = self._unless_copied(compared, copies)
                is_judged = self.applied is not None and rechecks > 0 and not has_function(each.table.transformations)
                if not each.is_equal and not each.problem and (is_judged or is_last):
                    found = self._with_rows(each, rechecks if is_judged else 0, recheck_delay_s)
                    found = self._unless_copied(found, copies)
                if found.is_equal or found.is_final or is_last or (is_judged and not found.problem):
                    yield replace(found, checks=check)
                else:
                    again.append(each.table)
            waiting = again
            if not waiting or is_last:
                return
            self._waits.pause(recheck_delay_s)

    def _copies(self) -> dict[str, frozenset[tuple[str, int, bool]]]:
        """Return the copies of each table and its partitions, by table identity: which, up to when, in progress."""
        found: dict[str, set[tuple[str, int, bool]]] = {}
        for each in self.destination.instantiations(self.config.topology, self.config.apply):
            if each.source != self.config.source.site:
                continue
            part = PartOf.of(each.identity)
            table = each.identity if part is None else part.table
            found.setdefault(table, set()).add((each.identity, int(each.scn), each.state in BEGUN))
        return {table: frozenset(copies) for table, copies in found.items()}

    def _unless_copied(
        self, found: TableComparison, before: Mapping[str, frozenset[tuple[str, int, bool]]]
    ) -> TableComparison:
        """Return the result for a table, unless a copy made meanwhile explains the difference.

        Args:
            found: the result from both sides.
            before: the copies when the reading began.
        """
        if found.is_equal or found.problem:
            return found
        identity = found.table.identity
        now = self._copies().get(identity, frozenset())
        if now == before.get(identity, frozenset()) and not any(is_made for *_, is_made in now):
            return found
        return TableComparison(table=found.table, problem="it was copied, or a partition of it, while it was compared")

    def _with_rows(self, found: TableComparison, rechecks: int, recheck_delay_s: float) -> TableComparison:
        """Return the result for a table that differed, with the rows that differ.

        With rechecks, rows in flight are excluded, and the table may be equal.
        """
        target = self.destination.describe(*found.table.destination)
        if has_function(found.table.transformations):
            return found  # no database has rows that a function makes, so they cannot be looked up
        if target is None:
            return _altered(found, "the destination no longer has it")
        try:
            with contextlib.ExitStack() as opened:
                readers = [
                    opened.enter_context(contextlib.closing(open_reader(*each, application_name="headrace compare")))
                    for each in permutations((self.config.source, self.config.destination))
                ]
                opened.enter_context(self._waits.reading(readers))
                columns = compared_columns(
                    found.table, readers[0].seen(*found.table.source), readers[1].seen(*found.table.destination)
                )
                if isinstance(columns, str):
                    return _altered(found, columns)
                key = tuple(target.columns[place].name for place in target.key)
                key = key if key and set(key) <= set(columns.destination) else columns.destination
                source_of = dict(zip(columns.destination, columns.source, strict=True))
                sides = [
                    Side(
                        readers[0],
                        found.table.source,
                        tuple(source_of[column] for column in key),
                        columns.source,
                        rows=found.table.rows,
                    ),
                    Side(
                        readers[1],
                        found.table.destination,
                        key,
                        columns.destination,
                        rows=self._kept([found.table])[0].rows,
                    ),
                ]
                return self._judged(found, sides, rechecks, recheck_delay_s)
        except DatabaseError as error:
            return replace(
                found,
                problem=f"different; its rows could not be compared: {error.message}",
                is_final=not isinstance(error, DatabaseUnavailable),
            )

    def _judged(
        self, found: TableComparison, sides: Sequence[Side], rechecks: int, recheck_delay_s: float
    ) -> TableComparison:
        """Judge a table that differed by its rows, in buckets: each bucket counts until it was the same once."""
        buckets = min(max(max(found.source.rows, found.destination.rows) // _BUCKET_ROWS, _BUCKETS_MIN), _BUCKETS_MAX)
        if not rechecks:
            rows = self._rows_now(sides, buckets, buckets_max=DIFFERENCES_MAX + 1)
            return replace(
                found,
                differences=rows.differences[:DIFFERENCES_MAX],
                has_more_differences=len(rows.differences) > DIFFERENCES_MAX or bool(rows.unread),
            )
        among: frozenset[int] | None = None
        settled = 0
        moving: list[RowDifference] = []
        for _ in range(rechecks):
            self._waits.go_on()
            returned = self._waits.back_to_the_source
            rows = self._rows_now(sides, buckets, among=among, buckets_max=buckets, returned=returned)
            judged = judged_rows(
                sides,
                rows,
                looks=rechecks + STEADY_LOOKS - 1,
                catch_up=lambda: self._waits.to_the_destination(recheck_delay_s),
                returned=returned,
            )
            settled += judged.settled
            moving += judged.in_flight
            among = rows.unread
            if judged.differences or not among:
                break
        differs = bool(judged.differences)
        return replace(
            found,
            is_equal=not differs and not among,
            differences=judged.differences[:DIFFERENCES_MAX],
            settled=settled,
            has_more_differences=differs and (len(judged.differences) > DIFFERENCES_MAX or bool(among)),
            in_flight=tuple(moving[:DIFFERENCES_MAX]),
            in_flight_rows=len(moving),
            is_final=bool(among),
            problem=""
            if differs or not among
            else "more of its rows change meanwhile than can be compared again: compare it again under less load",
        )

    @staticmethod
    def _rows_now(
        sides: Sequence[Side],
        buckets: int,
        *,
        among: Collection[int] | None = None,
        buckets_max: int,
        returned: Callable[[], None] = lambda: None,
    ) -> FoundRows:
        """Return the rows in which a table differs, under two snapshots of which the destination's is older.

        So a row that differs lacks a change at the destination, or will never be the same.
        """
        with contextlib.ExitStack() as opened:
            here = opened.enter_context(sides[1].reader.export_snapshot())
            returned()
            there = opened.enter_context(sides[0].reader.export_snapshot())
            seen = [replace(side, snapshot=name) for side, name in zip(sides, (there, here), strict=True)]
            return differing_rows(seen, buckets, among=among, buckets_max=buckets_max)

    def _compare(self, tables: Sequence[TableToInstantiate]) -> list[TableComparison]:
        """Compare each table once."""
        if not tables:
            return []
        totals: dict[tuple[int, bool], TableDigest] = {}
        reshaped = _reshaped(self.source, self.config.source.site, tables)
        marks: dict[str, RowMark] = {}
        kept = self._kept(tables)
        with contextlib.ExitStack() as held:
            readers = [
                held.enter_context(contextlib.closing(open_reader(*each, application_name="headrace compare")))
                for each in permutations((self.config.source, self.config.destination))
            ]
            columns, problems = _common_columns(tables, readers[0], readers[1], reshaped)
            held.enter_context(self._waits.reading(readers))
            items: list[bytes] = []
            for is_source, reader in ((True, readers[0]), (False, readers[1])):
                snapshot = held.enter_context(reader.export_snapshot())
                if is_source:
                    marks = self.source.row_marks(self.config.topology, snapshot=snapshot)
                names = [
                    (table.source, table.rows) if is_source else (table.destination, here.rows)
                    for table, here in zip(tables, kept, strict=True)
                ]
                items += _plan(
                    reader,
                    snapshot,
                    names,
                    columns,
                    problems,
                    is_source=is_source,
                    reshaped=reshaped if is_source else {},
                )
            found = self._digest(items) if items else []
        for each in found:
            key, digest = (each.table, each.is_source), TableDigest.from_bytes(each.rows, each.digest)
            totals[key] = totals.get(key, TableDigest()) + digest
            if each.problem:
                problems.setdefault(each.table, (each.problem, each.is_final))
        results = [
            replace(
                _result(number, table, totals, *problems.get(number, ("", False))),
                mark=kept[number].marked(marks.get(table.identity)),
            )
            for number, table in enumerate(tables)
        ]
        return [
            each
            if each.problem
            else replace(
                each,
                left_out=(*columns[number].left_out, *kept[number].said),
                computed=columns[number].computed,
                padded=columns[number].padded,
            )
            for number, each in enumerate(results)
        ]

    def _kept(self, tables: Sequence[TableToInstantiate]) -> list[_KeptRows]:
        """Return what to compare of each destination table: without partitions that it keeps (`RowMark.kept`)."""
        if self.config.destination.tables.detached_partitions != "keep":
            return [_KeptRows(rows=table.rows) for table in tables]
        recorded = self.destination.row_marks(self.config.topology, self.config.apply, self.config.source.site)
        found = []
        for table in tables:
            parts = recorded[table.identity].kept if table.identity in recorded else {}
            names = {number: here(part, table.source, table.destination) for number, part in parts.items()}
            rows = {name: self.destination.partition_rows(table.destination, name) for name in names.values()}
            conditions = [f"({table.rows})"] if table.rows else []
            conditions += [f"({condition}) IS NOT TRUE" for condition in rows.values() if condition]
            found.append(
                _KeptRows(
                    rows=" AND ".join(conditions),
                    parts=parts,
                    said=tuple(
                        f"partition {name}: the source no longer has it, and it is kept (detached_partitions)"
                        for name, condition in rows.items()
                        if condition
                    ),
                )
            )
        return found

    def _digest(self, items: Sequence[bytes]) -> list[pb.DigestResult]:
        """Digest pieces in Spark tasks; Spark may repeat them, because they write nothing."""
        run = self.runner.start(pb.TASK_KIND_DIGEST, min(len(items), self.tasks), items=items)
        try:
            began = time.monotonic()
            while not run.join(POLL_S):
                self._waits.go_on()
                if run.problem and time.monotonic() - began > _BEGIN_TIMEOUT_S:
                    raise SparkUnavailable(f"comparison by {self.config.apply}: {run.problem}", hint=SEE_LOG)
        finally:
            run.close()
        if run.error is not None:
            raise run.error
        return [pb.DigestResult.FromString(result) for result in run.results]


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptRows:
    """For one table: the destination rows that are compared, and the reasons why others are not."""

    rows: str = ""
    parts: Mapping[str, MarkedPart] = field(default_factory=dict)
    said: tuple[str, ...] = ()

    def marked(self, mark: RowMark | None) -> RowMark | None:
        """Return the table's mark with the kept partitions."""
        return mark if mark is None or not self.parts else replace(mark, kept=dict(self.parts))


def tables_of_now(source: SourceDatabase, config: ApplyConfig) -> tuple[list[TableToInstantiate], dict[TableName, str]]:
    """Return an apply process's tables under their current names, without dropped tables.

    Args:
        source: the source database.
        config: of the apply process; its tables have their names at the start of the driver.

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
    """Return the destination's name of a table that the source now calls `now`.

    Its changes arrive there under that name, in another schema for example.
    """
    was = table.source
    for each in table.transformations:
        was, now = each.named(was), each.named(now)
    return now if was == table.destination else table.destination


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumns:
    """The columns that a table has at both sides, with one name for each side.

    Args:
        source, destination: names.
        left_out: what a SELECT shows but is not compared, each with the reason.
        computed: those that the destination computes, under their names there.
        stored: where each side's rows are stored, source first: schema and name.
        padded: as in `TableComparison`.
    """

    source: tuple[str, ...]
    destination: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    stored: tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]] = (frozenset(), frozenset())
    padded: str = ""


def compared_columns(
    table: TableToInstantiate,
    there: SeenTable | None,
    here: SeenTable | None,
    made: Sequence[str] | None = None,
) -> ComparedColumns | str:
    """Return every column that a SELECT shows at both sides, whether or not it is captured and copied.

    Or return why the table cannot be compared.

    Args:
        table: provides the transformations.
        there: the table as the source shows it; None: it has no such table.
        here: the table as the destination shows it; None: it has no such table.
        made: names of the source's columns from which a function makes the rows; None: no function.
    """
    if there is None or here is None:
        return f"the {'source' if there is None else 'destination'} has no such table"
    try:
        arriving = _arriving(table, there, made)
    except TransformationError as error:
        return error.message
    compared = {name: origin for name, origin in arriving if isinstance(origin, str) and name in here.columns}
    lacking = [(name, origin) for name, origin in arriving if name not in here.columns]
    if missing := [name for name, origin in lacking if origin not in there.computed]:
        return f"the destination table lacks columns of the source's: {', '.join(missing)}"
    origins = {origin for _, origin in arriving if isinstance(origin, str)}
    left_out = [f"{name} (the source computes it, and the destination has no such column)" for name, _ in lacking]
    left_out += [f"{name} (a transformation adds it)" for name, origin in arriving if not isinstance(origin, str)]
    left_out += [
        f"{name} (no function sees it: its values are not in the log)"
        for name in there.columns
        if made is not None and name not in made
    ]
    left_out += [
        f"{name} (a transformation leaves it out)"
        for name in there.columns
        if name not in origins and (made is None or name in made)
    ]
    names = {name for name, _ in arriving}
    left_out += [f"{name} (only at the destination)" for name in here.columns if name not in names]
    left_out += [
        f"{text}, at the {side}" for side, seen in (("source", there), ("destination", here)) for text in seen.elsewhere
    ]
    return ComparedColumns(
        source=tuple(compared.values()),
        destination=tuple(compared),
        left_out=tuple(left_out),
        stored=(there.stored, here.stored),
        computed=tuple(name for name in compared if name in here.computed),
        padded=why_padded(
            there,
            here,
            [(origin, name) for name, origin in compared.items()],
            source=table.source,
            destination=table.destination,
        ),
    )


def _arriving(
    table: TableToInstantiate, there: SeenTable, made: Sequence[str] | None
) -> tuple[tuple[str, str | AddColumn], ...]:
    if made is not None:
        return table.columns(made)
    try:
        return table.columns(there.columns)
    except TransformationError:
        if not there.computed:
            raise
    # A column that is not in the log collides with nothing: it may have the name of one that a transformation adds.
    return table.columns([name for name in there.columns if name not in there.computed])


def _common_columns(
    tables: Sequence[TableToInstantiate],
    source: TableReader,
    destination: TableReader,
    reshaped: Mapping[int, ReshapedTable],
) -> tuple[dict[int, ComparedColumns], dict[int, tuple[str, bool]]]:
    """Return the columns to compare, per table; why other tables cannot be compared, and whether that is final."""
    columns: dict[int, ComparedColumns] = {}
    problems: dict[int, tuple[str, bool]] = {}
    for number, table in enumerate(tables):
        made = [column.name for column in reshaped[number].columns] if number in reshaped else None
        try:
            found = compared_columns(table, source.seen(*table.source), destination.seen(*table.destination), made)
        except DatabaseError as error:
            problems[number] = (error.message, not isinstance(error, DatabaseUnavailable))
            continue
        if isinstance(found, str):
            problems[number] = (found, True)
        else:
            columns[number] = found
    return columns, problems


def _plan(
    reader: TableReader,
    snapshot: str,
    tables: Sequence[tuple[TableName, str]],
    columns: dict[int, ComparedColumns],
    problems: dict[int, tuple[str, bool]],
    *,
    is_source: bool,
    reshaped: Mapping[int, ReshapedTable],
) -> list[bytes]:
    """Return serialized `DigestItem`s of the tables that both sides have; add to `problems` why one cannot be read."""
    items: list[bytes] = []
    for number, both in columns.items():
        names = both.source if is_source and number not in reshaped else both.destination
        try:
            (owner, name), rows = tables[number]
            plan = reader.plan(owner, name, {}, snapshot=snapshot, rows=rows)
        except DatabaseError as error:
            problems.setdefault(number, (error.message, not isinstance(error, DatabaseUnavailable)))
            continue
        if unread := both.stored[0 if is_source else 1] - {(piece.owner, piece.name) for piece in plan.pieces}:
            problems.setdefault(
                number, (f"rows of {', '.join(sorted('.'.join(each) for each in unread))} were not read", False)
            )
            continue
        items += [
            pb.DigestItem(
                table=number,
                is_source=is_source,
                stored=pb.TableName(owner=piece.owner, name=piece.name),
                place=piece.place,
                bytes=piece.bytes,
                columns=names,
                snapshot=snapshot,
                reshaped=pb.ReshapedTable(document=reshaped[number].to_bytes()) if number in reshaped else None,
            ).SerializeToString()
            for piece in plan.pieces
        ]
    return items


def _reshaped(source: SourceDatabase, site: str, tables: Sequence[TableToInstantiate]) -> dict[int, ReshapedTable]:
    """Return what tasks need to make the rows of tables that have functions, by the tables' numbers."""
    found: dict[int, ReshapedTable] = {}
    for number, table in enumerate(tables):
        if not has_function(table.transformations):
            continue
        facts = source.tables((RuleSet(include=(Rule(owner=table.source.owner, name=table.source.name),)),))
        versions = source.table_versions([each for each in facts if TableName.of(each) == table.source])
        if versions:
            found[number] = ReshapedTable(
                source=site,
                owner=table.source.owner,
                name=table.source.name,
                columns=versions[0].columns,
                transformations=table.transformations,
            )
    return found


def _result(
    number: int,
    table: TableToInstantiate,
    totals: dict[tuple[int, bool], TableDigest],
    problem: str,
    is_final: bool,  # noqa: FBT001
) -> TableComparison:
    source, destination = (
        SideDigest(rows=total.row_count, digest=str(total))
        for total in (totals.get((number, is_source), TableDigest()) for is_source in (True, False))
    )
    return TableComparison(
        table=table,
        is_equal=not problem and source == destination,
        source=source,
        destination=destination,
        problem=problem,
        is_final=is_final,
    )


def _altered(found: TableComparison, problem: str) -> TableComparison:
    """Return the result for a table that was altered while its sides were read: the digests are meaningless."""
    return replace(found, problem=f"altered while it was compared: {problem}", is_final=True)
