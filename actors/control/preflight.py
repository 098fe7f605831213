"""The checks before a preparation: whether the databases, and running components, allow the wanted topology.

Main path
    Controller -> Preflight.look -> every site's own checks, then the edit's, then the tables of each apply process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from actors.control.earlier_shapes import on_the_way
from actors.control.observation import gather, told_scns
from actors.control.stopped_components import stopped_against_edit
from actors.site.receivers import captured_of
from headrace.base.errors import HeadraceError
from headrace.databases.ports import Finding, TableShape
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.status.applies import ApplyStatus
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus
from headrace.status.queues import QueueStatus, QueueSubscriber
from topology.checks.ddl import or_wait
from topology.checks.new_tables import made_by_ddl
from topology.checks.static import another_database, lasting_identities, one_database_twice
from topology.checks.transformations import arrival_findings, ways_before
from topology.edits.capture_scns import scn_findings
from topology.edits.changes import components_of
from topology.edits.known_columns import TableColumns, named_columns, under_present_names, with_known_columns
from topology.edits.overtaken import overtaken
from topology.edits.stored import entrusted
from topology.edits.subset_changes import shape_changes, subset_changes
from topology.edits.uncopied import uncopied
from topology.proof.meetings import unseen_conflicts
from topology.routing.downstream import keeper_of
from topology.routing.ways import arriving, captured_by, ddl_tables, ways_to

if TYPE_CHECKING:
    from actors.control.earlier_shapes import EarlierShapes
    from actors.control.observation import Observation
    from actors.control.prepared_record import PreparedRecord
    from actors.hosting.runtime import ActorSystem
    from headrace.databases.ports import Instantiation
    from headrace.lcr.batch import TableVersion
    from topology.edits.changes import Component
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["PREFLIGHT_TIMEOUT_S", "Preflight"]

PREFLIGHT_TIMEOUT_S = 120.0  # catalog queries over every table of a large database


class Preflight:
    """The checks, and facts from them for the preparation that follows.

    Args:
        actors: runs the sites.
        observation: the last answers of all components.
        shapes: shapes of tables that left.

    Attributes:
        names: names of each source's tables, by object number.
        identities: identities of the sites' databases.
        columns: by source, the columns of its tables of which a transformation names some.
    """

    def __init__(
        self, actors: ActorSystem, observation: Observation, record: PreparedRecord, shapes: EarlierShapes
    ) -> None:
        self._actors, self._observation, self._record, self._shapes = actors, observation, record, shapes
        self.names: dict[str, dict[int, TableName]] = {}
        self.identities: dict[str, str] = {}
        self.columns: dict[str, tuple[TableColumns, ...]] = {}

    def look(self, spec: TopologySpec, misfits: Collection[Finding]) -> tuple[Finding, ...]:
        """Check every site of the topology.

        Args:
            spec: the wanted topology.
            misfits: findings about split streams that no longer fit the topology.

        Raises:
            HeadraceError: a site does not answer.
        """
        findings: list[Finding] = []
        self.names.clear()
        self.columns.clear()
        sites = [component.name for component in components_of(spec) if component.kind == "site"]
        for site in sites:
            findings += self._actors.call(site, "preflight", entrusted(spec, site), timeout_s=PREFLIGHT_TIMEOUT_S)
        identities = {
            site.removeprefix("site:"): str(self._actors.call(site, "database_identity", timeout_s=PREFLIGHT_TIMEOUT_S))
            for site in sites
        }
        self.identities = lasting_identities(spec, identities)
        findings += [
            *one_database_twice(identities),
            *another_database(self._record.read().get("identities", {}), self.identities),
        ]
        prepared = self._record.topology
        findings += [*self.stopped(spec), *misfits, *self._scn_findings(prepared, spec)]
        if prepared is not None:
            findings += [
                *subset_changes(prepared, spec),
                *shape_changes(prepared, spec),
                *overtaken(prepared, spec, self._subscribers(prepared)),
                *uncopied(prepared, spec, self._instantiations),
            ]
        findings += self._earlier_shapes(prepared, spec)
        for apply in spec.applies:
            try:
                findings += self._tables(apply, spec)
            except HeadraceError:
                # The cause may be missing rights that are already reported.
                if not any(finding.is_error for finding in findings):
                    raise
        return tuple(
            dict.fromkeys(findings)
        )  # a site's two roles, and two apply processes, may report the same finding

    def stopped(self, spec: TopologySpec) -> tuple[Finding, ...]:
        """Return findings for stopped components whose stop an edit to the wanted topology would lift."""
        return stopped_against_edit(self._actors, self._record.topology, spec)

    def _instantiations(self, apply: ApplySpec) -> tuple[Instantiation, ...]:
        """Return the recorded instantiations of an apply process's tables at its destination."""
        found: tuple[Instantiation, ...] = self._actors.call(
            f"site:{apply.site}", "instantiations", apply.name, timeout_s=PREFLIGHT_TIMEOUT_S
        )
        return found

    def _subscribers(self, prepared: TopologySpec) -> Callable[[str], list[QueueSubscriber]]:
        """Return a function that gives a queue's subscribers by its last status; none if it does not answer.

        A capture process that is combined with an apply process reports that one instead.
        """
        said = {
            status.name: status.subscribers
            for status in (*self._observation.latest, *self._ask_leaving(prepared, {"queue", "capture"}))
            if isinstance(status, QueueStatus | CaptureStatus)
        }
        by_queue = {
            queue.name: [
                f"queue:{queue.name}",
                *(f"capture:{capture.name}" for capture in prepared.captures if capture.queue == queue.name),
            ]
            for queue in prepared.queues
        }
        return lambda queue: [subscriber for name in by_queue.get(queue, ()) for subscriber in said.get(name, ())]

    def _ask_leaving(self, prepared: TopologySpec, kinds: Collection[str]) -> list[ComponentStatus]:
        """Query components that leave with this edit, or are renamed; they still run."""
        known = {status.name for status in self._observation.latest}
        leaving: tuple[Component, ...] = tuple(
            component
            for component in components_of(prepared)
            if component.kind in kinds and component.name not in known
        )
        return gather(self._actors, leaving)

    def _earlier_shapes(self, prepared: TopologySpec | None, spec: TopologySpec) -> Iterator[Finding]:
        """Return findings about LCRs of earlier shapes in flight. Apply processes that this edit removes are queried too."""
        watermarks = told_scns(self._observation.latest)
        if self._shapes.recorded and prepared is not None:
            watermarks |= told_scns(self._ask_leaving(prepared, {"apply"}))
        return on_the_way(self._shapes.recorded, prepared, spec, watermarks)

    def _scn_findings(self, before: TopologySpec | None, spec: TopologySpec) -> tuple[Finding, ...]:
        """Return findings about new or moved capture processes without the redo they need, and about impossible SCNs."""
        recorded = {
            status.name: status.recorded_scn for status in self._observation.latest if isinstance(status, ApplyStatus)
        }

        def oldest_scn(source: str, site: str) -> Scn | None:
            try:
                return Scn(self._actors.call(keeper_of(source, site), "oldest_scn", timeout_s=PREFLIGHT_TIMEOUT_S))
            except HeadraceError:
                return None  # it has no redo yet, or is away: missing redo is then found when it is mined

        def applied_scn(apply: ApplySpec) -> Scn | None:
            # changes above it are sent again after a crash of the destination
            scn = recorded.get(f"apply:{apply.name}")
            return Scn(scn) if scn else None

        return scn_findings(before, spec, oldest_scn=oldest_scn, applied_scn=applied_scn)

    def _tables(self, apply: ApplySpec, spec: TopologySpec) -> tuple[Finding, ...]:
        """Compare the tables that will arrive at an apply process with the destination's tables."""
        ways = ways_to(spec, apply)
        versions: tuple[TableVersion, ...] = self._actors.call(
            f"site:{apply.source}", "table_versions", captured_by(ways), timeout_s=PREFLIGHT_TIMEOUT_S
        )
        self.names.setdefault(apply.source, {}).update(
            {int(version.object_number): TableName.of(version) for version in versions}
        )
        known = self.columns.get(apply.source, ())
        self.columns[apply.source] = tuple(dict.fromkeys((*known, *named_columns(spec, apply.source, versions))))
        # What clients would refuse, an edit must not make them forget.
        noted = under_present_names(self._record.columns.get(apply.source, ()), versions)
        informed = with_known_columns(spec, {apply.source: noted})
        findings, fitting = arrival_findings(apply, ways_to(informed, apply), versions, ways_before(spec, apply))
        came, captured = arriving(ways, fitting), arriving(ways, captured_of(self._actors, apply.source))
        domains: tuple[TableShape, ...] = self._actors.call(
            f"site:{apply.source}",
            "domain_shapes",
            tuple(TableName.of(table.source) for table in came),
            timeout_s=PREFLIGHT_TIMEOUT_S,
        )
        of_destination: tuple[Finding, ...] = self._actors.call(
            f"site:{apply.site}",
            "preflight_tables",
            tuple(table.destination for table in came),
            apply.name,
            apply.conflicts,
            apply.tables,
            {TableName.of(table.destination): table.source.identity for table in captured},
            tuple(table.destination for table in arriving(ways, domains)),
            {TableName.of(table.destination): TableName.of(table.source) for table in came},
            made_by_ddl(self._record.topology, apply, captured),
            timeout_s=PREFLIGHT_TIMEOUT_S,
        )
        of_ddl = self._ddl(apply, ddl_tables(ways, came))
        waited_for = or_wait(of_destination, self._record.topology, apply, came)
        return (*findings, *waited_for, *of_ddl, *unseen_conflicts(spec, apply, came))

    def _ddl(self, apply: ApplySpec, tables: tuple[TableName, ...]) -> tuple[Finding, ...]:
        """Ask the destination whether an apply process can apply the DDL of tables."""
        if not tables:
            return ()
        release = self._actors.call(f"site:{apply.source}", "release", timeout_s=PREFLIGHT_TIMEOUT_S)
        found: tuple[Finding, ...] = self._actors.call(
            f"site:{apply.site}", "preflight_ddl", tables, release, timeout_s=PREFLIGHT_TIMEOUT_S
        )
        return found
