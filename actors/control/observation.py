"""The last answers of a topology's components, and the conclusions from them.

Job
    Query all components for their status within a bounded time, remember the answers, and derive what no component knows
    alone: rates, each apply process's distance from its source, and why a site does not answer.

Main path
    Observation.look -> gather -> Observation.latest; Observation.flows.

Durable when
    Never. A restarted controller queries anew; lags are unknown until sources were sampled again.

Worked flow
    site:dbs1 answers with the position of its log at 10:00:00 -> apply:a answers that it has applied that position, at
    10:00:02 -> the flow of `a` has a lag of two seconds
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from actors.cluster.nodes import absence_of
from actors.control.lag import PositionSamples, seen_at_us
from actors.site.redo_keeper import with_capture_scns
from headrace.base.errors import HeadraceError
from headrace.databases.ports import Finding
from headrace.lcr.scn import Scn
from headrace.status.applies import ApplyStatus, apply_status
from headrace.status.component import ComponentStatus
from headrace.status.overview import Flow, FoundProblem
from headrace.status.plain import status_of
from headrace.status.sites import SiteStatus
from topology.checks.functions import functions_of

if TYPE_CHECKING:
    from actors.control.desired import DesiredTopology
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from topology.edits.changes import Component
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["GATHER_TIMEOUT_S", "Observation", "every_component", "found_problems", "gather", "told_scns"]

GATHER_TIMEOUT_S = 3.0  # a component that does not answer in this time is shown as unreachable
_RATE_WINDOW = 5  # observations: throughput over about this many seconds
_WORKING = frozenset({"IDLE", "APPLYING"})  # states of an apply process that works normally


def gather(
    actors: ActorSystem, components: tuple[Component, ...], timeout_s: float = GATHER_TIMEOUT_S
) -> list[ComponentStatus]:
    """Collect the status of all components, in their order, within the time-out; a dead one is shown as dead.

    Args:
        actors: runs the components.
        components: the components to query.
        timeout_s: time-out for all of them together, in seconds.
    """
    answers = actors.call_all([component.name for component in components], "status", timeout_s=timeout_s)
    gathered = [_read(component, answers.get(component.name)) for component in components]
    return with_capture_scns(_waiting_for_databases(gathered))


def _read(component: Component, answer: object) -> ComponentStatus:
    """Read a component's answer into its status; without an answer it is shown as unreachable."""
    name, kind, site = component.name, component.kind, component.site
    if isinstance(answer, Mapping):
        return status_of({"name": name, "kind": kind, "site": site, **answer})
    # Without the component's name, as in its own messages: the status shows the name already.
    words = (
        answer.message.removeprefix(f"{component.name} ").removeprefix(f"{component.name}: ")
        if isinstance(answer, HeadraceError)
        else "no answer"
    )
    return ComponentStatus(name=name, kind=kind, site=site, state="UNREACHABLE", problem=words)


def told_scns(statuses: Iterable[ComponentStatus]) -> dict[str, int]:
    """Return the SCN up to which each apply process lets its queue forget, by its last report; unknown ones are missing.

    This is not its low watermark: for a table that is copied concurrently, the queues keep changes below that, and send
    them again when an apply process dies.

    Args:
        statuses: statuses of components of any kind.
    """
    applies = (status for status in statuses if isinstance(status, ApplyStatus))
    return {each.name.removeprefix("apply:"): each.told_scn for each in applies if each.told_scn}


def found_problems(findings: Iterable[Finding]) -> tuple[FoundProblem, ...]:
    """Convert a preflight's findings to the form of an overview.

    Args:
        findings: findings of the preflight.
    """
    return tuple(
        FoundProblem(path=each.path, problem=each.problem, fix=each.fix, is_error=each.is_error) for each in findings
    )


def every_component(
    desired: DesiredTopology, statuses: Iterable[ComponentStatus], outdated: Collection[str]
) -> tuple[ComponentStatus, ...]:
    """Return the status of every component of a topology, including those that do not run.

    Args:
        desired: the topology.
        statuses: statuses of the components that were queried.
        outdated: names of components that run by another topology.
    """
    seen, functions = {status.name: status for status in statuses}, functions_of(desired.spec)
    wanted = (
        replace(
            seen.get(each.name) or ComponentStatus(name=each.name, kind=each.kind, site=each.site, state="NOT CREATED"),
            outdated=each.name in outdated,
            functions={function.name: function.version for function in functions[each.name]}
            if each.name in functions
            else None,
        )
        for each in desired.components
    )
    bypassed = (
        replace(seen[each.name], to_be_bypassed_by=by, outdated=True)
        if each.name in seen
        else ComponentStatus(name=each.name, kind=each.kind, site=each.site, state="BYPASSED", bypassed_by=by)
        for each, by in desired.bypassed.items()
    )
    return (*wanted, *bypassed)


class Observation:
    """The last answers of all components.

    Args:
        actors: runs the components.
        clock: dates the answers.

    Attributes:
        latest: the status of each queried component, in their order.
        at_us: time of the query, microseconds since the epoch; 0: never.
        seen_labels: the label of each component in its last answer.
        samples: the positions of each source's log.
    """

    def __init__(self, actors: ActorSystem, clock: Clock) -> None:
        self._actors, self._clock = actors, clock
        self.latest: list[ComponentStatus] = []
        self.at_us = 0
        self.seen_labels: dict[str, str] = {}
        self.samples: dict[str, PositionSamples] = {}
        self._history: dict[str, list[tuple[float, dict[str, int]]]] = {}

    @property
    def labels(self) -> dict[str, str | None]:
        """The last label of each component; None: unknown."""
        return {status.name: status.fingerprint for status in self.latest}

    def answers(self, site: str) -> bool:
        """Return whether a site answered the last query; sites that did not are not called."""
        return any(status.name == f"site:{site}" and status.state != "UNREACHABLE" for status in self.latest)

    def look(self, components: tuple[Component, ...], spec: TopologySpec, *, is_running: bool) -> None:
        """Query the components, and remember their answers.

        Args:
            components: components to query.
            spec: the topology that they belong to.
            is_running: whether everything is prepared: a source that shows no trace of that has lost it.
        """
        latest = self._with_absent_nodes(gather(self._actors, components), spec)
        if is_running:
            latest = [_without_its_folder(status, spec) for status in latest]
        now, now_us = self._clock.monotonic(), self._clock.time_us()
        latest = [self._with_rates(self._without_samples(status), now) for status in latest]
        self.latest, self.at_us = latest, now_us
        self.seen_labels |= {name: label for name, label in self.labels.items() if label is not None}

    def add_uncaptured(self, tables: Mapping[str, Sequence[str]]) -> None:
        """Add tables to those that are reported as not captured.

        Args:
            tables: names of tables, by full name of the site's component.
        """
        self.latest = [
            replace(each, uncaptured_tables=tuple(dict.fromkeys((*each.uncaptured_tables, *tables[each.name]))))
            if isinstance(each, SiteStatus) and each.name in tables
            else each
            for each in self.latest
        ]

    def flows(self, components: Iterable[ComponentStatus], applies: Iterable[ApplySpec]) -> tuple[Flow, ...]:
        """Return one entry per apply process with its distance from its source. An unknown value is None, never 0.

        Args:
            components: the status of each component.
            applies: the apply processes.
        """
        by_name = {component.name: component for component in components}
        return tuple(
            self._flow(each, by_name.get(f"apply:{each.name}"), by_name.get(f"site:{each.source}")) for each in applies
        )

    def _flow(self, apply: ApplySpec, status: ComponentStatus | None, source: ComponentStatus | None) -> Flow:
        said = apply_status(status)
        source_scn = source.source_scn or None if isinstance(source, SiteStatus) else None
        applied_scn = said.low_watermark_scn or None
        samples, as_of_us = self.samples.get(apply.source), seen_at_us(said.answered_us, self._clock.time_us())
        return Flow(
            apply=apply.name,
            source=apply.source,
            destination=apply.site,
            source_scn=source_scn,
            applied_scn=applied_scn,
            scn_gap=max(0, source_scn - applied_scn) if source_scn and applied_scn else None,
            lag_s=samples.lag_s(Scn(applied_scn), as_of_us) if samples and applied_scn else None,
            errors=said.errors,
        )

    def _with_absent_nodes(self, statuses: list[ComponentStatus], spec: TopologySpec) -> list[ComponentStatus]:
        """Add to unreachable sites and components whether a node exists on which they could run."""
        away = {each.name for each in statuses if each.state == "UNREACHABLE" and spec.site(each.site).node}
        if not away:
            return statuses
        try:
            nodes = self._actors.nodes()
        except HeadraceError:
            return statuses
        return [_without_its_node(each, spec, nodes) if each.name in away else each for each in statuses]

    def _without_samples(self, status: ComponentStatus) -> ComponentStatus:
        """Move the log positions that a site reports into `samples`."""
        if not isinstance(status, SiteStatus) or status.source_samples is None:
            return status
        for time_us, scn in status.source_samples:
            # The site reports when it queried its database; an old answer proves nothing about the present.
            self.samples.setdefault(status.site, PositionSamples()).add(time_us, Scn(scn))
        return replace(status, source_samples=None)

    def _with_rates(self, status: ComponentStatus, now: float) -> ComponentStatus:
        known = {"rows": status.rows_total, "bytes": status.bytes_total, "transactions": status.transactions_total}
        counters = {name: value for name, value in known.items() if value is not None}
        if not counters:
            return status
        history = self._history.setdefault(status.name, [])
        if history and any(history[-1][1].get(name, 0) > value for name, value in counters.items()):
            history.clear()  # the component was restarted and counts from zero
        history.append((now, counters))
        del history[: -_RATE_WINDOW - 1]
        (first_at, first), (last_at, last) = history[0], history[-1]
        if last_at <= first_at:
            return status
        rates = {name: round((value - first.get(name, 0)) / (last_at - first_at), 1) for name, value in last.items()}
        return replace(
            status,
            rows_per_s=rates.get("rows"),
            bytes_per_s=rates.get("bytes"),
            transactions_per_s=rates.get("transactions"),
        )


def _without_its_node(
    status: ComponentStatus, spec: TopologySpec, nodes: Sequence[Mapping[str, float]]
) -> ComponentStatus:
    """Add to an unreachable component whether a node exists on which it could run."""
    found = absence_of(status.site, dict(spec.site(status.site).node), nodes)
    if found is None:
        return status
    # The site reports it for all of its components.
    problem, fix = found if status.kind == "site" else ("", "")
    return replace(status, problem=problem, fix=fix)


def _without_its_folder(status: ComponentStatus, spec: TopologySpec) -> ComponentStatus:
    """Add to a prepared source that finds no trace of its preparation on its node that its redo is missing.

    Such a source would wait forever.
    """
    if not isinstance(status, SiteStatus) or status.is_prepared is not False:
        return status
    return replace(
        status,
        problem=f"was prepared, but nothing of that is in {spec.state_dir} on its node: its redo is missing",
        fix="mount the folder's disk, or let the site run on the node that has it; if it is lost, see Backup in"
        " docs/tasks/recover.md",
    )


def _waiting_for_databases(components: list[ComponentStatus]) -> list[ComponentStatus]:
    """Correct the status of apply processes whose destination does not answer: they are not idle, whatever they said."""
    away = {each.site for each in components if each.kind == "site" and each.state == "DATABASE DOES NOT ANSWER"}
    return [
        replace(each, state="WAITING FOR DATABASE")
        if each.kind == "apply" and each.site in away and each.state in _WORKING
        else each
        for each in components
    ]
