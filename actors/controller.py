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
                     bypasses (`topology.combined`) or has under another name was stopped by an operator: that would
                     lift the stop.
    PREPARING        publications, slots and catalogs are created in the databases.
    RUNNING          all components exist and keep themselves running. It is persisted that a topology of this
                     fingerprint was prepared: a restarted controller does not silently recreate a lost slot.
    While components run, `headrace up` repeats these states when the rules select new tables, or when
    the topology has changed; the components keep running meanwhile, even if the change is refused. Once everything is
    prepared, components adopt their part of the change or are created again, and those whose part is unchanged are left
    alone (`topology.edits.changes`, `actors.edit`).

    What runs is the topology of the file with what is split off from it (`actors.splitting.phases`): splitting and
    merging are edits too, which need no preparation and no database, so a destination that is away holds up none of
    them.

    A site that does not answer, because its node is gone for example, holds up only what is to be done there. Ray
    starts its components when a node for them is there again (`actors.cluster.nodes`); the first set-up and an edit of
    the file wait for every site of the file.

Durable when
    `desired.json` contains the prepared topology, without secrets, each component's label, what is split off, and the
    shapes of tables that left (`actors.earlier_shapes`). It is written after the last `prepare` has returned; all
    preparations are idempotent, so a controller that died in the middle repeats them: where the topology is prepared
    again, for new tables, the sources whose preparation was begun stand there until all of it is recorded. While it is
    about to be repeated, their apply processes wait; while it cannot be, because some site is away, they run with the
    tables of the record. A component that is not named there is new and starts from scratch: it does not run before the
    file is written. The controller runs on the cluster's head, where the file is.

Worked flow
    up -> site:dbs1, site:dbs2 created -> both READY -> preflight of both without errors -> prepare of both ->
    queues, propagations, captures and applies created together -> the capture retries until
    its site and its queue answer -> RUNNING; queue:q_dbs2 is killed -> Ray starts it again -> nothing to do here
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from actors.alerts.sending import Alerts
from actors.calls import Calls
from actors.cluster.nodes import absence_of
from actors.earlier_shapes import earlier_of, forgotten, left_shapes, marked, on_the_way, shapes_as_json
from actors.edit import Edit
from actors.host import Host
from actors.lag import PositionSamples, seen_at_us
from actors.processes import factory_of, process_of
from actors.records.requests import REQUESTS_FILE, Requests
from actors.site.left import LeftSite, left_by, left_of
from actors.site.receivers import (
    captured_of,
    kept_at_call,
    leave_out,
    leave_out_dropped,
    note_first_receivers,
    note_receivers,
    receivers_of,
)
from actors.site.redo_keeper import add_capture_scns
from actors.splitting.facts import ObservedFacts
from actors.splitting.phases import Splitting
from databases.ports import Finding, TableShape
from streams.durable_file import replace_file
from streams.errors import ConfigError, PropagationError, StreamsError
from streams.plain_data import as_json, from_json
from streams.scn import Scn
from streams.table_name import TableName
from topology.checks import another_database, lasting_identities, one_database_twice
from topology.combined import newly_bypassed
from topology.downstream import keeper_of, receiver_at, receiver_of
from topology.edits.capture_scns import scn_findings
from topology.edits.changes import Component, bypassed_of, components_of
from topology.edits.overtaken import overtaken
from topology.edits.receivers import Receivers
from topology.edits.replaced import moved, replaced
from topology.edits.stored import PREPARED_FILE, entrusted, prepared_topology, spec_to_json
from topology.edits.subset_changes import shape_changes, subset_changes
from topology.functions import functions_of
from topology.links import makes_certificates
from topology.proof.meetings import unseen_conflicts
from topology.split import splits_of, with_splits
from topology.transformations import arrival_findings, ways_before
from topology.ways import arriving, captured_by, ways_to

if TYPE_CHECKING:
    from actors.runtime import ActorSystem
    from databases.ports import CapturedTable
    from streams.lcr_batch import TableVersion
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["CONTROLLER", "Controller", "build", "fingerprint_of", "gather"]

log = logging.getLogger("headrace")

CONTROLLER = "controller"
OBSERVE_INTERVAL_S = 1.0  # recent enough for an operator, and ten calls a second cost nothing
GATHER_TIMEOUT_S = 3.0  # a component that does not answer within this is shown as such
PREFLIGHT_TIMEOUT_S = 120.0  # catalog queries over every table of a large database
SHUT_DOWN_TIMEOUT_S = 60.0  # an apply process that does not close ends its process after 45 s (`actors.host`)
CLEAR_INTERVAL_S = 10.0  # between two attempts to clear what an edit left; nobody waits for it
CLEAR_TIMEOUT_S = 30.0  # a log writer ends within ten seconds, and so does a session that reads the slot
MARKER_TIMEOUT_S = 10.0  # a site that is frozen must not hold up the controller for longer
NOTE_INTERVAL_S = 5.0  # between two attempts to record which apply process gets which table, while a database is away
# a look reads a few small files; a machine that slept over the end of its certificates must not wait for long
RENEWAL_INTERVAL_S = 3_600.0
PREPARE_TIMEOUT_S = 3600.0  # creating a slot waits until every transaction that runs now has ended
_STARTING_POLL_S = 0.1  # while `up` waits
_STRETCH = 1 << 14  # of scrypt, with blocks of 8: 16 MiB and a tenth of a second for each guess
_RATE_WINDOW = 5  # observations: throughput over about that many seconds

_WORKING = frozenset({"IDLE", "APPLYING"})  # states of an apply process that works normally
_COUNTERS = ("rows_total", "bytes_total", "transactions_total")


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
                if isinstance(answer, StreamsError)
                else "no answer"
            )
            status |= {"state": "UNREACHABLE", "problem": words}
        gathered.append(status)
    _wait_for_databases(gathered)
    add_capture_scns(gathered)
    return gathered


class Controller(Host):
    """The controller of one topology.

    Args:
        spec: the desired state.
        actors: runs the components; None: the actor system of this process.
        environment: passed to every component's process (failpoints).
        keep_call: identifies a call of `up --keep-existing`: instantiation keeps the rows of destination tables, only
            for the tables that exist at this call. Empty: not such a call.
    """

    kind: ClassVar[str] = "controller"

    def __init__(
        self,
        spec: TopologySpec,
        *,
        actors: ActorSystem | None = None,
        environment: Mapping[str, str] | None = None,
        keep_call: str = "",
    ) -> None:
        super().__init__(CONTROLLER, spec.state_dir)
        self._keep_call = keep_call
        self._kept: dict[str, tuple[str, ...]] = {}  # by apply process, identities of the tables of this call
        self._file, self._file_fingerprint = spec, fingerprint_of(spec)
        if actors is None:
            from actors.runtime import actors_of

            actors = actors_of(spec.name)
        self._actors = actors
        self._environment = dict(environment or {})
        # What `overview` needs as long as `open` cannot read the record of what is prepared.
        self._splitting, self._edit = Splitting(spec), Edit(labels={})
        self._run_by(spec)
        self._phase = "STARTING SITES"
        self._is_created = False  # all components shall run, whatever the phase is
        self._repeats = False  # `headrace up` was called again: there may be new tables
        # sources that were prepared, or are being, and the record does not say with which tables: it may go on, and
        # capture tables that an apply process which begins now would not know
        self._unseen: frozenset[str] = frozenset()
        # by these sources, while they cannot be prepared again: their tables that no apply process has taken up
        self._left_behind: dict[str, tuple[str, ...]] = {}
        self._name_at = 0.0
        self._calls = Calls()
        self._drops_kept = False  # a call of `up` came after that which keeps rows
        self._findings: tuple[Finding, ...] = ()
        self._statements: dict[str, list[str]] = {}
        self._latest: list[dict[str, Any]] = []
        self._latest_us = 0
        self._seen_labels: dict[str, str] = {}  # of each component when it answered last
        self._samples: dict[str, PositionSamples] = {}
        self._history: dict[str, list[tuple[float, dict[str, int]]]] = {}
        self._overrides: dict[str, dict[str, str]] = {}
        self._note_at = self._clear_at = 0.0
        # at once: one that died while it renewed left a certificate without its key
        self._renew_at = self._clock.monotonic()
        self._mark_at: dict[str, float] = {}  # by source: the next attempt to write a marker
        # sites that the last edits left and that have not cleared their databases yet
        self._left: tuple[LeftSite, ...] = ()
        self._left_problems: dict[str, str] = {}
        self._alerts = Alerts(spec, self._clock)
        self._present: set[str] = set()  # components at the last attempt to clear that
        self._ended: tuple[Component, ...] = ()  # of streams that were merged: they may have left something on disk
        # of each source's tables at the last preflight, by object number
        self._names: dict[str, dict[int, TableName]] = {}

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """Connect to the actor system; start from what is already prepared."""
        requests = Requests(self._file.state_dir / REQUESTS_FILE)
        self._splitting = Splitting(
            self._file,
            splits_of(self._desired()),
            self._clock,
            requests,
            before=prepared_topology(self._file.state_dir),
        )
        self._run_by(self._splitting.spec)
        self._edit = Edit.since(self._desired(), self._spec, self._fingerprint)
        self._is_created = self._desired().get("prepared") == self._fingerprint
        self._must_note_receivers = not self._desired().get("receivers_noted")
        self._kept = self._recorded_as_kept()
        self._left = left_of(self._desired())
        self._shapes = earlier_of(self._desired())
        self._identities: dict[str, str] = {}  # of the sites' databases, as of the preflight
        self._unseen = frozenset(self._desired().get("unseen", ()))
        self._repeats |= self._must_note_kept or bool(self._unseen)
        self._phase = "RUNNING" if self._is_created and not self._repeats else "STARTING SITES"

    def failed(self) -> None:
        """Tell it: nobody else can say that the controller does not bring up what the file says."""
        try:
            self._alerts.look(self.overview)
        except Exception:  # its thread must not end over it: it may succeed the next time
            log.exception("%s: no alert is sent now", self.name)

    def end(self) -> bool:
        """See `Host.end`. Until then alerts go on being sent, also while it is closed between two attempts."""
        ended = super().end()
        self._alerts.stop()
        return ended

    def step(self) -> float:
        """Reconcile, advance the set-up by one step, and collect the status of all components."""
        self._renew_certificates()
        self._take_calls()
        self.reconcile()
        self._observe()
        self._advance()
        if self._phase in {"RUNNING", "REFUSED"}:
            self._calls.settle()
        self._split_and_merge()
        self._note_receivers()
        self._follow_shapes()
        self._clear_left()
        self._alerts.look(self.overview)  # at the end: `failed` looks at a step that does not come to it
        is_settled = self._phase == "REFUSED" or (self._phase == "RUNNING" and not self._outdated())
        return OBSERVE_INTERVAL_S if is_settled else _STARTING_POLL_S

    def detail_state(self) -> str:
        """See the module."""
        return self._phase

    def details(self) -> dict[str, Any]:
        """The controller's own facts; `overview` has those of all components."""
        return {"phase": self._phase, "fingerprint": self._file_fingerprint, "calls": self._calls.described()}

    # ------------------------------------------------------------------ what the command line asks

    def overview(self) -> dict[str, Any]:
        """The state of the whole topology at the last observation (`at_us`), JSON-able.

        `outdated`: about to change or be replaced.
        """
        # Preparing a database can take long, and `open` may fail; `step` observes nothing meanwhile.
        asks_now = self._phase == "PREPARING" or not self._latest_us
        latest = gather(self._actors, self._observed()) if asks_now else self._latest
        seen = {status["name"]: status for status in latest}
        outdated, functions = self._outdated(), functions_of(self._spec)
        components = [
            dict(seen.get(c.name) or {"name": c.name, "kind": c.kind, "site": c.site, "state": "NOT CREATED"})
            | {"outdated": c.name in outdated}
            | ({"functions": {each.name: each.version for each in functions[c.name]}} if c.name in functions else {})
            for c in self._components
        ]
        components += [
            {**seen[c.name], "to_be_bypassed_by": by, "outdated": True}
            if c.name in seen
            else {
                "name": c.name,
                "kind": c.kind,
                "site": c.site,
                "state": "BYPASSED",
                "bypassed_by": by,
                "outdated": False,
            }
            for c, by in self._bypassed.items()
        ]
        status = self.status()
        error = status.get("last_error") if status["state"] in {"RETRYING", "ABORTED"} else None
        return {
            "topology": self._spec.name,
            "state": status["state"],
            "fingerprint": self._file_fingerprint,
            **({"problem": error["message"], "fix": error["hint"]} if error else {}),
            "at_us": self._clock.time_us() if asks_now else self._latest_us,
            "findings": [asdict(finding) for finding in self._findings],
            "statements": self._statements,
            "components": components,
            "flows": self._flows(components),
            "splits": self._splitting.described(self._facts(components)),
            "left": [self._described_left(each) for each in self._left],
            "calls": self._calls.described(),
            "alerts": self._alerts.described(),
        }

    def retry(self, call: str, earlier: bool = False) -> None:  # noqa: FBT001, FBT002 - arguments of actors have places, not names
        """Try the set-up again after a refusal, or for tables that were created since; idempotent.

        `overview` tells when it is done.

        Args:
            call: identifies the call of `headrace up`. What another one keeps (`--keep-existing`) is not kept any more.
            earlier: an earlier controller had the call already, so what a later one keeps is kept.
        """
        if not earlier and call != self._keep_call:
            self._drops_kept = True
        self._calls.ask(call)
        self.wake()

    def _take_calls(self) -> None:
        """Begin anew for calls of `up`, unless databases are being prepared: that may have missed what they are about."""
        if self._phase not in {"STARTING SITES", "RUNNING", "REFUSED"} or not self._calls.begin():
            return
        if self._drops_kept:
            self._drops_kept = False
            if self._kept or self._must_note_kept:
                self._note_kept({})
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
        if not self._latest_us:  # what is recorded as split off, and as asked, is not read yet
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
        self._overrides[name] = dict(environment)
        self._actors.kill(name)
        self.wake()

    # ------------------------------------------------------------------ splitting and merging

    def _facts(self, statuses: list[dict[str, Any]]) -> ObservedFacts:
        return ObservedFacts(statuses, self._edit.labels, self._samples, self._stopped_at)

    def _stopped_at(self, site: str, component: str) -> bool | None:
        """Whether an operator stopped a component of a site; None: the site does not say."""
        if not self._answers(site):
            return None
        try:
            return bool(self._actors.call(f"site:{site}", "stopped", (component,), timeout_s=GATHER_TIMEOUT_S))
        except StreamsError:
            return None

    def _split_and_merge(self) -> None:
        """Bring a split stream to its next phase: recorded first, then adopted by its components, as every edit."""
        if not self._is_created or self._phase in {"PREFLIGHT", "PREPARING"} or self._outdated() or self._is_ending():
            return
        self._ended = tuple(component for component in self._ended if not self._is_cleared(component))
        wanted = self._splitting.next(self._facts(self._latest), self._clock.time_us())
        if wanted is None:
            return
        spec, prepared = with_splits(self._file, wanted), self._desired()
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
        except StreamsError as error:
            log.warning("%s: nothing is split off now: %s", self.name, error.message)
            return  # nothing is recorded: the next step tries again, if the site answers
        self._save_desired(
            {
                **prepared,
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
        away = {component.name for component in self._ended if not self._answers(component.site)}
        return bool(self._unwanted(self._actors.names()) - away)

    def _is_cleared(self, component: Component) -> bool:
        """Delete what a component of a merged stream left on its site's disk; whether that is done."""
        if not self._answers(component.site):
            return False
        try:
            self._actors.call(f"site:{component.site}", "delete_spilled", (component.name,))
        except StreamsError as error:
            log.warning("%s: what %s left is not deleted yet: %s", self.name, component.name, error.message)
            return False
        return True

    def _answers(self, site: str) -> bool:
        """Whether a site answered when it was asked last: no time is spent on others."""
        return any(status["name"] == f"site:{site}" and status["state"] != "UNREACHABLE" for status in self._latest)

    def _unwanted(self, present: set[str]) -> set[str]:
        """Those of the components that run which are no part of the topology."""
        kept = {component.name for component in self._components} | {each.component for each in self._left}
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
        if self._edit.takes_over.get(component.name) != self._labels[component.name]:
            self._actors.kill(component.name)
        # Not before everything is prepared: if the change is refused, running components stay unchanged.
        elif self._is_created and self._went_before(component.name, present):
            with contextlib.suppress(StreamsError):  # it does not answer: the next step tries again
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
        if (component.kind == "apply" and self._must_note_kept) or not self._went_before(component.name, present):
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
            self._labels.get(each) == self._edit.labels[each] for each in before & present & self._edit.labels.keys()
        )

    def _knows_its_tables(self, source: str) -> bool:
        """Whether an apply process that begins now has all tables of its source that are captured, or is told which.

        It would have to end again at once where the source is about to be prepared again.
        """
        return f"site:{source}" not in self._unseen or (
            self._recorded_tables(source) is not None and self._is_put_off()
        )

    def _is_put_off(self) -> bool:
        """Whether nothing is prepared before a site is back that does not answer, or `up` is called again."""
        return self._phase == "REFUSED" or (
            self._phase == "STARTING SITES" and bool(self._latest_us) and not self._sites_are_ready()
        )

    def _went_before(self, name: str, present: set[str]) -> bool:
        """Whether those that a component waits for with this edit go by it.

        One that did so and does not answer now holds up nobody.
        """
        first = present.intersection(self._edit.waits_for.get(name, ())) & self._edit.labels.keys()
        return all(self._seen_labels.get(each) == self._edit.labels[each] for each in first)

    @property
    def _labels(self) -> dict[str, str | None]:
        """The last label of each component; None: unknown."""
        return {status["name"]: status.get("fingerprint") for status in self._latest}

    def _outdated(self) -> set[str]:
        """Components that run with another part of the topology than they should."""
        labels = self._edit.labels
        return {name for name, label in self._labels.items() if label is not None and label != labels.get(name, label)}

    def _create(self, component: Component) -> None:
        site = self._spec.site(component.site)
        spec, label = self._spec, self._edit.labels[component.name]
        if component.kind == "site" and not self._is_created:
            spec, label = self._edit.unprepared(component.name, self._spec)
        arguments: dict[str, Any] = {
            "spec": entrusted(spec, component.name),
            "name": component.name.partition(":")[2],
            "fingerprint": label,
        }
        if component.kind == "apply":
            arguments |= {"keep_existing": self._kept.get(arguments["name"], ()), "keep_call": self._keep_call}
            if (noted := self._told_tables(self._spec.apply(arguments["name"]).source)) is not None:
                arguments |= {"known": tuple(each.identity for each in noted.tables)}
        environment = {**self._environment, **self._overrides.get(component.name, {})}
        differs = any(value != self._environment.get(name, "") for name, value in environment.items())
        self._actors.create(
            component.name,
            factory_of(site, component.kind),
            arguments,
            process=f"recreated:{component.name}"
            if differs
            else process_of(self._spec, component, self._actors.held()),
            state_dir=self._spec.state_dir,
            node=dict(site.node),
            environment=environment,
        )

    # ------------------------------------------------------------------ setting up

    def _advance(self) -> None:
        if self._phase == "STARTING SITES" and self._sites_are_ready():
            if self._is_created and not self._must_note_kept and not self._unseen and not self._uncaptured():
                self._findings = self._stopped_against_edit()
                if self._findings:
                    self._phase = "REFUSED"
                else:
                    leave_out_dropped(self._actors, None, self._spec, is_edit=False)  # by an earlier version
                    self._settled()
            else:
                self._phase = "PREFLIGHT"
                self._preflight()
        elif self._phase == "PREPARING":
            self._prepare()

    def _sites_are_ready(self) -> bool:
        latest = {status["name"]: status for status in self._latest}
        states = [latest.get(site.name, {}) for site in self._sites]
        # A site that is about to be replaced counts as ready too.
        return all(
            state.get("ready", False) and state.get("fingerprint") in self._edit.usable(site.name)
            for site, state in zip(self._sites, states, strict=True)
        )

    def _preflight(self) -> None:
        findings: list[Finding] = []
        self._names.clear()
        for site in self._sites:
            findings += self._actors.call(site.name, "preflight", self._for(site.name), timeout_s=PREFLIGHT_TIMEOUT_S)
        identities = {
            site.name.removeprefix("site:"): str(
                self._actors.call(site.name, "database_identity", timeout_s=PREFLIGHT_TIMEOUT_S)
            )
            for site in self._sites
        }
        self._identities = lasting_identities(self._spec, identities)
        findings += [
            *one_database_twice(identities),
            *another_database(self._desired().get("identities", {}), self._identities),
        ]
        prepared = prepared_topology(self._spec.state_dir)
        findings += [*self._stopped_against_edit(), *self._splitting.misfits, *self._scn_findings(prepared)]
        if prepared is not None:
            findings += [
                *subset_changes(prepared, self._spec),
                *shape_changes(prepared, self._spec),
                *overtaken(prepared, self._spec, self._subscribers(prepared)),
            ]
        findings += self._earlier_shapes_on_the_way(prepared)
        for apply in self._spec.applies:
            try:
                findings += self._preflight_tables(apply)
            except StreamsError:
                # Rights that are already reported may be missing.
                if not any(finding.is_error for finding in findings):
                    raise
        self._findings = tuple(dict.fromkeys(findings))  # a site's two roles, and two apply processes, may have one
        self._phase = "REFUSED" if any(finding.is_error for finding in findings) else "PREPARING"

    def _subscribers(self, prepared: TopologySpec) -> Callable[[str], list[Mapping[str, Any]]]:
        """What a queue says of its subscribers; nothing: it does not answer.

        A capture process that is combined with an apply process says of that one instead.
        """
        said = {
            each["name"]: each.get("subscribers", ())
            for each in (*self._latest, *gather(self._actors, self._leaving(prepared, {"queue", "capture"})))
        }
        by_queue = {
            each.name: [
                f"queue:{each.name}",
                *(f"capture:{one.name}" for one in prepared.captures if one.queue == each.name),
            ]
            for each in prepared.queues
        }
        return lambda queue: [found for name in by_queue.get(queue, ()) for found in said.get(name, ())]

    def _leaving(self, prepared: TopologySpec, kinds: Collection[str]) -> tuple[Component, ...]:
        """Components that leave with this edit, or are renamed; they still run."""
        known = {status["name"] for status in self._latest}
        return tuple(each for each in components_of(prepared) if each.kind in kinds and each.name not in known)

    def _earlier_shapes_on_the_way(self, prepared: TopologySpec | None) -> Iterator[Finding]:
        """See `on_the_way`. Apply processes that leave with this edit, or are renamed, still run, and are asked, too."""
        watermarks = self._watermarks(self._latest)
        if self._shapes and prepared is not None:
            watermarks |= self._watermarks(gather(self._actors, self._leaving(prepared, {"apply"})))
        return on_the_way(self._shapes, prepared, self._spec, watermarks)

    def _watermarks(self, statuses: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """What each apply process lets its queue forget, as it said last.

        Not its low watermark: for a table that is copied beside, the queues keep what is below that, and send it again
        when one of them dies.
        """
        found = {
            status["name"].removeprefix("apply:"): status.get("told_scn")
            for status in statuses
            if status["name"].startswith("apply:")
        }
        return {name: int(scn) for name, scn in found.items() if scn}

    def _follow_shapes(self) -> None:
        """Mark from where on tables have no earlier shape, once everything runs as wanted.

        Forget those that have passed.
        """
        if not self._shapes or self._phase != "RUNNING":
            return
        shapes = marked(forgotten(self._shapes, self._spec.applies, self._watermarks(self._latest)), self._shape_marker)
        if shapes != self._shapes:
            self._save_desired({**self._desired(), "earlier_shapes": shapes_as_json(shapes)})
            self._shapes = shapes

    def _shape_marker(self, source: str) -> int | None:
        """A marker in a source's log.

        None: it is away, or a client on the way of its changes may still run by an earlier topology.
        """
        clients = {f"capture:{each.name}" for each in self._spec.captures if each.source == source}
        clients |= {f"propagation:{each.name}" for each in self._spec.propagations if source in each.sources}
        running = clients & {component.name for component in self._components}
        # One that does not answer may be busy with what it took by its old rules.
        is_settled = self._answers(source) and all(
            self._labels.get(name) == self._edit.labels[name] for name in running
        )
        if not is_settled or self._clock.monotonic() < self._mark_at.get(source, 0.0):
            return None
        try:
            return int(self._actors.call(f"site:{source}", "write_marker", b"shapes", timeout_s=MARKER_TIMEOUT_S))
        except StreamsError:
            self._mark_at[source] = self._clock.monotonic() + NOTE_INTERVAL_S
            return None

    def _stopped_against_edit(self) -> tuple[Finding, ...]:
        """Stopped components that the topology bypasses, or has under another name or elsewhere.

        Bypassed for one source at least. What they hold back would be applied.
        """
        before = prepared_topology(self._spec.state_dir)
        partly, taken, elsewhere = (
            ({}, {}, {})
            if before is None
            else (newly_bypassed(before, self._spec), replaced(before, self._spec), moved(before, self._spec))
        )
        bypassed = {
            **self._bypassed,
            **{component: partly[component.name] for component in self._components if component.name in partly},
        }
        stopped: set[str] = set()
        asked = (*bypassed, *taken, *elsewhere)
        for site in {component.site for component in asked}:
            names = [component.name for component in asked if component.site == site]
            # One that leaves may be away, and the edit may be because of that: then nobody knows.
            with contextlib.suppress(*(() if site in {each.name for each in self._spec.sites} else (StreamsError,))):
                stopped |= set(self._actors.call(f"site:{site}", "stopped", names))
        # Sites of one machine have one record, so there such a component stays stopped.
        lifted = [
            c
            for c, site in elsewhere.items()
            if c.name in stopped and not self._actors.call(f"site:{site}", "stopped", (c.name,))
        ]

        def finding(component: Component, problem: str, *, at: str = "", instead: str = "", then: str = "") -> Finding:
            name = component.name.partition(":")[2]
            return Finding(
                path=f"{component.kind}s.{name}",
                problem=f"is stopped{at}, and {problem}: the changes that it holds back would be applied",
                fix=f"{instead}start it with `headrace start FILE {name}`{then}",
            )

        again = " and run `headrace up` again: {} can be stopped then"
        return (
            *(
                finding(
                    c,
                    f"{by} would bypass it"
                    f" ({'combined capture and apply' if by.startswith('capture:') else 'direct dequeuing'})",
                    then=", or write combined: never into the file",
                )
                for c, by in bypassed.items()
                if c.name in stopped
            ),
            *(
                finding(
                    c,
                    f"{by} would take its place, which is not",
                    instead="keep its name in the file; or ",
                    then=again.format(by),
                )
                for c, by in taken.items()
                if c.name in stopped
            ),
            *(
                finding(
                    c,
                    f"would not be at {elsewhere[c]}",
                    at=f" at {c.site}",
                    instead=f"leave it at {c.site}; or ",
                    then=again.format("it"),
                )
                for c in lifted
            ),
        )

    def _scn_findings(self, before: TopologySpec | None) -> tuple[Finding, ...]:
        """Capture processes that are new or moved and would not find the redo that is needed, and SCNs that cannot be had."""
        statuses = {status["name"]: status for status in self._latest}

        def oldest_scn(source: str, site: str) -> Scn | None:
            try:
                return Scn(self._actors.call(keeper_of(source, site), "oldest_scn", timeout_s=PREFLIGHT_TIMEOUT_S))
            except StreamsError:
                return None  # it has no redo yet, or is away: then what is missing is found when it is mined

        def applied_scn(apply: ApplySpec) -> Scn | None:
            # what is above comes again after a crash of the destination
            found = statuses.get(f"apply:{apply.name}", {}).get("recorded_scn")
            return Scn(int(found)) if found else None

        return scn_findings(before, self._spec, oldest_scn=oldest_scn, applied_scn=applied_scn)

    def _preflight_tables(self, apply: ApplySpec) -> tuple[Finding, ...]:
        """Compare the tables that will arrive at an apply process with the destination's tables."""
        ways = ways_to(self._spec, apply)
        versions: tuple[TableVersion, ...] = self._actors.call(
            f"site:{apply.source}", "table_versions", captured_by(ways), timeout_s=PREFLIGHT_TIMEOUT_S
        )
        self._names.setdefault(apply.source, {}).update(
            {int(version.object_number): TableName.of(version) for version in versions}
        )
        findings, fitting = arrival_findings(apply, ways, versions, ways_before(self._spec, apply))
        came, captured = arriving(ways, fitting), arriving(ways, captured_of(self._actors, apply.source))
        domains: tuple[TableShape, ...] = self._actors.call(
            f"site:{apply.source}",
            "domain_shapes",
            tuple(TableName.of(table.source) for table in came),
            timeout_s=PREFLIGHT_TIMEOUT_S,
        )
        found: tuple[Finding, ...] = self._actors.call(
            f"site:{apply.site}",
            "preflight_tables",
            tuple(table.destination for table in came),
            apply.name,
            apply.conflicts,
            apply.tables,
            {TableName.of(table.destination): table.source.identity for table in captured},
            tuple(table.destination for table in arriving(ways, domains)),
            {TableName.of(table.destination): TableName.of(table.source) for table in came},
            timeout_s=PREFLIGHT_TIMEOUT_S,
        )
        return (*findings, *found, *unseen_conflicts(self._spec, apply, came))

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
        return self._recorded_tables(source) if self._spec.site(source).database.has_admin else None

    def _told_tables(self, source: str) -> Receivers | None:
        """The tables that an apply process of a source is told to take; None: those that are captured when it begins."""
        return self._recorded_tables(source) if f"site:{source}" in self._unseen else self._noted_ahead(source)

    def _recorded_tables(self, source: str) -> Receivers | None:
        """The tables of a source that are recorded as taken up; None: an earlier version prepared it."""
        stored = self._desired().get("receivers", {}).get(source)
        return None if stored is None else from_json(Receivers, stored)

    def _prepare(self) -> None:
        ending = self._to_end()
        # An apply process would apply an unknown table's changes from the beginning and not copy it. So it ends before
        # the first change of such a table can arrive, and restarts with all tables.
        applies = [name for name in ending if name.startswith("apply:")]
        self._actors.end(applies, timeout_s=SHUT_DOWN_TIMEOUT_S)
        self._clear_returning()
        for site in self._sites:
            with self._on_record(site.name):
                ran = self._actors.call(
                    site.name, "prepare", self._for(site.name), self._new(), timeout_s=PREPARE_TIMEOUT_S
                )
            self._statements[site.name] = list(ran)
        # Preparing can take long: an operator may have stopped one of them meanwhile. The apply processes that have
        # ended by now begin again when `up` repeats this. Until then the record is behind what is prepared.
        if stopped := self._stopped_against_edit():
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
        noted = receivers_of(self._actors, self._spec, self._names)
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
        if self._must_note_kept:
            self._note_kept(
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

    @contextlib.contextmanager
    def _on_record(self, site: str) -> Iterator[None]:
        """Have on record that a source is being prepared, until it is recorded with which tables.

        The controller may die, or get no answer, while a statement waits for a table that a user has locked: the
        statement goes on, and captures the table later. Or it dies behind it: the site has taken the table up, and does
        not name it as new any more.
        """
        before = self._unseen
        if site in self._sources:
            self._note_unseen(before | {site})
        try:
            yield
        except StreamsError as error:
            # Said by the database: the statement has ended. But where an administrator captures the tables, nothing of
            # this is undone: the site may have taken them up before it failed as a destination.
            if error.context.get("sqlstate") and not self._spec.site(site.removeprefix("site:")).database.has_admin:
                self._note_unseen(before)
            raise

    def _note_unseen(self, unseen: frozenset[str]) -> None:
        # until the first set-up has ended, no apply process begins in any case
        if unseen != self._unseen and (desired := self._desired()):
            self._save_desired({**desired, "unseen": sorted(unseen)})
            self._unseen = unseen

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
            if f"site:{apply.source}" in {*uncaptured, *self._unseen}
        }
        leaving = {each.component for each in (*self._left, *left_by(self._edit.before, self._spec))}
        return sorted((ending | with_new_tables) & present - {site.name for site in self._sites} - leaving)

    def _clear_returning(self) -> None:
        """Let sites that are sources again first clear what was left of their earlier time.

        The slot may be gone, and its redo with it.
        """
        sources, sites = {capture.source for capture in self._spec.captures}, {site.name for site in self._spec.sites}
        for each in self._left:
            if each.name in sources:
                self._actors.call(each.component, "end_source", timeout_s=CLEAR_TIMEOUT_S)
        left = (
            each if each.name not in sites else replace(each, is_removed=False)
            for each in self._left
            if each.name not in sources
        )
        self._save_left(tuple(each for each in left if each.slot or each.is_removed))

    def _renew_certificates(self) -> None:
        """Once an hour: a topology may run for longer than the certificates live that `up` made."""
        if self._clock.monotonic() < self._renew_at or not makes_certificates(self._file):
            return
        self._renew_at = self._clock.monotonic() + RENEWAL_INTERVAL_S
        from actors.security.upkeep import keep_certificates  # cryptography: commands begin without it

        try:
            made = keep_certificates(self._file, now=datetime.fromtimestamp(self._clock.time_us() / 1e6, UTC))
        except ConfigError as error:
            # `check` warns a month before their end
            log.warning("%s: certificates are not renewed now: %s", self.name, error.message)
        else:
            log.info("%s: certificates renewed: %s", self.name, ", ".join(made) or "none is due")

    def _clear_left(self) -> None:
        """Let sites that an edit left clear what is of no use there any more; one that does not answer is asked again."""
        if not (self._left and self._is_created):
            return
        self._present = self._actors.names()
        ready = [each for each in self._left if each.component in self._present - self._outdated()]
        if not ready or self._clock.monotonic() < self._clear_at:
            return
        self._clear_at = self._clock.monotonic() + CLEAR_INTERVAL_S
        for each in ready:
            try:
                self._actors.call(each.component, "status", timeout_s=GATHER_TIMEOUT_S)
                self._actors.call(each.component, "end_source", timeout_s=CLEAR_TIMEOUT_S)
                if each.is_removed:
                    self._actors.call(each.component, "stop_server", timeout_s=SHUT_DOWN_TIMEOUT_S)
            except StreamsError as error:
                self._left_problems[each.name] = error.message
                continue
            self._save_left(tuple(other for other in self._left if other != each))

    def _described_left(self, each: LeftSite) -> dict[str, Any]:
        return {
            **as_json(each),
            "problem": self._left_problems.get(each.name, ""),
            "is_running": each.component in self._present or not each.is_removed,
        }

    def _save_left(self, left: tuple[LeftSite, ...]) -> None:
        if left != self._left:
            self._save_desired({**self._desired(), "left": [as_json(each) for each in left]})
            self._left = left

    def _note_receivers(self) -> None:
        """Once everything runs as wanted, record which apply process gets which table; until then the old record holds.

        What is recorded is what was so when the databases were prepared, also by a controller that started since.
        """
        is_settled = (
            self._phase == "RUNNING"
            and not self._outdated()
            and all(self._answers(site.name) for site in self._spec.sites)
        )
        if not (self._must_note_receivers and is_settled and self._clock.monotonic() >= self._note_at):
            return
        self._note_at = self._clock.monotonic() + NOTE_INTERVAL_S
        with contextlib.suppress(StreamsError):  # a database is away: record it later
            stored = self._desired().get("receivers")
            noted = (
                receivers_of(self._actors, self._spec, {})
                if stored is None  # an earlier version prepared them
                else {source: from_json(Receivers, document) for source, document in stored.items()}
            )
            note_receivers(self._actors, self._spec, noted)
            self._must_note_receivers = False
            self._save_desired({**self._desired(), "receivers_noted": True})

    @property
    def _must_note_kept(self) -> bool:
        """Whether the tables of this call of `up --keep-existing` are not recorded yet.

        A restarted controller uses the record, whatever tables exist by then.
        """
        return bool(self._keep_call) and self._desired().get("keep_call") != self._keep_call

    def _recorded_as_kept(self) -> dict[str, tuple[str, ...]]:
        """What this call keeps. Nothing of an earlier one: a destination that was added since may hold an old copy."""
        desired = self._desired()
        if not self._keep_call or desired.get("keep_call") != self._keep_call:
            return {}
        return {apply: tuple(kept) for apply, kept in desired.get("kept_at", {}).items()}

    def _note_kept(self, kept: Mapping[str, tuple[str, ...]]) -> None:
        self._kept = dict(kept)
        self._save_desired({**self._desired(), "keep_call": self._keep_call, "kept_at": self._kept})

    def _settled(self) -> None:
        self._phase, self._is_created, self._repeats = "RUNNING", True, False

    @property
    def _desired_file(self) -> Path:
        return self._spec.state_dir / PREPARED_FILE

    def _desired(self) -> dict[str, Any]:
        """The record of the last prepared topology; empty: there is none."""
        try:
            document: dict[str, Any] = json.loads(self._desired_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except json.JSONDecodeError as error:
            # As if nothing had been prepared, a lost slot would be made again, and the changes in between would be
            # missing.
            raise ConfigError(
                f"{self._desired_file} is damaged: {error}",
                hint="restore it, or remove it: then `headrace up` prepares everything anew",
            ) from error
        return document

    def _new(self) -> tuple[str, ...]:
        """Components that the topology did not have when it was last prepared.

        They may have been part of it earlier, but what they left then is useless: the log has advanced without them.
        """
        before = self._desired().get("labels")
        return () if before is None else tuple(c.name for c in self._components if c.name not in before)

    def _gone(self) -> tuple[str, ...]:
        """Components that the topology had when it was last prepared, and that are no part of it any more or bypassed."""
        wanted = {component.name for component in self._components}
        return tuple(name for name in self._desired().get("labels", ()) if name not in wanted)

    def _save_prepared(self, noted: Mapping[str, Receivers]) -> None:
        left = tuple(dict.fromkeys((*self._left, *left_by(self._edit.before, self._spec))))
        self._shapes = left_shapes(self._shapes, prepared_topology(self._spec.state_dir), self._spec)
        self._save_desired(
            {
                **self._desired(),
                "topology": self._spec.name,
                "file": str(self._spec.file),
                "prepared": self._fingerprint,
                "spec": spec_to_json(self._spec),
                **self._edit.recorded(),
                "splits": [as_json(each) for each in self._splitting.splits],
                "earlier_shapes": shapes_as_json(self._shapes),
                "identities": self._identities,
                "left": [as_json(each) for each in left],
                "receivers_noted": False,
                "receivers": {source: as_json(receivers) for source, receivers in noted.items()},
                "unseen": [],
            }
        )
        self._unseen = frozenset()
        self._must_note_receivers, self._left = True, left
        self._splitting.in_force()

    def _save_desired(self, document: Mapping[str, Any]) -> None:
        self._desired_file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._desired_file, json.dumps(document, indent=1) + "\n")

    # ------------------------------------------------------------------ observing

    def _observe(self) -> None:
        latest = gather(self._actors, self._observed())
        self._find_absent_nodes(latest)
        self._find_empty_folders(latest)
        self._find_left_behind(latest)
        now, now_us = self._clock.monotonic(), self._clock.time_us()
        for status in latest:
            self._add_rates(status, now)
            for time_us, scn in status.pop("source_samples", ()):
                # The site reports when it asked its database; an old answer proves nothing about the present.
                self._samples.setdefault(status["site"], PositionSamples()).add(int(time_us), Scn(int(scn)))
        self._latest, self._latest_us = latest, now_us
        self._seen_labels |= {name: label for name, label in self._labels.items() if label is not None}

    def _find_absent_nodes(self, statuses: list[dict[str, Any]]) -> None:
        """Say of sites that do not answer whether there is a node on which they could run."""
        away = [
            status for status in statuses if status["state"] == "UNREACHABLE" and self._spec.site(status["site"]).node
        ]
        if not away:
            return
        with contextlib.suppress(StreamsError):
            nodes = self._actors.nodes()
            for status in away:
                found = absence_of(status["site"], dict(self._spec.site(status["site"]).node), nodes)
                if found is None:
                    continue
                # The site says it for all of its components.
                status["problem"], status["fix"] = found if status["kind"] == "site" else ("", "")

    def _find_empty_folders(self, statuses: list[dict[str, Any]]) -> None:
        """Say of sources that were prepared, and find nothing of that on their node, that their redo is gone.

        They wait for ever.
        """
        for status in statuses:
            if self._phase == "RUNNING" and status.get("is_prepared") is False:
                status["problem"] = (
                    f"was prepared, and finds nothing of that in {self._spec.state_dir} on its node: its redo is not"
                    " there"
                )
                status["fix"] = (
                    "mount the folder's disk, or let the site run on the node that has it; if it is lost, see Backup in"
                    " docs/operations.md"
                )

    def _find_left_behind(self, statuses: list[dict[str, Any]]) -> None:
        """Name the captured tables that no apply process knows, of sources whose preparation is put off.

        Their sites may count them as taken up: they were prepared with them.
        """
        if not (self._unseen and self._is_created and self._is_put_off()):
            self._left_behind = {}
            return
        if self._clock.monotonic() >= self._name_at:
            self._name_at = self._clock.monotonic() + NOTE_INTERVAL_S
            for name in self._unseen:
                with contextlib.suppress(StreamsError):  # it is the one that is away
                    self._left_behind[name] = self._left_behind_at(name)
        for status in statuses:
            if named := self._left_behind.get(status["name"]):
                status["uncaptured_tables"] = list(dict.fromkeys((*status.get("uncaptured_tables", ()), *named)))

    def _left_behind_at(self, site: str) -> tuple[str, ...]:
        source = site.removeprefix("site:")
        if not self._answers(source) or (recorded := self._recorded_tables(source)) is None:
            return ()
        known, rules = {each.identity for each in recorded.tables}, self._spec.capture_rules(source)
        captured: tuple[CapturedTable, ...] = self._actors.call(site, "captured", timeout_s=GATHER_TIMEOUT_S)
        return tuple(
            f"{each.owner}.{each.name}"
            for each in captured
            if each.identity not in known and any(rule.keeps(each.owner, each.name) for rule in rules)
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

    def _flows(self, components: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One entry per apply process with its distance from its source. An unknown value is None, never 0."""
        by_name = {component["name"]: component for component in components}
        flows = []
        for apply in self._spec.applies:
            status = by_name.get(f"apply:{apply.name}", {})
            source = by_name.get(f"site:{apply.source}", {})
            applied_scn = status.get("low_watermark_scn") or None
            samples = self._samples.get(apply.source)
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


def build(
    spec: TopologySpec,
    name: str,
    fingerprint: str,
    environment: Mapping[str, str] | None = None,
    *,
    keep_call: str = "",
) -> Controller:
    """Make the controller's host; called by name, see `actors.runtime.Factory`.

    Args:
        spec: the topology that is wanted.
        name: `CONTROLLER`.
        fingerprint: of `spec`.
        environment: passed to every component's process (failpoints); None: nothing.
        keep_call: see `Controller`.
    """
    assert (name, fingerprint) == (CONTROLLER, fingerprint_of(spec))
    return Controller(spec, environment=environment, keep_call=keep_call)


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
