"""Brings running components in line with the desired topology: creates, changes and ends them.

Main path
    Reconciler.reconcile -> Launcher.create, or `reconfigure` of the component, or its end.

Durable when
    Never. Components and their labels are looked up each time, so a restarted controller continues.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError
from topology.edits.stored import entrusted
from topology.routing.downstream import receiver_at, receiver_of
from topology.routing.ways import ways_to

if TYPE_CHECKING:
    from actors.control.bookkeeping import Bookkeeping
    from actors.control.desired import DesiredTopology
    from actors.control.launcher import Launcher
    from actors.control.observation import Observation
    from actors.hosting.runtime import ActorSystem
    from topology.edits.changes import Component
    from topology.spec import TopologySpec

__all__ = ["Reconciler"]


class Reconciler:
    """Compares running components with the desired topology, and acts on the difference.

    Args:
        actors: runs the components.
        launcher: creates them.
        observation: their last labels.
        books: what apply processes must wait for, and the tables that they are given.
    """

    def __init__(self, actors: ActorSystem, launcher: Launcher, observation: Observation, books: Bookkeeping) -> None:
        self._actors, self._launcher, self._observation, self._books = actors, launcher, observation, books

    def reconcile(self, desired: DesiredTopology, *, is_prepared: bool, is_put_off: bool) -> None:
        """Create missing components, change or end outdated ones, and end unwanted ones.

        Args:
            desired: the topology.
            is_prepared: whether all of its components shall run; if not, only its sites.
            is_put_off: whether nothing will be prepared soon.
        """
        present = self._actors.names()
        if is_prepared:
            for name in desired.unwanted(present, self._books.left.components):
                self._actors.kill(name)
        outdated = desired.outdated(self._observation.labels)
        for component in desired.components if is_prepared else desired.sites:
            if component.name not in present:
                if self._may_begin(desired, component, present, is_put_off=is_put_off):
                    self._create(desired, component, is_prepared=is_prepared)
            elif component.name in outdated:
                self._bring_up_to_date(desired, component, present, is_prepared=is_prepared)

    def _create(self, desired: DesiredTopology, component: Component, *, is_prepared: bool) -> None:
        spec, label = self._entrusted(desired, component), desired.edit.labels[component.name]
        if component.kind == "site" and not is_prepared:
            unprepared, label = desired.edit.unprepared(component.name, desired.spec)
            spec = entrusted(unprepared, component.name)
        arguments: dict[str, Any] = {"spec": spec, "name": component.name.partition(":")[2], "fingerprint": label}
        if component.kind == "apply":
            kept, name = self._books.kept, arguments["name"]
            arguments |= {"keep_existing": kept.tables(name), "keep_call": kept.call}
            source = desired.spec.site(desired.spec.apply(name).source)
            if (noted := self._books.unrecorded.told_tables(source)) is not None:
                arguments |= {"known": tuple(each.identity for each in noted.tables)}
        self._launcher.create(component, desired.spec, arguments)

    def _bring_up_to_date(
        self, desired: DesiredTopology, component: Component, present: set[str], *, is_prepared: bool
    ) -> None:
        """Let a component adopt its change, or end it so that it is created again."""
        name = component.name
        if desired.edit.takes_over.get(name) != self._observation.labels[name]:
            self._actors.kill(name)
        # Not before everything is prepared: if the change is refused, running components stay unchanged.
        elif is_prepared and self._went_before(desired, name, present):
            with contextlib.suppress(HeadraceError):  # it does not answer: the next step retries
                self._actors.call(name, "reconfigure", self._entrusted(desired, component), desired.edit.labels[name])

    def _entrusted(self, desired: DesiredTopology, component: Component) -> TopologySpec:
        """Return the topology as one of its components gets it; only clients of rules need to know columns."""
        spec = desired.entrusted(component.name)
        return self._books.informed(spec) if component.kind in {"capture", "propagation", "apply"} else spec

    def _may_begin(
        self, desired: DesiredTopology, component: Component, present: set[str], *, is_put_off: bool
    ) -> bool:
        """Return whether every component that must be up to date before this one begins is up to date.

        An apply process must not copy a table before every capture process and propagation on its way handles the
        table's changes. Nor may it take the captured tables for the known ones while these may change. A capture process
        must not begin before its site keeps redo for it. A queue must not begin before the upstream queue holds what
        it held for a site.
        """
        spec, name = desired.spec, component.name.partition(":")[2]
        before: set[str] = set()
        if not self._went_before(desired, component.name, present):
            return False
        if component.kind == "redo":
            before = {f"site:{receiver_of(spec, name).source}"}
        elif component.kind == "capture":
            receiver = receiver_at(spec, spec.capture(name))
            before = {f"site:{spec.capture(name).source}", *(() if receiver is None else (receiver.component,))}
        elif component.kind == "apply":
            source = spec.apply(name).source
            if self._books.kept.must_be_noted or not self._knows_its_tables(source, is_put_off=is_put_off):
                return False
            for way in ways_to(spec, spec.apply(name)):
                before |= {f"capture:{way.capture.name}", *(f"propagation:{each.name}" for each in way.propagations)}
        # A bypassed component may still be about to end: it does not count.
        return self._go_by(desired, before & present)

    def _knows_its_tables(self, source: str, *, is_put_off: bool) -> bool:
        """Return whether an apply process that begins now gets all captured tables of its source, or those of the record.

        If the source is about to be prepared again, the apply process would have to end again at once.
        """
        unrecorded = self._books.unrecorded
        return f"site:{source}" not in unrecorded.sites or (is_put_off and unrecorded.tables(source) is not None)

    def _went_before(self, desired: DesiredTopology, name: str, present: set[str]) -> bool:
        """Return whether the components that a component waits for in this edit have adopted it.

        A component that has adopted it and does not answer now delays no other.
        """
        first, labels = present.intersection(desired.edit.waits_for.get(name, ())), desired.edit.labels
        return all(self._observation.seen_labels.get(each) == labels[each] for each in first & labels.keys())

    def _go_by(self, desired: DesiredTopology, components: set[str]) -> bool:
        """Return whether all of these components that are part of the topology answer, and have adopted it."""
        labels = desired.edit.labels
        return all(self._observation.labels.get(each) == labels[each] for each in components & labels.keys())
