"""The plan: everything `up` would create or change, where it would run, and what it locks.

A plan is made from the topology alone, or from the topology and the databases' answers (`LiveSite`). The databases
describe their own statements; nothing here depends on their SQL.

Longer than 500 lines: each part of a plan is described, made and formatted here, and a new part needs all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from headrace.base.errors import counted
from headrace.databases.connectors import log_session_name
from headrace.databases.ports import Finding, LoggedTable, PlannedStatement, SourceTable
from headrace.lcr.table_name import TableName
from headrace.rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet, TagCondition
from headrace.rules.table_settings import TableSettings
from headrace.rules.user_code.handlers import NO_HANDLERS
from topology.checks.static import check_and_prove
from topology.edits.changes import Change, changes
from topology.links import protection
from topology.problems import as_line
from topology.proof.reach import Reach, ReachedSite
from topology.routing.change_classes import ChangeClasses
from topology.routing.combined import apply_of, bypassed, bypassed_on, combination, combined, direct
from topology.routing.downstream import RedoReceiver, redo_receivers
from topology.routing.ways import Way, ways_to
from topology.spec import EXECUTORS_DEFAULT, ApplySpec, SiteSpec, TopologySpec
from topology.split import Split, fitting, hindrance, misfits, with_splits

TABLES_SHOWN = 6  # of tables with the same destinations; `--json` has all
_PROCESSES = {
    "shared": "queues and propagations of a site share one, and so do its capture processes, its redo receivers, and"
    " its apply processes by fours",
    "apart": "each actor has one with its name",
}

__all__ = ["KeptRows", "LiveSite", "Optimisation", "Plan", "PlannedActor", "PlannedWay", "SitePlan", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSite:
    """Answers of a site's database.

    Args:
        statements: the planned statements, in order, also those that are done already.
        tables: tables that its capture processes would take.
        findings: of its preflight.
        identity: what distinguishes the database from every other; empty: not asked.
        logged: what its log must have of rows beyond their keys.
        is_live: the database was asked; False: the statements are those for an empty one.
    """

    statements: tuple[PlannedStatement, ...] = ()
    tables: tuple[SourceTable, ...] = ()
    findings: tuple[Finding, ...] = ()
    identity: str = ""
    is_live: bool = True
    logged: tuple[LoggedTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedActor:
    """One actor.

    Args:
        name: its name on Ray.
        site: where it runs.
        resources: Ray custom resources that its node must have, as (name, amount).
        work: its task, one sentence.
    """

    name: str
    site: str
    resources: tuple[tuple[str, float], ...]
    work: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePlan:
    """One site: its database and its folder."""

    name: str
    database: str
    folder: str
    live: LiveSite | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWay:
    """The way of one source's changes to one apply process, component by component, and the rules they pass."""

    source: str
    destination: str
    components: tuple[str, ...]
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """A possible optimisation, whether it applies here, and why."""

    name: str
    applies: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """Destination tables whose rows stay as they are: `up` copies nothing there.

    Args:
        site: where they are.
        source: the site from which nothing is copied.
        why: the reason, in words about the source.
        tables: their names.
    """

    site: str
    source: str
    why: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that `up` would do, as data."""

    topology: str
    file: str
    state_dir: str
    links: str
    reach: tuple[Reach, ...]
    ways: tuple[PlannedWay, ...]
    sites: tuple[SitePlan, ...]
    processes: str
    actors: tuple[PlannedActor, ...]
    changes: tuple[Change, ...]
    optimisations: tuple[Optimisation, ...]
    findings: tuple[Finding, ...]
    kept: tuple[KeptRows, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-able data."""
        return asdict(self)

    def as_text(self) -> str:
        """Format the plan for people."""
        return "\n".join(_text(self)) + "\n"


def make_plan(
    spec: TopologySpec,
    live: Mapping[str, LiveSite] | None = None,
    *,
    prepared: TopologySpec | None = None,
    found: Sequence[Finding] = (),
    checked: Sequence[Finding] | None = None,
    splits: Sequence[Split] = (),
    kept: Sequence[KeptRows] = (),
) -> Plan:
    """Make the plan of a topology.

    Args:
        spec: as read.
        live: answers of the sites' databases, by site; an absent site was not asked.
        prepared: the topology that was prepared last and runs; None: nothing was prepared.
        found: problems between databases.
        checked: problems of the file, where its lines are known.
        splits: the present splits.
        kept: the tables whose rows stay as they are.
    """
    answers = live or {}
    proven = check_and_prove(spec)
    tables = ChangeClasses.of(spec).spoken_of if any(capture.rules.names_ddl for capture in spec.captures) else ()
    findings = list(proven.findings if checked is None else checked)
    for answer in answers.values():
        findings.extend(answer.findings)
    findings.extend(misfits(spec, splits, prepared))
    running = with_splits(spec, fitting(spec, splits))
    return Plan(
        topology=spec.name,
        file=str(spec.file),
        state_dir=str(spec.state_dir),
        links=protection(spec),
        reach=proven.proof.reach() if proven.proof is not None else (),
        ways=tuple(_planned_way(running, way, tables) for apply in spec.applies for way in ways_to(running, apply)),
        sites=tuple(
            SitePlan(
                name=site.name,
                database=_database(site),
                folder=str(spec.state_dir / "sites" / site.name),
                live=answers.get(site.name),
            )
            for site in spec.sites
        ),
        processes="apart" if running.processes_apart else "shared",
        actors=tuple(_actors(running)),
        changes=changes(prepared, running) if prepared is not None else (),
        optimisations=tuple(_optimisations(spec)),
        findings=(*findings, *found),
        kept=tuple(kept),
    )


def _database(site: SiteSpec) -> str:
    database = site.database
    if database.kind == "none":
        return "none (queues only)"
    if database.kind == "embedded":
        return f"embedded server, version {database.version}"
    names = ", ".join(database.environment)
    return f"{database.kind}, connection from {names or 'the file'}"


# --------------------------------------------------------------------------- ways


def _planned_way(spec: TopologySpec, way: Way, tables: Sequence[TableName]) -> PlannedWay:
    """Describe a way.

    Args:
        spec: as it runs.
        way: of `spec`.
        tables: an example of each set of tables that the rules tell apart.
    """
    shown = (client for client in way.clients if client is way.capture or client.rules != RuleSet())
    without = bypassed_on(spec, way)
    return PlannedWay(
        source=way.apply.source,
        destination=way.apply.site,
        components=tuple(name.partition(":")[2] for name in way.full_names if name not in without),
        rules=(*(f"{client.name}: {_rules(client.rules)}" for client in shown), *_ddl(way, tables)),
    )


def _ddl(way: Way, tables: Sequence[TableName]) -> Iterator[str]:
    """Yield one line about the tables whose DDL the way carries, by the patterns of the capture process."""
    carried = [table for table in tables if way.carries_ddl(table)]
    rules = [
        _rule(rule, positive=True)
        for rule in way.capture.rules.include or ()
        if rule.ddl and any(rule.matches_object(*table) for table in carried)
    ]
    if rules:
        yield f"{way.apply.name}: DDL of {', '.join(rules)} too"


def _rules(rules: RuleSet) -> str:
    """Format a rule set in one line."""
    if rules.include is None:  # noqa: SIM108
        taken = "everything"
    else:
        taken = ", ".join(_rule(rule, positive=True) for rule in rules.include) or "nothing"
    left = ", ".join(_rule(rule, positive=False) for rule in rules.exclude)
    return f"{taken} except {left}" if left else taken


def _rule(rule: Rule, *, positive: bool) -> str:
    name = "every table" if (rule.owner, rule.name) == ("*", "*") else f"{rule.owner}.{rule.name}"
    if rule.condition is not None:
        # These import numpy; most rules have no condition.
        from headrace.lcr.batch import Command
        from headrace.rules.needs import commands_taken

        never = [command.name for command in Command if command not in commands_taken(rule)]
        name += f" where {rule.condition}" + (f" (never {' or '.join(never)})" if never else "")
    name += f" subset {rule.subset}" if rule.subset is not None else ""
    name += f" [{rule.transformation}]" if rule.transformation is not None else ""
    if positive:
        return name if rule.tags == UNTAGGED else f"{name} ({_tags(rule.tags)})"
    return name if rule.tags == ANY_TAG else f"{name} ({_tags(rule.tags)})"


def _tags(tags: TagCondition) -> str:
    if tags == ANY_TAG:
        return "tagged changes too"
    if tags == UNTAGGED:
        return "untagged changes"
    listed = ", ".join(_tag(tag) for tag in tags.listed)
    return f"changes with tag {listed}" if tags.takes_listed else f"changes with any tag but {listed}"


def _tag(tag: bytes | None) -> str:
    return "none" if tag is None else tag.hex()


# --------------------------------------------------------------------------- actors


def _actors(spec: TopologySpec) -> Iterator[PlannedActor]:
    node = {site.name: site.node for site in spec.sites}
    site_of = {queue.name: queue.site for queue in spec.queues}
    sources = {capture.source for capture in spec.captures}

    def actor(name: str, site: str, work: str) -> PlannedActor:
        return PlannedActor(name=name, site=site, resources=node[site], work=work)

    alerts = (
        f", and sends alerts to {', '.join(target.name for target in spec.alerts.to)}"
        if spec.alerts is not None
        else ""
    )
    yield PlannedActor(
        name="controller", site="", resources=(), work=f"keeps the actors as the topology defines them{alerts}"
    )
    for site in spec.sites:
        if site.name in sources:
            memory = (
                _size(site.database.decoding_memory)
                if site.database.decoding_memory
                else "as much as its shared_buffers, at most 512MB,"
            )
            held = f"; its session there holds {memory} of transactions in flight"
            yield actor(f"site:{site.name}", site.name, f"log writer: drains the source's log into the redo log{held}")
        else:
            has_database = site.database.kind != "none"
            work = "keeps the site's database" if has_database else "keeps the site's folder: queues only"
            yield actor(f"site:{site.name}", site.name, work)
    for receiver in redo_receivers(spec):
        work = f"redo receiver: {_transport(spec, receiver)}"
        yield actor(receiver.component, receiver.site, work)
    without = bypassed(spec)
    for capture in spec.captures:
        apply = apply_of(spec, capture)
        where = f"into {capture.queue}" if apply is None else f"for {apply.name}"
        copy = f" (its copy at {capture.site})" if capture.is_downstream else ""
        yield actor(f"capture:{capture.name}", capture.site, f"mines the redo of {capture.source}{copy} {where}")
    for queue in spec.queues:
        if f"queue:{queue.name}" in without:
            continue
        work = f"holds LCRs: {_size(queue.memory_bytes_max)} in memory, then {_size(queue.spill_bytes_max)} on disk"
        yield actor(f"queue:{queue.name}", queue.site, work)
    for propagation in spec.propagations:
        if f"propagation:{propagation.name}" in without:
            continue
        work = (
            f"sends LCRs of {', '.join(propagation.sources) or 'no source'} from {propagation.from_queue} to"
            f" {propagation.to_queue}"
        )
        work += "" if propagation.compression == "none" else f", compressed with {propagation.compression}"
        work += "" if propagation.bandwidth_max is None else f", at most {_size(propagation.bandwidth_max)}/s"
        work += "" if propagation.schedule is None else f", when open: {propagation.schedule.described()}"
        yield actor(f"propagation:{propagation.name}", site_of[propagation.from_queue], work)
    executors = {site.name: _executors(site) for site in spec.sites}
    for apply in spec.applies:
        work = (
            f"Spark job with {apply.parallelism} apply servers{executors.get(apply.site, '')}: applies the changes of {apply.source}, tag"
            f" {_tag(apply.tag)}{_conflicts(apply)}{_order(apply)}{_ON_ERROR[apply.on_error]}"
        )
        work += f"; handlers: {apply.handlers}" if apply.handlers != NO_HANDLERS else ""
        work += _tables(apply.tables)
        work += "" if apply.commits_lazily else "; each commit waits for the disk"
        yield actor(f"apply:{apply.name}", apply.site, work)


def _executors(site: SiteSpec) -> str:
    """Say on how many executors apply servers run, if the file does."""
    if site.executors == EXECUTORS_DEFAULT:
        return ""
    return f" on {site.executors} executor{'s' if site.executors > 1 else ''}"


_ON_ERROR = {
    "hold_dependents": "",
    "continue": "; on an error: transactions that depend on the failed one are still applied",
    "disable": "; on an error: applies nothing more until its error queue is empty",
}


def _conflicts(apply: ApplySpec) -> str:
    """List an apply process's conflict handlers and uncompared columns; empty: conflicts go into the error queue."""
    rules = apply.conflicts
    found = [
        f"{each.owner}.{each.name} {each.kind}: {each}"
        + (f" ({' before '.join(each.priority)})" if each.priority else "")
        + (f" over {', '.join(each.columns)}" if each.columns else "")
        for each in rules.handlers
    ]
    found += [
        f"{each.owner}.{each.name}: {', '.join(each.columns)} not compared ({', '.join(each.operations)})"
        for each in rules.uncompared
    ]
    found += ["only keys are compared"] if rules.compare_key_only else []
    return f"; conflicts: {'; '.join(found)}" if found else ""


def _tables(settings: TableSettings) -> str:
    """List the settings of its tables; empty: the destination's keys find rows, and rows that do not fit wait."""
    found = [f"substitute key {each}" for each in settings.key_columns]
    if settings.allow_duplicate_rows is not None:
        found.append(
            "of several rows that one LCR finds"
            f" {'one is changed' if settings.allow_duplicate_rows else 'none is changed: an error'}"
        )
    if settings.check_foreign_keys:
        tables = ", ".join(".".join(each) for each in settings.foreign_keys_of)
        found.append(f"foreign keys{' of ' + tables if tables else ''} are checked at the end of each transaction")
    found += [f"trigger {each}" for each in settings.triggers]
    found += (
        ["transactions with rows that do not fit their table go into the error queue"]
        if settings.column_mismatch == "error"
        else []
    )
    found += {
        "keep": ["partitions that the source detaches or drops are kept"],
        "follow": ["partitions that the source detaches or drops are detached or dropped"],
    }.get(
        settings.detached_partitions,
        [],
    )
    return f"; {'; '.join(found)}" if found else ""


def _order(apply: ApplySpec) -> str:
    """List what the file sets about its order; empty: only constraints of the destination order it."""
    found = ["commits in the order of the source"] if apply.commits_in_order else []
    for value in apply.dependencies.values:
        tables = [f"{each.owner}.{each.name} ({', '.join(each.columns)})" for each in value.tables]
        found.append(f"rows with equal values depend on each other ({value.name}): {', '.join(tables)}")
    found += [
        f"{each.owner}.{each.name} waits for {each.parent_owner}.{each.parent_name}"
        for each in apply.dependencies.objects
    ]
    return f"; {'; '.join(found)}" if found else ""


def _transport(spec: TopologySpec, receiver: RedoReceiver) -> str:
    if receiver.archive:
        return f"takes the complete segments of {receiver.source} that are copied into {receiver.archive}"
    if receiver.is_archived_log:
        return f"copies the complete segments of {receiver.source}, at most {receiver.archive_lag_s:g} s old"
    if not receiver.is_sync:
        return f"copies the redo of {receiver.source} asynchronously: a commit does not wait for it"
    session = log_session_name(spec.site(receiver.source).database.kind, spec.name, receiver.source)
    return (
        f"copies the redo of {receiver.source} synchronously: a commit waits for it where the database waits for"
        f" the session {session}"
    )


def _size(size: int) -> str:
    for unit, shift in (("GB", 30), ("MB", 20), ("kB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g}{unit}"
    return f"{size}B"


# --------------------------------------------------------------------------- optimisations


def _optimisations(spec: TopologySpec) -> Iterator[Optimisation]:
    for propagation in spec.propagations:
        plain = propagation.rules == RuleSet()
        yield Optimisation(
            name=f"{propagation.name}: batches sent on unopened",
            applies=plain,
            reason="its destination takes all that is captured" if plain else "its rules look into every batch",
        )
        reason = "split: never, or a schedule" if propagation.split_after_s is None else hindrance(spec, propagation)
        yield Optimisation(
            name=f"{propagation.name}: split off when its destination is away",
            applies=not reason,
            reason=reason
            or f"after {propagation.split_after_s:g} s, from {propagation.from_queue}; merged within"
            f" {propagation.merge_within_s:g} s",
        )
    for apply in spec.applies:
        groups = apply.group_transactions > 1
        yield Optimisation(
            name=f"{apply.name}: transactions applied in groups",
            applies=groups,
            reason=f"up to {apply.group_transactions} transactions or {apply.group_rows} rows become one"
            if groups
            else "group_transactions is 1",
        )
        yield Optimisation(
            name=f"{apply.name}: independent groups in parallel",
            applies=apply.parallelism > 1 and not apply.commits_in_order,
            reason="commit_serialization is full: groups are prepared in parallel, and written one after the other"
            if apply.commits_in_order
            else f"parallelism is {apply.parallelism}",
        )
    not_run = bypassed(spec)
    for capture in spec.captures:
        found = combination(spec, capture)
        without = [name.partition(":")[2] for name, by in not_run.items() if by == f"capture:{capture.name}"]
        yield Optimisation(
            name=f"{capture.name}: combined capture and apply",
            applies=found.apply is not None,
            reason=found.hindrance
            if found.apply is None
            else f"{capture.queue} has one publisher, and one way without rules leads to {found.apply.name}"
            f" (not run: {', '.join(without)})",
        )
    pairs = {pair.propagation.name for pair in combined(spec) if pair.propagation is not None}
    for propagation in spec.propagations:
        if propagation.name in pairs:
            continue
        stream = direct(spec, propagation)
        readers = ", ".join(apply.name for apply in stream.applies)
        without = [
            name.partition(":")[2]
            for name in (f"propagation:{propagation.name}", f"queue:{propagation.to_queue}")
            if name in not_run
        ]
        yield Optimisation(
            name=f"{propagation.name}: direct dequeuing",
            applies=bool(stream.applies),
            reason=stream.hindrance
            or f"{readers} dequeue{'s' if len(stream.applies) == 1 else ''} from {propagation.from_queue}, as nothing"
            f" in between looks into batches (not run: {', '.join(without)})",
        )


# --------------------------------------------------------------------------- text


def _text(plan: Plan) -> Iterator[str]:
    yield f"Plan of {plan.topology} ({plan.file})"
    yield f"State is kept in {plan.state_dir}"
    yield f"Links between components: {plan.links}"
    yield from _reach_text(plan)
    yield "\nChanges flow"
    for way in plan.ways:
        yield f"  {way.source} -> {way.destination}: {' -> '.join(way.components)}"
        yield from (f"    {rules}" for rules in way.rules)
    for site in plan.sites:
        yield f"\nSite {site.name}: database {site.database}"
        yield f"  folder {site.folder}"
        if site.live is not None:
            yield from _live_text(site.live)
        elif not site.database.startswith("none"):
            yield "  not asked: its statements are not listed"
    if plan.kept:
        yield "\nRows that stay as they are"
        yield from (f"  at {each.site}, {each.why}: {_some(each.tables)}" for each in plan.kept)
    yield f"\nActors (processes: {plan.processes}: {_PROCESSES[plan.processes]})"
    for actor in plan.actors:
        needs = ", ".join(f"{name}: {amount:g}" for name, amount in actor.resources)
        where = f" at {actor.site}" if actor.site else ""
        yield f"  {actor.name}{where}{f' (needs {needs})' if needs else ''}: {actor.work}"
    if plan.changes:
        yield "\nChanges to what runs"
        yield from _changes_text(plan.changes)
    yield "\nOptimisations"
    for optimisation in plan.optimisations:
        yield f"  {'yes' if optimisation.applies else 'no '} {optimisation.name}: {optimisation.reason}"
    if plan.findings:
        yield "\nFindings"
        for finding in plan.findings:
            yield f"  {'error' if finding.is_error else 'warning'} {as_line(finding)}"


def _reach_text(plan: Plan) -> Iterator[str]:
    """Format who gets what: tables, source -> destinations. Other tags appear only where untagged changes go elsewhere."""
    yield "\nWho gets what"
    for tables, lines in groupby(plan.reach, key=lambda line: line.tables):
        yield f"  {_some(tables)}"
        for line in lines:
            if line.is_forwarding:  # lines of the sites that it forwards for show this
                continue
            tags = "" if "none" in line.tags else f", tagged {' or '.join(line.tags)}"
            yield f"    {line.origin}{tags} -> {', '.join(_reached_text(site) for site in line.reached)}"


def _reached_text(reached: ReachedSite) -> str:
    over = f", over {' and '.join(reached.sites[1:-1])}" if reached.sites[1:-1] else ""
    over += f", as {' and '.join(reached.names)}" if reached.names else ""
    hops = len(reached.sites) - 1
    times = "" if reached.times == "once" else f", {reached.times}"
    # The proof does not evaluate conditions on rows: these sites are the most that can get it.
    times += f", where conditions of {' and '.join(reached.conditions)} are TRUE" if reached.conditions else ""
    return f"{reached.site} ({counted(hops, 'hop')}{over}{times})"


def _some(tables: tuple[str, ...]) -> str:
    shown = ", ".join(tables[:TABLES_SHOWN])
    return shown if len(tables) <= TABLES_SHOWN else f"{shown} and {len(tables) - TABLES_SHOWN} more"


def _changes_text(found: tuple[Change, ...]) -> Iterator[str]:
    untouched = [change.component for change in found if change.action == "same"]
    words = {
        "new": "is created",
        "ends": "ends",
        "takes over": "keeps running, with changed",
        "restarts": "restarts, with changed",
    }
    for change in found:
        if change.action != "same":
            yield f"  {change.component} {' '.join([words[change.action], ', '.join(change.facets)]).rstrip()}"
    yield f"  not touched: {', '.join(untouched) or 'nothing'}"


def _live_text(live: LiveSite) -> Iterator[str]:
    if live.tables:
        yield f"  {len(live.tables)} tables are captured"
        for table in live.tables:
            kind = ", partitioned" if table.is_partitioned else ""
            yield f"    {table.owner}.{table.name}: about {max(table.row_estimate, 0)} rows, {_size(table.bytes)}{kind}"
    if not live.is_live:
        yield "  the database does not exist yet, or does not run: this is what an empty one gets"
    if live.logged:
        yield "  supplemental logging: values that the log must have, keys aside (! you run the statement)"
    for logged in live.logged:
        yield f"    {logged.owner}.{logged.name}: {', '.join(logged.columns)} ({logged.place})"
        if logged.lacking or logged.uncertain:
            yield f"    ! {logged.statement}"
    if live.statements:
        yield "  statements (+ will be run, = is done already)"
    # Statements with the same lock are shown together, with the lock once below them.
    for (lock, breaks), steps in groupby(live.statements, key=lambda planned: (planned.lock, planned.breaks)):
        for planned in steps:
            first, *rest = planned.statement.splitlines()
            yield f"  {'=' if planned.is_done else '+'} {first}"
            yield from (f"    {line}" for line in rest)
            yield f"      {planned.effect}"
        yield f"    locks: {lock or 'nothing that a statement of yours could wait for'}"
        yield from (f"    will fail from then on: {statement}" for statement in breaks)
