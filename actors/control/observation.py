"""What the components of a topology said when they were asked last, and what follows from it.

Job
    Ask all components for their status within a bounded time, remember the answers, and derive from them what no
    component knows alone: rates, each apply process's distance from its source, and why a site does not answer.

Main path
    Observation.look -> gather -> Observation.latest; Observation.flows.

Durable when
    Never. A controller that begins anew asks anew; lags are unknown until sources were sampled again.

Worked flow
    site:dbs1 answers with the position of its log at 10:00:00 -> apply:a answers that it has applied that position, at
    10:00:02 -> the flow of `a` has a lag of two seconds
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from actors.cluster.nodes import absence_of
from actors.control.lag import PositionSamples, seen_at_us
from actors.site.redo_keeper import add_capture_scns
from headrace.base.errors import HeadraceError
from headrace.lcr.scn import Scn

if TYPE_CHECKING:
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from topology.edits.changes import Component
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["GATHER_TIMEOUT_S", "Observation", "gather", "told_scns"]

GATHER_TIMEOUT_S = 3.0  # a component that does not answer within this is shown as such
_RATE_WINDOW = 5  # observations: throughput over about that many seconds
_WORKING = frozenset({"IDLE", "APPLYING"})  # states of an apply process that works normally
_COUNTERS = ("rows_total", "bytes_total", "transactions_total")


def gather(
    actors: ActorSystem, components: tuple[Component, ...], timeout_s: float = GATHER_TIMEOUT_S
) -> list[dict[str, Any]]:
    """Collect the status of all components, in their order, within the time-out; a dead one is shown as dead.

    Args:
        actors: runs the components.
        components: the components to ask.
        timeout_s: for all of them together, in seconds.
    """
    answers = actors.call_all([component.name for component in components], "status", timeout_s=timeout_s)
    gathered = []
    for component in components:
        answer = answers.get(component.name)
        status: dict[str, Any] = {"name": component.name, "kind": component.kind, "site": component.site}
        if isinstance(answer, Mapping):
            status |= answer
        else:
            # As of a component that answers: who it is stands beside it.
            words = (
                answer.message.removeprefix(f"{component.name} ").removeprefix(f"{component.name}: ")
                if isinstance(answer, HeadraceError)
                else "no answer"
            )
            status |= {"state": "UNREACHABLE", "problem": words}
        gathered.append(status)
    _wait_for_databases(gathered)
    add_capture_scns(gathered)
    return gathered


def told_scns(statuses: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """What each apply process lets its queue forget, as it said last; one that did not say is missing.

    Not its low watermark: for a table that is copied beside, the queues keep what is below that, and send it again when
    one of them dies.

    Args:
        statuses: of components of any kind.
    """
    told = {
        status["name"].removeprefix("apply:"): status.get("told_scn")
        for status in statuses
        if status["name"].startswith("apply:")
    }
    return {name: int(scn) for name, scn in told.items() if scn}


class Observation:
    """The last answers of all components.

    Args:
        actors: runs the components.
        clock: dates the answers.

    Attributes:
        latest: the status of each component that was asked, in their order.
        at_us: when they were asked, microseconds since the epoch; 0: never.
        seen_labels: of each component the label with which it answered last.
        samples: by source, the positions of its log.
    """

    def __init__(self, actors: ActorSystem, clock: Clock) -> None:
        self._actors, self._clock = actors, clock
        self.latest: list[dict[str, Any]] = []
        self.at_us = 0
        self.seen_labels: dict[str, str] = {}
        self.samples: dict[str, PositionSamples] = {}
        self._history: dict[str, list[tuple[float, dict[str, int]]]] = {}

    @property
    def labels(self) -> dict[str, str | None]:
        """The last label of each component; None: unknown."""
        return {status["name"]: status.get("fingerprint") for status in self.latest}

    def answers(self, site: str) -> bool:
        """Whether a site answered when it was asked last: no time is spent on others."""
        return any(status["name"] == f"site:{site}" and status["state"] != "UNREACHABLE" for status in self.latest)

    def look(self, components: tuple[Component, ...], spec: TopologySpec, *, is_running: bool) -> None:
        """Ask the components, and remember what they say.

        Args:
            components: those to ask.
            spec: the topology that they belong to.
            is_running: everything is prepared: a source that finds nothing of that has lost it.
        """
        latest = gather(self._actors, components)
        self._find_absent_nodes(latest, spec)
        if is_running:
            _find_empty_folders(latest, spec)
        now, now_us = self._clock.monotonic(), self._clock.time_us()
        for status in latest:
            self._add_rates(status, now)
            for time_us, scn in status.pop("source_samples", ()):
                # The site reports when it asked its database; an old answer proves nothing about the present.
                self.samples.setdefault(status["site"], PositionSamples()).add(int(time_us), Scn(int(scn)))
        self.latest, self.at_us = latest, now_us
        self.seen_labels |= {name: label for name, label in self.labels.items() if label is not None}

    def flows(self, components: list[dict[str, Any]], applies: Iterable[ApplySpec]) -> list[dict[str, Any]]:
        """One entry per apply process with its distance from its source. An unknown value is None, never 0.

        Args:
            components: the status of each component.
            applies: the apply processes.
        """
        by_name = {component["name"]: component for component in components}
        flows = []
        for apply in applies:
            status = by_name.get(f"apply:{apply.name}", {})
            source = by_name.get(f"site:{apply.source}", {})
            applied_scn = status.get("low_watermark_scn") or None
            samples = self.samples.get(apply.source)
            as_of_us = seen_at_us(int(status.get("answered_us") or 0), self._clock.time_us())
            flows.append(
                {
                    "apply": apply.name,
                    "source": apply.source,
                    "destination": apply.site,
                    "source_scn": source.get("source_scn") or None,
                    "applied_scn": applied_scn,
                    "scn_gap": _gap(source.get("source_scn"), applied_scn),
                    "lag_s": samples.lag_s(Scn(applied_scn), as_of_us) if samples and applied_scn else None,
                    "errors": status.get("errors"),
                }
            )
        return flows

    def _find_absent_nodes(self, statuses: list[dict[str, Any]], spec: TopologySpec) -> None:
        """Say of sites that do not answer whether there is a node on which they could run."""
        away = [status for status in statuses if status["state"] == "UNREACHABLE" and spec.site(status["site"]).node]
        if not away:
            return
        with contextlib.suppress(HeadraceError):
            nodes = self._actors.nodes()
            for status in away:
                found = absence_of(status["site"], dict(spec.site(status["site"]).node), nodes)
                if found is None:
                    continue
                # The site says it for all of its components.
                status["problem"], status["fix"] = found if status["kind"] == "site" else ("", "")

    def _add_rates(self, status: dict[str, Any], now: float) -> None:
        counters = {name: int(status[name]) for name in _COUNTERS if name in status}
        if not counters:
            return
        history = self._history.setdefault(status["name"], [])
        if history and any(history[-1][1].get(name, 0) > value for name, value in counters.items()):
            history.clear()  # the component was restarted and counts from zero
        history.append((now, counters))
        del history[: -_RATE_WINDOW - 1]
        (first_at, first), (last_at, last) = history[0], history[-1]
        for name in counters:
            if last_at > first_at:
                rate = (last[name] - first.get(name, 0)) / (last_at - first_at)
                status[name.replace("_total", "_per_s")] = round(rate, 1)


def _find_empty_folders(statuses: list[dict[str, Any]], spec: TopologySpec) -> None:
    """Say of sources that were prepared, and find nothing of that on their node, that their redo is gone.

    They wait for ever.
    """
    for status in statuses:
        if status.get("is_prepared") is False:
            status["problem"] = (
                f"was prepared, and finds nothing of that in {spec.state_dir} on its node: its redo is not there"
            )
            status["fix"] = (
                "mount the folder's disk, or let the site run on the node that has it; if it is lost, see Backup in"
                " docs/operations.md"
            )


def _wait_for_databases(components: list[dict[str, Any]]) -> None:
    """Correct the status of apply processes whose destination does not answer.

    They are not idle, whatever they last reported.
    """
    away = {c["site"] for c in components if c["kind"] == "site" and c["state"] == "DATABASE DOES NOT ANSWER"}
    for component in components:
        if component["kind"] == "apply" and component["site"] in away and component["state"] in _WORKING:
            component["state"] = "WAITING FOR DATABASE"


def _gap(source_scn: Any, applied_scn: int | None) -> int | None:  # noqa: ANN401 - from a status
    return max(0, int(source_scn) - applied_scn) if source_scn and applied_scn else None
