"""Check and plan: examine a topology and its databases without changing them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from actors.control.earlier_shapes import earlier_of, on_the_way
from actors.security.examination import tls_findings
from actors.security.links import link_findings, ray_findings
from actors.site.admin import admin_findings
from actors.site.connection import source_findings
from actors.state_folder import check_owned, not_owned
from headrace.base.errors import ConfigError, HeadraceError
from headrace.console.output import bytes_text
from headrace.databases.connectors import open_column_sequences, open_destination, open_source, plan_copy, plan_unseen
from headrace.databases.ports import Finding, PlannedApply, PlannedStatement
from headrace.databases.sequence_collisions import collisions
from headrace.deployment.open_databases import OpenDatabases
from headrace.deployment.remembered_cluster import RememberedCluster
from headrace.deployment.rows_there import rows_there
from headrace.lcr.table_name import TableName
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES
from headrace.rules.user_code.handlers import NO_HANDLERS, ErrorHandler
from spark_apply.apply_config import COPIES_BESIDE
from spark_apply.copy.marks.row_marks import MarkedTable, compare_marks
from spark_apply.copy.records.standing import renamed, table_findings
from topology.checks.ddl import or_wait
from topology.checks.functions import custom_transformations
from topology.checks.logging_needs import listed_needs
from topology.checks.new_tables import made_by_ddl, without_awaited
from topology.checks.static import another_database, lasting_identities, one_database_twice
from topology.checks.transformations import arrival_findings, ways_before
from topology.edits.stored import prepared_document, prepared_topology
from topology.edits.subset_changes import counterpart, shape_changes, subset_changes
from topology.edits.uncopied import uncopied
from topology.file.reading import examine
from topology.links import makes_certificates
from topology.plan import KeptRows, LiveSite, Plan, make_plan
from topology.proof.meetings import unseen_conflicts
from topology.proof.reach import Proof, Reach
from topology.routing.ways import arriving, captured_by, ddl_tables, ways_to, writes_alone
from topology.split import prepared_splits

if TYPE_CHECKING:
    from headrace.databases.connectors import DatabaseAccess
    from headrace.databases.ports import LoggedTable, SourceTable
    from headrace.databases.ports.operator import ColumnSequence
    from headrace.lcr.batch import TableVersion
    from topology.spec import ApplySpec, SiteSpec, TopologySpec

__all__ = ["Checked", "check_topology", "handler_findings", "live_sites", "plan_topology"]

_NO_RIGHT = "42501"  # SQLSTATE insufficient_privilege


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Result of `check`: problems, warnings, and the reach of changes."""

    findings: tuple[Finding, ...]
    reach: tuple[Reach, ...]

    @property
    def is_proven(self) -> bool:
        """Whether every change arrives exactly once wherever it arrives, and none returns to its origin."""
        return (
            bool(self.reach)
            and not any(finding.is_error for finding in self.findings)
            and all(each.times == "once" and each.site != line.origin for line in self.reach for each in line.reached)
        )


def check_topology(file: Path, *, ask_databases: bool) -> Checked:
    """Find every problem of a topology file and, on request, of its databases.

    Args:
        file: the topology file.
        ask_databases: connect to the databases too; otherwise only the file is checked.
    """
    found = examine(file)
    allowed = frozenset() if ask_databases else found.unresolved
    in_file = [replace(each, is_error=False) if each in allowed else each for each in found.findings]
    findings, spec = in_file[:], found.spec
    if spec is not None:
        findings += (refused := tuple(_folder_findings(spec)))
        findings += () if refused and makes_certificates(spec) else tls_findings(spec)  # they are in that folder
        findings += link_findings(spec)
        # Code that could not be read cannot be loaded either.
        findings += [] if any(finding.is_error for finding in in_file) else handler_findings(spec)
    if spec is None or any(finding.is_error for finding in findings):
        return Checked(findings=tuple(findings), reach=found.reach)
    if ask_databases:
        findings += _disk_findings(spec)
        findings += ray_findings(RememberedCluster(spec.state_dir).address())
        with OpenDatabases(spec) as databases:
            findings += _findings_of_databases(spec, databases)
    # A site's two roles, or two apply processes, may have the same finding.
    return Checked(findings=tuple(dict.fromkeys(findings)), reach=found.reach)


def _findings_of_databases(spec: TopologySpec, databases: OpenDatabases) -> Iterator[Finding]:
    sites = live_sites(spec, databases)
    for live in sites.values():
        yield from live.findings
    for name, live in sites.items():
        if not live.is_live:
            yield Finding(
                path=f"sites.{name}",
                problem="its embedded server does not run: its contents were not checked",
                fix="run `headrace up FILE`: it starts the server, and checks it before anything else",
                is_error=False,
            )
    yield from _findings_between(spec, databases, sites, [])


def _folder_findings(spec: TopologySpec) -> Iterator[Finding]:
    """Refuse a state folder that may be another user's, as every command does."""
    found = not_owned(spec.state_dir)
    if found is not None:
        yield Finding(path="state_dir", problem=found[0], fix=found[1])


def _disk_findings(spec: TopologySpec) -> Iterator[Finding]:
    """Warn of a redo log that may exceed its disk, where a source keeps it on this machine."""
    if not any(capture.source == site.name and not site.node for capture in spec.captures for site in spec.sites):
        return
    folder = next(each for each in (spec.state_dir, *spec.state_dir.parents) if each.exists())
    total = shutil.disk_usage(folder).total
    if spec.redo_bytes_max > total:
        yield Finding(
            path="redo_bytes_max",
            is_error=False,
            problem=f"is {bytes_text(spec.redo_bytes_max)}, but the disk of {spec.state_dir} has {bytes_text(total)}:"
            " the disk fills up before the bound is reached, and stays full for good after one transaction that is larger"
            " than it",
            fix="set a smaller redo_bytes_max in the file, or a state_dir on a larger disk",
        )


def _findings_between(
    spec: TopologySpec, databases: OpenDatabases, sites: Mapping[str, LiveSite], kept: list[KeptRows]
) -> list[Finding]:
    """Return problems between databases that `up` would refuse.

    Args:
        spec: the topology.
        databases: its databases.
        sites: what the databases answered.
        kept: receives the tables whose rows stay as they are.
    """
    from headrace.deployment.kept_redo import redo_findings  # imports numpy: not for checks of the file alone

    identities = {name: live.identity for name, live in sites.items()}
    prepared = prepared_document(spec.state_dir).get("identities", {})
    findings = [
        *one_database_twice(identities),
        *another_database(prepared, lasting_identities(spec, identities)),
        *redo_findings(spec, databases),
    ]
    try:
        findings += _shape_findings(spec, databases)
        # Renamed labels come before added ones.
        findings += _changed_rows(spec, databases)
        findings += _table_findings(spec, databases, kept)
        findings += _sequence_findings(spec, databases)
        findings += _uncopied(spec, databases)
    except HeadraceError:
        # The cause may be missing rights that are already reported.
        if not any(finding.is_error for live in sites.values() for finding in (*live.findings, *findings)):
            raise
    return findings


def _shape_findings(spec: TopologySpec, databases: OpenDatabases) -> list[Finding]:
    """Find tables that were removed and would return in another shape while changes of the old shape are in flight.

    Only databases that can be reached are examined.
    """
    shapes, found, seen = earlier_of(prepared_document(spec.state_dir)), {}, []
    prepared = prepared_topology(spec.state_dir)
    for apply in spec.applies if shapes else ():
        if databases.access(apply.site) is not None:
            name = (counterpart(apply, (spec if prepared is None else prepared).applies) or apply).name
            progress = databases.destination(apply.site).progress(spec.name, name)
            found[name] = 0 if progress is None else int(progress.low_watermark)
            seen.append(apply)
    return list(on_the_way(shapes, prepared, replace(spec, applies=tuple(seen)), found))


def _uncopied(spec: TopologySpec, databases: OpenDatabases) -> Iterator[Finding]:
    """Find edits that `topology.edits.uncopied` refuses, if every database of the topology can be reached."""
    prepared = prepared_topology(spec.state_dir)
    unseen = [site.name for site in spec.sites if site.database.kind != "none" and databases.access(site.name) is None]
    if prepared is not None and not unseen:
        yield from uncopied(
            prepared,
            spec,
            lambda apply: databases.destination(apply.site).instantiations(spec.name, apply.name),
        )


def _table_findings(spec: TopologySpec, databases: OpenDatabases, kept: list[KeptRows]) -> list[Finding]:
    """Return differences between source and destination tables that would stop apply.

    Apply processes whose databases cannot both be reached are skipped.

    Args:
        spec: the topology.
        databases: its databases.
        kept: receives the tables whose rows stay as they are.
    """
    from headrace.databases.conflict_lists import conflict_list_findings  # imports numpy, as above
    from headrace.databases.dependency_columns import dependency_column_findings

    findings: list[Finding] = []
    prepared = prepared_topology(spec.state_dir)
    for apply in spec.applies:
        if databases.access(apply.source) is None or databases.access(apply.site) is None:
            continue
        ways = ways_to(spec, apply)
        database = databases.source(apply.source)
        versions = database.table_versions(database.tables(captured_by(ways)))
        shapes = database.table_shapes([TableName.of(version) for version in versions])
        domains = database.domain_shapes([TableName.of(version) for version in versions])
        captured = arriving(ways, database.captured(spec.name))
        identities = {TableName.of(each.destination): each.source.identity for each in captured}
        unfit, versions = arrival_findings(apply, ways, versions, ways_before(spec, apply))
        findings += unfit
        fitting = {TableName.of(version) for version in versions}
        shapes, domains = (
            tuple(shape for shape in each if TableName.of(shape) in fitting) for each in (shapes, domains)
        )
        came = arriving(ways, versions)
        tables = [table.destination for table in came]
        at_source = {TableName.of(each.destination): TableName.of(each.source) for each in came}
        target = databases.destination(apply.site, apply.tables)
        recorded = target.instantiations(spec.name, apply.name)
        old_names = renamed(identities, recorded)
        # Missing parts of a column's type come before the ALTER that gives this type to the column.
        findings += target.preflight_domains([table.destination for table in arriving(ways, domains)])
        made = made_by_ddl(prepared, apply, captured)
        there, awaited = without_awaited(
            target, tables, made, recorded, apply.site, apply=apply.name, captured=frozenset(identities.values())
        )
        unfit_here = (*awaited, *table_findings(target, there, old_names, apply.site, at_source=at_source))
        findings += or_wait(unfit_here, prepared, apply, came)
        if apply.conflicts.times is not None:
            findings += target.preflight_times(
                apply.conflicts.timed, has_tombstones=apply.conflicts.times.has_tombstones
            )
        if with_ddl := ddl_tables(ways, came):
            findings += target.preflight_ddl(with_ddl, release=database.release())
        for each in came if apply.conflicts != NO_CONFLICT_RULES else ():
            version, table = each.destination, target.describe(each.destination.owner, each.destination.name)
            findings += (
                ()
                if table is None
                else conflict_list_findings(
                    apply.name,
                    apply.conflicts,
                    version,
                    table,
                    at_source=each.source,
                )
            )
        findings += unseen_conflicts(spec, apply, came)
        findings += _handlers_of_nothing(apply, tables)
        findings += _keys_of_nothing(apply, tables)
        findings += dependency_column_findings(
            apply.name,
            apply.dependencies,
            tables,
            target.describe,
            at_source=at_source,
        )
        marks = target.row_marks(spec.name, apply.name, apply.source) if recorded else {}
        findings += target.preflight_shapes(
            [table.destination for table in arriving(ways, shapes)],
            tables,
            {
                table: {number: each.label for number, each in marks[identity].labels.items()}
                for table, identity in identities.items()
                if identity in marks
            },
        )
        findings += rows_there(
            spec,
            apply,
            came,
            target,
            databases,
            recorded=recorded,
            # Rows of a copy that has begun are ours, even if the table has been renamed.
            begun={TableName.of(record) for record in recorded if not record.is_refused} | old_names.keys(),
            kept=kept,
        )
    return findings


def _changed_rows(spec: TopologySpec, databases: OpenDatabases) -> Iterator[Finding]:
    """Find replicated tables whose rows changed at the source without events.

    Apply processes whose databases cannot both be reached are skipped.
    """
    for apply in spec.applies:
        if databases.access(apply.source) is None or databases.access(apply.site) is None:
            continue
        database, target = databases.source(apply.source), databases.destination(apply.site)
        recorded = {
            each.identity
            for each in target.instantiations(spec.name, apply.name)
            if each.state in {"DONE", "KEPT", "JOINING"}
        }
        tables = [
            MarkedTable(
                identity=each.source.identity,
                source=TableName.of(each.source),
                destination=TableName.of(each.destination),
                may_be_copied=(alone := writes_alone(spec, apply, TableName.of(each.destination))),
                detached=apply.tables.detached_partitions,
                copies_parts=alone
                and not each.rows
                and not any(found.custom is not None for found in each.transformations),
                is_reshaped=bool(each.transformations),
            )
            for each in arriving(ways_to(spec, apply), database.captured(spec.name))
            if each.source.identity in recorded
        ]
        marks = target.row_marks(spec.name, apply.name, apply.source) if tables else {}
        found = compare_marks(
            database,
            target,
            [table for table in tables if table.identity in marks],
            marks,
            database.row_marks(spec.name) if marks else {},
        )
        for table in tables:
            if (changed := found.problems.get(table.identity)) is not None:
                yield Finding(
                    path=f"sites.{apply.site} table {table.destination}",
                    problem=changed.problem,
                    fix=changed.fix,
                    is_error=False,
                )


def handler_findings(spec: TopologySpec) -> list[Finding]:
    """Return problems of users' functions that cannot be loaded or called.

    Loading a function executes its module's import code.
    """
    customs = list(custom_transformations(spec))
    if not customs and all(apply.handlers == NO_HANDLERS for apply in spec.applies):
        return []
    from headrace.rules.transformations.calling import loaded_function  # imports numpy, as above
    from spark_apply.handlers.loaded import load_all

    findings: dict[str, Finding] = {}
    for kind, name, custom in customs:
        try:
            loaded_function(custom)
        except ConfigError as error:
            sections = {"capture": "captures", "propagation": "propagations", "apply": "applies"}
            findings.setdefault(
                error.message, Finding(path=f"{sections[kind]}.{name}", problem=error.message, fix=error.hint)
            )
    for apply in spec.applies:
        try:
            load_all(apply.handlers)
        except ConfigError as error:
            findings.setdefault(
                error.message, Finding(path=f"applies.{apply.name}", problem=error.message, fix=error.hint)
            )
    return list(findings.values())


def _handlers_of_nothing(apply: ApplySpec, tables: Sequence[TableVersion]) -> Iterator[Finding]:
    """Find handlers of tables that do not arrive at their apply process."""
    names = {(version.owner, version.name) for version in tables}
    for owner, name in sorted(
        (apply.handlers.handled | {(each.owner, each.name) for each in apply.handlers.errors}) - names
    ):
        yield Finding(
            path=f"applies.{apply.name}",
            problem=f"has a handler for {owner}.{name}, a table that it does not get from {apply.source}",
            fix="correct the name, or list the handler under the apply process that gets the table",
            is_error=False,
        )
    for entry, handler in apply.handlers.of_rows():
        for owner, name in () if isinstance(handler, ErrorHandler) else sorted(set(handler.tables) - names):
            yield Finding(
                path=f"applies.{apply.name}.{entry}.tables",
                problem=f"lists {owner}.{name}, a table that it does not get from {apply.source}: there are no rows"
                " whose order could be kept",
                fix="correct the name, or remove it: list only tables that arrive",
                is_error=False,
            )
    for owner, name in sorted(apply.conflicts.tables - names):
        yield Finding(
            path=f"applies.{apply.name}",
            problem=f"has a conflict handler for {owner}.{name}, a table that it does not get from {apply.source}",
            fix="correct the name, or list the handler under the apply process that gets the table",
            is_error=False,
        )


def _keys_of_nothing(apply: ApplySpec, tables: Sequence[TableVersion]) -> Iterator[Finding]:
    """Find substitute keys of tables that do not arrive at their apply process."""
    names = {(version.owner, version.name) for version in tables}
    for each in apply.tables.key_columns:
        if (each.owner, each.name) not in names:
            yield Finding(
                path=f"applies.{apply.name}.key_columns",
                is_error=False,
                problem=f"has a substitute key for {each.owner}.{each.name}, a table that it does not get from"
                f" {apply.source}",
                fix="correct the name, or list the key under the apply process that gets the table",
            )


def _sequence_findings(spec: TopologySpec, databases: OpenDatabases) -> Iterator[Finding]:
    """Find columns of tables written at several sites whose sequences can generate the same value at two of them."""
    proof = Proof(spec)
    known: dict[tuple[str, str], dict[str, list[ColumnSequence]]] = {}  # table -> site -> its sequences
    for site in proof.origins:
        access = databases.access(site)
        if access is None:
            continue
        tables = [(table.owner, table.name) for table in databases.source(site).tables(spec.capture_rules(site))]
        shared = [table for table in tables if site in proof.writers(*table)]
        with closing(open_column_sequences(access)) as sequences:
            for found in sequences.of(shared) if shared else ():
                known.setdefault((found.owner, found.table), {}).setdefault(site, []).append(found)
    for table, at in known.items():
        sites = [site for site in proof.writers(*table) if site in at]
        for column in dict.fromkeys(found.column for site in sites for found in at[site]):
            beside = [(site, found) for site in sites for found in at[site] if found.column == column]
            yield from collisions(TableName(*table), column, beside)


def plan_topology(file: Path, *, ask_databases: bool) -> Plan:
    """Make the plan of a topology file.

    Args:
        file: the topology file.
        ask_databases: include the current state of the databases.

    Raises:
        TopologyError: the file has problems.
        ConfigError: the state folder may be another user's.
    """
    found = examine(file)
    spec = found.topology(to_start=False, to_connect=ask_databases)
    checked = tuple(each for each in found.findings if ask_databases or each not in found.unresolved)
    check_owned(spec.state_dir)
    prepared, splits = prepared_topology(spec.state_dir), prepared_splits(spec.state_dir)
    if prepared is not None:
        checked = (*checked, *subset_changes(prepared, spec), *shape_changes(prepared, spec))
    if not ask_databases:
        return make_plan(_as_connected(spec, prepared), prepared=prepared, checked=checked, splits=splits)
    kept: list[KeptRows] = []
    with OpenDatabases(spec) as databases:
        sites = live_sites(spec, databases)
        found_between = _findings_between(spec, databases, sites, kept)
    return make_plan(spec, sites, prepared=prepared, found=found_between, checked=checked, splits=splits, kept=kept)


def _as_connected(spec: TopologySpec, prepared: TopologySpec | None) -> TopologySpec:
    """Return a topology in which connection strings without a value are those of the topology prepared last."""
    before = {} if prepared is None else {site.name: site.database.dsn for site in prepared.sites}
    return replace(
        spec,
        sites=tuple(
            replace(site, database=replace(site.database, dsn=site.database.dsn or before.get(site.name, "")))
            for site in spec.sites
        ),
    )


def live_sites(spec: TopologySpec, databases: OpenDatabases) -> dict[str, LiveSite]:
    """Examine every reachable database; plan for an empty one where an embedded server does not run.

    Args:
        spec: the topology.
        databases: its databases.
    """
    answers = {}
    for site in spec.sites:
        if (access := databases.access(site.name)) is None:
            if site.database.kind == "embedded":
                answers[site.name] = _unseen(spec, site)
            continue
        findings: list[Finding] = []
        try:
            answers[site.name] = _ask(spec, site, access, findings)
        except HeadraceError as error:
            answers[site.name] = LiveSite(findings=(*findings, *_unanswered(site.name, error, findings)))
    return answers


def _unanswered(site: str, error: HeadraceError, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Report why a database did not answer everything.

    Nothing is reported for a missing right that the earlier findings name with its GRANT.
    """
    if error.context.get("sqlstate") != _NO_RIGHT:
        fix = "make sure that the database runs and the connection string is right"
    elif not any(each.is_error for each in findings):
        fix = "grant that to the role of the connection string"
    else:
        return
    yield Finding(path=f"sites.{site}", problem=error.message, fix=error.hint or fix)


def _ask(spec: TopologySpec, site: SiteSpec, access: DatabaseAccess, findings: list[Finding]) -> LiveSite:
    """Examine one database in separate sessions: the check of free connections counts those that are open.

    Args:
        spec: the topology.
        site: the database's site.
        access: access to it.
        findings: receives findings as they are found, because later questions may fail for the same reason.
    """
    applies = [apply for apply in spec.applies if apply.site == site.name]
    rules = spec.capture_rules(site.name)
    statements: list[PlannedStatement] = []
    tables: tuple[SourceTable, ...] = ()
    identity = ""
    logged: tuple[LoggedTable, ...] = ()
    if rules:
        with closing(open_source(access)) as source:
            identity = source.database_identity()
            findings += source_findings(spec, site, source)
            findings += (
                admin_findings(spec, site, prepared_topology(spec.state_dir))
                if site.database.has_admin and not applies
                else ()
            )
            logged = source.supplemental_logging(rules, listed_needs(spec, site.name))
            tables = source.tables(rules)
            statements += source.plan(spec.name, rules)
            statements.append(plan_copy(access.kind, site.name))
    if applies:
        with closing(open_destination(access)) as destination:
            identity = destination.database_identity()
            findings += destination.preflight(
                spec.name,
                sessions=sum(apply.parallelism for apply in applies),
                applies=len(applies),
                copies=COPIES_BESIDE * len(applies),
            )
            findings += admin_findings(spec, site, prepared_topology(spec.state_dir)) if site.database.has_admin else ()
            statements += destination.plan(spec.name, _planned(applies))
    return LiveSite(
        statements=tuple(statements), tables=tables, findings=tuple(findings), identity=identity, logged=logged
    )


def _unseen(spec: TopologySpec, site: SiteSpec) -> LiveSite:
    """Return the plan for an embedded server that does not exist yet or does not run."""
    applies = [apply for apply in spec.applies if apply.site == site.name]
    statements = plan_unseen(
        site.database.kind,
        spec.name,
        site.name,
        rules=spec.capture_rules(site.name),
        applies=_planned(applies),
        version=site.database.version,
    )
    return LiveSite(statements=statements, is_live=False)


def _planned(applies: Sequence[ApplySpec]) -> tuple[PlannedApply, ...]:
    return tuple(
        PlannedApply(
            name=apply.name,
            source=apply.source,
            parallelism=apply.parallelism,
            tag=apply.tag or b"",
            tombstones=tuple(sorted(apply.conflicts.with_tombstones)),
        )
        for apply in applies
    )
