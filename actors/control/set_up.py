"""The phases of a set-up, which are the controller's states (`actors.controller`).

Main path
    SetUp.advance -> Preflight.look -> Preparation.prepare -> RUNNING.

Durable when
    `Preparation` has recorded the topology. The phase itself is in memory: `open` derives it from the record.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from actors.site.receivers import leave_out_dropped
from headrace.status.sites import SiteStatus

if TYPE_CHECKING:
    from actors.control.bookkeeping import Bookkeeping
    from actors.control.desired import DesiredTopology
    from actors.control.observation import Observation
    from actors.control.preflight import Preflight
    from actors.control.preparation import Preparation
    from actors.hosting.runtime import ActorSystem
    from headrace.databases.ports import Finding

__all__ = ["Phase", "SetUp"]


class Phase(StrEnum):
    """Phase of a set-up: a state of `actors.controller`."""

    STARTING_SITES = "STARTING SITES"
    PREFLIGHT = "PREFLIGHT"
    REFUSED = "REFUSED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"


class SetUp:
    """Successive set-ups: the first one, and those that `headrace up` requests while components run.

    Args:
        observation: the last answers of components.
        preflight: allows the topology or refuses it.
        preparation: prepares it.

    Attributes:
        phase: phase of the last set-up.
        findings: findings of the last preflight.
    """

    def __init__(
        self,
        actors: ActorSystem,
        observation: Observation,
        books: Bookkeeping,
        preflight: Preflight,
        preparation: Preparation,
    ) -> None:
        self._actors, self._observation, self._books = actors, observation, books
        self._preflight, self._preparation = preflight, preparation
        self.phase = Phase.STARTING_SITES
        self.findings: tuple[Finding, ...] = ()
        self._repeats = False  # `headrace up` was called again: there may be new tables
        self._asks_in_vain = False  # a site answers but its preflight fails, because its database refuses new sessions

    def open(self) -> None:
        """Begin in the recorded state; a set-up that was requested and has not ended is repeated."""
        self._repeats |= self._books.kept.must_be_noted or bool(self._books.unrecorded.sites)
        self.phase = Phase.RUNNING if self._preparation.is_done and not self._repeats else Phase.STARTING_SITES

    @property
    def is_changing(self) -> bool:
        """Whether databases are checked or prepared: the check may miss the reason for a call of `up` that arrives now."""
        return self.phase in {Phase.PREFLIGHT, Phase.PREPARING}

    @property
    def has_answer(self) -> bool:
        """Whether the last set-up has ended, or was refused."""
        return self.phase in {Phase.RUNNING, Phase.REFUSED}

    def begin_again(self) -> None:
        """Start another set-up, for another call of `up`."""
        self._books.kept.drop()
        self._repeats, self.phase = True, Phase.STARTING_SITES

    def is_put_off(self, desired: DesiredTopology) -> bool:
        """Return whether no preparation begins before a missing or failing site is back, or `up` is called again."""
        return self.phase == Phase.REFUSED or (
            self.phase == Phase.STARTING_SITES
            and bool(self._observation.at_us)
            and (self._asks_in_vain or not self._sites_are_ready(desired))
        )

    def advance(self, desired: DesiredTopology, in_force: Callable[[], None]) -> None:
        """Enter the next phase, if that is possible now.

        Args:
            desired: the topology.
            in_force: as for `Preparation.prepare`.

        Raises:
            HeadraceError: a site does not answer.
        """
        if self.phase == Phase.STARTING_SITES and self._sites_are_ready(desired):
            if self._must_prepare(desired):
                self._look(desired)
            else:
                self._resume(desired)
        elif self.phase == Phase.PREPARING:
            self._prepare(desired, in_force)

    def _must_prepare(self, desired: DesiredTopology) -> bool:
        return (
            not self._preparation.is_done
            or self._books.kept.must_be_noted
            or bool(self._books.unrecorded.sites)
            or self._books.lacks_columns(desired.spec)
            or bool(self._preparation.uncaptured(desired))
        )

    def _resume(self, desired: DesiredTopology) -> None:
        """Run what is already prepared."""
        self.findings = self._preflight.stopped(desired.spec)
        if self.findings:
            self.phase = Phase.REFUSED
        else:
            leave_out_dropped(self._actors, None, desired.spec, is_edit=False)  # leftovers of an earlier version
            self._settle()

    def _look(self, desired: DesiredTopology) -> None:
        self.phase, self._asks_in_vain = Phase.PREFLIGHT, True  # until it has returned
        self.findings = self._preflight.look(desired.spec, desired.misfits)
        self._asks_in_vain = False
        self.phase = Phase.REFUSED if any(finding.is_error for finding in self.findings) else Phase.PREPARING

    def _prepare(self, desired: DesiredTopology, in_force: Callable[[], None]) -> None:
        if stopped := self._preparation.prepare(desired, in_force):
            self.findings, self.phase = stopped, Phase.REFUSED
            return
        # The last observation shows apply processes that have ended since: RUNNING must not be reported from it.
        self._observation.look(desired.components, desired.spec, is_running=False)
        self._settle()

    def _settle(self) -> None:
        self.phase, self._repeats = Phase.RUNNING, False

    def _sites_are_ready(self, desired: DesiredTopology) -> bool:
        latest = {status.name: status for status in self._observation.latest if isinstance(status, SiteStatus)}
        # A site that is about to be replaced also counts as ready.
        return all(
            (status := latest.get(site.name)) is not None
            and status.ready
            and status.fingerprint in desired.edit.usable(site.name)
            for site in desired.sites
        )
