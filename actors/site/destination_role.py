"""A site as a destination: its preparation, and the controller's questions about its tables and their records."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, ClassVar

from headrace.databases.conflict_lists import conflict_list_findings
from headrace.lcr.table_name import TableName
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES, ConflictRules
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from spark_apply.apply_config import COPIES_BESIDE
from spark_apply.copy.records.standing import renamed, table_findings
from topology.checks.new_tables import without_awaited

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from actors.site.claim import SiteClaim
    from actors.site.database import SiteDatabase
    from headrace.databases.ports import Finding, Instantiation, TableShape
    from headrace.lcr.batch import TableVersion
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["DestinationRole", "applies_at"]


def applies_at(spec: TopologySpec, site: str) -> tuple[ApplySpec, ...]:
    """Return the apply processes of a site.

    Args:
        spec: the topology.
        site: name of the site.
    """
    return tuple(apply for apply in spec.applies if apply.site == site)


class DestinationRole:
    """The destination role of a site. Every site has it, because it may have been a destination.

    Args:
        database: the site's database.
        claim: the site's claim on the database.

    Attributes:
        answers: names of the methods that other components call.
    """

    answers: ClassVar[frozenset[str]] = frozenset(
        {"filled", "instantiations", "leave_out", "leave_out_others", "preflight_ddl", "preflight_tables"}
    )

    def __init__(self, topology: str, database: SiteDatabase, claim: SiteClaim) -> None:
        self._topology, self._database, self._claim = topology, database, claim
        self._site = database.site.name

    # ------------------------------------------------------------------ preparing

    def preflight(self, spec: TopologySpec) -> tuple[Finding, ...]:
        """Return what prevents the database from being the destination that a topology wants.

        Args:
            spec: the topology; the site may not have adopted it yet.
        """
        applies = applies_at(spec, self._site)
        if not applies:
            return ()
        with closing(self._database.open_destination()) as destination:
            return destination.preflight(
                spec.name,
                sessions=sum(apply.parallelism for apply in applies),
                applies=len(applies),
                copies=COPIES_BESIDE * len(applies),
            )

    def prepare(self, spec: TopologySpec, new: Collection[str]) -> tuple[str, ...]:
        """Create what the database needs as a destination; idempotent. Return the statements that were run.

        Args:
            spec: the wanted topology.
            new: components that the topology did not have before; leftovers of earlier components of these names are
                deleted.
        """
        statements: list[str] = []
        applies = applies_at(spec, self._site)
        if not applies:
            return ()
        with closing(self._database.open_destination()) as destination:
            statements += destination.prepare(spec.name)
            for apply in applies:
                if apply.conflicts.with_tombstones:
                    statements += destination.keep_tombstones(apply.conflicts.with_tombstones)
                if f"apply:{apply.name}" in new:
                    statements += destination.forget(spec.name, apply.name)
        return tuple(statements)

    # ------------------------------------------------------------------ what the controller asks

    def instantiations(self, apply: str) -> tuple[Instantiation, ...]:
        """Return the records of the instantiation of an apply process's tables."""
        with closing(self._database.open_destination()) as destination:
            return destination.instantiations(self._topology, apply)

    def leave_out(self, apply: str, kept: Sequence[str]) -> tuple[str, ...]:
        """Record at this destination that an apply process receives only the changes of these tables from now on.

        Args:
            apply: name of the apply process.
            kept: identities of these tables.

        Returns:
            The names of the tables that left.

        Raises:
            RunsElsewhere: another copy of the topology uses the database; the records belong to its apply processes.
        """
        self._claim.hold()
        with closing(self._database.open_destination()) as destination:
            return tuple(
                f"{table.owner}.{table.name}" for table in destination.leave_out(self._topology, apply, kept=kept)
            )

    def leave_out_others(self, applies: Collection[str]) -> tuple[str, ...]:
        """Record that apply processes which the topology does not have here no longer receive changes; idempotent.

        Args:
            applies: the apply processes that the topology has here.

        Returns:
            The names of those that left.

        Raises:
            RunsElsewhere: another copy of the topology uses the database.
        """
        self._claim.hold()
        with closing(self._database.open_destination()) as destination:
            others = tuple(name for name in destination.recorded_applies(self._topology) if name not in applies)
            return tuple(name for name in others if destination.leave_out(self._topology, name, kept=()))

    def filled(self, apply: str, tables: Sequence[TableName]) -> tuple[TableName, ...]:
        """Return the tables that have rows, except tables with an unfinished copy by another apply process.

        Args:
            apply: name of the apply process.
            tables: names of the tables at this destination.
        """
        with closing(self._database.open_destination()) as destination:
            return tuple(
                table
                for table in destination.filled(tables)
                if all(other.is_finished for other in destination.other_copies(self._topology, apply, *table))
            )

    def preflight_ddl(self, tables: Sequence[TableName], release: int) -> tuple[Finding, ...]:
        """Return why DDL of these tables cannot be applied here.

        Args:
            tables: their names at this destination.
            release: major version of the source.
        """
        with closing(self._database.open_destination()) as destination:
            return destination.preflight_ddl(tables, release=release)

    def preflight_tables(
        self,
        versions: Sequence[TableVersion],
        apply: str = "",
        conflicts: ConflictRules = NO_CONFLICT_RULES,
        tables: TableSettings = NO_TABLE_SETTINGS,
        identities: Mapping[TableName, str] | None = None,
        domains: Sequence[TableShape] = (),
        at_source: Mapping[TableName, TableName] | None = None,
        made: Mapping[TableName, str] | None = None,
    ) -> tuple[Finding, ...]:
        """Return why these tables of a source, as they are now, cannot be applied here.

        Args:
            versions: the tables.
            apply: name of the apply process.
            conflicts: its conflict handlers, which must fit the tables.
            tables: its table settings.
            identities: identities of the captured tables, by name at this destination.
            domains: `domain_shapes` of the source, under the names at this destination.
            at_source: source name of each table, by name at this destination; None: unknown.
            made: those whose CREATE TABLE may be on its way (`topology.checks.new_tables.made_by_ddl`).
        """
        with closing(self._database.open_destination(tables)) as destination:
            recorded = destination.instantiations(self._topology, apply)
            old_names = renamed(identities or {}, recorded)
            there, awaited = without_awaited(
                destination,
                versions,
                made or {},
                recorded,
                self._site,
                apply=apply,
                captured=frozenset((identities or {}).values()),
            )
            # A missing property of a column's type is reported before the ALTER that gives the column this type.
            found = [
                *destination.preflight_domains(domains),
                *awaited,
                *table_findings(destination, there, old_names, self._site, at_source=at_source),
            ]
            if conflicts.times is not None:
                found += destination.preflight_times(conflicts.timed, has_tombstones=conflicts.times.has_tombstones)
            for version in versions if conflicts != NO_CONFLICT_RULES else ():
                table = destination.describe(version.owner, version.name)
                found += (
                    ()
                    if table is None
                    else conflict_list_findings(
                        apply,
                        conflicts,
                        version,
                        table,
                        at_source=(at_source or {}).get(TableName.of(version)),
                    )
                )
            return tuple(found)
