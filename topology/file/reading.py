"""Reading of a topology file: YAML to a frozen `TopologySpec`, or all problems at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headrace.databases.ports import Finding
from headrace.rules.conditions.condition import Condition
from headrace.rules.conditions.nodes import Attribute, operands_of
from headrace.rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet, TagCondition
from topology.checks.ddl import WantedDdl, ddl_findings
from topology.checks.static import Declared, check_and_prove
from topology.file.alerts import read_alerts
from topology.file.conflicts import conflict_findings, conflict_rules
from topology.file.connection_strings import ConnectionStringError, UnresolvedError, check_written, resolve
from topology.file.dependencies import dependency_findings, virtual_dependencies
from topology.file.document import Document, Path_, path_text, read_document
from topology.file.functions import read_code, with_functions
from topology.file.handlers import read_handlers
from topology.file.secret_sources import references
from topology.file.shape.findings import read_shape
from topology.file.shape.models import (
    ApplyModel,
    CaptureModel,
    DatabaseModel,
    PropagationModel,
    QueueModel,
    ReplicateModel,
    RuleModel,
    RulesModel,
    ScheduleModel,
    SiteModel,
    SpokeModel,
    TopologyModel,
)
from topology.file.shape.values import NAME_LENGTH_MAX, valid_name
from topology.file.shorthand import (
    Components,
    Replicate,
    Spoke,
    contradictions,
    expand,
    flows_between,
    flows_of_tree,
    one_way,
    overlap,
)
from topology.file.table_settings import table_setting_findings, table_settings
from topology.file.thresholds import threshold_findings, with_thresholds
from topology.file.tls import TlsReading
from topology.problems import TopologyError, nearest
from topology.proof.reach import Reach
from topology.routing.ways import route
from topology.schedule import DAYS, EVERY_DAY, Schedule, Window
from topology.spec import (
    ApplySpec,
    CaptureSpec,
    DatabaseSpec,
    PropagationSpec,
    QueueSpec,
    SiteSpec,
    TopologySpec,
)

__all__ = ["Examination", "examine", "read_topology"]

_LINE = re.compile(r"\bline (\d+)\)$")
_STEP = re.compile(r"[^.\[\]]+")
STATE_DIR_DEFAULT = ".headrace/{topology}"  # two topologies in one folder must not share redo logs

T = TypeVar("T")
N = TypeVar("N", TopologySpec, QueueSpec, CaptureSpec, PropagationSpec, ApplySpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A topology file's content and problems.

    Args:
        file: as the caller named it.
        spec: the topology with the shorthand expanded, defaults filled in and every propagation routed, without
            unreadable parts; None: nothing was readable.
        findings: errors in the order of the file, then warnings, with their places in the file.
        of_proof: findings of the proof, and those about unprotected links: a topology with them must not be started,
            but if it runs it can be inspected and stopped.
        unresolved: errors about secrets without a value. Commands that connect to no database can do without them; the
            connection strings are empty then.
        reach: who gets what; empty where errors of the file leave that open.
    """

    file: str
    spec: TopologySpec | None
    findings: tuple[Finding, ...]
    of_proof: frozenset[Finding] = frozenset()
    unresolved: frozenset[Finding] = frozenset()
    reach: tuple[Reach, ...] = ()

    def topology(self, *, to_start: bool = True, to_connect: bool = True) -> TopologySpec:
        """Return the topology.

        Args:
            to_start: refuse it also for findings in `of_proof`. False: a topology that an earlier version started can
                be inspected and stopped.
            to_connect: refuse it also for findings in `unresolved`.

        Raises:
            TopologyError: with every error of the file.
        """
        allowed = (frozenset() if to_start else self.of_proof) | (frozenset() if to_connect else self.unresolved)
        errors = [finding for finding in self.findings if finding.is_error and finding not in allowed]
        if self.spec is None or errors:
            raise TopologyError.of(self.file, errors)
        return self.spec


def examine(path: Path | str, environment: Mapping[str, str] = os.environ) -> Examination:
    """Read a topology file and find its problems.

    Args:
        path: the YAML file.
        environment: the variables that `${NAME}` refers to.
    """
    file = Path(path)
    reader = _Reader(read_document(file), environment)
    spec = reader.read(file.resolve()) if reader.document.content else None
    findings = sorted(reader.document.findings, key=lambda finding: (not finding.is_error, _line(finding)))
    return Examination(
        file=str(file),
        spec=spec,
        findings=tuple(findings),
        of_proof=frozenset(reader.of_proof),
        unresolved=frozenset(reader.document.unresolved),
        reach=reader.reach,
    )


def read_topology(
    path: Path | str, environment: Mapping[str, str] = os.environ, *, to_start: bool = True, to_connect: bool = True
) -> TopologySpec:
    """Read a topology file.

    Args:
        path: the YAML file.
        environment: the variables that `${NAME}` refers to.
        to_start: as in `Examination.topology`.
        to_connect: as in `Examination.topology`.

    Returns:
        The topology with the shorthand expanded, defaults filled in and every propagation routed.

    Raises:
        TopologyError: with every problem of the file, each as `path: what is wrong: how to fix it`.
    """
    return examine(path, environment).topology(to_start=to_start, to_connect=to_connect)


def _line(finding: Finding) -> int:
    """Return the line of a finding; findings without one come first."""
    found = _LINE.search(finding.path)
    return int(found[1]) if found else 0


class _Reader:
    """Reads one file; problems go to the document's findings."""

    def __init__(self, document: Document, environment: Mapping[str, str]) -> None:
        self.document = document
        self._environment = environment
        self._unreadable: dict[str, set[str]] = {}
        self.of_proof: set[Finding] = set()
        self.reach: tuple[Reach, ...] = ()
        self._folder = Path()
        self._tls = TlsReading(document)
        self._top: TopologyModel | None = None
        self._propagations: dict[str, PropagationModel] = {}
        self._applies: dict[str, ApplyModel] = {}
        self._with_ddl: list[WantedDdl] = []

    def read(self, file: Path) -> TopologySpec:
        content = self.document.content
        top = self._top = read_shape(TopologyModel, content, (), self.document)
        name = self._topology_name(content.get("topology"))
        self._folder = file.parent
        alerts = (
            None if content.get("alerts") is None else read_alerts(content["alerts"], self.document, self._environment)
        )
        sites = self._section("sites", SiteModel, self._site)
        if content.get("sites") == {}:
            self._report(
                ("sites",), "is empty", "name the databases, such as dbs1: {database: {kind: postgres, dsn: ...}}"
            )
        entries = self._replicate({site.name for site in sites} | self._unreadable["sites"], sites)
        written = Components(
            queues=self._section("queues", QueueModel, _queue),
            captures=self._section("captures", CaptureModel, partial(_capture, folder=file.parent)),
            propagations=self._section("propagations", PropagationModel, self._propagation),
            applies=self._section("applies", ApplyModel, self._apply),
        )
        components = _merge(expand(entries, own_captures=frozenset(c.name for c in written.captures)), written)
        propagations = tuple(
            with_thresholds(each, self._propagations.get(each.name), top) for each in components.propagations
        )
        state_dir = top.state_dir if top is not None and top.state_dir else STATE_DIR_DEFAULT.format(topology=name)
        spec = TopologySpec(
            name=name,
            file=file,
            state_dir=(file.parent / Path(state_dir).expanduser()).resolve(),
            sites=sites,
            queues=components.queues,
            captures=components.captures,
            propagations=propagations,
            applies=components.applies,
            alerts=alerts,
        )
        if top is not None:
            spec = _with(
                spec,
                redo_bytes_max=top.redo_bytes_max,
                segment_bytes=top.segment_bytes,
                heartbeat_s=top.heartbeat_s,
                allow_cycle=top.allow_cycle,
            )
            spec = replace(
                spec,
                processes_apart=top.processes == "apart",
                applies=tuple(self._with_defaults(apply, top) for apply in spec.applies),
            )
            code, found = read_code(top, self._folder)
            handlers, of_handlers = read_handlers(top, self._applies, [apply.name for apply in spec.applies], code)
            spec = replace(spec, applies=tuple(replace(apply, handlers=handlers[apply.name]) for apply in spec.applies))
            spec, of_functions = with_functions(spec, code, top.handler_timeout_s, content)
            for path, problem, fix in (*found, *of_handlers, *of_functions):
                self._report(path, problem, fix)
            if top.combined == "never":
                spec = replace(spec, applies=tuple(replace(apply, combined=False) for apply in spec.applies))
        spec, needed = self._tls.completed(route(spec))
        self.of_proof |= needed
        self._check(spec)
        return spec

    def _with_defaults(self, apply: ApplySpec, top: TopologyModel) -> ApplySpec:
        """Add the file's settings of conflicts, errors and commits to an apply process: its own, else those of all."""
        own = self._applies.get(apply.name)
        said = replace(apply, conflicts=conflict_rules(top, own, apply.site), tables=table_settings(top, own))
        waits = next(
            (
                each.synchronous_commit
                for each in (own, top)
                if each is not None and each.synchronous_commit is not None
            ),
            None,
        )
        return _with(
            said,
            on_error=(own.on_error if own is not None else None) or top.on_error,
            commits_lazily=None if waits is None else not waits,
        )

    def _topology_name(self, name: object) -> str:
        if isinstance(name, str) and not valid_name(name):
            self._report(("topology",), f"{name!r} cannot be a name", _NAME_ADVICE)
        return str(name)

    def _section(self, section: str, model: type[Any], build: Callable[[str, Any], T | None]) -> tuple[T, ...]:
        """Read every entry of a section; record unreadable ones by name."""
        unreadable = self._unreadable.setdefault(section, set())
        entries = self.document.content.get(section)
        answer: list[T] = []
        for name, content in entries.items() if isinstance(entries, dict) else ():
            if not valid_name(name):
                self._report((section, name), f"{name!r} cannot be a name", _NAME_ADVICE)
            entry = read_shape(model, content, (section, name), self.document)
            built = build(name, entry) if entry is not None else None
            if built is None:
                unreadable.add(name)
            else:
                answer.append(built)
        return tuple(answer)

    def _propagation(self, name: str, model: PropagationModel) -> PropagationSpec:
        self._propagations[name] = model
        return _propagation(name, model)

    def _apply(self, name: str, model: ApplyModel) -> ApplySpec:
        self._applies[name] = model
        return _apply(name, model)

    def _site(self, name: str, model: SiteModel) -> SiteSpec | None:
        database = self._database(name, model.database)
        if database is None:
            return None
        return SiteSpec(
            name=name,
            database=database,
            node=tuple(model.node.items()),
            executors=model.executors,
            tls=self._tls.of(name, model.tls, self._folder),
        )

    def _database(self, site: str, model: DatabaseModel) -> DatabaseSpec | None:
        if model.kind == "embedded":
            database = DatabaseSpec(kind=model.kind, decoding_memory=model.decoding_memory or 0)
            return replace(database, version=model.version) if model.version else database
        if model.kind == "none":
            return DatabaseSpec(kind=model.kind)
        dsn = model.dsn or ""
        try:
            resolved = resolve(dsn, self._environment)
        except UnresolvedError as error:
            self._report(("sites", site, "database", "dsn"), error.problem, error.fix)
            self.document.unresolved.append(self.document.findings[-1])
            resolved = ""
        except ConnectionStringError as error:
            self._report(("sites", site, "database", "dsn"), error.problem, error.fix)
            return None
        if model.admin_dsn is not None:
            try:
                check_written(model.admin_dsn)
            except ConnectionStringError as error:
                self._report(("sites", site, "database", "admin_dsn"), error.problem, error.fix)
                return None
        return DatabaseSpec(
            kind=model.kind,
            dsn=resolved,
            environment=references(f"{dsn} {model.admin_dsn or ''}"),
            has_admin=model.admin_dsn is not None,
            allow_any_version=model.allow_any_version,
            decoding_memory=model.decoding_memory or 0,
        )

    def _replicate(self, declared: set[str], sites: Iterable[SiteSpec]) -> list[Replicate]:
        contents = self.document.content.get("replicate")
        without_database = {site.name for site in sites if site.database.kind == "none"}
        entries = []
        for number, content in enumerate(contents if isinstance(contents, list) else ()):
            path: Path_ = ("replicate", number)
            findings_before = len(self.document.findings)
            model = read_shape(ReplicateModel, content, path, self.document)
            in_tree: set[str] = set()
            for place, site in _places(content, path).items():
                if site not in declared:
                    self._report(place, f"there is no site {site!r}", nearest(site, declared))
                elif site in without_database:
                    self._report(
                        place,
                        f"site {site} has no database",
                        f"name another site, or give {site} a database of kind postgres or embedded",
                    )
                elif model is not None and place[2] == "to" and site == model.from_:
                    self._report(place, f"replicates {site} to itself", "name another site")
                elif place[2] in ("hub", "spokes") and site in in_tree:
                    self._report(place, f"{site} is in the tree of hub and spokes twice", "name every site once")
                elif place[2] in ("hub", "spokes"):
                    in_tree.add(site)
            if model is not None and len(self.document.findings) == findings_before:
                entry = _replicate(model)
                entries.append(entry)
                self._check_exclusions(path, entries)
                if model.ddl and model.from_ is not None:
                    self._with_ddl.append(
                        WantedDdl(
                            path=path_text((*path, "ddl")),
                            source=model.from_,
                            destinations=tuple(flow.destination for flow in entry.flows),
                            rules=entry.rules,
                        )
                    )
        return entries

    def _check_exclusions(self, path: Path_, entries: list[Replicate]) -> None:
        """Report exclusions of the last entry that exclude nothing, and those that contradict an earlier entry."""
        entry = entries[-1]
        for place, rule in enumerate(entry.exclude):
            if not any(overlap(rule, taken) for taken in entry.rules):
                self._report(
                    (*path, "exclude", place),
                    f"{rule.owner}.{rule.name} is nothing that the entry takes",
                    "correct the name",
                )
        for one, other, rule in contradictions(entries):
            if len(entries) - 1 in {one, other}:
                self._report(
                    path,
                    f"{rule.owner}.{rule.name} is excluded in one entry of replicate, and another one takes it between the"
                    " same sites",
                    "exclude it in both, or write one entry",
                )

    def _check(self, spec: TopologySpec) -> None:
        broken = Declared(
            sites=frozenset(self._unreadable["sites"]),
            queues=frozenset(self._unreadable["queues"]),
            components=frozenset(
                self._unreadable["captures"] | self._unreadable["propagations"] | self._unreadable["applies"]
            ),
        )
        self._check_unreadable(spec)
        if self._top is not None:
            self.document.findings += [self._located(each) for each in conflict_findings(self._top, self._applies)]
            self.document.findings += [self._located(each) for each in table_setting_findings(self._top, self._applies)]
        self.document.findings += [self._located(each) for each in dependency_findings(self._applies)]
        checked = check_and_prove(
            spec,
            broken,
            is_whole=not any(each.is_error and each.path.startswith("replicate") for each in self.document.findings),
        )
        self.reach = checked.proof.reach() if checked.proof is not None else ()
        for finding in checked.findings:
            located = self._located(finding)
            self.document.findings.append(located)
            if finding in checked.of_proof:
                self.of_proof.add(located)
        if checked.proof is not None:
            self.document.findings += [
                self._located(finding) for finding in threshold_findings(spec, self._propagations, self._top)
            ]
            found = ddl_findings(spec, checked.proof.classes, self._with_ddl)
            self.document.findings += [self._located(each) for each in found]

    def _located(self, finding: Finding) -> Finding:
        """Return a finding with its line; for a part that `replicate` made, the line of `replicate`."""
        steps = tuple(int(step) if step.isdigit() else step for step in _STEP.findall(finding.path))
        section = self.document.content.get(str(steps[0]))
        is_made = steps[0] in _REFERENCES and len(steps) > 1 and not (isinstance(section, dict) and steps[1] in section)
        line = self.document.lines.get(("replicate",))
        if not is_made or not line:
            return replace(finding, path=self.document.locate(steps))
        return replace(
            finding,
            path=f"{finding.path} (made by replicate, line {line})",
            fix=f"change the entries of replicate that share these tables, or write {steps[0]}.{steps[1]} out with this"
            f" change: {finding.fix}",
        )

    def _check_unreadable(self, spec: TopologySpec) -> None:
        """Report unknown names in entries that have other problems: `check` never sees those entries."""
        known = {
            "site": {site.name for site in spec.sites} | self._unreadable["sites"],
            "queue": {queue.name for queue in spec.queues} | self._unreadable["queues"],
        }
        for section, names in self._unreadable.items():
            entries = self.document.content.get(section)
            for name, entry in entries.items() if isinstance(entries, dict) else ():
                for key, what in _REFERENCES.get(section, {}).items() if name in names else ():
                    value = entry.get(key) if isinstance(entry, dict) else None
                    if isinstance(value, str) and value not in known[what]:
                        self._report((section, name, key), f"there is no {what} {value!r}", nearest(value, known[what]))

    def _report(self, path: Path_, problem: str, fix: str) -> None:
        self.document.findings.append(Finding(path=self.document.locate(path), problem=problem, fix=fix))


_REFERENCES = {
    "queues": {"site": "site"},
    "captures": {"site": "site", "source": "site", "queue": "queue"},
    "propagations": {"from": "queue", "to": "queue"},
    "applies": {"site": "site", "source": "site", "queue": "queue"},
}
_NAME_ADVICE = f"write a-z, 0-9 and _, a letter first, at most {NAME_LENGTH_MAX} characters"


def _places(content: object, path: Path_) -> dict[Path_, str]:
    """Return every site that an entry of `replicate` names, by place, even if the entry has other problems."""
    places: dict[Path_, str] = {}
    entry = content if isinstance(content, dict) else {}
    for key in ("between", "to", "from", "hub"):
        value = entry.get(key)
        if isinstance(value, list):
            places |= {(*path, key, i): site for i, site in enumerate(value) if isinstance(site, str)}
        elif key in ("from", "hub") and isinstance(value, str):
            places[(*path, key)] = value
    return places | _spoke_places(entry.get("spokes"), (*path, "spokes"))


def _spoke_places(spokes: object, path: Path_) -> dict[Path_, str]:
    """Return every site that the spokes of a hub name, by place."""
    places: dict[Path_, str] = {}
    for number, spoke in enumerate(spokes if isinstance(spokes, list) else ()):
        if isinstance(spoke, str):
            places[(*path, number)] = spoke
        elif isinstance(spoke, dict):
            if isinstance(spoke.get("site"), str):
                places[(*path, number, "site")] = spoke["site"]
            places |= _spoke_places(spoke.get("spokes"), (*path, number, "spokes"))
    return places


def _replicate(model: ReplicateModel) -> Replicate:
    rules = [Rule(owner=schema, ddl=model.ddl) for schema in model.schemas]
    rules += [Rule(owner=owner, name=name, ddl=model.ddl) for owner, name in model.tables]
    if model.hub is not None:
        flows = flows_of_tree(Spoke(site=model.hub, spokes=_spokes(model.spokes)))
    elif model.from_ is not None:
        flows = one_way(model.from_, tuple(dict.fromkeys(model.to)))
    else:
        flows = flows_between(tuple(dict.fromkeys(model.between)))
    exclude = tuple(Rule(owner=owner, name=name, tags=ANY_TAG, ddl=True) for owner, name in model.exclude)
    return Replicate(rules=tuple(rules), flows=flows, exclude=exclude)


def _spokes(models: list[SpokeModel]) -> tuple[Spoke, ...]:
    return tuple(Spoke(site=model.site, spokes=_spokes(model.spokes)) for model in models)


def _rule_set(model: RulesModel) -> RuleSet:
    def rules(entries: list[RuleModel], tags: TagCondition) -> tuple[Rule, ...]:
        return tuple(
            Rule(
                **dict(zip(("owner", "name"), entry.table or (entry.schema_ or "*", "*"), strict=True)),
                dml=entry.dml,
                ddl=entry.ddl,
                tags=_tags(entry) or (ANY_TAG if _asks_for_tag(entry.condition or entry.where) else tags),
                condition=entry.condition or entry.where,
                subset=entry.subset,
                transformation=entry.transform,
            )
            for entry in entries
        )

    # A negative rule without tags discards changes with any tag, as the manuals advise.
    return RuleSet(
        include=None if model.include is None else rules(model.include, UNTAGGED),
        exclude=rules(model.exclude, ANY_TAG),
    )


def _asks_for_tag(condition: Condition | None) -> bool:
    """Return whether a condition itself decides which tags the rule takes."""
    return condition is not None and Attribute("tag") in operands_of(condition.tree)


def _tags(model: RuleModel) -> TagCondition | None:
    """Return a rule's tag condition; None: it has none."""
    if model.tagged is not None:
        return ANY_TAG if model.tagged else UNTAGGED
    listed = model.not_tags if model.tags is None else model.tags
    if listed is None:
        return None
    # Sorted, so that equivalent rules are equal.
    return TagCondition(
        listed=tuple(sorted(set(listed), key=lambda tag: (tag is not None, tag or b""))),
        takes_listed=model.tags is not None,
    )


def _queue(name: str, model: QueueModel) -> QueueSpec:
    return _with(QueueSpec(name=name, site=model.site), memory_bytes_max=model.memory, spill_bytes_max=model.spill)


def _capture(name: str, model: CaptureModel, folder: Path) -> CaptureSpec:
    spec = CaptureSpec(name=name, site=model.site, source=model.source, queue=model.queue, rules=_rule_set(model.rules))
    archive = None if model.archive is None else str((folder / Path(model.archive).expanduser()).resolve())
    return _with(
        spec,
        transport=model.transport,
        mode=model.mode,
        archive=archive,
        archive_lag_s=model.archive_lag_s,
        first_scn=model.first_scn,
        start_scn=model.start_scn,
        checkpoint_retention_s=model.checkpoint_retention_time,
    )


def _propagation(name: str, model: PropagationModel) -> PropagationSpec:
    return PropagationSpec(
        name=name,
        from_queue=model.from_,
        to_queue=model.to,
        rules=_rule_set(model.rules),
        compression=model.compression,
        bandwidth_max=model.bandwidth_max,
        schedule=None if model.schedule is None else _schedule(model.schedule),
    )


def _schedule(model: ScheduleModel) -> Schedule:
    return Schedule(
        windows=tuple(
            Window(
                hour=window.opens[0],
                minute=window.opens[1],
                duration_s=window.duration,
                days=EVERY_DAY if window.days is None else tuple(sorted({DAYS.index(day) for day in window.days})),
            )
            for window in model.windows
        ),
        time_zone=model.time_zone,
    )


def _apply(name: str, model: ApplyModel) -> ApplySpec:
    spec = ApplySpec(
        name=name,
        site=model.site,
        source=model.source,
        queue=model.queue,
        tag=model.tag,
        rules=_rule_set(model.rules),
        combined=model.combined == "auto",
        commits_in_order=model.commit_serialization == "full",
        dependencies=virtual_dependencies(model),
    )
    return _with(
        spec,
        parallelism=model.parallelism,
        group_transactions=model.group_transactions,
        group_rows=model.group_rows,
    )


def _with(spec: N, **values: object) -> N:
    """Return `spec` with every value that was given; the others keep their defaults."""
    given: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    return replace(spec, **given)


def _merge(generated: Components, written: Components) -> Components:
    """Return both; a component in the file replaces a generated one of the same name."""

    def both(first: tuple[N, ...], second: tuple[N, ...]) -> tuple[N, ...]:
        own = {component.name: component for component in second}
        kept = tuple(own.pop(component.name, component) for component in first)
        return kept + tuple(own.values())

    return Components(
        queues=both(generated.queues, written.queues),
        captures=both(generated.captures, written.captures),
        propagations=both(generated.propagations, written.propagations),
        applies=both(generated.applies, written.applies),
    )
