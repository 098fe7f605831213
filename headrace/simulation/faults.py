"""Faults of a simulation: a seed decides which faults happen, when, and for how long."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.base import failpoints
from headrace.simulation.surroundings import Killed

if TYPE_CHECKING:
    from headrace.simulation.database import SiteDatabase
    from headrace.simulation.running import Running

__all__ = ["EVERY_FAULT", "Faults"]

EVERY_FAULT = frozenset({"crash", "partition", "delay", "duplicate", "reorder", "clock"})

_HARM = 0.03  # probability of a fault per step, with up to twenty components
_INSIDE = 0.02  # probability per failpoint that the process dies there, or its disk is full
_JUMP_MAX_S = 3600.0  # like a virtual machine that was suspended over lunch


class Faults:
    """The faults of one run.

    Args:
        sim: the simulation.
        kinds: kinds of faults, from `EVERY_FAULT`.
    """

    def __init__(self, sim: Running, kinds: Iterable[str]) -> None:
        self._sim, self._rng = sim, sim.rng
        self._kinds = frozenset(kinds)
        self._healing: list[tuple[float, Callable[[], object]]] = []
        network, rng = sim.network, sim.rng
        every: dict[str, list[tuple[str, Callable[[], object]]]] = {
            "crash": [
                *[("kill", self._kill_one)] * 3,
                *[("task killed", self._kill_task)] * 2,
                ("source down", self._stop_source),
                ("stream broken", lambda: self._database().source.break_after(rng.randrange(1, 20))),
                ("destination down", self._stop_destination),
                ("commit answer lost", self._lose_answer),
                ("second driver", self._second_driver),
                ("spill damaged", self._damage_spill),
            ],
            "partition": [*[("cut", network.cut_one)] * 2, ("parted", self._part)],
            "delay": [("delayed", network.delay_one)],
            "duplicate": [("sent twice", network.repeat_one)],
            "reorder": [("overtaken", network.overtake_one)],
            "clock": [("clock jumped", self._jump)],
        }
        if sim.running.receivers:
            every["partition"] += [("redo stream cut", self._cut_redo)] * 2
        self._harm = [harm for kind in sorted(self._kinds) for harm in every[kind]]

    # ------------------------------------------------------------------ when

    def happen(self) -> None:
        """Heal what is due, and perhaps inject a fault."""
        self._heal_due()
        if not self._harm:
            return
        sim, rng = self._sim, self._rng
        if rng.random() < _HARM * min(1.0, 20 / len(sim.running.components)):
            name, do = rng.choice(self._harm)
            if do() is not False:
                sim.fired[name] += 1
        if "crash" in self._kinds:
            self._kill_in_a_gap()
            self._crash_before_the_disk()

    def later(self, heal: Callable[[], object], seconds_max: float = 3.0) -> None:
        """Schedule an action, usually one that heals.

        Args:
            heal: the action.
            seconds_max: latest virtual time from now at which it happens.
        """
        self._healing.append((self._sim.clock.monotonic() + self._rng.uniform(0.1, seconds_max), heal))

    def _heal_due(self) -> None:
        now = self._sim.clock.monotonic()
        for due in [each for each in self._healing if each[0] <= now]:
            self._healing.remove(due)
            due[1]()

    def heal(self) -> None:
        """Heal everything now; no faults happen afterwards."""
        while self._healing:
            self._healing.pop(0)[1]()
        self._harm = []
        for apply in self._sim.running.applies.values():
            apply.end_older()
        for database in self._sim.databases.values():
            database.source.breaks.clear()
            database.store.lost_answers.clear()

    def tend(self) -> None:
        """Do what is due, without new faults."""
        self._heal_due()

    # ------------------------------------------------------------------ what

    def _kill_one(self) -> bool:
        component = self._rng.choice(self._sim.running.components)
        if not component.is_open:
            return False
        self._sim.fired[f"kill {component.name.partition(':')[0]}"] += 1
        component.kill()
        return True

    def _kill_in_a_gap(self) -> None:
        """Kill a driver while its progress has a gap: the worst moment, and so rare that it must be awaited."""
        for apply in self._sim.running.applies.values():
            if apply.observer.has_gap and apply.is_open and self._rng.random() < 0.4 * _HARM:
                self._sim.fired["kill apply in a gap"] += 1
                apply.kill()

    def _kill_task(self) -> bool:
        apply = self._rng.choice(list(self._sim.running.applies.values()))
        if apply.driver is None or not apply.driver.tasks:
            return False
        self._sim.trace.note(apply.name, "a task was killed")
        apply.driver.lose_task(self._rng.choice(sorted(apply.driver.tasks)), self._rng)
        return True

    def _damage_spill(self) -> bool:
        """Replace a queue's spilled batches by zeros, as a damaged disk would."""
        damaged = [queue.damage() for queue in self._sim.running.queues.values()]
        return any(damaged)

    def _database(self, *, is_destination: bool = False) -> SiteDatabase:
        sim = self._sim
        sites = (
            sorted({a.spec.site for a in sim.running.applies.values()}) if is_destination else sorted(sim.running.sites)
        )
        return sim.databases[self._rng.choice(sites)]

    def _stop_source(self) -> None:
        database = self._database()
        self._sim.trace.note(f"database {database.site}", "its log does not answer")
        database.is_down = True
        self.later(lambda: setattr(database, "is_down", False))

    def _stop_destination(self) -> None:
        self._stop(self._database(is_destination=True))

    def _crash_before_the_disk(self) -> None:
        """Crash a database while some of its commits are not on disk, which lasts only a short time."""
        for database in self._sim.databases.values():
            if database.store.unflushed and self._rng.random() < _HARM:
                self._stop(database)

    def _stop(self, database: SiteDatabase) -> None:
        self._sim.crash(database.site)
        database.store.is_reachable = False
        self.later(lambda: setattr(database.store, "is_reachable", True))

    def _lose_answer(self) -> None:
        store = self._database(is_destination=True).store
        store.lose_next_commit_answer(committed=self._rng.random() < 0.5)

    def _second_driver(self) -> bool:
        apply = self._rng.choice(list(self._sim.running.applies.values()))
        if not apply.start_second():
            return False
        self.later(apply.end_older, 20.0)
        return True

    def _cut_redo(self) -> bool:
        receiver = self._rng.choice(list(self._sim.running.receivers.values()))
        if not receiver.cut():
            return False
        self._sim.trace.note(receiver.name, "its stream is cut")
        return True

    def _part(self) -> bool:
        sites = sorted(site.name for site in self._sim.topology.sites)
        if len(sites) < 2:
            return False
        apart = frozenset(self._rng.sample(sites, self._rng.randrange(1, len(sites))))
        self._sim.trace.note("network", f"parted: {', '.join(sorted(apart))} from the others")
        self._sim.network.part(apart)
        self.later(lambda: self._sim.network.part(frozenset()), 5.0)
        return True

    def _jump(self) -> None:
        clock, rng = self._sim.clock, self._rng
        if rng.random() < 0.5:
            clock.advance(rng.uniform(1.0, _JUMP_MAX_S))
            self._sim.trace.note("clock", "everything stood still for a while")
        else:
            clock.set_time_of_day(rng.uniform(-_JUMP_MAX_S, _JUMP_MAX_S))
            self._sim.trace.note("clock", "the time of day was set")

    # ------------------------------------------------------------------ failpoints

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Redirect every module's failpoints to this simulation."""
        places = [
            module
            for name, module in sorted(sys.modules.items())
            if getattr(module, "failpoint", None) is failpoints.failpoint and name != failpoints.__name__
        ]
        for module in places:
            module.failpoint = self._failpoint  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in places:
                module.failpoint = failpoints.failpoint  # type: ignore[attr-defined]

    def _failpoint(self, name: str) -> None:
        if "crash" not in self._kinds:
            return
        often = _INSIDE * (4 if name.startswith("apply.") else 1)  # apply failpoints are reached less often
        if self._rng.random() >= often:
            return
        self._sim.fired[name] += 1
        if name in {"log_writer.write", "redo_receiver.write", "queue.spill"} and self._rng.random() < 0.7:
            raise OSError(28, "no space left on device")
        raise Killed(name)
