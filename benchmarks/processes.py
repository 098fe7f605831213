"""CPU seconds, peak memory and footprint per stage, from /proc.

A sampler thread reads every process of the bench (descendants of this process, of the two postmasters and of Ray) a few
times per second and keeps the last figures of each. A process that ends between two samples loses at most one interval.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 0.25

# (pattern in the command line, stage), first match wins.
STAGES = (
    (r"^postgres: bench_source: walsender", "source: walsender"),
    (r"^postgres: bench_source:", "source: other"),
    (r"^postgres: bench_destination: logical replication", "destination: native apply"),
    (r"^postgres: bench_destination: (postgres|\S+) bench", "destination: backends"),
    (r"^postgres: bench_destination:", "destination: other"),
    (r"-m spark_apply\.application\.process", "Spark"),
    (r"-m spark_apply\.application\.daemon", "apply servers"),
    (r"^ray::SparkMaster", "Spark"),
    (r"java .*(spark|ray)", "Spark"),
    (r"^ray::IDLE", "Ray"),
    (r"^ray::(\w+)", "actor"),
    (r"raylet|gcs_server|ray/_private|ray/dashboard|ray_stand_in|RuntimeEnvAgent", "Ray"),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that one stage used in a run."""

    cpu_s: float
    peak_mb: float
    processes: int


@dataclass(slots=True)
class _Seen:
    stage: str
    first_ticks: int
    last_ticks: int
    peak_kb: int


@dataclass(slots=True)
class ProcessSampler:
    """Watches processes from `start` to `stop`.

    Args:
        roots: pids whose descendants are sampled.
        names: pid -> stage, for processes whose command line does not show it.
    """

    roots: tuple[int, ...]
    names: Mapping[int, str] = field(default_factory=dict)
    _seen: dict[tuple[int, int], _Seen] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Take the first sample; resets peak memory where the system allows it."""
        self._seen.clear()
        self._stop.clear()
        self._look(first=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, Usage]:
        """Take the last sample; return the usage per stage since `start`."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        self._look(first=False)
        cpu: dict[str, float] = defaultdict(float)
        peak: dict[str, float] = defaultdict(float)
        count: dict[str, int] = defaultdict(int)
        for seen in self._seen.values():
            cpu[seen.stage] += (seen.last_ticks - seen.first_ticks) / _TICKS
            peak[seen.stage] = max(peak[seen.stage], seen.peak_kb / 1024)
            count[seen.stage] += 1
        return {stage: Usage(round(cpu[stage], 2), round(peak[stage], 1), count[stage]) for stage in sorted(cpu)}

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._look(first=False)

    def _look(self, *, first: bool) -> None:
        for pid in _descendants(self.roots):
            with suppress(OSError, ValueError, IndexError):
                folder = Path(f"/proc/{pid}")
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks, started = int(fields[11]) + int(fields[12]), int(fields[19])
                seen = self._seen.get((pid, started))
                if seen is None:
                    stage = self.names.get(pid) or stage_of(
                        (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
                    if stage is None:
                        continue
                    if first:
                        with suppress(OSError):
                            (folder / "clear_refs").write_text("5")
                    # A process that started during the run used nothing before it.
                    seen = self._seen[(pid, started)] = _Seen(stage, ticks if first else 0, ticks, 0)
                seen.last_ticks = ticks
                match = re.search(r"VmHWM:\s+(\d+)", (folder / "status").read_text())
                seen.peak_kb = max(seen.peak_kb, int(match[1]) if match else 0)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resources of one component or stage.

    Memory is the private memory of its processes and their share of shared memory; CPU counts since the processes
    began.
    """

    pss_mb: float
    processes: int
    cpu_s: float = 0.0


def footprint(roots: tuple[int, ...], names: Mapping[int, str]) -> dict[str, Footprint]:
    """Return the proportional set size per component (a page that n processes share counts 1/n for each).

    Args:
        roots: pids whose descendants are measured.
        names: pid -> component, for processes whose command line does not show it.
    """
    pss: dict[str, float] = defaultdict(float)
    cpu: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for pid in _descendants(roots):
        with suppress(OSError, ValueError, IndexError):
            folder = Path(f"/proc/{pid}")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            rollup = (folder / "smaps_rollup").read_text()
            match = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            stage = names.get(pid) or stage_of(command) or "other"
            cpu[stage] += (int(fields[11]) + int(fields[12])) / _TICKS
            pss[stage] += int(match[1]) / 1024 if match else 0.0
            count[stage] += 1
    return {stage: Footprint(round(pss[stage], 1), count[stage], round(cpu[stage], 1)) for stage in sorted(pss)}


def stage_of(command: str) -> str | None:
    """Return the stage to which a command line belongs; None: not measured."""
    for pattern, stage in STAGES:
        match = re.search(pattern, command)
        if match:
            return f"actor {match[1]}" if stage == "actor" else stage
    return None


def _descendants(roots: tuple[int, ...]) -> set[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(folder.name))
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children[pid])
    return found
