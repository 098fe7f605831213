"""Controller: reconciles the running components with the topology, and reports the state of the whole.

Longer than 500 lines: every state decides what the next may do, over one record of what runs.

Job
    Create every component of the topology, prepare the databases before anything streams, recreate missing or
    outdated components, and collect the status of all components within a bounded time.

Main path
    Controller.step -> reconcile (actors) -> _advance (sites, preflight, prepare, components) -> _observe.

States
    STARTING SITES   waiting for every site's database. Memory only, like all but the last part of PREPARED.
    PREFLIGHT        checking whether every database meets the topology's requirements.
    REFUSED          a preflight found errors: nothing was created. `headrace up` tries again. Also when what the topology
                     bypasses (`topology.routing.combined`) or has under another name was stopped by an operator: that would
                     lift the stop.
    PREPARING        publications, slots and catalogs are created in the databases.
    RUNNING          all components exist and keep themselves running. It is persisted that a topology of this
                     fingerprint was prepared: a restarted controller does not silently recreate a lost slot.
    While components run, `headrace up` repeats these states when the rules select new tables, or when
    the topology has changed; the components keep running meanwhile, even if the change is refused. Once everything is
    prepared, components adopt their part of the change or are created again, and those whose part is unchanged are left
    alone (`topology.edits.changes`, `actors.control.edit`).

    What runs is the topology of the file with what is split off from it (`actors.splitting.phases`): splitting and
    merging are edits too, which need no preparation and no database, so a destination that is away holds up none of
    them.

    A site that does not answer, because its node is gone for example, holds up only what is to be done there. Ray
    starts its components when a node for them is there again (`actors.cluster.nodes`); the first set-up and an edit of
    the file wait for every site of the file.

Durable when
    `desired.json` contains the prepared topology, without secrets, each component's label, what is split off, and the
    shapes of tables that left (`actors.control.earlier_shapes`). It is written after the last `prepare` has returned; all
    preparations are idempotent, so a controller that died in the middle repeats them: where the topology is prepared
    again, for new tables, the sources whose preparation was begun stand there until all of it is recorded
    (`actors.control.unrecorded`). While it is about to be repeated, their apply processes wait; while it cannot be,
    because some site is away, they run with the tables of the record. A component that is not named there is new and
    starts from scratch: it does not run before the file is written. The controller runs on the cluster's head, where the
    file is.

Worked flow
    up -> site:dbs1, site:dbs2 created -> both READY -> preflight of both without errors -> prepare of both ->
    queues, propagations, captures and applies created together -> the capture retries until
    its site and its queue answer -> RUNNING; queue:q_dbs2 is killed -> Ray starts it again -> nothing to do here
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from actors.alerts.sending import Alerts
from actors.control.calls import Calls
from actors.control.earlier_shapes import EarlierShapes
from actors.control.edit import Edit
from actors.control.kept_call import KeptCall
from actors.control.launcher import Launcher
from actors.control.leaving import LeavingSites
from actors.control.observation import GATHER_TIMEOUT_S, Observation, found_problems, gather, told_scns
from actors.control.preflight import PREFLIGHT_TIMEOUT_S, Preflight
from actors.control.prepared_record import PreparedRecord
from actors.control.unrecorded import Unrecorded
from actors.hosting.host import Host
from actors.records.requests import REQUESTS_FILE, Requests
from actors.security.renewal import Renewal
from actors.site.receivers import (
    kept_at_call,
    leave_out,
    leave_out_dropped,
    note_first_receivers,
    note_receivers,
    receivers_of,
)
from actors.splitting.facts import ObservedFacts
from actors.splitting.phases import Splitting
from headrace.base.errors import ConfigError, HeadraceError, PropagationError
from headrace.base.plain_data import as_json, from_json
from headrace.databases.ports import Finding
from headrace.status.component import ComponentStatus
from headrace.status.controllers import ControllerStatus
from headrace.status.overview import Overview
from headrace.status.plain import plain_overview
from headrace.status.sites import SiteStatus
from topology.checks.functions import functions_of
from topology.edits.changes import Component, bypassed_of, components_of
from topology.edits.receivers import Receivers
from topology.edits.stored import entrusted, spec_to_json
from topology.routing.downstream import receiver_at, receiver_of
from topology.routing.ways import ways_to
from topology.split import splits_of, with_splits

if TYPE_CHECKING:
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from topology.spec import TopologySpec

__all__ = ["CONTROLLER", "Controller", "build", "fingerprint_of"]

log = logging.getLogger("headrace")

CONTROLLER = "controller"
OBSERVE_INTERVAL_S = 1.0  # recent enough for an operator, and ten calls a second cost nothing
SHUT_DOWN_TIMEOUT_S = 60.0  # an apply process that does not close ends its process after 45 s (`actors.hosting.host`)
NOTE_INTERVAL_S = 5.0  # between two attempts to record which apply process gets which table, while a database is away
PREPARE_TIMEOUT_S = 3600.0  # creating a slot waits until every transaction that runs now has ended
_STARTING_POLL_S = 0.1  # while `up` waits
_STRETCH = 1 << 14  # of scrypt, with blocks of 8: 16 MiB and a tenth of a second for each guess


def fingerprint_of(spec: TopologySpec) -> str:
    """A hash of the whole topology."""
    # A connection string is not part of a repr (it may contain a password), but a changed one matters.
    hidden = "".join(site.database.dsn for site in spec.sites)
    hidden += "".join(target.url + target.token for target in (spec.alerts.to if spec.alerts is not None else ()))
    return hashlib.sha256(repr(spec).encode() + _stretched(hidden, spec.name)).hexdigest()[:16]


@functools.lru_cache(maxsize=16)
def _stretched(text: str, salt: str) -> bytes:
    """A hash that takes long, for `status` shows what it is part of, and so do files.

    Whoever reads them cannot guess passwords quickly. No key: each node must find the same.
    """
    return hashlib.scrypt(text.encode(), salt=salt.encode(), n=_STRETCH, r=8, p=1, dklen=32) if text else b""


class Controller(Host):
    """The controller of one topology.

    Args:
        spec: the desired state.
        actors: runs the components; None: the actor system of this process.
        environment: passed to every component's process (failpoints).
        keep_call: identifies a call of `up --keep-existing`: instantiation keeps the rows of destination tables, only
            for the tables that exist at this call. Empty: not such a call.
        clock: None: the machine's.
    """

    kind: ClassVar[str] = "controller"

    def __init__(
        self,
        spec: TopologySpec,
        *,
        actors: ActorSystem | None = None,
        environment: Mapping[str, str] | None = None,
        keep_call: str = "",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(CONTROLLER, spec.state_dir, clock=clock)
        self._record = PreparedRecord(spec.state_dir)
        self._kept = KeptCall(self._record, keep_call)
        self._file, self._file_fingerprint = spec, fingerprint_of(spec)
        if actors is None:
            from actors.hosting.runtime import actors_of

            actors = actors_of(spec.name)
        self._actors = actors
        self._launcher = Launcher(actors, environment or {})
        # What `overview` needs as long as `open` cannot read the record of what is prepared.
        self._splitting, self._edit = Splitting(spec), Edit(labels={})
        self._run_by(spec)
        self._phase = "STARTING SITES"
        self._is_created = False  # all components shall run, whatever the phase is
        self._repeats = False  # `headrace up` was called again: there may be new tables
        self._unrecorded = Unrecorded(self._record, actors, self._clock)
        self._asks_in_vain = False  # a site answers, and its preflight fails, because its database refuses new sessions
        self._calls = Calls()
        self._findings: tuple[Finding, ...] = ()
        self._statements: dict[str, list[str]] = {}
        self._observation = Observation(actors, self._clock)
        self._note_at = 0.0
        self._renewal = Renewal(spec, self._clock)
        self._left = LeavingSites(self._record, actors, self._clock)
        self._shapes = EarlierShapes(self._record, actors, self._clock)
        self._preflight = Preflight(actors, self._observation, self._record, self._shapes)
        self._alerts = Alerts(spec, self._clock)
        self._ended: tuple[Component, ...] = ()  # of streams that were merged: they may have left something on disk

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """Connect to the actor system; start from what is already prepared."""
        requests = Requests(self._file.state_dir / REQUESTS_FILE)
        self._splitting = Splitting(
            self._file,
            splits_of(self._record.read()),
            self._clock,
            requests,
            before=self._record.topology,
        )
        self._run_by(self._splitting.spec)
        self._edit = Edit.since(self._record.read(), self._spec, self._fingerprint)
        self._is_created = self._record.read().get("prepared") == self._fingerprint
        self._must_note_receivers = not self._record.read().get("receivers_noted")
        self._kept.open()
        self._left.open()
        self._shapes.open()
        self._unrecorded.open()
        self._repeats |= self._kept.must_be_noted or bool(self._unrecorded.sites)
        self._phase = "RUNNING" if self._is_created and not self._repeats else "STARTING SITES"

    def failed(self) -> None:
        """Tell it: nobody else can say that the controller does not bring up what the file says."""
        try:
            self._alerts.look(self.seen)
        except Exception:  # its thread must not end over it: it may succeed the next time
            log.exception("%s: no alert is sent now", self.name)

    def end(self) -> bool:
        """See `Host.end`. Until then alerts go on being sent, also while it is closed between two attempts."""
        ended = super().end()
        self._alerts.stop()
        return ended

    def step(self) -> float:
        """Reconcile, advance the set-up by one step, and collect the status of all components."""
        self._renewal.look()
        self._take_calls()
        self.reconcile()
        self._observe()
        self._advance()
        if self._phase in {"RUNNING", "REFUSED"}:
            self._calls.settle()
        self._split_and_merge()
        self._note_receivers()
        if self._phase == "RUNNING":
            self._shapes.follow(self._spec, told_scns(self._observation.latest), self._is_taken_over)
        if self._is_created:
            self._left.clear(self._outdated())
        self._alerts.look(self.seen)  # at the end: `failed` looks at a step that does not come to it
        is_settled = self._phase == "REFUSED" or (self._phase == "RUNNING" and not self._outdated())
        return OBSERVE_INTERVAL_S if is_settled else _STARTING_POLL_S

    def detail_state(self) -> str:
        """See the module."""
        return self._phase

    def details(self) -> ControllerStatus:
        """The controller's own facts; `overview` has those of all components."""
        return ControllerStatus(
            name=self.name,
            fingerprint=self._file_fingerprint,
            phase=self._phase,
            calls=self._calls.described(),
        )

    # ------------------------------------------------------------------ what the command line asks

    def overview(self) -> dict[str, Any]:
        """`seen` as plain data, for other processes."""
        return plain_overview(self.seen())

    def seen(self) -> Overview:
        """The state of the whole topology at the last observation."""
        # Preparing a database can take long, and `open` may fail; `step` observes nothing meanwhile.
        asks_now = self._phase == "PREPARING" or not self._observation.at_us
        latest = gather(self._actors, self._observed()) if asks_now else self._observation.latest
        components = self._every_component({status.name: status for status in latest})
        status = self.status()
        error = status.last_error if status.state in {"RETRYING", "ABORTED"} else None
        return Overview(
            topology=self._spec.name,
            state=status.state,
            fingerprint=self._file_fingerprint,
            problem=error.message if error else "",
            fix=error.hint if error else "",
            at_us=self._clock.time_us() if asks_now else self._observation.at_us,
            findings=found_problems(self._findings),
            statements={site: tuple(statements) for site, statements in self._statements.items()},
            components=components,
            flows=self._observation.flows(components, self._spec.applies),
            splits=self._splitting.described(self._facts(components)),
            left=self._left.described(),
            calls=self._calls.described(),
            alerts=self._alerts.described(),
        )

    def _every_component(self, seen: Mapping[str, ComponentStatus]) -> tuple[ComponentStatus, ...]:
        """The status of every component of the topology, of those that do not run too."""
        outdated, functions = self._outdated(), functions_of(self._spec)
        components = [
            replace(
                seen.get(c.name) or ComponentStatus(name=c.name, kind=c.kind, site=c.site, state="NOT CREATED"),
                outdated=c.name in outdated,
                functions={each.name: each.version for each in functions[c.name]} if c.name in functions else None,
            )
            for c in self._components
        ]
        components += [
            replace(seen[c.name], to_be_bypassed_by=by, outdated=True)
            if c.name in seen
            else ComponentStatus(name=c.name, kind=c.kind, site=c.site, state="BYPASSED", bypassed_by=by)
            for c, by in self._bypassed.items()
        ]
        return tuple(components)

    def retry(self, call: str, earlier: bool = False) -> None:  # noqa: FBT001, FBT002 - arguments of actors have places, not names
        """Try the set-up again after a refusal, or for tables that were created since; idempotent.

        `overview` tells when it is done.

        Args:
            call: identifies the call of `headrace up`. What another one keeps (`--keep-existing`) is not kept any more.
            earlier: an earlier controller had the call already, so what a later one keeps is kept.
        """
        if not earlier:
            self._kept.asked_again(call)
        self._calls.ask(call)
        self.wake()

    def _take_calls(self) -> None:
        """Begin anew for calls of `up`, unless databases are being prepared: that may have missed what they are about."""
        if self._phase not in {"STARTING SITES", "RUNNING", "REFUSED"} or not self._calls.begin():
            return
        self._kept.drop()
        self._repeats, self._phase = True, "STARTING SITES"

    def split(self, name: str) -> None:
        """Have a propagation split off; idempotent.

        It is done once every component has its part of the last edit, also by a later controller.

        Raises:
            ConfigError: there is no such propagation, or it cannot be split off.
            PropagationError: the controller has not begun yet.
        """
        self._ask_split(name, split=True)

    def merge(self, name: str) -> None:
        """Have a propagation merged as soon as it is close enough; idempotent.

        Raises:
            ConfigError: there is no such propagation, or it is not split off.
            PropagationError: the controller has not begun yet.
        """
        self._ask_split(name, split=False)

    def _ask_split(self, name: str, *, split: bool) -> None:
        if not self._observation.at_us:  # what is recorded as split off, and as asked, is not read yet
            raise PropagationError(
                f"the controller of topology {self._file.name} has not begun yet",
                hint="`headrace status` says why; then ask again",
            )
        self._splitting.ask(name, split=split)
        self.wake()

    def recreate(self, name: str, environment: Mapping[str, str]) -> None:
        """End a component and create it with other environment variables (armed failpoints), in a process of its own.

        Args:
            name: full name of the component, e.g. "queue:q_dbs1".
            environment: variables besides the controller's own, until the next call for this component; empty: it goes
                back to the process that it shares with others.

        Raises:
            ConfigError: the topology has no such component.
        """
        if name not in {component.name for component in self._components}:
            raise ConfigError(f"no component {name} in topology {self._spec.name}")
        self._launcher.recreate(name, environment)
        self.wake()

    # ------------------------------------------------------------------ splitting and merging

    def _facts(self, statuses: Sequence[ComponentStatus]) -> ObservedFacts:
        return ObservedFacts(statuses, self._edit.labels, self._observation.samples, self._stopped_at)

    def _stopped_at(self, site: str, component: str) -> bool | None:
        """Whether an operator stopped a component of a site; None: the site does not say."""
        if not self._observation.answers(site):
            return None
        try:
            return bool(self._actors.call(f"site:{site}", "stopped", (component,), timeout_s=GATHER_TIMEOUT_S))
        except HeadraceError:
            return None

    def _split_and_merge(self) -> None:
        """Bring a split stream to its next phase: recorded first, then adopted by its components, as every edit."""
        if not self._is_created or self._phase in {"PREFLIGHT", "PREPARING"} or self._outdated() or self._is_ending():
            return
        self._ended = tuple(component for component in self._ended if not self._is_cleared(component))
        wanted = self._splitting.next(self._facts(self._observation.latest), self._clock.time_us())
        if wanted is None:
            return
        spec, prepared = with_splits(self._file, wanted), self._record.read()
        edit = Edit.since(prepared, spec, fingerprint_of(spec))
        try:
            for component in components_of(spec):
                if component.name not in prepared.get("labels", {}):
                    self._actors.call(
                        f"site:{component.site}",
                        "begin_anew",
                        entrusted(spec, f"site:{component.site}"),
                        (component.name,),
                    )
        except HeadraceError as error:
            log.warning("%s: nothing is split off now: %s", self.name, error.message)
            return  # nothing is recorded: the next step tries again, if the site answers
        self._record.update(
            {
                "prepared": fingerprint_of(spec),
                "spec": spec_to_json(spec),
                **edit.recorded(),
                "splits": [as_json(each) for each in wanted],
            }
        )
        log.info(
            "%s: split off: %s",
            self.name,
            ", ".join(f"{each.propagation} ({each.phase})" for each in wanted) or "nothing",
        )
        self._splitting.take(wanted)
        ended = (*self._ended, *self._components)
        self._ended = tuple(component for component in ended if component.name not in edit.labels)
        self._run_by(spec)
        self._edit = edit

    def _is_ending(self) -> bool:
        """Whether a component has not ended yet that is to end.

        One at a site that is away may take days, and nobody waits for it.
        """
        away = {component.name for component in self._ended if not self._observation.answers(component.site)}
        return bool(self._unwanted(self._actors.names()) - away)

    def _is_cleared(self, component: Component) -> bool:
        """Delete what a component of a merged stream left on its site's disk; whether that is done."""
        if not self._observation.answers(component.site):
            return False
        try:
            self._actors.call(f"site:{component.site}", "delete_spilled", (component.name,))
        except HeadraceError as error:
            log.warning("%s: what %s left is not deleted yet: %s", self.name, component.name, error.message)
            return False
        return True

    def _unwanted(self, present: set[str]) -> set[str]:
        """Those of the components that run which are no part of the topology."""
        kept = {component.name for component in self._components} | self._left.components
        return present - kept - {CONTROLLER}

    def _run_by(self, spec: TopologySpec) -> None:
        """Reconcile with this topology from now on: that of the file, with what is split off."""
        self._spec, self._fingerprint = spec, fingerprint_of(spec)
        self._components = components_of(spec)
        self._sites = tuple(c for c in self._components if c.kind == "site")
        self._bypassed = bypassed_of(spec)

    def _for(self, component: str) -> TopologySpec:
        """The topology as one of its components gets it."""
        return entrusted(self._spec, component)

    # ------------------------------------------------------------------ reconciling

    def reconcile(self) -> None:
        """Create missing components, change or end outdated ones, and end unwanted ones."""
        present = self._actors.names()
        if self._is_created:
            for name in self._unwanted(present):
                self._actors.kill(name)
        for component in self._components if self._is_created else self._sites:
            if component.name not in present:
                if self._may_begin(component, present):
                    self._create(component)
            elif component.name in self._outdated():
                self._bring_up_to_date(component, present)

    def _bring_up_to_date(self, component: Component, present: set[str]) -> None:
        """Let a component adopt its change, or end it so that it is created again."""
        if self._edit.takes_over.get(component.name) != self._observation.labels[component.name]:
            self._actors.kill(component.name)
        # Not before everything is prepared: if the change is refused, running components stay unchanged.
        elif self._is_created and self._went_before(component.name, present):
            with contextlib.suppress(HeadraceError):  # it does not answer: the next step tries again
                self._actors.call(
                    component.name, "reconfigure", self._for(component.name), self._edit.labels[component.name]
                )

    def _may_begin(self, component: Component, present: set[str]) -> bool:
        """Whether every component that must be up to date before this one begins is up to date.

        An apply process must not copy a table before every capture process and propagation on its way handles the
        table's changes, nor take what is captured for what it knows while that may change; a capture process must not
        begin before its site keeps redo for it; a queue not before what it held for a site is held before it.
        """
        name = component.name.partition(":")[2]
        before: set[str] = set()
        if (component.kind == "apply" and self._kept.must_be_noted) or not self._went_before(component.name, present):
            return False
        if component.kind == "redo":
            before = {f"site:{receiver_of(self._spec, name).source}"}
        elif component.kind == "capture":
            receiver = receiver_at(self._spec, self._spec.capture(name))
            before = {f"site:{self._spec.capture(name).source}", *(() if receiver is None else (receiver.component,))}
        elif component.kind == "apply" and not self._knows_its_tables(self._spec.apply(name).source):
            return False
        elif component.kind == "apply":
            for way in ways_to(self._spec, self._spec.apply(name)):
                before |= {f"capture:{way.capture.name}", *(f"propagation:{each.name}" for each in way.propagations)}
        # What is bypassed may still be about to end: it does not count.
        return all(
            self._observation.labels.get(each) == self._edit.labels[each]
            for each in before & present & self._edit.labels.keys()
        )

    def _knows_its_tables(self, source: str) -> bool:
        """Whether an apply process that begins now has all tables of its source that are captured, or is told which.

        It would have to end again at once where the source is about to be prepared again.
        """
        return f"site:{source}" not in self._unrecorded.sites or (
            self._unrecorded.tables(source) is not None and self._is_put_off()
        )

    def _is_put_off(self) -> bool:
        """Whether nothing is prepared before a site is back that does not answer or fails, or `up` is called again."""
        return self._phase == "REFUSED" or (
            self._phase == "STARTING SITES"
            and bool(self._observation.at_us)
            and (self._asks_in_vain or not self._sites_are_ready())
        )

    def _went_before(self, name: str, present: set[str]) -> bool:
        """Whether those that a component waits for with this edit go by it.

        One that did so and does not answer now holds up nobody.
        """
        first = present.intersection(self._edit.waits_for.get(name, ())) & self._edit.labels.keys()
        return all(self._observation.seen_labels.get(each) == self._edit.labels[each] for each in first)

    def _outdated(self) -> set[str]:
        """Components that run with another part of the topology than they should."""
        labels = self._edit.labels
        return {
            name
            for name, label in self._observation.labels.items()
            if label is not None and label != labels.get(name, label)
        }

    def _create(self, component: Component) -> None:
        spec, label = self._spec, self._edit.labels[component.name]
        if component.kind == "site" and not self._is_created:
            spec, label = self._edit.unprepared(component.name, self._spec)
        arguments: dict[str, Any] = {
            "spec": entrusted(spec, component.name),
            "name": component.name.partition(":")[2],
            "fingerprint": label,
        }
        if component.kind == "apply":
            arguments |= {"keep_existing": self._kept.tables(arguments["name"]), "keep_call": self._kept.call}
            if (noted := self._told_tables(self._spec.apply(arguments["name"]).source)) is not None:
                arguments |= {"known": tuple(each.identity for each in noted.tables)}
        self._launcher.create(component, self._spec, arguments)

    # ------------------------------------------------------------------ setting up

    def _advance(self) -> None:
        if self._phase == "STARTING SITES" and self._sites_are_ready():
            if (
                self._is_created
                and not self._kept.must_be_noted
                and not self._unrecorded.sites
                and not self._uncaptured()
            ):
                self._findings = self._preflight.stopped(self._spec)
                if self._findings:
                    self._phase = "REFUSED"
                else:
                    leave_out_dropped(self._actors, None, self._spec, is_edit=False)  # by an earlier version
                    self._settled()
            else:
                self._phase, self._asks_in_vain = "PREFLIGHT", True  # until it has returned
                self._findings = self._preflight.look(self._spec, self._splitting.misfits)
                self._asks_in_vain = False
                self._phase = "REFUSED" if any(finding.is_error for finding in self._findings) else "PREPARING"
        elif self._phase == "PREPARING":
            self._prepare()

    def _sites_are_ready(self) -> bool:
        latest = {status.name: status for status in self._observation.latest if isinstance(status, SiteStatus)}
        # A site that is about to be replaced counts as ready too.
        return all(
            (status := latest.get(site.name)) is not None
            and status.ready
            and status.fingerprint in self._edit.usable(site.name)
            for site in self._sites
        )

    @property
    def _sources(self) -> set[str]:
        return {f"site:{capture.source}" for capture in self._spec.captures}

    def _uncaptured(self) -> list[str]:
        """Source sites with tables that the rules select and that were created after the last `prepare`."""
        found = []
        for name in sorted(self._sources):
            noted = self._noted_ahead(name.removeprefix("site:"))
            if self._actors.call(
                name, "uncaptured", self._for(name), *(() if noted is None else (noted,)), timeout_s=PREFLIGHT_TIMEOUT_S
            ):
                found.append(name)
        return found

    def _noted_ahead(self, source: str) -> Receivers | None:
        """The tables of a source that are recorded as taken up, where an administrator may be ahead of that.

        None: he is not.
        """
        return self._unrecorded.tables(source) if self._spec.site(source).database.has_admin else None

    def _told_tables(self, source: str) -> Receivers | None:
        """The tables that an apply process of a source is told to take; None: those that are captured when it begins."""
        is_unrecorded = f"site:{source}" in self._unrecorded.sites
        return self._unrecorded.tables(source) if is_unrecorded else self._noted_ahead(source)

    def _prepare(self) -> None:
        ending = self._to_end()
        # An apply process would apply an unknown table's changes from the beginning and not copy it. So it ends before
        # the first change of such a table can arrive, and restarts with all tables.
        applies = [name for name in ending if name.startswith("apply:")]
        self._actors.end(applies, timeout_s=SHUT_DOWN_TIMEOUT_S)
        self._left.clear_returning(self._spec)
        for site in self._sites:
            source = self._spec.site(site.site)
            with (
                self._unrecorded.preparing(site.name, has_admin=source.database.has_admin)
                if site.name in self._sources
                else contextlib.nullcontext()
            ):
                ran = self._actors.call(
                    site.name, "prepare", self._for(site.name), self._new(), timeout_s=PREPARE_TIMEOUT_S
                )
            self._statements[site.name] = list(ran)
        # Preparing can take long: an operator may have stopped one of them meanwhile. The apply processes that have
        # ended by now begin again when `up` repeats this. Until then the record is behind what is prepared.
        if stopped := self._preflight.stopped(self._spec):
            self._findings, self._phase = stopped, "REFUSED"
            return
        if not self._is_created:
            leave_out_dropped(self._actors, self._edit.before, self._spec)
        for name in set(ending) - set(applies):
            self._actors.kill(name)
        gone = self._gone()
        self._forget_stops(self._new())
        if ended := (*gone, *(component.name for component in self._bypassed)):
            for site in self._sites:
                self._actors.call(site.name, "delete_spilled", ended)
        noted = receivers_of(self._actors, self._spec, self._preflight.names)
        # What another `up` has put into the log since `ending` was asked for.
        late = self._with_late_tables(noted)
        self._actors.end(late, timeout_s=SHUT_DOWN_TIMEOUT_S)
        applies += late
        going_on = self._actors.names() - set(applies) if self._is_created else set()
        for apply in self._spec.applies:
            # Before the first change can be missing: if such a table comes back, it is copied again. And not while its
            # driver goes on, which is fenced out by it.
            if f"apply:{apply.name}" not in going_on:
                leave_out(self._actors, self._spec, apply, noted[apply.source].tables)
        if self._kept.must_be_noted:
            self._kept.note(
                {
                    apply.name: kept_at_call(self._actors, self._spec, apply, noted[apply.source].tables)
                    for apply in self._spec.applies
                }
            )
        note_first_receivers(self._actors, noted)
        self._save_prepared(noted)
        self._is_created = True
        # not before: until this topology is valid, another `up` may go back to one that has them
        self._forget_stops(gone)
        # the last observation shows apply processes that have ended by now: RUNNING must not be reported from it
        self._observe()
        self._settled()

    def _with_late_tables(self, noted: Mapping[str, Receivers]) -> list[str]:
        """Apply processes that run, and do not know a table that is about to be recorded."""
        late = set()
        for source, receivers in noted.items():
            before = self._noted_ahead(source)
            if before is not None and not {each.identity for each in receivers.tables} <= {
                each.identity for each in before.tables
            }:
                late.add(source)
        present = self._actors.names()
        return sorted(
            name for each in self._spec.applies if each.source in late and (name := f"apply:{each.name}") in present
        )

    def _forget_stops(self, components: tuple[str, ...]) -> None:
        """Let later components of these names begin enabled, at the sites of the topology."""
        for site in self._sites if components else ():
            self._actors.call(site.name, "forget_stops", components)

    def _to_end(self) -> list[str]:
        """Running components that must end before the topology can be as wanted.

        Sites were replaced before they were asked.
        """
        present, uncaptured = self._actors.names(), self._uncaptured()
        ending = self._edit.ending if self._is_created or self._edit.is_known else present - {CONTROLLER}
        # one that began with the tables of the record meanwhile does not know what was captured since
        with_new_tables = {
            f"apply:{apply.name}"
            for apply in self._spec.applies
            if f"site:{apply.source}" in {*uncaptured, *self._unrecorded.sites}
        }
        leaving = {each.component for each in self._left.with_edit(self._edit.before, self._spec)}
        return sorted((ending | with_new_tables) & present - {site.name for site in self._sites} - leaving)

    def _note_receivers(self) -> None:
        """Once everything runs as wanted, record which apply process gets which table; until then the old record holds.

        What is recorded is what was so when the databases were prepared, also by a controller that started since.
        """
        is_settled = (
            self._phase == "RUNNING"
            and not self._outdated()
            and all(self._observation.answers(site.name) for site in self._spec.sites)
        )
        if not (self._must_note_receivers and is_settled and self._clock.monotonic() >= self._note_at):
            return
        self._note_at = self._clock.monotonic() + NOTE_INTERVAL_S
        with contextlib.suppress(HeadraceError):  # a database is away: record it later
            stored = self._record.read().get("receivers")
            noted = (
                receivers_of(self._actors, self._spec, {})
                if stored is None  # an earlier version prepared them
                else {source: from_json(Receivers, document) for source, document in stored.items()}
            )
            note_receivers(self._actors, self._spec, noted)
            self._must_note_receivers = False
            self._record.update({"receivers_noted": True})

    def _settled(self) -> None:
        self._phase, self._is_created, self._repeats = "RUNNING", True, False

    def _new(self) -> tuple[str, ...]:
        """Components that the topology did not have when it was last prepared.

        They may have been part of it earlier, but what they left then is useless: the log has advanced without them.
        """
        before = self._record.read().get("labels")
        return () if before is None else tuple(c.name for c in self._components if c.name not in before)

    def _gone(self) -> tuple[str, ...]:
        """Components that the topology had when it was last prepared, and that are no part of it any more or bypassed."""
        wanted = {component.name for component in self._components}
        return tuple(name for name in self._record.read().get("labels", ()) if name not in wanted)

    def _save_prepared(self, noted: Mapping[str, Receivers]) -> None:
        self._record.update(
            {
                "topology": self._spec.name,
                "file": str(self._spec.file),
                "prepared": self._fingerprint,
                "spec": spec_to_json(self._spec),
                **self._edit.recorded(),
                "splits": [as_json(each) for each in self._splitting.splits],
                "earlier_shapes": self._shapes.take(self._spec),
                "identities": self._preflight.identities,
                "left": [as_json(each) for each in self._left.with_edit(self._edit.before, self._spec)],
                "receivers_noted": False,
                "receivers": {source: as_json(receivers) for source, receivers in noted.items()},
                "unseen": [],
            }
        )
        self._left.open()
        self._unrecorded.open()
        self._must_note_receivers = True
        self._splitting.in_force()

    def _observe(self) -> None:
        self._observation.look(self._observed(), self._spec, is_running=self._phase == "RUNNING")
        if self._is_created and self._is_put_off():
            self._unrecorded.name_tables(self._observation, self._spec)

    def _is_taken_over(self, source: str) -> bool:
        """Whether a source answers, and those that run on the way of its changes go by this topology."""
        clients = {f"capture:{each.name}" for each in self._spec.captures if each.source == source}
        clients |= {f"propagation:{each.name}" for each in self._spec.propagations if source in each.sources}
        running = clients & {component.name for component in self._components}
        return self._observation.answers(source) and all(
            self._observation.labels.get(name) == self._edit.labels[name] for name in running
        )

    def _observed(self) -> tuple[Component, ...]:
        """The components to ask: all, or until an edit is prepared the sites and those that run as before, with what it will bypass."""
        if self._is_created:
            return self._components
        present = self._actors.names()
        return (
            *self._sites,
            *(c for c in (*self._components, *self._bypassed) if c.name in present and c not in self._sites),
        )


def build(
    spec: TopologySpec,
    name: str,
    fingerprint: str,
    environment: Mapping[str, str] | None = None,
    *,
    keep_call: str = "",
) -> Controller:
    """Make the controller's host; called by name, see `actors.hosting.runtime.Factory`.

    Args:
        spec: the topology that is wanted.
        name: `CONTROLLER`.
        fingerprint: of `spec`.
        environment: passed to every component's process (failpoints); None: nothing.
        keep_call: see `Controller`.
    """
    assert (name, fingerprint) == (CONTROLLER, fingerprint_of(spec))
    return Controller(spec, environment=environment, keep_call=keep_call)
