"""Controller: reconciles the running components with the topology, and reports the state of the whole topology.

Job
    Create every component of the topology, prepare the databases before anything streams, recreate missing or
    outdated components, and collect the status of all components within a bounded time.

Main path
    Controller.step -> Reconciler.reconcile (components) -> Observation.look -> SetUp.advance (sites, preflight, prepare)
    -> SplitEdits.next. All of them work towards one `DesiredTopology`.

States
    STARTING SITES   waiting for every site's database. Memory only, like all states except the last part of RUNNING.
    PREFLIGHT        checking whether every database meets the topology's requirements.
    REFUSED          a preflight found errors: nothing was created. `headrace up` tries again. Also when an operator stopped a
                     component that the topology bypasses (`topology.routing.combined`) or renames: the change would lift
                     the stop.
    PREPARING        publications, slots and catalogs are created in the databases.
    RUNNING          all components exist and keep themselves running. The fingerprint of the prepared topology is
                     persisted: a restarted controller does not silently recreate a lost slot.
    While components run, `headrace up` repeats these states when the rules select new tables, or when the topology has
    changed. The components keep running meanwhile, even if the change is refused. When everything is prepared,
    components adopt their part of the change or are created again. Components whose part is unchanged are left alone
    (`topology.edits.changes`, `actors.control.edit`).

    What runs is the topology of the file plus its split streams (`actors.splitting.phases`). Splitting and merging are
    edits too; they need no preparation and no database, so an unreachable destination delays none of them.

    A site that does not answer, for example because its node is down, delays only the work at that site. Ray starts its
    components when a node for them is back (`actors.cluster.nodes`). The first set-up, and an edit of the file, wait for
    every site of the file.

Durable when
    `desired.json` contains the prepared topology without secrets, each component's label, the split streams, and the
    shapes of tables that left (`actors.control.earlier_shapes`). It is written after the last `prepare` has returned.
    All preparations are idempotent, so the controller that follows one killed in the middle repeats them. When the
    topology is prepared again, for new tables, the file names the sources whose preparation was begun until all of it is
    recorded (`actors.control.unrecorded`). Their apply processes wait while the preparation is about to be repeated;
    while it cannot be repeated, because a site is away, they run with the tables of the record. A component that the
    file does not name is new and starts from scratch: it does not run before the file is written. The controller runs on
    the cluster's head, where the file is.

Worked flow
    up -> site:dbs1, site:dbs2 created -> both READY -> preflight of both without errors -> prepare of both ->
    queues, propagations, captures and applies created together -> the capture retries until
    its site and its queue answer -> RUNNING; queue:q_dbs2 is killed -> Ray starts it again -> nothing to do here
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from actors.alerts.sending import Alerts
from actors.control.bookkeeping import Bookkeeping
from actors.control.calls import Calls
from actors.control.desired import CONTROLLER, DesiredTopology, fingerprint_of
from actors.control.edit import Edit
from actors.control.launcher import Launcher
from actors.control.observation import Observation, every_component, found_problems, gather, told_scns
from actors.control.preflight import Preflight
from actors.control.preparation import SHUT_DOWN_TIMEOUT_S, Preparation
from actors.control.reconciler import Reconciler
from actors.control.set_up import Phase, SetUp
from actors.hosting.host import Host
from actors.security.renewal import Renewal
from actors.splitting.split_edits import SplitEdits
from headrace.base.errors import ConfigError, PropagationError
from headrace.status.controllers import ControllerStatus
from headrace.status.overview import Overview
from headrace.status.plain import plain_overview

if TYPE_CHECKING:
    from actors.hosting.runtime import ActorSystem
    from headrace.base.clock import Clock
    from topology.edits.changes import Component
    from topology.spec import TopologySpec

__all__ = ["CONTROLLER", "SHUT_DOWN_TIMEOUT_S", "Controller", "build", "fingerprint_of"]

log = logging.getLogger("headrace")

OBSERVE_INTERVAL_S = 1.0  # recent enough for an operator, and ten calls a second cost nothing
_STARTING_POLL_S = 0.1  # while `up` waits


class Controller(Host):
    """The controller of the file's topology.

    Args:
        actors: runs the components; None: the actor system of this process.
        environment: passed to every component's process (failpoints).
        keep_call: identifies a call of `up --keep-existing`: instantiation keeps the rows of destination tables, only
            for the tables that exist at this call. Empty: a call without that option.
        clock: None: the machine's clock.
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
        if actors is None:
            from actors.hosting.runtime import actors_of

            actors = actors_of(spec.name)
        self._actors = actors
        self._file, self._file_fingerprint = spec, fingerprint_of(spec)
        # For an overview before `open` has read the record of what is prepared.
        self._desired = DesiredTopology(spec=spec, fingerprint=self._file_fingerprint, edit=Edit(labels={}))
        self._books = Bookkeeping(spec.state_dir, actors, self._clock, keep_call=keep_call)
        self._observation = Observation(actors, self._clock)
        self._launcher = Launcher(actors, environment or {})
        self._reconciler = Reconciler(actors, self._launcher, self._observation, self._books)
        preflight = Preflight(actors, self._observation, self._books.record, self._books.shapes)
        self._preparation = Preparation(self._books, actors, preflight)
        self._set_up = SetUp(actors, self._observation, self._books, preflight, self._preparation)
        self._splits = SplitEdits(spec, self._books, actors, self._observation, self._clock)
        self._calls = Calls()
        self._renewal = Renewal(spec, self._clock)
        self._alerts = Alerts(spec, self._clock)

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """Connect to the actor system; start from what is already prepared."""
        self._desired = self._splits.open()
        self._preparation.open(self._desired)
        self._books.open()
        self._set_up.open()

    def failed(self) -> None:
        """Look at alerts: only the controller can report that it cannot bring up what the file says."""
        try:
            self._alerts.look(self.seen)
        except Exception:  # its thread must not end over it: it may succeed the next time
            log.exception("%s: no alert is sent now", self.name)

    def end(self) -> bool:
        """End the thread, then alerts, which are sent even while the controller is closed between two attempts."""
        ended = super().end()
        self._alerts.stop()
        return ended

    def step(self) -> float:
        """Reconcile, advance the set-up by one step, and collect the status of all components."""
        self._renewal.look()
        # Not during a preparation: it may have missed the reason for a call of `up`.
        if not self._set_up.is_changing and self._calls.begin():
            self._set_up.begin_again()
        self._reconciler.reconcile(
            self._desired,
            is_prepared=self._preparation.is_done,
            is_put_off=self._set_up.is_put_off(self._desired),
        )
        self._observe()
        self._set_up.advance(self._desired, in_force=self._splits.streams.in_force)
        if self._set_up.has_answer:
            self._calls.settle()
        if self._preparation.is_done and not self._set_up.is_changing:
            self._desired = self._splits.next(self._desired)
        self._keep_books()
        self._alerts.look(self.seen)  # at the end: `failed` looks after a step that raised earlier
        is_settled = self._set_up.phase == Phase.REFUSED or self._runs_as_desired()
        return OBSERVE_INTERVAL_S if is_settled else _STARTING_POLL_S

    def detail_state(self) -> str:
        """Return the phase of the set-up."""
        return self._set_up.phase.value

    def details(self) -> ControllerStatus:
        """Return the controller's own facts; `overview` has those of all components."""
        return ControllerStatus(
            name=self.name,
            fingerprint=self._file_fingerprint,
            phase=self._set_up.phase.value,
            calls=self._calls.described(),
        )

    # ------------------------------------------------------------------ what the command line asks

    def overview(self) -> dict[str, Any]:
        """Return `seen` as plain data, for other processes."""
        return plain_overview(self.seen())

    def seen(self) -> Overview:
        """Return the state of the whole topology at the last observation."""
        # Preparing a database can take long, and `open` may fail; `step` observes nothing during either.
        asks_now = self._set_up.phase == Phase.PREPARING or not self._observation.at_us
        latest = gather(self._actors, self._observed()) if asks_now else self._observation.latest
        desired = self._desired
        components = every_component(desired, latest, desired.outdated(self._observation.labels))
        status = self.status()
        error = status.last_error if status.state in {"RETRYING", "ABORTED"} else None
        return Overview(
            topology=desired.spec.name,
            state=status.state,
            fingerprint=self._file_fingerprint,
            problem=error.message if error else "",
            fix=error.hint if error else "",
            at_us=self._clock.time_us() if asks_now else self._observation.at_us,
            findings=found_problems(self._set_up.findings),
            statements={site: tuple(statements) for site, statements in self._preparation.statements.items()},
            components=components,
            flows=self._observation.flows(components, desired.spec.applies),
            splits=self._splits.described(desired, components),
            left=self._books.left.described(),
            calls=self._calls.described(),
            alerts=self._alerts.described(),
        )

    def retry(self, call: str, earlier: bool = False) -> None:  # noqa: FBT001, FBT002 - arguments of actors have places, not names
        """Try the set-up again after a refusal, or for tables that were created since; idempotent.

        `overview` shows when it is done.

        Args:
            call: identifies the call of `headrace up`. It ends what an earlier call keeps (`--keep-existing`).
            earlier: an earlier controller had this call already: what a later call keeps stays kept.
        """
        if not earlier:
            self._books.kept.asked_again(call)
        self._calls.ask(call)
        self.wake()

    def split(self, name: str) -> None:
        """Request that a propagation is split off; idempotent.

        It happens when every component has its part of the last edit, possibly under a later controller.

        Raises:
            ConfigError: the propagation does not exist or cannot be split off.
            PropagationError: the controller has not begun yet.
        """
        self._ask_split(name, split=True)

    def merge(self, name: str) -> None:
        """Request that a propagation is merged when it is close enough; idempotent.

        Raises:
            ConfigError: the propagation does not exist or is not split off.
            PropagationError: the controller has not begun yet.
        """
        self._ask_split(name, split=False)

    def _ask_split(self, name: str, *, split: bool) -> None:
        if not self._observation.at_us:  # the record of splits and of requests is not read yet
            raise PropagationError(
                f"the controller of topology {self._file.name} has not begun yet",
                hint="`headrace status` says why; then ask again",
            )
        self._splits.streams.ask(name, split=split)
        self.wake()

    def recreate(self, name: str, environment: Mapping[str, str]) -> None:
        """End a component and create it with other environment variables (armed failpoints), in its own process.

        Args:
            name: full name of the component, e.g. "queue:q_dbs1".
            environment: variables added to the controller's, until the next call for this component; empty: the
                component returns to the process that it shares with others.

        Raises:
            ConfigError: the topology has no such component.
        """
        if name not in self._desired.names:
            raise ConfigError(f"no component {name} in topology {self._desired.spec.name}")
        self._launcher.recreate(name, environment)
        self.wake()

    # ------------------------------------------------------------------ inside

    def _observe(self) -> None:
        spec, is_running = self._desired.spec, self._set_up.phase == Phase.RUNNING
        self._observation.look(self._observed(), spec, is_running=is_running)
        if self._preparation.is_done and self._set_up.is_put_off(self._desired):
            self._books.unrecorded.name_tables(self._observation, spec)

    def _observed(self) -> tuple[Component, ...]:
        """The components to query: all; until an edit is prepared, the sites and what still runs, with what the edit will bypass."""
        desired = self._desired
        if self._preparation.is_done:
            return desired.components
        present = self._actors.names()
        others = (each for each in (*desired.components, *desired.bypassed) if each not in desired.sites)
        return (*desired.sites, *(each for each in others if each.name in present))

    def _keep_books(self) -> None:
        """Do the work that the record still asks for, as far as the sites answer."""
        desired, sites = self._desired, self._desired.spec.sites
        if self._runs_as_desired() and all(self._observation.answers(site.name) for site in sites):
            self._books.receivers.note(desired.spec)
        if self._set_up.phase == Phase.RUNNING:
            self._books.shapes.follow(desired.spec, told_scns(self._observation.latest), self._is_taken_over)
        if self._preparation.is_done:
            self._books.left.clear(desired.outdated(self._observation.labels))

    def _runs_as_desired(self) -> bool:
        """Return whether the set-up has ended and every component has adopted the desired topology."""
        return self._set_up.phase == Phase.RUNNING and not self._desired.outdated(self._observation.labels)

    def _is_taken_over(self, source: str) -> bool:
        """Return whether a source answers and the components on the path of its changes have adopted this topology."""
        seen, wanted = self._observation.labels, self._desired.edit.labels
        return self._observation.answers(source) and all(
            seen.get(name) == wanted[name] for name in self._desired.clients_of(source)
        )


def build(
    spec: TopologySpec,
    name: str,
    fingerprint: str,
    environment: Mapping[str, str] | None = None,
    *,
    keep_call: str = "",
) -> Controller:
    """Build the controller's host (`actors.hosting.runtime.Factory`).

    Args:
        spec: the wanted topology.
        name: `CONTROLLER`.
        fingerprint: fingerprint of `spec`.
        environment: passed to every component's process (failpoints); None: nothing.
        keep_call: as for `Controller`.
    """
    assert (name, fingerprint) == (CONTROLLER, fingerprint_of(spec))
    return Controller(spec, environment=environment, keep_call=keep_call)
