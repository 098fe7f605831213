"""Runs of seeds, in sequence or in several processes; each run depends on its seed alone."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.simulation.faults import EVERY_FAULT
from headrace.simulation.observing.violations import Violation
from headrace.simulation.workload import refuse_unsupported
from headrace.simulation.world import SECONDS_DEFAULT, Simulation
from topology.spec import TopologySpec

__all__ = ["Outcome", "Settings", "simulate", "simulate_all"]

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - thousands of redo syncs would take most of the time on a disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a simulation does, apart from its seed.

    Args:
        faults: kinds of faults, from `headrace.simulation.faults.EVERY_FAULT`.
        seconds: virtual seconds in which users write and faults happen.
        edits: whether the operator edits the topology, stops and starts components, and restores a backup.
    """

    faults: frozenset[str] = EVERY_FAULT
    seconds: float = SECONDS_DEFAULT
    edits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one seed.

    Args:
        seed: the seed.
        steps: turns that components took.
        virtual_s: virtual seconds that passed.
        transactions: number of transactions that users committed.
        digest: hash of the trace, equal for two runs of one seed.
        fired: faults and actions of the operator, with counts.
        seen: rare states, with the number of steps in which they were seen.
        invariant: the violated invariant; empty: all hold.
        place: where it is violated.
        problem: the problem.
        trace: events of the transaction concerned, or the last events.
    """

    seed: int
    steps: int
    virtual_s: float
    transactions: int
    digest: str
    fired: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    invariant: str = ""
    place: str = ""
    problem: str = ""
    trace: tuple[str, ...] = ()

    @property
    def is_fine(self) -> bool:
        """Whether every invariant holds."""
        return not self.invariant


def simulate(
    spec: TopologySpec,
    seed: int,
    settings: Settings,
    *,
    folder: Path | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Outcome:
    """Run one seed.

    Args:
        spec: checked and routed (`topology.file.reading.read_topology`).
        seed: decides every random choice.
        settings: faults, duration and edits.
        folder: an empty folder for redo and spill files; None: a temporary one, in memory if the machine has /dev/shm.
        progress: called from time to time with the share of the load that is done.

    Raises:
        ConfigError: the topology cannot be simulated.
    """
    refuse_unsupported(spec)
    with _folder(folder) as place, _quiet():
        sim = Simulation(spec, seed, place, faults=settings.faults, seconds=settings.seconds, edits=settings.edits)
        found: Violation | None = None
        try:
            sim.run(progress)
        except Violation as violation:
            found = violation
        return Outcome(
            seed=seed,
            steps=sim.steps,
            virtual_s=round(sim.clock.monotonic(), 3),
            digest=sim.trace.digest,
            transactions=sum(stream.counts for stream in sim.workload.streams),
            fired=dict(sorted((+sim.fired).items())),
            seen=dict(sorted((+sim.seen).items())),
            invariant=found.invariant.value if found else "",
            place=found.place if found else "",
            problem=found.message if found else "",
            trace=sim.trace.about(found.scns) if found else (),
        )


def simulate_all(
    spec: TopologySpec,
    seeds: Sequence[int],
    settings: Settings,
    *,
    jobs: int = 1,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[Outcome]:
    """Run seeds, and yield their outcomes in order.

    Args:
        spec: checked and routed.
        seeds: at least one.
        settings: faults, duration and edits.
        jobs: number of processes; with 1, everything runs in this process.
        progress: called from time to time with the share of the load that is done; with several processes, per seed.

    Raises:
        ConfigError: the topology cannot be simulated.
    """
    refuse_unsupported(spec)
    jobs = min(jobs, len(seeds))
    if jobs <= 1:
        for number, seed in enumerate(seeds):
            share_of_all = functools.partial(_share_of_all, progress, number, len(seeds))
            yield simulate(spec, seed, settings, progress=share_of_all)
        return
    # Not forked: a child would lack the parent's threads (progress displays).
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(simulate, spec, seed, settings) for seed in seeds]
        try:
            for number, future in enumerate(futures, 1):
                outcome = future.result()
                progress(number / len(seeds))
                yield outcome
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
        return
    parent = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    try:
        made = tempfile.TemporaryDirectory(prefix="headrace-simulation-", dir=parent)
    except OSError:
        made = tempfile.TemporaryDirectory(prefix="headrace-simulation-")
    with made as name:
        yield Path(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings: components warn about errors from which they recover, which are simulated here on purpose."""
    loggers = [logging.getLogger(name) for name in ("headrace", "headrace.apply")]
    before = [(each.level, each) for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for level, each in before:
            each.setLevel(level)


def _share_of_all(progress: Callable[[float], None], done: int, seeds: int, share: float) -> None:
    """Report the share of one seed as a share of all seeds."""
    progress((done + share) / seeds)
