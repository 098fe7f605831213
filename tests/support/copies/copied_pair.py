"""A pair of real databases whose tables are checked, copied, applied and compared as an apply process does it.

Neither Ray nor Spark is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.errors import HeadraceError, Retry
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.ports import Finding
from headrace.databases.ports.copying import TablePiece
from headrace.databases.postgres.connection import qualified
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.table_name import TableName
from headrace.rules.rule import RuleSet
from headrace.rules.transformations.transformation import Transformation
from protos import apply_pb2 as pb
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy.comparison.jobs import Comparison, TableComparison, tables_of_now
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.pieces.tasks import CopyPlaces
from spark_apply.copy.records.standing import table_findings
from tests.support.apply.apply_engine import APPLY
from tests.support.copies.copying_threads import ThreadWorkers
from tests.support.copies.table_copies import one_way
from tests.support.databases.captured_source import CapturedSource
from tests.support.redo.postgres_redo import RULES
from tests.support.ways.postgres_pair import Pair
from topology.routing.ways import transformed

__all__ = ["CopiedPair"]

COPYING = "topo"  # topology of the slot that a pair reads


@dataclass
class _Digested:
    results: Sequence[bytes]
    error: None = None
    problem: str = ""

    def join(self, timeout_s: float) -> bool:
        return timeout_s > 0

    def close(self) -> None:
        pass


@dataclass
class _Runner:
    """Digests pieces in the test's thread, as `spark_apply.copy.pieces.tasks.digest_pieces` does."""

    here: str
    there: str
    compared: list[tuple[str, ...]] = field(default_factory=list)

    def start(self, kind: Any, tasks: int, *, items: Sequence[bytes]) -> _Digested:
        assert kind == pb.TASK_KIND_DIGEST
        assert tasks > 0
        return _Digested([self._digest(pb.DigestItem.FromString(item)) for item in items])

    def _reader(self, *, is_source: bool) -> PostgresTableReader:
        here, there = (self.here, self.there) if is_source else (self.there, self.here)
        return PostgresTableReader(here, other_dsn=there)

    def _digest(self, item: pb.DigestItem) -> bytes:
        self.compared.append(tuple(item.columns))
        result = pb.DigestResult(table=item.table, is_source=item.is_source)
        place = TablePiece(owner=item.stored.owner, name=item.stored.name, place=item.place, bytes=item.bytes)
        try:
            with (
                contextlib.closing(self._reader(is_source=item.is_source)) as reader,
                reader.open_piece(place, snapshot=item.snapshot) as piece,
            ):
                seen = piece.digest(tuple(item.columns))
            result.rows, result.digest = seen.row_count, seen.to_bytes()
        except HeadraceError as error:
            result.problem, result.is_final = error.message, error.retry is not Retry.TIMED
        return bytes(result.SerializeToString())


class CopiedPair(Pair):
    """A pair whose tables are copied. Call `create`, `copy` and then `attach`: a copy reads the slot for a moment."""

    transformations: tuple[Transformation, ...] = ()
    rules: RuleSet = RULES

    def create(self, here: str, there: str) -> None:
        self.redo.user.execute(here)
        self.there.execute(there)
        self.redo.source.prepare(COPYING, (self.rules,))

    def findings(self) -> list[Finding]:
        """Return the findings of `check` about the tables."""
        source = self.redo.source
        versions = source.table_versions(source.tables((self.rules,)))
        shapes = source.domain_shapes([TableName.of(version) for version in versions])
        for each in self.transformations:
            versions = tuple(transformed(version, each) for version in versions)
            shapes = tuple(transformed(shape, each) for shape in shapes)
        return [*self.destination.preflight_domains(shapes), *table_findings(self.destination, versions, {}, "dbs2")]

    def shape_findings(self) -> list[Finding]:
        """Return the findings of `check` about the tables' shapes."""
        source = self.redo.source
        versions = source.table_versions(source.tables((self.rules,)))
        shapes = source.table_shapes([TableName.of(version) for version in versions])
        for each in self.transformations:
            versions, shapes = (
                tuple(transformed(version, each) for version in versions),
                tuple(transformed(shape, each) for shape in shapes),
            )
        return list(self.destination.preflight_shapes(shapes, versions, {}))

    def source_findings(self) -> list[Finding]:
        """Return the findings of `check` about the source's tables."""
        return [
            found
            for found in self.redo.source.preflight((self.rules,), streams=1)
            if found.is_error and "table" in found.path
        ]

    def errors_found(self) -> list[Finding]:
        return [finding for finding in self.findings() if finding.is_error]

    def copy(self, *, rounds: int = 1) -> dict[str, tuple[str, str]]:
        """Empty the destination's tables and copy them; return state and problem of each."""
        moved: dict[str, tuple[str, str]] = {}
        places = 0

        def ends() -> bool:
            nonlocal places
            places += 1
            return places > 100 * rounds

        with contextlib.ExitStack() as opened:
            source = opened.enter_context(contextlib.closing(CapturedSource(self.redo.dsn, site="dbs1")))
            source._site = ""  # the slot has the pair's name
            config = self._config(source)
            for table in config.tables:
                self.there.execute(f"TRUNCATE {qualified(*table.destination)}".encode())
            self.there.execute("DELETE FROM headrace.instantiation")
            workers = ThreadWorkers(
                lambda server, incarnation: CopyPlaces(
                    source=lambda: PostgresTableReader(self.redo.dsn, other_dsn=self._dsn),
                    destination=lambda: PostgresTableReader(self._dsn, other_dsn=self.redo.dsn),
                    session=lambda epoch, tag: PostgresDestination(self._dsn).open_session(
                        COPYING,
                        APPLY,
                        server=server,
                        epoch=epoch,
                        tag=tag,
                        incarnation=incarnation,
                    ),
                )
            )
            TableInstantiation(
                config=config,
                both_ways=one_way(config),
                source=source,
                destination=self.destination,
                source_reader=opened.enter_context(
                    contextlib.closing(PostgresTableReader(self.redo.dsn, other_dsn=self._dsn))
                ),
                destination_reader=opened.enter_context(
                    contextlib.closing(PostgresTableReader(self._dsn, other_dsn=self.redo.dsn))
                ),
                workers=workers,
                epoch=self.destination.raise_epoch(COPYING, APPLY).epoch,
                moved=lambda table: moved.update({table.name: (table.state, table.problem)}),
                should_end=ends,
            ).run_first()
        return moved

    def attach(self) -> None:
        self.redo.attach()

    def starts(self) -> dict[tuple[str, str], int]:
        """Return for `apply` the SCNs from which changes of the copied tables count."""
        return {(each.owner, each.name): each.scn for each in self.destination.instantiations(COPYING, APPLY)}

    def verify(self, *, rechecks: int = 0, is_active: Callable[[], bool] = lambda: True) -> dict[str, TableComparison]:
        """Return the result of `headrace verify` by the tables' names.

        Args:
            rechecks: how often rows that differ are compared again; everything counts as applied.
            is_active: whether the comparison continues.
        """
        self.runner = _Runner(self.redo.dsn, self._dsn)
        source = self.redo.source
        config = self._config(source)
        tables, problems = tables_of_now(source, config)
        assert not problems
        comparison: Any = Comparison(
            runner=self.runner,
            config=config,
            source=source,
            destination=self.destination,
            tasks=1,
            is_active=is_active,
            applied=(lambda: 1 << 62) if rechecks else None,
        )
        return {each.table.source.name: each for each in comparison.run(tables, rechecks=rechecks, recheck_delay_s=0.0)}

    def _config(self, source: Any) -> ApplyConfig:
        tables = []
        for table in source.captured(COPYING):
            name = TableName.of(table)
            for each in self.transformations:
                name = each.named(name)
            tables.append(
                TableToInstantiate(
                    identity=table.identity,
                    source=TableName.of(table),
                    destination=name,
                    object_numbers=tuple(map(int, table.object_numbers)),
                    transformations=self.transformations,
                    may_empty=True,
                )
            )
        return ApplyConfig(
            topology=COPYING,
            apply=APPLY,
            source=DatabaseAccess(site="dbs1", kind="postgres", dsn=self.redo.dsn),
            destination=DatabaseAccess(site="dbs2", kind="postgres", dsn=self._dsn),
            queue="",
            parallelism=2,
            tables=tuple(tables),
        )
