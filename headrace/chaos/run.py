"""`headrace chaos`: the course of one run, from the first look to the comparison of all tables.

Main path
    Chaos.run -> healthy? -> load, proxies -> for each fault of the schedule: fire, in force, undo, healed? -> caught up
      -> compared -> `Report`.

However the run ends, the faults in force are undone: frozen processes continue, limits are lifted, links are direct
again. If this process is killed, the file `chaos.json` of the state folder records what must be undone, and the next
run does it first.

Healed means: the fault's own damage is over, every component is as `headrace status` wants it, and what was committed
after the fault is applied everywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, HeadraceError
from headrace.chaos.faults import Field, action_of
from headrace.chaos.invariants import Invariants
from headrace.chaos.report import Fired, Report
from headrace.chaos.schedule import EVERY_FAULT, schedule_of
from headrace.commands.verification import verify_topology
from headrace.console.process_end import terminated_as_interrupt, uninterrupted
from headrace.console.status_view import is_healthy, notes, summary_line
from headrace.deployment.waiting import NotCaughtUp, wait_caught_up
from headrace.faults.errors import NotFired
from headrace.faults.in_force import ProcessesInForce
from headrace.faults.links import Links, links_of
from headrace.faults.processes import Processes
from headrace.status.overview import Overview

if TYPE_CHECKING:
    from headrace.chaos.faults import Fault
    from headrace.chaos.load import SiteLoad
    from headrace.chaos.schedule import Planned
    from headrace.deployment.deployment import Deployment
    from topology.spec import TopologySpec

__all__ = ["Chaos", "Options", "chaotic"]

# As long as Spark may take to start on a small machine, and until the backlog is applied.
HEAL_TIMEOUT_S = 180.0
HEALTHY_TIMEOUT_S = 60.0  # before the first fault: a topology that has just started may still be settling
CAUGHT_UP_TIMEOUT_S = 600.0
POLL_S = 0.1
# On a busy machine nothing may be sent for seconds, and a fault that affects nothing leaves no evidence.
EVIDENCE_TIMEOUT_S = 20.0
LOOK_INTERVAL_S = 1.0  # the controller looks as often
_LINK_KINDS = frozenset({"partition", "delay"})

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run.

    Args:
        seed: decides which faults happen, in which order.
        seconds: after this time, no further fault begins; at least one does.
        kinds: kinds of faults, from `EVERY_FAULT`.
        heal_within_s: time within which a fault must heal.
        load: whether clients of the run write meanwhile.
        allow_servers: continue although a database is a server of the user.
    """

    seed: int
    seconds: float
    kinds: frozenset[str] = EVERY_FAULT
    heal_within_s: float = HEAL_TIMEOUT_S
    load: bool = False
    allow_servers: bool = False


class NotHealed(HeadraceError):  # noqa: N818 - the name states the condition
    """Something was not healed in time."""

    code = "HDR-7005"
    fix = "`headrace status FILE` names the component; read its log, and report the seed."


def keep_in_force(fault: Fault, seconds: float, look: Callable[[], object]) -> None:
    """Keep a fault in force for its planned time, and until there is evidence.

    Args:
        fault: a fault that was fired.
        seconds: planned time; waiting for evidence adds at most `EVIDENCE_TIMEOUT_S`.
        look: called repeatedly meanwhile.
    """
    end = time.monotonic() + seconds
    while True:
        fault.watch()
        now = time.monotonic()
        if now >= end and (fault.evidence or now >= end + EVIDENCE_TIMEOUT_S):
            return
        look()
        time.sleep(POLL_S)


@dataclass(slots=True)
class Chaos:
    """A topology that is about to be broken; made by `chaotic`.

    Args:
        deployment: the topology's deployment.
        options: options of the run.
        tell: receives lines of text about the progress.
        ground: what its faults act on.
    """

    deployment: Deployment
    options: Options
    tell: Tell
    ground: Field
    invariants: Invariants = field(default_factory=Invariants)
    report: Report = field(default_factory=Report)
    _looked_at: float = 0.0
    _latest: Overview | None = None
    _load: list[SiteLoad] = field(default_factory=list)

    def run(self) -> Report:
        """Run the whole schedule for as long as the options say."""
        schedule = schedule_of(self.deployment.spec, self.options.seed, self.options.kinds)
        self.begin()
        until = time.monotonic() + self.options.seconds
        for planned in schedule:
            self.pause(planned.pause_s)
            if not self.one(planned) or time.monotonic() > until:
                break
        self.finish()
        return self.report

    def begin(self) -> None:
        """Check that all is well, start the load, and lead the links through proxies.

        Raises:
            ConfigError: the topology is unhealthy before the first fault.
        """
        self.report.topology, self.report.seed = self.deployment.spec.name, self.options.seed
        self.tell("checking that everything is well")
        try:
            self._wait_healthy(time.monotonic() + HEALTHY_TIMEOUT_S)
        except NotHealed as error:
            raise ConfigError(
                f"topology {self.deployment.spec.name} was unhealthy before the first fault: {error.message}",
                hint="`headrace status FILE` says what to do about it",
            ) from error
        if self.options.load:
            from headrace.chaos.load import start_load

            self._load = start_load(self.deployment, self.tell)
        if self.options.kinds & _LINK_KINDS:
            self.report.unlinked = self.ground.links.lead_through(links_of(self.deployment.spec), self.tell)
        self.invariants.look(self.deployment.overview())

    def pause(self, seconds: float) -> None:
        """Wait for a while, and check overviews."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()
            time.sleep(POLL_S)

    def one(self, planned: Planned) -> bool:
        """Run one fault until it has healed; return False if it has not, so that no more faults should follow.

        Args:
            planned: from a schedule, or chosen by hand.
        """
        fault = action_of(planned.action).make(self.ground, planned.target)
        fired = Fired(number=planned.number, action=planned.action, target=planned.target, seconds=planned.seconds)
        self.report.faults.append(fired)
        what = f"{planned.action} {planned.target}"
        self.invariants.during = f"{planned.number}: {what}"
        began = time.monotonic()
        self.tell(what + (f" for {planned.seconds:g} s" if planned.seconds else ""))
        try:
            fault.fire()
            keep_in_force(fault, planned.seconds, self._look)
        except NotFired as error:
            fired.problem = error.message
        finally:
            with uninterrupted():
                fault.undo()
                self.ground.in_force.undo()
        fired.evidence = fault.evidence
        fired.in_force_s = round(time.monotonic() - began, 2)
        if not fired.evidence and not fired.problem:
            fired.problem = "nothing passed while it was in force"
        try:
            self._wait_healed(lambda: "" if fired.problem and not fired.evidence else fault.missing(), what)
        except (NotHealed, NotCaughtUp) as error:
            fired.unhealed = error.message
            return False
        fired.healed_s = round(time.monotonic() - began, 2)
        self.invariants.during = ""
        return True

    def finish(self) -> None:
        """End the load, wait until everything is applied, and compare all tables."""
        for load in self._load:
            load.end()
        self.report.written = sum(len(load.acknowledged) for load in self._load)
        if not self.report.unhealed:
            self.tell("waiting until caught up")
            try:
                self.report.comparisons = verify_topology(
                    self.deployment.spec,
                    self.deployment.connect(),
                    timeout_s=CAUGHT_UP_TIMEOUT_S,
                    progress=self.tell,
                    overview=self._seen,
                )
                self.report.differences = [problem for load in self._load for problem in load.problems()]
                self._wait_healthy(time.monotonic() + self.options.heal_within_s)
            except HeadraceError as error:
                self.report.differences = [f"not compared: {error.message}"]
            self.invariants.look(self.deployment.overview())
        self.report.checked, self.report.violated = dict(self.invariants.checked), list(self.invariants.violated)

    def close(self) -> None:
        """Undo everything, and end the load, whose clients may wait for a frozen server; idempotent."""
        self.ground.in_force.undo()
        for load in self._load:
            load.end()
        self.ground.links.close()

    # ------------------------------------------------------------------ healing

    def _wait_healed(self, still_missing: Callable[[], str], what: str) -> None:
        """Wait until everything has healed.

        Args:
            still_missing: returns what of the fault's own damage has not healed; empty: nothing.
            what: the fault, for people.

        Raises:
            NotHealed: it has not in time.
            NotCaughtUp: changes did not arrive in time.
        """
        deadline = time.monotonic() + self.options.heal_within_s
        while missing := still_missing():
            self.tell(f"{what}: waiting: {missing}")
            if time.monotonic() > deadline:
                raise NotHealed(f"not healed within {self.options.heal_within_s:g} s: {missing}")
            self._look()
            time.sleep(POLL_S)
        self._wait_healthy(deadline)
        wait_caught_up(
            self.deployment.spec,
            self.deployment.connect(),
            timeout_s=max(1.0, deadline - time.monotonic()),
            progress=lambda text: self.tell(f"{what}: {text}"),
            overview=self._seen,
            of_applied_tables=True,
        )

    def _wait_healthy(self, deadline: float) -> None:
        """Wait until an overview that is newer than this call shows no problem."""
        since_us = time.time_ns() // 1000
        while True:
            overview = self._look()
            new = overview if overview is not None and overview.at_us > since_us else None
            if new is not None and is_healthy(new):
                return
            if time.monotonic() > deadline:
                raise NotHealed("the controller does not answer" if new is None else _unwell(new))
            time.sleep(POLL_S)

    def _look(self) -> Overview | None:
        """Return the latest overview, at most a second old if available, and check the invariants."""
        self.ground.links.renew()
        if time.monotonic() - self._looked_at >= LOOK_INTERVAL_S:
            try:
                self._latest = self.deployment.overview()
            except ConfigError:
                raise  # the cluster is gone
            except HeadraceError:
                return self._latest
            self._looked_at = time.monotonic()
            self.invariants.look(self._latest)
        return self._latest

    def _seen(self) -> Overview:
        """Return the latest overview, or one that says that the controller is unreachable."""
        return self._look() or Overview(topology=self.deployment.spec.name, state="CONTROLLER UNREACHABLE")


def _unwell(overview: Overview) -> str:
    """Return what is wrong with a topology, in words."""
    problems = [f"{note.component}: {note.problem}" for note in notes(overview) if not note.is_remark]
    return "; ".join(dict.fromkeys([summary_line(overview), *problems]))


# --------------------------------------------------------------------------- before and after


@contextlib.contextmanager
def chaotic(deployment: Deployment, options: Options, tell: Tell) -> Iterator[Chaos]:
    """Allow faults in a topology during the block; after it, none is in force.

    Args:
        deployment: the running topology's deployment.
        options: options of the run.
        tell: receives lines of text about the progress.

    Raises:
        ConfigError: it must not be broken from here, or another run already breaks it.
        NotUp: it does not run.
    """
    refuse_others(deployment, allow_servers=options.allow_servers)
    deployment.connect()
    state_dir = deployment.spec.state_dir
    in_force = ProcessesInForce(state_dir / "chaos.json")
    links = Links(deployment.spec, deployment.connect)
    chaos = Chaos(
        deployment,
        options,
        tell,
        Field(deployment=deployment, processes=Processes(deployment), in_force=in_force, links=links),
    )
    with _alone(state_dir), terminated_as_interrupt():
        if in_force.undo_earlier():
            tell("an earlier run was killed: the processes that it had frozen continue")
        try:
            yield chaos
        finally:
            with uninterrupted():
                chaos.close()


def refuse_others(deployment: Deployment, *, allow_servers: bool) -> None:
    """Refuse a topology whose processes or databases may be shared with others.

    Args:
        deployment: the topology's deployment.
        allow_servers: whether the user's servers may be affected.

    Raises:
        ConfigError: the topology runs on a user's Ray cluster, or uses the user's servers.
    """
    if deployment.address:
        raise ConfigError(
            f"topology {deployment.spec.name} runs on the Ray cluster at {deployment.address}: its processes may be on"
            " other machines, and others may use the cluster",
            hint="headrace chaos breaks only topologies on their own private cluster: `headrace up FILE` without"
            " --address",
        )
    others = list(own_servers(deployment.spec))
    if others and not allow_servers:
        raise ConfigError(
            f"the databases of {', '.join(others)} are servers of your own",
            hint="they are never stopped, but replication between them is broken repeatedly; pass --allow-servers if"
            " these are test servers",
        )


def own_servers(spec: TopologySpec) -> Iterator[str]:
    """Yield the sites whose database is a server of the user.

    An address does not show which server it is: a tunnel or a proxy on this machine may lead to another one.
    """
    yield from (site.name for site in spec.sites if site.database.kind == "postgres")


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Refuse a second run: it would report the first one's faults as unhealed."""
    with (state_dir / "chaos.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"headrace chaos already runs in {state_dir}", hint="wait for its end, or end it with Ctrl-C"
            ) from error
        yield
