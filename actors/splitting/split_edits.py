"""The edits that split streams off and merge them: recorded first, then adopted by components, like every edit.

Main path
    SplitEdits.next -> Splitting.next -> the record -> the controller reconciles with the new topology -> leftovers of
    merged streams on disk are deleted.

Durable when
    One write of the record contains the phases and the topology that belongs to them. Leftovers of a merged stream's
    components are not recorded: if the controller dies first, a later component of that name deletes them before it
    begins (`begin_anew`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from actors.control.desired import CONTROLLER, DesiredTopology
from actors.control.observation import GATHER_TIMEOUT_S
from actors.records.requests import REQUESTS_FILE, Requests
from actors.splitting.facts import ObservedFacts
from actors.splitting.phases import Splitting
from headrace.base.errors import HeadraceError
from topology.split import splits_of, with_splits

if TYPE_CHECKING:
    from actors.control.bookkeeping import Bookkeeping
    from actors.control.observation import Observation
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from headrace.status.component import ComponentStatus
    from headrace.status.overview import SplitStream
    from topology.edits.changes import Component
    from topology.spec import TopologySpec

__all__ = ["SplitEdits"]

log = logging.getLogger("headrace")


class SplitEdits:
    """Performs the split edits of the file's topology.

    Args:
        actors: runs the components.
        observation: their last answers.
        clock: measures how long a merge takes.

    Attributes:
        streams: the split streams, and operators' requests for them.
    """

    def __init__(
        self, file: TopologySpec, books: Bookkeeping, actors: ActorSystem, observation: Observation, clock: Clock
    ) -> None:
        self._file, self._books, self._actors, self._observation = file, books, actors, observation
        self._clock = clock
        self.streams = Splitting(file)  # for an overview while `open` cannot read the record
        self._ended: tuple[Component, ...] = ()  # components of merged streams, whose files may still exist

    def open(self) -> DesiredTopology:
        """Read the recorded split streams.

        Returns:
            The topology that is to run.

        Raises:
            ConfigError: the record is damaged.
        """
        record = self._books.record
        self.streams = Splitting(
            self._file,
            splits_of(record.read()),
            self._clock,
            Requests(self._file.state_dir / REQUESTS_FILE),
            before=record.topology,
        )
        return DesiredTopology.since(record.read(), self.streams.spec, self.streams.splits, self.streams.misfits)

    def described(self, desired: DesiredTopology, statuses: Sequence[ComponentStatus]) -> tuple[SplitStream, ...]:
        """Return the streams that are split off, or will be, as the overview shows them.

        Args:
            desired: the running topology.
            statuses: statuses of its components.
        """
        return self.streams.described(self._facts(desired, statuses))

    def next(self, desired: DesiredTopology) -> DesiredTopology:
        """Bring a split stream to its next phase when the conditions hold.

        Args:
            desired: the running topology; it is prepared.

        Returns:
            The topology that is to run from now on; it differs only after it is recorded.
        """
        if desired.outdated(self._observation.labels) or self._is_ending(desired):
            return desired
        self._ended = tuple(component for component in self._ended if not self._is_cleared(component))
        wanted = self.streams.next(self._facts(desired, self._observation.latest), self._clock.time_us())
        if wanted is None:
            return desired
        prepared = self._books.record.read()
        changed = DesiredTopology.since(prepared, with_splits(self._file, wanted), wanted, desired.misfits)
        try:
            self._begin_anew(changed, known=prepared.get("labels", {}))
        except HeadraceError as error:
            log.warning("%s: nothing is split off now: %s", CONTROLLER, error.message)
            return desired  # nothing is recorded: the next step retries, if the site answers
        self._books.record.update(changed.recorded())
        phases = ", ".join(f"{each.propagation} ({each.phase})" for each in wanted)
        log.info("%s: split off: %s", CONTROLLER, phases or "nothing")
        self.streams.take(wanted)
        ended = (*self._ended, *desired.components)
        self._ended = tuple(component for component in ended if component.name not in changed.edit.labels)
        return changed

    def _begin_anew(self, changed: DesiredTopology, *, known: Collection[str]) -> None:
        """Delete leftovers of earlier components that have the names of new ones."""
        for component in changed.components:
            if component.name not in known:
                site = f"site:{component.site}"
                self._actors.call(site, "begin_anew", changed.entrusted(site), (component.name,))

    def _facts(self, desired: DesiredTopology, statuses: Sequence[ComponentStatus]) -> ObservedFacts:
        return ObservedFacts(statuses, desired.edit.labels, self._observation.samples, self._stopped_at)

    def _stopped_at(self, site: str, component: str) -> bool | None:
        """Return whether an operator stopped a component of a site; None: the site does not answer."""
        if not self._observation.answers(site):
            return None
        try:
            return bool(self._actors.call(f"site:{site}", "stopped", (component,), timeout_s=GATHER_TIMEOUT_S))
        except HeadraceError:
            return None

    def _is_ending(self, desired: DesiredTopology) -> bool:
        """Return whether a component that is to end has not ended yet.

        A component at an unreachable site may take days, and is not waited for.
        """
        away = {component.name for component in self._ended if not self._observation.answers(component.site)}
        return bool(desired.unwanted(self._actors.names(), self._books.left.components) - away)

    def _is_cleared(self, component: Component) -> bool:
        """Delete the files of a merged stream's component at its site; return whether that is done."""
        if not self._observation.answers(component.site):
            return False
        try:
            self._actors.call(f"site:{component.site}", "delete_spilled", (component.name,))
        except HeadraceError as error:
            log.warning("%s: what %s left is not deleted yet: %s", CONTROLLER, component.name, error.message)
            return False
        return True
