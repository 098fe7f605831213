"""Sites that the last edits left (`actors.site.left`), until each has cleared its database.

Durable when
    The record names them: the write that puts an edit in force adds them, and each is removed when it is cleared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from actors.control.observation import GATHER_TIMEOUT_S
from actors.site.left import LeftSite, left_by, left_of
from headrace.base.errors import HeadraceError
from headrace.base.plain_data import as_json
from headrace.status.overview import SiteToClear

if TYPE_CHECKING:
    from actors.control.prepared_record import PreparedRecord
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from topology.spec import TopologySpec

__all__ = ["CLEAR_INTERVAL_S", "LeavingSites"]

CLEAR_INTERVAL_S = 10.0  # between two attempts to clear what an edit left; nothing waits for it
_CLEAR_TIMEOUT_S = 30.0  # a log writer ends within ten seconds, and so does a session that reads the slot
_STOP_TIMEOUT_S = 60.0  # a stopping server writes a checkpoint first


class LeavingSites:
    """The left sites, and the attempts to clear them.

    Args:
        actors: runs the sites.
        clock: spaces the attempts.
    """

    def __init__(self, record: PreparedRecord, actors: ActorSystem, clock: Clock) -> None:
        self._record, self._actors, self._clock = record, actors, clock
        self.sites: tuple[LeftSite, ...] = ()
        self._problems: dict[str, str] = {}
        self._present: set[str] = set()  # components at the last attempt
        self._next_at = 0.0

    @property
    def components(self) -> set[str]:
        """Full names of the components that run until their sites are cleared."""
        return {each.component for each in self.sites}

    def open(self) -> None:
        """Read the record."""
        self.sites = left_of(self._record.read())

    def with_edit(self, before: TopologySpec | None, wanted: TopologySpec) -> tuple[LeftSite, ...]:
        """Return the left sites for the write that puts an edit in force; `open` reads them afterwards.

        Args:
            before: as for `left_by`.
            wanted: as for `left_by`.
        """
        return tuple(dict.fromkeys((*self.sites, *left_by(before, wanted))))

    def clear_returning(self, spec: TopologySpec) -> None:
        """Let sites that are sources again first clear the leftovers of their earlier time.

        Their slot may be gone, and its redo with it.

        Args:
            spec: the topology that is being prepared.

        Raises:
            HeadraceError: such a site does not answer.
        """
        sources, sites = {capture.source for capture in spec.captures}, {site.name for site in spec.sites}
        for each in self.sites:
            if each.name in sources:
                self._actors.call(each.component, "end_source", timeout_s=_CLEAR_TIMEOUT_S)
        left = (
            each if each.name not in sites else replace(each, is_removed=False)
            for each in self.sites
            if each.name not in sources
        )
        self._save(tuple(each for each in left if each.slot or each.is_removed))

    def clear(self, outdated: set[str]) -> None:
        """Let sites clear their leftovers; a site that does not answer is retried later.

        Args:
            outdated: components that have not adopted the edit yet.
        """
        if not self.sites:
            return
        self._present = self._actors.names()
        ready = [each for each in self.sites if each.component in self._present - outdated]
        if not ready or self._clock.monotonic() < self._next_at:
            return
        self._next_at = self._clock.monotonic() + CLEAR_INTERVAL_S
        for each in ready:
            try:
                self._actors.call(each.component, "status", timeout_s=GATHER_TIMEOUT_S)
                self._actors.call(each.component, "end_source", timeout_s=_CLEAR_TIMEOUT_S)
                if each.is_removed:
                    self._actors.call(each.component, "stop_server", timeout_s=_STOP_TIMEOUT_S)
            except HeadraceError as error:
                self._problems[each.name] = error.message
                continue
            self._save(tuple(other for other in self.sites if other != each))

    def described(self) -> tuple[SiteToClear, ...]:
        """Return the left sites as the overview shows them."""
        return tuple(
            SiteToClear(
                name=each.name,
                kind=each.kind,
                slot=each.slot,
                is_removed=each.is_removed,
                problem=self._problems.get(each.name, ""),
                is_running=each.component in self._present or not each.is_removed,
            )
            for each in self.sites
        )

    def _save(self, left: tuple[LeftSite, ...]) -> None:
        if left != self.sites:
            self._record.update({"left": [as_json(each) for each in left]})
            self.sites = left
