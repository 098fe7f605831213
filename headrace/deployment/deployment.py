"""A topology that can be started, connected to and ended; the basis of every verb of the command line.

Longer than 500 lines, because starting a topology means connecting, looking and asking repeatedly. `endings` ends
components, and `removal` does what `down --purge` removes.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from actors.cluster.local import LocalCluster
from actors.control.calls import SETTLED
from actors.control.observation import found_problems, gather
from actors.controller import CONTROLLER, fingerprint_of
from actors.hosting.processes import process_of
from actors.state_folder import check_owned
from headrace.base.errors import ApplyError, ConfigError, DatabaseUnavailable, HeadraceError, PropagationError
from headrace.console.status_view import STARTING, everything_runs, notes, summary_line
from headrace.databases.connectors import has_password, unused_secrets
from headrace.deployment import endings
from headrace.deployment.administrators import Administrators
from headrace.deployment.failures import LOOK_CALL_S, Failures, TablesNotCopied, together
from headrace.deployment.refusals import check_certificates, check_handlers
from headrace.deployment.remembered_cluster import RememberedCluster
from headrace.deployment.removal import Removal, stays_for_ever
from headrace.status.applies import ApplyStatus
from headrace.status.controllers import ControllerStatus
from headrace.status.overview import Overview
from headrace.status.plain import overview_of, status_of
from topology.edits.changes import bypassed_of, components_of
from topology.file.reading import read_topology
from topology.problems import nearest
from topology.routing.combined import bypassing
from topology.split import fitting, prepared_splits, with_splits

if TYPE_CHECKING:
    from actors.hosting.runtime import RayActors
    from topology.edits.changes import Component
    from topology.spec import TopologySpec

__all__ = ["Deployment", "NotReady", "NotUp", "Progress"]

POLL_S = 0.2  # between two looks of `up`
CONTROLLER_TIMEOUT_S = 5.0
OTHERS_START_S = 60.0  # a Spark application begins within twenty seconds, on a busy machine within a minute
TAKE_OVER_TIMEOUT_S = 60.0  # the sites' actors start, and the other copy's sessions end
LOST_TIMEOUT_S = 90.0  # a process whose cluster has lost its head ends within a minute
NODE_UNITS = 1000.0  # amount of every custom resource that a topology names, on the only node of a local cluster

Progress = Callable[[Overview], None]
"""Called with each new overview of the topology."""


class NotUp(ConfigError):  # noqa: N818 - the name states the condition
    """The topology does not run."""

    code = "HDR-7001"
    fix = "`headrace up FILE`."


class NotReady(ApplyError):  # noqa: N818 - the name states the condition
    """The topology did not run within the time-out of `up`; it keeps starting."""

    code = "HDR-7003"
    fix = "Wait: `headrace status FILE` shows what still starts, or why it does not."


@dataclass(slots=True)
class Deployment:
    """One topology on one Ray cluster.

    Args:
        spec: the topology of the file.
        address: address of a Ray cluster; empty: the private one of the topology's state folder.
        is_remembered: whether the address is that of the last `up`.
    """

    spec: TopologySpec
    address: str = ""
    is_remembered: bool = False
    _is_own: bool = field(default=False, init=False)  # the topology at the address is known to run from this folder

    @classmethod
    def read(cls, file: Path, address: str = "", *, to_start: bool = False, to_connect: bool = True) -> Deployment:
        """Read a topology file, and the address of the cluster that it runs on.

        Args:
            file: the topology's YAML file.
            address: address of a Ray cluster ("host:port" or "auto"); empty: the last `up`'s, else the private one.
            to_start: passed to `topology.file.reading.read_topology`.
            to_connect: passed to it, too.

        Raises:
            ConfigError: the file cannot be read or has problems (`topology.problems.TopologyError`); its state folder
                may be another user's; or "auto" cannot be resolved, which does not mean that the cluster is gone.
        """
        from actors.cluster.own_ray import found_address

        spec = read_topology(file, to_start=to_start, to_connect=to_connect)
        check_owned(spec.state_dir)  # before anything in it is trusted
        remembered = "" if address else RememberedCluster(spec.state_dir).address()
        return cls(spec, found_address(address or remembered), is_remembered=bool(remembered))

    @property
    def running(self) -> TopologySpec:
        """The running topology: the file's, with the split streams (`topology.split`) that the state folder records."""
        return with_splits(self.spec, fitting(self.spec, prepared_splits(self.spec.state_dir)))

    @property
    def cluster(self) -> LocalCluster:
        """The private cluster of the state folder, whether it runs or not."""
        resources = {name: NODE_UNITS for site in self.spec.sites for name, _ in site.node}
        # One worker per process, so that all start at once, and a few for Spark's executors.
        cpus = len({process_of(self.spec, component) for component in components_of(self.spec)}) + 3
        # Components receive connection strings as arguments. An environment variable would stay in every process of
        # Ray, Spark and the embedded servers for as long as it runs.
        secrets = frozenset(name for site in self.spec.sites for name in site.database.environment)
        secrets |= frozenset(self.spec.alerts.environment if self.spec.alerts is not None else ())
        secrets |= unused_secrets(site.database.dsn for site in self.spec.sites if site.database.kind == "postgres")
        # The shell may also have the secrets of other files.
        secrets |= frozenset(name for name, value in os.environ.items() if has_password(value))
        return LocalCluster(self.spec.state_dir, cpus=cpus, resources=resources, secrets=secrets)

    # ------------------------------------------------------------------ reaching it

    def is_cluster_there(self) -> bool:
        """Return whether a cluster is known: one that was named or remembered, or the private one, if it answers."""
        return bool(self.address or self.cluster.address())

    def connect(self) -> RayActors:
        """Connect to the cluster on which the topology runs.

        Raises:
            NotUp: the topology does not run.
            ConfigError: on that cluster, a topology of this name runs from another folder.
        """
        address = self.address or self.cluster.address()
        if address is None:
            facts = self.cluster.facts()
            if facts is not None and facts.ready:
                raise NotUp(
                    f"topology {self.spec.name} no longer runs: its Ray cluster died",
                    hint=f"run `headrace up FILE`; {self.spec.state_dir / 'logs'} may show the cause",
                )
            raise NotUp(f"topology {self.spec.name} is not up", hint="headrace up FILE")
        try:
            actors = _connect(address, self.spec.name, {} if self.address else self.cluster.client_environment())
        except ConfigError as error:
            if not self.is_remembered:
                raise
            raise NotUp(
                f"topology {self.spec.name} was started on another Ray cluster: {error.message}",
                hint="start that cluster, or forget it with `headrace down FILE`",
            ) from error
        if self.address:
            self._check_folder(actors)
        return actors

    def _check_folder(self, actors: RayActors) -> None:
        """Refuse a topology that runs under the same name from another state folder.

        A private cluster belongs to its folder; a user's cluster is shared by many.
        """
        folder = None if self._is_own else actors.state_dir()
        if folder == self.spec.state_dir:
            self._is_own = True
        elif folder is not None:
            raise ConfigError(
                f"topology {self.spec.name} runs on the Ray cluster at {self.address} from {folder}, not from"
                f" {self.spec.state_dir}",
                hint="use the topology file beside that folder; if this is a copy of the project, give its topology"
                " another name; if the project was moved while it ran, move it back, run `headrace down`, and then"
                " move it",
            )

    def disconnect(self) -> None:
        """Disconnect from the cluster; everything keeps running. Idempotent."""
        from actors.hosting.runtime import disconnect

        disconnect()

    def overview(self) -> Overview:
        """Return the topology's state as reported by the controller or, if that is dead, by the components.

        Raises:
            NotUp: the topology does not run, or was ended while this process was connected.
        """
        actors = self.connect()
        try:
            return overview_of(actors.call(CONTROLLER, "overview", timeout_s=CONTROLLER_TIMEOUT_S))
        except PropagationError as error:
            if not self.address and self.cluster.address() is None:
                raise NotUp(f"topology {self.spec.name} was ended in the meantime", hint="headrace up FILE") from error
            return Overview(
                topology=self.spec.name,
                state="CONTROLLER UNREACHABLE",
                problem=error.message,
                at_us=time.time_ns() // 1000,
                components=tuple(gather(actors, components_of(self.running))),
            )

    def component(self, name: str) -> str:
        """Return the full name of a component given by full or short name.

        Raises:
            ConfigError: no component, or several, have that name.
        """
        matches = self._named(name)
        if not matches and (bypassed := self._bypassed(name)) is not None:
            component, by = bypassed
            how = (
                "sends its changes straight to the apply process"
                if by.startswith("capture:")
                else "dequeues directly from the queue before it"
            )
            raise ConfigError(
                f"{component.name} does not run: {by} {how}", hint=f"use {by}, or write combined: never into the file"
            )
        if not matches:
            names = [component.name for component in components_of(self.running)]
            raise ConfigError(f"no component {name!r} in topology {self.spec.name}", hint=nearest(name, names))
        if len(matches) > 1:
            raise ConfigError(f"{name!r} matches several components", hint=f"use one of {', '.join(matches)}")
        return matches[0]

    def _named(self, name: str) -> list[str]:
        """Return the running components of the file with this full or short name."""
        names = [component.name for component in components_of(self.running)]
        return [full for full in names if name in (full, full.partition(":")[2])]

    def _bypassed(self, name: str) -> tuple[Component, str] | None:
        """Return the bypassed component with this full or short name, and the component that bypasses it.

        None: no component with this name is bypassed.
        """
        for component, by in bypassed_of(self.spec).items() if not self._named(name) else ():
            if name in (component.name, component.name.partition(":")[2]):
                return component, by
        return None

    def switch(self, name: str, *, on: bool) -> str:
        """Start or stop a component; it stays so across restarts.

        A component that the file bypasses still runs until `up` has ended it. If it does not run, starting it clears an
        earlier stop, because `up` refuses to bypass a stopped component.

        Args:
            name: full or short name of the component.
            on: whether to start it or to stop it.

        Returns:
            A line of text that says what was done.

        Raises:
            ConfigError: no component, or several, have that name, or it is bypassed and not stopped.
        """
        bypassed = self._bypassed(name)
        full = self.component(name) if bypassed is None else bypassed[0].name
        actors = self.connect()
        if bypassed is not None and full not in actors.names():
            site = f"site:{bypassed[0].site}"
            if not on or not actors.call(site, "stopped", (full,)):
                self.component(name)  # raises the error that says why it does not run
            actors.call(site, "forget_stops", (full,))
            return f"{full}: no longer stopped; {bypassed[1]} bypasses it"
        actors.call(full, "start_component" if on else "stop_component")
        without = (
            ()
            if on or bypassed is not None or not full.startswith("queue:")
            else bypassing(self.running, full.partition(":")[2])
        )
        others = (
            f"; {', '.join(without)} {'bypasses it and continues' if len(without) == 1 else 'bypass it and continue'}"
            if without
            else ""
        )
        return f"{full}: {'started' if on else 'stopped'}{others}"

    def embedded_shells(self) -> list[str]:
        """Return the command that opens a shell, for each running embedded server, as lines of text."""
        from actors.site.connection import embedded_server

        servers = [(s.name, embedded_server(self.spec, s)) for s in self.spec.sites if s.database.kind == "embedded"]
        return [
            f"{name}: a shell on its server: {server.shell_command()}" for name, server in servers if server.is_running
        ]

    # ------------------------------------------------------------------ starting

    def up(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        keep_existing: bool = False,
        take_over: bool = False,
        wait: bool = True,
        timeout_s: float | None = None,
        progress: Progress | None = None,
    ) -> Overview:
        """Start missing components and update outdated ones; idempotent. Return the last overview.

        Args:
            environment: variables for the components' processes (armed failpoints).
            keep_existing: destination tables keep their rows, and only the instantiation SCN is set. This applies only
                to tables that exist at this call.
            take_over: take the databases from a copy of this topology that runs elsewhere.
            wait: wait until every component runs and every table is instantiated; False: until everything is created.
            timeout_s: longest wait in seconds; None: unlimited.
            progress: called with each overview while waiting.

        Raises:
            NotReady: time-out; the message says what it waited for, and everything keeps starting.
            TablesNotCopied: everything runs, but these tables need an operator.
            HeadraceError: why it failed. A refused preflight is no error: the overview's state is then REFUSED.
        """
        from headrace.deployment.first_claim import claimed

        check_certificates(self.spec, self.address, lambda: len(self.connect().nodes()))
        check_handlers(self.spec)
        if self.address:
            self._check_alone()
        administrators = Administrators(self.spec, keep_existing=keep_existing)
        # Components that run here already hold the claims on their databases.
        with nullcontext() if self.address or take_over or self.cluster.address() else claimed(self.spec):
            administrators.begin()
            if not self.address:
                self.cluster.start()
        if self.address:
            RememberedCluster(self.spec.state_dir).remember(self.address)
        call, was_asked = secrets.token_hex(8), False
        self._ensure_controller(dict(environment or {}), keep_call=call if keep_existing else "")
        if take_over:
            self._take_over()
        failures, failed_at = Failures(self._look_at_tables), None
        # At the first look, because a component may have to run for `up` to proceed; and again when the databases match
        # the file, which the component may have needed.
        tried_again: set[bool] = set()
        began = time.monotonic()
        while True:
            overview = self.overview()
            if progress is not None:
                progress(overview)
            self._check_same(overview)
            if (state := (overview.calls or {}).get(call)) is None:
                was_asked |= self._ask(call, earlier=was_asked)
            if state == SETTLED and overview.state != "REFUSED" and administrators.publishes_late():
                call = secrets.token_hex(8)  # a new call: the controller may keep rows for one that came in between
                continue
            if state == SETTLED and (overview.state == "REFUSED" or _is_running(overview, ready=wait)):
                told = administrators.end(is_refused=overview.state == "REFUSED")
                return replace(overview, findings=(*overview.findings, *found_problems(told)))
            is_settled = state == SETTLED
            if is_settled not in tried_again:
                tried_again.add(is_settled)
                self._start_again(overview)
                failures.started(overview, once_more=not is_settled)
            errors = failures.told(overview, time.monotonic(), is_settled=is_settled)
            failed_at = (failed_at or time.monotonic()) if errors else None
            if failed_at is not None and (
                not _others_start(overview, errors) or time.monotonic() - failed_at > OTHERS_START_S
            ):
                raise together(errors, everything_runs=everything_runs(overview))
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise self._not_ready(overview, timeout_s)
            time.sleep(POLL_S)

    def _check_same(self, overview: Overview) -> None:
        """Refuse to wait if another call of `up` has replaced the topology.

        Raises:
            ConfigError: the controller runs by another file, or by another version of this one.
        """
        if overview.fingerprint not in {None, fingerprint_of(self.spec)}:
            raise ConfigError(
                f"topology {self.spec.name} runs by another file, or another version of {self.spec.file}: another"
                " `headrace up` has replaced this one",
                hint="`headrace plan FILE` shows what differs; run `headrace up` again if this file is the right one",
            )

    def _ask(self, call: str, *, earlier: bool) -> bool:
        """Ask the controller to look again for this call; return False if it does not answer."""
        try:
            self.connect().call(CONTROLLER, "retry", call, earlier)
        except PropagationError:
            return False
        return True

    def _look_at_tables(self, name: str) -> bool:
        """Have an apply process check its uncopied tables before they are reported; return whether it did."""
        try:
            return bool(self.connect().call(name, "look_at_tables", timeout_s=LOOK_CALL_S))
        except HeadraceError:
            return False  # it is starting or gone, and checks them by itself

    def _check_alone(self) -> None:
        """Refuse to start a second copy at the address while the topology runs on another cluster.

        Both would write the same files.

        Raises:
            ConfigError: another copy runs, or nothing answers at the address.
        """
        from actors.hosting.runtime import own_address

        private = self.cluster.address()
        if private not in {None, self.address}:
            raise self._runs_on("its private cluster on this machine")
        remembered = ""
        with suppress(ConfigError):  # a damaged file is overwritten later
            remembered = RememberedCluster(self.spec.state_dir).address()
        if remembered not in {"", self.address}:
            try:
                actors = _connect(remembered, self.spec.name, {})
                there = (
                    own_address() if CONTROLLER in actors.names() and actors.state_dir() == self.spec.state_dir else ""
                )
            except ConfigError:
                there = ""  # that cluster is gone
            self.connect()
            if there not in {"", own_address()}:  # equal addresses: the same cluster under another name
                raise self._runs_on(f"the Ray cluster at {remembered}")
        self.connect()

    def _runs_on(self, cluster: str) -> ConfigError:
        return ConfigError(
            f"topology {self.spec.name} runs on {cluster}, not on that at {self.address}",
            hint="first run `headrace down FILE` without --address and without HEADRACE_RAY_ADDRESS; or omit both here"
            " too",
        )

    def _take_over(self) -> None:
        """Let every site claim its database, even from another copy.

        Raises:
            HeadraceError: a site's actor or its database does not answer.
        """
        actors = self.connect()
        deadline = time.monotonic() + TAKE_OVER_TIMEOUT_S
        for site in self.spec.sites:
            while site.database.kind == "postgres":
                try:
                    actors.call(f"site:{site.name}", "take_over", timeout_s=TAKE_OVER_TIMEOUT_S)
                    break
                except (PropagationError, DatabaseUnavailable):
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(POLL_S)

    def _not_ready(self, overview: Overview, timeout_s: float) -> NotReady:
        places: dict[str, list[str]] = {}
        for note in notes(overview):
            if note.fix:
                places.setdefault(note.fix, []).append(
                    note.problem.partition(": ")[0] if note.is_of_table else note.component
                )
        fixes = [f"{', '.join(dict.fromkeys(of))}: {fix}" for fix, of in places.items()]
        fixes.append("it keeps starting: `headrace status FILE` shows the progress, `headrace down FILE` ends it")
        return NotReady(
            f"topology {self.spec.name} does not run after {timeout_s:g} s: {summary_line(overview)}",
            hint="; ".join(fixes),
        )

    def _start_again(self, overview: Overview) -> None:
        """Restart aborted components."""
        for component in overview.components:
            if component.state == "ABORTED":
                self.connect().call(component.name, "start_component")

    def _ensure_controller(self, environment: Mapping[str, str], *, keep_call: str) -> None:
        actors = self.connect()
        wanted = fingerprint_of(self.spec)
        if CONTROLLER in actors.names():
            try:
                status = status_of(actors.call(CONTROLLER, "status"))
            except PropagationError:
                status = ControllerStatus(name=CONTROLLER)
            settles = isinstance(status, ControllerStatus) and status.calls is not None
            if status.fingerprint == wanted and settles and not environment and not keep_call:
                actors.call(CONTROLLER, "start_component")
                return
            left = endings.kill_and_wait(self.connect(), endings.is_controller)  # first: it recreates what is missing
            if keep_call and not left:
                # End apply processes that wait for empty tables: they receive this setting only when they are created.
                endings.end_applies(actors)
                left = endings.kill_and_wait(self.connect(), endings.is_apply)
            if left:
                raise PropagationError(
                    f"{', '.join(sorted(left))} of topology {self.spec.name} {'does' if len(left) == 1 else 'do'} not"
                    f" end within {endings.GONE_TIMEOUT_S:g} s",
                    hint="run `headrace up FILE` again",
                )
        self._check_no_other_controller()
        arguments = {
            "spec": self.spec,
            "name": CONTROLLER,
            "fingerprint": wanted,
            "environment": dict(environment),
            "keep_call": keep_call,
        }
        actors.create(
            CONTROLLER,
            "actors.controller:build",
            arguments,
            process=CONTROLLER,
            state_dir=self.spec.state_dir,
            node={},
            environment=dict(environment),
        )

    def _check_no_other_controller(self) -> None:
        """Refuse to create a controller that could not start.

        This folder's controller may still run on another Ray cluster, which need not answer.

        Raises:
            ConfigError: a process of this machine still runs it after a while.
        """
        try:
            endings.wait_free(self.spec.state_dir, CONTROLLER, LOST_TIMEOUT_S)
        except PropagationError as error:
            raise ConfigError(
                f"topology {self.spec.name} runs on another Ray cluster: {error.message}",
                hint=f"first run `headrace down FILE` with the --address of that cluster; {error.hint}",
            ) from error

    # ------------------------------------------------------------------ ending

    def down(
        self,
        *,
        purge: bool = False,
        keep_servers: bool = False,
        lost: Collection[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> list[str]:
        """End everything that runs. Idempotent; also cleans up after a crash.

        Args:
            purge: also remove Headrace's objects in the databases, and the state folder.
            keep_servers: do not purge embedded servers: they keep their tables and keep running, so that the operator
                can work on the tables before the next `up`.
            lost: sites of the file that are lost for ever: the purge ends without them.
            progress: called with a line of text for each finished step.

        Returns:
            One line of text for each step that failed; empty: everything was done.
        """
        tell = progress or (lambda _: None)
        removal = Removal(self.spec, tell, keep_servers=keep_servers, lost=frozenset(lost))
        problems: list[str] = []
        try:
            actors = self.connect()
        except ConfigError as error:
            tell("no running cluster")
            problems += self._forget_address(error)
            problems += removal.from_databases(None) if purge else []
        else:
            problems += self._end_components(actors, removal, purge=purge)
            self.disconnect()
        is_known = self.cluster.facts() is not None
        self.cluster.stop()  # also removes what a copied folder records about the original's cluster
        if is_known:
            tell("cluster ended")
        if not (purge and keep_servers):
            problems += removal.stop_servers(purge=purge)
        # The folder records which database objects are Headrace's: without it they could not be removed.
        if purge and all(map(stays_for_ever, problems)):
            problems += removal.remove_state(self.cluster.file)
        elif purge and self.spec.state_dir.exists():
            problems.append(f"{self.spec.state_dir} stays until everything else is removed")
        return problems

    def _forget_address(self, error: ConfigError) -> list[str]:
        """Forget a cluster that does not answer, so that the topology can be started elsewhere."""
        if not self.address:
            return []
        RememberedCluster(self.spec.state_dir).forget()
        return [f"{error.message}: components that still run there were not ended; that cluster is forgotten"]

    def _end_components(self, actors: RayActors, removal: Removal, *, purge: bool) -> list[str]:
        endings.kill_and_wait(self.connect(), endings.is_controller)  # first: it recreates what is missing
        names = actors.names()
        drivers = [] if self.address else endings.spark_processes(actors, names)  # not ours to end on a user's cluster
        if endings.end_applies(actors):
            removal.tell("apply processes ended")
        endings.kill_and_wait(self.connect(), lambda name: not name.startswith("site:"))
        problems = endings.wait_gone(drivers)
        if purge:
            problems += removal.from_databases(actors)
        if self.address:
            problems += removal.clear_nodes(actors, names, purge=purge and not problems)
        left = endings.kill_and_wait(self.connect(), lambda _: True)
        actors.clear_away()
        if left and self.address:  # a private cluster ends with everything in it
            return [
                *problems,
                f"still running after {endings.GONE_TIMEOUT_S:g} s: {', '.join(sorted(left))}: run `headrace down` again",
            ]
        removal.tell("components ended")
        return problems


def _connect(address: str, topology: str, environment: Mapping[str, str]) -> RayActors:
    from actors.hosting.runtime import connect, prepare_process

    prepare_process(address, environment)
    return connect(address, topology)


def _is_running(overview: Overview, *, ready: bool) -> bool:
    if overview.state != "RUNNING":
        return False
    components = overview.components
    # After an edit of the file, a component with its old part is about to adopt the change or to be replaced.
    if any(component.outdated for component in components):
        return False
    missing = {"NOT CREATED", "UNREACHABLE", "ABORTED"}
    starting = STARTING | {"RETRYING"}
    if any(component.state in missing or (ready and component.state in starting) for component in components):
        return False
    applies = [each for each in components if each.kind == "apply" and each.enabled is not False]
    return not ready or all(isinstance(each, ApplyStatus) and each.ready for each in applies)


def _others_start(overview: Overview, errors: Sequence[ApplyError]) -> bool:
    """Return whether only tables have failed so far, while a component without failed tables is still starting.

    It is then not yet known whether everything else runs.
    """
    names = {error.context["component"] for error in errors if isinstance(error, TablesNotCopied)}
    return all(isinstance(error, TablesNotCopied) for error in errors) and any(
        component.state in STARTING or component.outdated
        for component in overview.components
        if component.name not in names
    )
