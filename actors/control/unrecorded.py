"""Sources that were prepared, or are being prepared, while the record does not name their tables.

A statement may wait for a table that a user has locked. It may continue after the controller has died or has received no
answer, and capture the table later. Or the controller dies after the statement: the site has taken the table up, and no
longer reports it as new.

Durable when
    `unseen` in `desired.json` names the sources, from before the preparation until the write that records their tables. A
    controller that finds a name there prepares again. Until it can, apply processes of the source run with the tables of
    the record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from actors.control.observation import GATHER_TIMEOUT_S
from headrace.base.errors import HeadraceError
from headrace.base.plain_data import from_json
from topology.edits.receivers import Receivers

if TYPE_CHECKING:
    from actors.control.observation import Observation
    from actors.control.prepared_record import PreparedRecord
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from headrace.databases.ports import CapturedTable
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["Unrecorded"]

_NAME_INTERVAL_S = 5.0  # between two checks of what is captured: a query over the tables of a large database


class Unrecorded:
    """The recorded list of such sources, and the tables that apply processes may use.

    Args:
        clock: spaces checks of what is captured.

    Attributes:
        sites: full names of the sources' components, such as `site:dbs1`.
    """

    def __init__(self, record: PreparedRecord, actors: ActorSystem, clock: Clock) -> None:
        self._record, self._actors, self._clock = record, actors, clock
        self.sites: frozenset[str] = frozenset()
        self._left_behind: dict[str, tuple[str, ...]] = {}
        self._name_at = 0.0

    def open(self) -> None:
        """Read the record; called again after the write that removes the sources from it."""
        self.sites = frozenset(self._record.read().get("unseen", ()))
        self._left_behind, self._name_at = {}, 0.0

    def tables(self, source: str) -> Receivers | None:
        """Return the tables of a source that are recorded as taken up; None: an earlier version prepared it."""
        stored = self._record.read().get("receivers", {}).get(source)
        return None if stored is None else from_json(Receivers, stored)

    def noted_ahead(self, source: SiteSpec) -> Receivers | None:
        """Return the recorded tables of a source where an administrator may be ahead of the record.

        Returns:
            None: no administrator captures its tables.
        """
        return self.tables(source.name) if source.database.has_admin else None

    def told_tables(self, source: SiteSpec) -> Receivers | None:
        """Return the tables that a new apply process of a source is told to take.

        Returns:
            None: it takes the tables that are captured when it begins.
        """
        return self.tables(source.name) if f"site:{source.name}" in self.sites else self.noted_ahead(source)

    @contextlib.contextmanager
    def preparing(self, site: str, *, has_admin: bool) -> Iterator[None]:
        """Keep a source in the record during its preparation, and afterwards, unless the database reports that nothing was done.

        Args:
            site: full name of the source's component.
            has_admin: whether an administrator captures its tables.
        """
        before = self.sites
        self._note(before | {site})
        try:
            yield
        except HeadraceError as error:
            # The database reported it, so the statement has ended. But where an administrator captures the tables,
            # nothing is undone: the site may have taken them up before it failed as a destination.
            if error.context.get("sqlstate") and not has_admin:
                self._note(before)
            raise

    def name_tables(self, observation: Observation, spec: TopologySpec) -> None:
        """Add captured tables that no apply process knows to the sites' status, while nothing is prepared.

        Args:
            observation: the sites' last answers.
            spec: the topology.
        """
        if self._clock.monotonic() >= self._name_at:
            self._name_at = self._clock.monotonic() + _NAME_INTERVAL_S
            self._left_behind = {
                site: found
                for site in self.sites
                if observation.answers(site.removeprefix("site:"))
                and (found := self._unknown(site, spec, self._left_behind.get(site, ())))
            }
        observation.add_uncaptured(self._left_behind)

    def _unknown(self, site: str, spec: TopologySpec, before: tuple[str, ...]) -> tuple[str, ...]:
        source = site.removeprefix("site:")
        if (recorded := self.tables(source)) is None:
            return ()
        known, rules = {each.identity for each in recorded.tables}, spec.capture_rules(source)
        try:
            captured: tuple[CapturedTable, ...] = self._actors.call(site, "captured", timeout_s=GATHER_TIMEOUT_S)
        except HeadraceError:  # its database is away
            return before
        return tuple(
            f"{each.owner}.{each.name}"
            for each in captured
            if each.identity not in known and any(rule.keeps(each.owner, each.name) for rule in rules)
        )

    def _note(self, sites: Collection[str]) -> None:
        # until the first set-up has ended, no apply process begins anyway
        if frozenset(sites) != self.sites and self._record.read():
            self._record.update({"unseen": sorted(sites)})
            self.sites = frozenset(sites)
