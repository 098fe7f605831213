"""Measured runs, and figures that compare two peers."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.processes import Usage

__all__ = ["SYNCHRONOUS_COMMIT", "Run", "compared", "middle", "progress_line"]

# Of Headrace's apply processes. `off` is the default of both peers; BENCH_SYNCHRONOUS_COMMIT=on measures with `on`.
SYNCHRONOUS_COMMIT = os.environ.get("BENCH_SYNCHRONOUS_COMMIT", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured drain: seconds until the slowest destination had everything."""

    seconds: float
    verified: bool
    usage: dict[str, Usage]


def middle(runs: Sequence[Run]) -> Run:
    """Return the run of median duration."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def compared(name: str, runs: Mapping[str, Sequence[Run]]) -> dict[str, object]:
    """Return the report of one workload: medians, both ratios, and Headrace's usage in its median run.

    Args:
        name: of the workload.
        runs: counted runs per setting, including `native`, `native_on` and `headrace`.
    """
    seconds = {setting: statistics.median(run.seconds for run in found) for setting, found in runs.items()}
    native_s = min(seconds["native"], seconds["native_on"])
    return {
        "name": name,
        "native_s": round(native_s, 3),
        "headrace_s": round(seconds["headrace"], 3),
        "ratio": round(native_s / seconds["headrace"], 3),
        "ratio_same_synchronous_commit": round(
            seconds["native_on" if SYNCHRONOUS_COMMIT == "on" else "native"] / seconds["headrace"], 3
        ),
        "verified": all(run.verified for found in runs.values() for run in found),
        "runs": {setting: [round(run.seconds, 3) for run in found] for setting, found in runs.items()},
        "headrace_usage": {stage: asdict(usage) for stage, usage in middle(runs["headrace"]).usage.items()},
    }


def progress_line(workload: str, setting: str, run: Run, *, counted: bool, rate: str = "") -> str:
    """Return the line to print when a run has ended.

    Args:
        workload: its name.
        setting: what was measured.
        run: the run.
        counted: it was no warm-up.
        rate: its speed, as text.
    """
    return (
        f"  {workload:16} {setting:12} {'' if counted else '(warm-up) '}{run.seconds:7.2f} s  {rate}"
        f"{'verified' if run.verified else 'DIFFERENT'}"
    )
