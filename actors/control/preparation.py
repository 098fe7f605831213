"""Prepares the databases for the desired topology, and puts it on record.

Main path
    Preparation.prepare -> apply processes end -> `prepare` of every site -> leftovers of an earlier topology are removed
    -> Bookkeeping.save.

Durable when
    `Bookkeeping.save` has returned. Everything before it is idempotent: a restarted controller repeats it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from actors.control.desired import CONTROLLER
from actors.control.preflight import PREFLIGHT_TIMEOUT_S
from actors.site.receivers import kept_at_call, leave_out, leave_out_dropped, note_first_receivers, receivers_of
from topology.edits.known_columns import clients_that_know_others

if TYPE_CHECKING:
    from actors.control.bookkeeping import Bookkeeping
    from actors.control.desired import DesiredTopology
    from actors.control.preflight import Preflight
    from actors.hosting.runtime import ActorSystem
    from headrace.databases.ports import Finding
    from topology.edits.receivers import Receivers

__all__ = ["SHUT_DOWN_TIMEOUT_S", "Preparation"]

SHUT_DOWN_TIMEOUT_S = 60.0  # an apply process that does not close ends its process after 45 s (`actors.hosting.host`)
PREPARE_TIMEOUT_S = 3600.0  # creating a slot waits until every currently running transaction has ended


class Preparation:
    """Prepares the databases, then records the topology as prepared.

    Args:
        actors: the sites, and all running components.
        preflight: has allowed the topology; its facts are recorded.

    Attributes:
        is_done: whether the desired topology is recorded as prepared: all of its components shall run.
        statements: the statements that the last preparation ran at each site, by full name of its component.
    """

    def __init__(self, books: Bookkeeping, actors: ActorSystem, preflight: Preflight) -> None:
        self._books, self._actors, self._preflight = books, actors, preflight
        self.is_done = False
        self.statements: dict[str, list[str]] = {}

    def open(self, desired: DesiredTopology) -> None:
        """Read the record."""
        self.is_done = self._books.record.read().get("prepared") == desired.fingerprint

    def uncaptured(self, desired: DesiredTopology) -> list[str]:
        """Return source sites with tables that the rules select and that were created after the last preparation.

        Returns:
            Full names of their components, sorted.

        Raises:
            HeadraceError: a site does not answer.
        """
        found = []
        for name in sorted(desired.sources):
            noted = self._books.unrecorded.noted_ahead(desired.spec.site(name.removeprefix("site:")))
            known = () if noted is None else (noted,)
            if self._actors.call(name, "uncaptured", desired.entrusted(name), *known, timeout_s=PREFLIGHT_TIMEOUT_S):
                found.append(name)
        return found

    def prepare(self, desired: DesiredTopology, in_force: Callable[[], None]) -> tuple[Finding, ...]:
        """Prepare every database, and record it; idempotent.

        Args:
            desired: the topology.
            in_force: called when the topology is recorded.

        Returns:
            Why the topology is refused after all and not recorded; empty: it is recorded.

        Raises:
            HeadraceError: a site does not answer, or its database refuses a statement.
        """
        ending, new = self._to_end(desired), self._new(desired)
        # An apply process would apply an unknown table's changes from the beginning without copying the table. So it
        # ends before the first change of such a table can arrive, and restarts with all tables.
        applies = [name for name in ending if name.startswith("apply:")]
        self._actors.end(applies, timeout_s=SHUT_DOWN_TIMEOUT_S)
        self._books.left.clear_returning(desired.spec)
        self._prepare_sites(desired, new)
        # Preparing can take long: an operator may have stopped a component meanwhile. The apply processes that have
        # ended begin again when `up` repeats this. Until then the record is behind what is prepared.
        if stopped := self._preflight.stopped(desired.spec):
            return stopped
        if not self.is_done:
            leave_out_dropped(self._actors, desired.edit.before, desired.spec)
        for name in set(ending) - set(applies):
            self._actors.kill(name)
        gone = self._gone(desired)
        self._forget_stops(desired, new)
        if ended := (*gone, *(component.name for component in desired.bypassed)):
            for site in desired.sites:
                self._actors.call(site.name, "delete_spilled", ended)
        noted = receivers_of(self._actors, desired.spec, self._preflight.names)
        # Tables that another `up` has published since `ending` was computed.
        late = self._with_late_tables(desired, noted)
        self._actors.end(late, timeout_s=SHUT_DOWN_TIMEOUT_S)
        self._leave_out(desired, noted, ended={*applies, *late})
        self._keep_rows(desired, noted)
        note_first_receivers(self._actors, noted)
        self._books.save(
            desired, identities=self._preflight.identities, receivers=noted, columns=self._preflight.columns
        )
        in_force()
        self.is_done = True
        # Not before: until this topology is in force, another `up` may return to one that has them.
        self._forget_stops(desired, gone)
        return ()

    def _prepare_sites(self, desired: DesiredTopology, new: tuple[str, ...]) -> None:
        for site in desired.sites:
            source = desired.spec.site(site.site)
            with (
                self._books.unrecorded.preparing(site.name, has_admin=source.database.has_admin)
                if site.name in desired.sources
                else contextlib.nullcontext()
            ):
                ran = self._actors.call(
                    site.name, "prepare", desired.entrusted(site.name), new, timeout_s=PREPARE_TIMEOUT_S
                )
            self.statements[site.name] = list(ran)

    def _leave_out(self, desired: DesiredTopology, noted: Mapping[str, Receivers], *, ended: Collection[str]) -> None:
        """Let destinations record the tables that apply processes no longer get.

        This happens before the first change can be missing: if such a table returns, it is copied again. It does not
        happen while the table's driver runs, which it would fence out.
        """
        going_on = self._actors.names() - set(ended) if self.is_done else set()
        for apply in desired.spec.applies:
            if f"apply:{apply.name}" not in going_on:
                leave_out(self._actors, desired.spec, apply, noted[apply.source].tables)

    def _keep_rows(self, desired: DesiredTopology, noted: Mapping[str, Receivers]) -> None:
        """Record the tables whose rows a call of `up --keep-existing` keeps."""
        if self._books.kept.must_be_noted:
            self._books.kept.note(
                {
                    apply.name: kept_at_call(self._actors, desired.spec, apply, noted[apply.source].tables)
                    for apply in desired.spec.applies
                }
            )

    def _with_late_tables(self, desired: DesiredTopology, noted: Mapping[str, Receivers]) -> list[str]:
        """Return running apply processes that do not know a table that is about to be recorded."""
        late = set()
        for source, receivers in noted.items():
            before = self._books.unrecorded.noted_ahead(desired.spec.site(source))
            if before is not None and not {each.identity for each in receivers.tables} <= {
                each.identity for each in before.tables
            }:
                late.add(source)
        present = self._actors.names()
        return sorted(
            name for each in desired.spec.applies if each.source in late and (name := f"apply:{each.name}") in present
        )

    def _forget_stops(self, desired: DesiredTopology, components: tuple[str, ...]) -> None:
        """Enable later components of these names at the sites of the topology."""
        for site in desired.sites if components else ():
            self._actors.call(site.name, "forget_stops", components)

    def _to_end(self, desired: DesiredTopology) -> list[str]:
        """Return running components that must end before the topology can be as wanted.

        Sites are not among them: they were replaced before the preflight.
        """
        present, uncaptured = self._actors.names(), self.uncaptured(desired)
        edit = desired.edit
        ending = edit.ending if self.is_done or edit.is_known else present - {CONTROLLER}
        # an apply process that began with the record's tables meanwhile does not know what was captured since
        with_new_tables = {
            f"apply:{apply.name}"
            for apply in desired.spec.applies
            if f"site:{apply.source}" in {*uncaptured, *self._books.unrecorded.sites}
        }
        # Their transformations are to know the columns of now, those of a new table for example.
        informed = clients_that_know_others(desired.spec, self._books.columns, self._preflight.columns)
        leaving = {each.component for each in self._books.left.with_edit(edit.before, desired.spec)}
        return sorted((ending | with_new_tables | informed) & present - {site.name for site in desired.sites} - leaving)

    def _new(self, desired: DesiredTopology) -> tuple[str, ...]:
        """Return components that the topology did not have at its last preparation.

        They may have been part of it earlier, but their leftovers are useless: the log has advanced without them.
        """
        before = self._books.record.read().get("labels")
        return () if before is None else tuple(c.name for c in desired.components if c.name not in before)

    def _gone(self, desired: DesiredTopology) -> tuple[str, ...]:
        """Return components of the last prepared topology that are no longer part of it, or are bypassed."""
        return tuple(name for name in self._books.record.read().get("labels", ()) if name not in desired.names)
