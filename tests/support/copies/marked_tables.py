"""A source and a destination on real servers, with one apply process that copies their tables and checks their marks.

Spark is not needed, and nothing is applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import psycopg

from headrace.databases.connectors import DatabaseAccess
from headrace.databases.ports import Instantiation, PartOf
from headrace.databases.ports.copying import TablePiece
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.table_settings import TableSettings
from protos import apply_pb2 as pb
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.pieces.tasks import CopyPlaces
from spark_apply.copy.records.tables import TableProgress
from spark_apply.driver.control import ApplyControl
from tests.support.copies.copying_threads import ThreadWorkers
from tests.support.copies.table_copies import one_way
from tests.support.databases.captured_source import CapturedSource

__all__ = ["MarkedTables", "NothingIsApplied"]

TOPOLOGY, APPLY = "topo", "apply_from_src"


class NothingIsApplied:
    """Replaces `JoinCalls`: there are no changes, so a table has joined when that is recorded.

    Args:
        destination: of the apply process.
        applied_scn: its applied SCN.
    """

    is_joined = True
    truncated_parts: ClassVar[dict[PartOf, Scn]] = {}
    truncated_tables: ClassVar[dict[str, tuple[Scn, frozenset[int]]]] = {}

    def __init__(self, destination: PostgresDestination, applied_scn: Scn = FIRST_SCN) -> None:
        self._destination, self.applied_scn = destination, applied_scn

    def hold(self, scn: Scn | None) -> None: ...

    def hold_now(self) -> None: ...

    def emptied_scn(self, table: TableName) -> None: ...

    def leave_out(self, tables: Collection[TableName], parts: Collection[PartOf] = ()) -> bool:
        return True

    def join(self, tables: Sequence[Instantiation]) -> bool:
        progress = self._destination.progress(TOPOLOGY, APPLY)
        assert progress is not None
        self._destination.join_tables(TOPOLOGY, APPLY, progress.epoch, tables, through=progress.low_watermark)
        return True


class _Digests:
    """A `TaskRunner` that digests at once, in the test's process."""

    error, problem = None, ""

    def __init__(self, dsn: dict[str, str]) -> None:
        self._dsn = dsn
        self.results: list[bytes] = []

    def start(self, kind: int, tasks: int, *, items: Sequence[bytes]) -> _Digests:
        self.results = []
        for item in map(pb.DigestItem.FromString, items):
            with contextlib.closing(PostgresTableReader(self._dsn["src" if item.is_source else "dst"])) as reader:
                piece = TablePiece(owner=item.stored.owner, name=item.stored.name, place=item.place, bytes=item.bytes)
                with reader.open_piece(piece, snapshot=item.snapshot) as opened:
                    digest = opened.digest(list(item.columns))
            result = pb.DigestResult(
                table=item.table, is_source=item.is_source, rows=digest.row_count, digest=digest.to_bytes()
            )
            self.results.append(result.SerializeToString())
        return self

    def join(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None: ...


class MarkedTables:
    """The tables of one apply process, and their marks.

    Args:
        source: dsn.
        destination: dsn; has the schema headrace.
    """

    def __init__(self, source: str, destination: str) -> None:
        self.dsn = {"src": source, "dst": destination}
        self.source, self.destination = CapturedSource(source, site="src"), PostgresDestination(destination, site="dst")
        self.destination.prepare(TOPOLOGY)
        self.shown: dict[str, TableProgress] = {}
        self.applied_scn = Scn(1 << 60)  # everything
        self.left_out: dict[str, tuple[str, ...]] = {}
        self.made: TableInstantiation

    def run(self, site: str, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements at `src`, `dst` or `both`, each in its own transaction; return the rows of the last."""
        rows: list[tuple[Any, ...]] = []
        for each in ("src", "dst") if site == "both" else (site,):
            with psycopg.connect(self.dsn[each], autocommit=True) as connection:
                for statement in statements:
                    cursor = connection.execute(statement.encode())
                    rows = cursor.fetchall() if cursor.description else []
        return rows

    def up(self, *, keep: Collection[str] = (), shared: Collection[str] = (), detached: str = "ask") -> None:
        """Capture all tables of `app`, and start a driver that copies tables as needed.

        The tables in `shared` have other writers, too.
        """
        self.source.prepare(TOPOLOGY, [RuleSet(include=(Rule(owner="app", name="*"),))])
        tables = tuple(
            TableToInstantiate(
                identity=table.identity,
                source=TableName.of(table),
                destination=TableName.of(table),
                object_numbers=tuple(map(int, table.object_numbers)),
                keep_existing=table.name in keep,
                may_empty=table.name not in shared,
            )
            for table in self.source.captured(TOPOLOGY)
        )
        config = ApplyConfig(
            topology=TOPOLOGY,
            apply=APPLY,
            source=DatabaseAccess(site="src", kind="postgres", dsn=self.dsn["src"]),
            destination=DatabaseAccess(
                site="dst", kind="postgres", dsn=self.dsn["dst"], tables=TableSettings(detached_partitions=detached)
            ),
            queue="",
            parallelism=2,
            tables=tables,
        )
        workers = ThreadWorkers(
            lambda server, incarnation: CopyPlaces(
                source=lambda: PostgresTableReader(self.dsn["src"]),
                destination=lambda: PostgresTableReader(self.dsn["dst"]),
                session=lambda epoch, tag: PostgresDestination(self.dsn["dst"], site="dst").open_session(
                    TOPOLOGY, APPLY, server=server, epoch=epoch, tag=tag, incarnation=incarnation
                ),
            )
        )
        self.made = TableInstantiation(
            config=config,
            source=self.source,
            destination=self.destination,
            source_reader=PostgresTableReader(self.dsn["src"]),
            destination_reader=PostgresTableReader(self.dsn["dst"]),
            workers=workers,
            epoch=self.destination.raise_epoch(TOPOLOGY, APPLY).epoch,
            moved=self._moved,
            should_end=lambda: False,
            both_ways=one_way(config),
        )
        self.made.run_first()
        self.look()

    def _moved(self, progress: TableProgress) -> None:
        self.shown[progress.name] = progress

    def look(self) -> dict[str, str]:
        """Return what is shown of each table after a requested check, without healthy tables."""
        joins: Any = NothingIsApplied(self.destination, self.applied_scn)
        self.made._joins = self.made._marks.detached.joins = joins
        self.made._asked += 1
        for _ in range(10):
            if self.made._looked_at(joins):
                break
        else:
            raise AssertionError(self.shown)
        assert all(each.state in {"DONE", "KEPT", "GONE"} for each in self.shown.values()), self.shown
        return {name: each.problem for name, each in sorted(self.shown.items()) if each.problem}

    def copy_again(self, *tables: str) -> None:
        """Run `headrace copy`."""
        self.made.copy_again([TableName("app", table) for table in tables])
        joins: Any = NothingIsApplied(self.destination, self.applied_scn)
        self.made._joins = joins
        self.made._leave_out(joins)

    def verify(self) -> dict[str, bool]:
        """Run `headrace verify` on this driver's control alone; return whether each table is equal."""
        cores: Any = SimpleNamespace(epoch=self.made.epoch)
        runner: Any = _Digests(self.dsn)
        # the test itself checks the tables
        control = ApplyControl(config=self.made.config, runner=runner, cores=cores)
        answers = list(control.compare(pb.CompareRequest()))
        self.left_out = {found.name: tuple(found.left_out) for found in answers if found.left_out}
        return {found.name: found.equal for found in answers}

    def both(self, query: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        return self.run("src", query), self.run("dst", query)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.source.remove(TOPOLOGY)
        for each in (self.made.source_reader, self.made.destination_reader, self.source, self.destination):
            each.close()
