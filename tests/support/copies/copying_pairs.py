"""Apply processes that copy one table, `rooms`, between real databases as their drivers would, without Ray and Spark."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.databases.connectors import DatabaseAccess, open_destination
from headrace.databases.ports import Carried, Instantiation
from headrace.databases.postgres.copying.table_copy import PostgresTableReader
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy.instantiation import TableInstantiation
from spark_apply.copy.pieces.tasks import CopyPlaces
from spark_apply.copy.records.tables import TableProgress
from spark_apply.copy.ways.both_ways import BothWays
from tests.support.copies.copying_threads import ThreadWorkers
from tests.support.databases.captured_source import CapturedSource
from tests.support.databases.statements import execute

__all__ = [
    "ENDED_S",
    "ROOMS",
    "TOPOLOGY",
    "CopyingPair",
    "at_once",
]

TOPOLOGY = "shop"
ENDED_S = 120.0  # generous: machines may run other work as well
ROOMS = "CREATE TABLE rooms (id int PRIMARY KEY, v text)"


class _Destination(PostgresDestination):
    """Records what copies carried."""

    carried: tuple[Carried, ...] = ()

    def record_instantiation(self, *args: Any, carries: Sequence[Carried] = (), **options: Any) -> bool:
        self.carried += tuple(carries)
        return super().record_instantiation(*args, carries=carries, **options)


class CopyingPair:
    """One apply process, with a source and the destination.

    Args:
        name: of the source's site.
        source, destination: connection strings.
        topology: its name.
        site: the destination's.
        is_returned: the table also returns to its source; a pair with the two sites exchanged applies it there.
        among: further sites; every site sends the table to every other.
    """

    def __init__(
        self,
        name: str,
        source: str,
        destination: str,
        topology: str = TOPOLOGY,
        *,
        site: str = "dst",
        is_returned: bool = False,
        among: Sequence[str] = (),
    ) -> None:
        self.topology = topology
        # named as in a topology's file: replication origins belong to the server, which has all these databases
        self.name, self.dsn, self.target = f"apply_from_{name}_at_{site}", source, destination
        self.source, self.destination = CapturedSource(source, site=name), _Destination(destination, site=site)
        self.opened = contextlib.ExitStack()
        self.opened.callback(self.destination.close)
        self.opened.callback(self.source.close)
        self.source.prepare(self.topology, [RuleSet(include=(Rule(owner="public", name="rooms"),))])
        self.site, self.there = name, site
        self.shared_by = tuple((f"apply_from_{other}_at_{site}", f"apply_from_{other}_at_{name}") for other in among)
        self.returned_by = f"apply_from_{site}_at_{name}" if is_returned else ""
        self.problem, self.keep_existing, self.rests = "", False, False
        self.shown: list[TableProgress] = []
        self.before_piece: Callable[[Any], Any] = lambda piece: None
        self.should_end: Callable[[], bool] = lambda: False

    def run(self) -> None:
        """Do what a driver does before it applies anything."""
        epoch = self.destination.raise_epoch(self.topology, self.name).epoch
        tables = tuple(
            TableToInstantiate(
                identity=table.identity,
                source=TableName.of(table),
                destination=TableName.of(table),
                object_numbers=tuple(map(int, table.object_numbers)),
                keep_existing=self.keep_existing,
                rests=self.rests,
                returned_by=self.returned_by,
                shared_by=self.shared_by,
                is_sent_on=bool(self.returned_by),
            )
            for table in self.source.captured(self.topology)
        )
        config = ApplyConfig(
            topology=self.topology,
            apply=self.name,
            source=DatabaseAccess(site=self.site, kind="postgres", dsn=self.dsn),
            destination=DatabaseAccess(site=self.there, kind="postgres", dsn=self.target),
            queue="",
            parallelism=2,
            tables=tables,
        )
        workers = ThreadWorkers(
            lambda server, incarnation: CopyPlaces(
                source=lambda: PostgresTableReader(self.dsn),
                destination=lambda: PostgresTableReader(self.target),
                session=lambda epoch, tag: PostgresDestination(self.target, site="dst").open_session(
                    self.topology, self.name, server=server, epoch=epoch, tag=tag, incarnation=incarnation
                ),
            )
        )
        workers.before_piece = self.before_piece
        end = time.monotonic() + ENDED_S
        readers = PostgresTableReader(self.dsn), PostgresTableReader(self.target)
        with (
            contextlib.closing(readers[0]),
            contextlib.closing(readers[1]),
            contextlib.closing(open_destination(config.source)) as records,
        ):
            made = TableInstantiation(
                config=config,
                source=self.source,
                destination=self.destination,
                source_reader=readers[0],
                destination_reader=readers[1],
                workers=workers,
                epoch=epoch,
                moved=self.shown.append,
                should_end=lambda: self.should_end() or time.monotonic() > end,
                both_ways=BothWays(
                    topology=config.topology,
                    here=config.destination.site,
                    there=config.source.site,
                    records=records,
                    captured=self._captured_here,
                    position=self.position_here,
                ),
            )
            made.run_first()
            made.starts()  # shows the state of every table
            self.problem = made.problem

    def apply_all(self) -> None:
        """Count everything that the source has committed as applied, as an idle apply process would."""
        with (
            contextlib.closing(PostgresDestination(self.target, site=self.there)) as destination,
            contextlib.closing(CapturedSource(self.dsn, site=self.site)) as source,
        ):
            progress = destination.progress(self.topology, self.name)
            if progress is not None:
                scn = source.write_marker(b"applied")
                destination.record_low_watermark(self.topology, self.name, progress.epoch, scn)

    def look_again(self) -> None:
        """Have the next `run` treat a FAILED table as a new one, as a driver does while it applies."""
        execute(self.target, f"DELETE FROM headrace.instantiation WHERE apply = '{self.name}' AND state = 'FAILED'")

    def _captured_here(self) -> dict[TableName, str]:
        with contextlib.closing(CapturedSource(self.target, site=self.there)) as here:
            return {TableName.of(each): each.identity for each in here.captured(self.topology)}

    def position_here(self) -> Scn:
        with contextlib.closing(CapturedSource(self.target, site=self.there)) as here:
            return here.write_marker(b"returned")

    @property
    def record(self) -> Instantiation | None:
        return next(iter(self.destination.instantiations(self.topology, self.name)), None)


def at_once(*pairs: CopyingPair) -> None:
    """Run them concurrently, until all have ended."""
    with ThreadPoolExecutor(max(1, len(pairs))) as threads:
        for each in [threads.submit(pair.run) for pair in pairs]:
            each.result(2 * ENDED_S)
