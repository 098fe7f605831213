"""Scripts of faults over time in a simulated topology. A step of a script returns whether it fired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.base.errors import QueueError
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.simulation.components import ApplyProcess
from headrace.simulation.faults import Faults
from headrace.simulation.operator import Operator
from headrace.simulation.world import Simulation
from topology.spec import TopologySpec

__all__ = [
    "Step",
    "captured_again",
    "cut_all",
    "database_down",
    "killed",
    "lost_answers",
    "parted",
    "played",
    "restored",
    "second_drivers",
    "slow",
    "twice",
]

Deed = Callable[[Simulation], bool]


@dataclass(frozen=True)
class Step:
    """A fault.

    Args:
        at_s: virtual time; it is tried until it fires.
        do: injects it; False: nothing to break yet.
        name: for the failing test.
    """

    at_s: float
    do: Deed
    name: str


class _Script(Faults):
    """Injects the faults of a script, and nothing else."""

    def __init__(self, sim: Simulation, steps: Sequence[Step]) -> None:
        super().__init__(sim, ())
        self.left = sorted(steps, key=lambda step: step.at_s)

    def happen(self) -> None:
        super().happen()
        now = self._sim.clock.monotonic()
        for step in [step for step in self.left if step.at_s <= now]:
            if step.do(self._sim):
                self._sim.trace.note("script", step.name)
                self._sim.fired[step.name] += 1
                self.left.remove(step)

    @property
    def not_fired(self) -> list[str]:
        return [step.name for step in self.left]


def played(
    spec: TopologySpec,
    seed: int,
    folder: Path,
    steps: Sequence[Step],
    seconds: float,
    *,
    redo_bytes_max: int | None = None,
) -> tuple[Simulation, list[str]]:
    """Run a topology with a script to its end, where every site has what was committed for it; else raise `Violation`.

    Args:
        spec: checked and routed.
        seed: of everything that the script leaves open.
        folder: an empty one.
        steps: of the script.
        seconds: of virtual time in which users write.
        redo_bytes_max: bound of redo logs; None: the simulation's, which a few seconds of changes reach.

    Returns:
        The simulation, and the steps that did not fire.
    """
    sim = Simulation(spec, seed, folder, faults=frozenset(), seconds=seconds, edits=False)
    if redo_bytes_max is not None:
        sim.topology = replace(sim.topology, redo_bytes_max=redo_bytes_max)
    script = sim.faults = _Script(sim, steps)
    sim.run()
    return sim, script.not_fired


# --------------------------------------------------------------------------- steps


def _again_later(sim: Simulation, heal: Callable[[], object], seconds: float) -> bool:
    # Not at a random time, as with random faults: a scenario sets the duration.
    sim.faults._healing.append((sim.clock.monotonic() + seconds, heal))
    return True


def killed(at_s: float, *kinds: str, site: str = "") -> Step:
    """Kill every component of these kinds at once (default: all kinds), at a site or everywhere; all must have run."""

    def do(sim: Simulation) -> bool:
        victims = [
            each
            for each in sim.running.components
            if (not kinds or each.name.partition(":")[0] in kinds) and site in {"", each.site}
        ]
        if not victims or not all(each.is_open for each in victims):
            return False
        for each in victims:
            each.kill("the script")
        return True

    return Step(at_s, do, f"{' and '.join(kinds) or 'everything'} killed{f' at {site}' if site else ''} at {at_s:g} s")


def parted(at_s: float, seconds: float, *sites: str) -> Step:
    """Partition these sites from the others; streams between them are cut."""

    def do(sim: Simulation) -> bool:
        between = [each for each in sim.network.streams if not each.is_cut]
        sim.network.part(frozenset(sites))
        if not any(each.is_cut for each in between):
            sim.network.part(frozenset())
            return False
        return _again_later(sim, lambda: sim.network.part(frozenset()), seconds)

    return Step(at_s, do, f"{', '.join(sites)} parted at {at_s:g} s")


def database_down(at_s: float, seconds: float, site: str) -> Step:
    """Make a site's database unavailable: neither its log nor its tables answer."""

    def do(sim: Simulation) -> bool:
        database = sim.databases[site]
        database.is_down = True
        database.store.end_life()
        database.store.is_reachable = False

        def back() -> None:
            database.is_down, database.store.is_reachable = False, True

        return _again_later(sim, back, seconds)

    return Step(at_s, do, f"database of {site} down at {at_s:g} s")


def lost_answers(at_s: float, *sites: str) -> Step:
    """Lose the answer to the next COMMIT at each of these sites, alternately of one that was made and one that was not."""

    def do(sim: Simulation) -> bool:
        for number, site in enumerate(sites):
            sim.databases[site].store.lose_next_commit_answer(committed=number % 2 == 0)
        return True

    return Step(at_s, do, f"answers to COMMIT lost at {at_s:g} s")


def second_drivers(at_s: float, seconds: float, site: str) -> Step:
    """Start every working apply process of a site a second time, while the first one continues."""

    def do(sim: Simulation) -> bool:
        mine = [apply for apply in sim.running.applies.values() if apply.site == site]
        if not all(apply.is_open for apply in mine):
            return False
        started = [apply.start_second() for apply in mine]
        if not any(started):
            return False

        def end_older() -> None:
            for apply in mine:
                apply.end_older()

        return _again_later(sim, end_older, seconds)

    return Step(at_s, do, f"second drivers at {site} at {at_s:g} s")


def _of_streams(at_s: float, name: str, disturb: Callable[[Simulation, Any], None]) -> Step:
    def do(sim: Simulation) -> bool:
        streams = [
            each for each in sim.network.streams if not each.is_cut and not each.client_left and each.problem is None
        ]
        for stream in streams:
            disturb(sim, stream)
        return bool(streams)

    return Step(at_s, do, f"{name} at {at_s:g} s")


def cut_all(at_s: float) -> Step:
    """Cut every stream of the topology."""
    return _of_streams(at_s, "every stream cut", lambda _, stream: setattr(stream, "is_cut", True))


def slow(at_s: float, seconds: float) -> Step:
    """Stall every stream for a while."""
    return _of_streams(at_s, "every stream slow", lambda _, stream: stream.hold(seconds))


def twice(at_s: float) -> Step:
    """Break every client's end; what was sent arrives late, and is sent again."""

    def disturb(_: Simulation, stream: Any) -> None:
        stream.break_client()
        stream.hold(1.0)

    return _of_streams(at_s, "everything sent twice", disturb)


def restored(backup_s: float, restore_s: float, site: str) -> tuple[Step, Step]:
    """Back up a site that only receives, after it has copied its tables, and restore the backup later.

    By then redo since the backup was purged.
    """
    kept: list[tuple[Callable[[], None], Scn]] = []

    def applies(sim: Simulation) -> list[ApplyProcess]:
        return [apply for apply in sim.running.applies.values() if apply.site == site]

    def back_up(sim: Simulation) -> bool:
        store = sim.databases[site].store
        if not store.is_reachable or store.locks or not all(Operator._has_all(apply) for apply in applies(sim)):
            return False
        kept.append((store.backup(), min(apply.observer.low_watermark for apply in applies(sim))))
        return True

    def restore(sim: Simulation) -> bool:
        store, behind = sim.databases[site].store, [keeper.keeper for _, keeper in sim.running.mined(sim.topology)]
        if (
            not kept
            or not store.is_reachable
            or store.locks
            or not all(Operator._has_all(apply) for apply in applies(sim))
        ):
            return False
        put_back, scn = kept[0]
        if any(keeper is None or (keeper.required_checkpoints.lowest or 0) <= scn for keeper in behind):
            return False
        sim.restored_sources |= {apply.spec.source for apply in applies(sim)}
        put_back()
        sim.alter_destination(site)
        sim.site_observers[site].rescan()
        for apply in applies(sim):
            apply.observer.restored()
        return True

    return Step(backup_s, back_up, f"{site} backed up at {backup_s:g} s"), Step(
        restore_s, restore, f"{site} restored at {restore_s:g} s"
    )


def captured_again(at_s: float) -> Step:
    """Let the operator set the start SCN of every capture process back to its first SCN."""

    def do(sim: Simulation) -> bool:
        found = [(spec, sim.redo_of(spec).keeper, sim.running.queues.get(spec.queue)) for spec in sim.topology.captures]
        if any(keeper is None or queue is None or queue.core is None for _, keeper, queue in found):
            return False
        if any(
            not (keeper.required_checkpoints.lowest or 0) > keeper.oldest_scn > FIRST_SCN
            for _, keeper, _ in found
            if keeper is not None
        ):
            return False
        for spec, keeper, queue in found:
            assert keeper is not None
            assert queue is not None
            first = keeper.oldest_scn
            keeper.required_checkpoints.set_start_scn(spec.name, first, oldest_scn=first)
            try:
                queue.core.capture_again(spec.name, first)
            except QueueError:
                return False
        return True

    return Step(at_s, do, f"captured again at {at_s:g} s")
