"""A site as a source: its preparation, the checks of its database, and questions about its tables.

`actors.site.captured_tables` knows which of them are captured.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from actors.site.captured_tables import CapturedTables
from actors.site.connection import source_findings
from actors.site.sampling import Heartbeats
from headrace.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from actors.site.database import SiteDatabase
    from actors.site.sampling import PositionSampler
    from actors.site.source_redo import SourceRedo
    from headrace.base.clock import Clock
    from headrace.databases.ports import Finding, MissedDdl, SourceDatabase, TableShape
    from headrace.lcr.batch import TableVersion
    from headrace.lcr.table_name import TableName
    from headrace.rules.rule import RuleSet
    from headrace.status.sites import SiteStatus
    from topology.edits.receivers import Receivers
    from topology.spec import TopologySpec

__all__ = ["SourceRole", "is_source"]

UNCAPTURED_INTERVAL_S = 30.0  # between searches for new tables: a query over all names of the catalog
_TRIM_INTERVAL_S = 3600.0  # between removals of records of DDL, which stay for days: a query over all of them


def is_source(spec: TopologySpec, site: str) -> bool:
    """Return whether something is captured from a site.

    Args:
        spec: the topology.
        site: name of the site.
    """
    return any(capture.source == site for capture in spec.captures)


class SourceRole:
    """The source role of a site. Every site has it; without captures it answers that there is nothing.

    Args:
        database: the site's database.
        redo: redo log into which the database's log is written.
        folder: the site's folder.
        clock: spaces catalog queries and heartbeats.

    Attributes:
        answers: names of the methods that other components call.
        tables: the captured tables.
    """

    answers: ClassVar[frozenset[str]] = frozenset(
        {"domain_shapes", "release", "table_versions", "uncaptured", "write_marker"}
    )

    def __init__(
        self, spec: TopologySpec, database: SiteDatabase, redo: SourceRedo, folder: Path, clock: Clock
    ) -> None:
        self._spec, self._database, self._redo, self._clock = spec, database, redo, clock
        self._site = database.site
        self.tables = CapturedTables(spec, database, folder)
        self._heartbeats = Heartbeats(clock)
        self._retained_bytes: int | None = None
        self._uncaptured_at = 0.0
        self._missed_ddl: MissedDdl | None = None
        self._trim_at = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether the adopted topology captures something from the site."""
        return is_source(self._spec, self._site.name)

    def adopt(self, spec: TopologySpec) -> None:
        """Adopt a changed topology."""
        self._spec = spec
        self.tables.adopt(spec)

    def shown(self, status: SiteStatus, sampler: PositionSampler, *, is_prepared: Callable[[], bool]) -> SiteStatus:
        """Return the site's status with its facts as a source.

        Args:
            status: the status without them.
            sampler: the thread that queries the database.
            is_prepared: called to find out whether the site is prepared as a source.
        """
        status = replace(status, heartbeats_total=self._heartbeats.written)
        if not self.is_wanted:
            return status
        return replace(
            status,
            is_prepared=is_prepared(),
            source_retained_bytes=self._retained_bytes,
            uncaptured_tables=tuple(self.tables.uncaptured),
            strayed_tables=tuple(self.tables.strayed),
            strayed_renames=tuple(self.tables.renames),
            lost_columns=tuple(self.tables.lost_columns),
            refused_changes=self.tables.refused,
            ddl_failed_total=None if (missed := self._missed_ddl) is None else missed.count,
            last_failed_ddl="" if missed is None else missed.last,
            held_up_by=tuple(sampler.held_up_by),
        )

    def watch(self, source: SourceDatabase) -> None:
        """Check for other changes in the database while a stream is open; called by the sampler.

        Raises:
            LogGone: the source is not the one that was prepared.
        """
        if not self._redo.is_attached:
            return
        self._retained_bytes = source.retained_bytes(self._spec.name)
        self._redo.check(source)
        if self._clock.monotonic() >= self._uncaptured_at:
            self._uncaptured_at = self._clock.monotonic() + UNCAPTURED_INTERVAL_S
            self.tables.look(source, self._spec)
            self._look_for_missed_ddl(source, self._spec)
            self._trim_ddl_log(source)
        writer = self._redo.writer
        if writer is not None:
            self._heartbeats.write_if_silent(source, writer.statistics().data_bytes, self._spec.heartbeat_s)

    # ------------------------------------------------------------------ preparing

    def preflight(self, spec: TopologySpec) -> tuple[Finding, ...]:
        """Return what prevents the database from being the source that a topology wants.

        Args:
            spec: the topology; the site may not have adopted it yet.
        """
        if not is_source(spec, self._site.name):
            return ()
        with closing(self._database.open_source()) as source:
            return source_findings(spec, self._site, source)

    def prepare(self, spec: TopologySpec) -> tuple[str, ...]:
        """Create what the database needs as a source of the wanted topology; idempotent. Return the statements run."""
        with closing(self._database.open_source()) as source:
            statements: tuple[str, ...] = source.prepare(spec.name, spec.capture_rules(self._site.name))
            self.tables.take_up(source, spec)
            self._look_for_missed_ddl(source, spec)
        return statements

    def drop_objects(self) -> tuple[str, ...]:
        """Drop the database's objects of the site as a source; idempotent. Return the statements that were run."""
        with closing(self._database.open_source()) as source:
            statements: tuple[str, ...] = source.remove(self._spec.name)
        return statements

    def _look_for_missed_ddl(self, source: SourceDatabase, spec: TopologySpec) -> None:
        takes_ddl = any(each.names_ddl for each in spec.capture_rules(self._site.name))
        self._missed_ddl = source.missed_ddl(spec.name) if takes_ddl else None

    def _trim_ddl_log(self, source: SourceDatabase) -> None:
        """Remove a batch of old records of DDL; after the last one this rests."""
        now = self._clock.monotonic()
        if self._missed_ddl is not None and now >= self._trim_at:
            self._trim_at = now + _TRIM_INTERVAL_S  # also after an error
            if source.trim_ddl_log():
                self._trim_at = now

    # ------------------------------------------------------------------ what the controller asks

    def uncaptured(self, spec: TopologySpec, noted: Receivers | None = None) -> tuple[str, ...]:
        """Return tables that `prepare` for a topology would add or remove now; else what it would do for DDL.

        Tables were created or renamed after the last `prepare`: the rules select tables that are not captured, or no
        rule selects a captured table any longer. DDL was not recorded, and the tables differ from their records.

        Args:
            spec: the topology.
            noted: as for `CapturedTables.look`.
        """
        if not is_source(spec, self._site.name):
            return ()
        rules = spec.capture_rules(self._site.name)
        with closing(self._database.open_source()) as source:
            found = self.tables.look(source, spec, noted)
            return found or source.ddl_due(spec.name, rules)

    def table_versions(self, rules: Sequence[RuleSet]) -> tuple[TableVersion, ...]:
        """Return the selected tables as the log will describe them."""
        with closing(self._database.open_source()) as source:
            return source.table_versions(source.tables(rules))

    def domain_shapes(self, tables: Sequence[TableName]) -> tuple[TableShape, ...]:
        """Return facts about these tables' column types that the log does not contain."""
        with closing(self._database.open_source()) as source:
            return source.domain_shapes(tables)

    def release(self) -> int:
        """Return the major version of the database."""
        with closing(self._database.open_source()) as source:
            return source.release()

    def write_marker(self, content: bytes) -> int:
        """Write a marker into the source's log; everything committed before has a commit SCN <= the returned one."""
        if not self.is_wanted:
            raise ConfigError(f"nothing is captured from site {self._site.name}")
        with closing(self._database.open_source()) as source:
            return source.write_marker(content)
