"""The lanes of the tests: `python -m tests.lanes check|test|soak`, as `make` calls it.

A lane runs its parts one after the other and ends with a table.

Markers alone put a test into a part (CONTRIBUTING.md lists them). `check` runs what needs no server, and `test` runs
everything except `soak`. `soak` runs the rest, and repeats `seeded` tests with new seeds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.support.session.reporting import REPORT, Report, read_report
from tests.support.session.seeds import NEW, SEED, draw_session_seed, is_soak, session_seed

__all__ = ["LANES", "Done", "Part", "main", "show"]

ROOT = Path(__file__).resolve().parent.parent
SLOWEST = 20
WIDTH = 150  # width of the table if the output is no terminal, as in CI


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One pytest session of a lane.

    Args:
        name: shown in the table.
        markers: the expression that selects its tests.
        workers: processes that share the tests.
        folders: of the tests. Each worker collects all tests of these folders, which takes ten seconds for the memory
            tests alone.
        arguments: further arguments of pytest.
    """

    name: str
    markers: str
    workers: int
    folders: tuple[str, ...] = ("tests",)
    arguments: tuple[str, ...] = ()


# Tests without a server compute for two thirds of their time, and wait for the rest: three workers on two cores. Tests
# on servers mostly wait: four workers take half the time of two, and six are no faster. Tests with Ray and Spark come
# last, in two workers, each with its own topologies (`tests.support.session.shared`): one worker leaves a third of two
# cores idle while it waits.
_OF_SERVERS = ("tests/contract", "tests/faults", "tests/integration", "tests/multisite")
# Properties compute thirty times as many examples in the soak, up to two minutes of them on a quiet machine. There
# pytest's ten minutes (pyproject.toml) are five times that; a concurrent load of thirty was seen to need more.
_LONG = ("-o", "timeout=2400", "-o", "faulthandler_timeout=2520")
_GROUPED = ("--dist", "loadgroup", "--no-loadscope-reorder")
LANES: Mapping[str, tuple[Part, ...]] = {
    "check": (Part(name="no server", markers="not postgres and not cluster and not long and not soak", workers=3),),
    "test": (
        Part(name="no server", markers="not postgres and not cluster and not soak", workers=3),
        Part(name="PostgreSQL", markers="postgres and not cluster and not soak", workers=4, folders=_OF_SERVERS),
        Part(name="Ray and Spark", markers="cluster and not soak", workers=2, folders=_OF_SERVERS, arguments=_GROUPED),
    ),
    "soak": (
        Part(name="no server", markers="not postgres and not cluster and (soak or seeded)", workers=3, arguments=_LONG),
        Part(
            name="PostgreSQL",
            markers="postgres and not cluster and (soak or seeded)",
            workers=4,
            folders=_OF_SERVERS,
            arguments=_LONG,
        ),
        Part(
            name="Ray and Spark",
            markers="cluster and (soak or seeded)",
            workers=2,
            folders=_OF_SERVERS,
            arguments=_GROUPED,
        ),
    ),
}
# pytest's exit codes: interrupted; no tests
_INTERRUPTED, _NOTHING = 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A finished part.

    Args:
        part: which one.
        code: pytest's exit code.
        seconds: its duration.
        report: its session's report.
    """

    part: Part
    code: int
    seconds: float
    report: Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a lane to its end, whatever fails in it.

    Args:
        arguments: of the command line: the lane, then pytest's own.

    Returns:
        The exit code: 0 when every part passed and had tests.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description=__doc__)
    parser.add_argument("lane", choices=LANES)
    parser.add_argument("--only", metavar="PART", help="the first letters of a part's name")
    chosen, more = parser.parse_known_args(arguments)
    parts = [part for part in LANES[chosen.lane] if part.name.startswith(chosen.only or "")]
    if not parts:
        parser.error(f"lane {chosen.lane} has no part {chosen.only}")
    if chosen.lane != "soak":
        os.environ.pop(SEED, None)  # left over from a repeated soak
    elif os.environ.get(SEED, "0") in {"", "0"}:
        os.environ[SEED] = NEW
    draw_session_seed()
    print(f"seeds: {SEED}={session_seed()}{'' if is_soak() else ', fixed'}", flush=True)
    done = [_run(part, more) for part in parts]
    show(chosen.lane, done)
    # A single part may have none of the requested tests, but not all parts.
    codes = [each.code for each in done if each.code != _NOTHING or not more] or [_NOTHING]
    return max(map(abs, codes))  # negative: ended by a signal


def _run(part: Part, more: Sequence[str]) -> Done:
    """Run a part in its own session."""
    print(f"--- {part.name}: pytest -m '{part.markers}'", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-report-") as folder:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            str(part.workers),
            *part.arguments,
            "-m",
            part.markers,
            *part.folders,
            *more,
        ]
        began = time.monotonic()
        code = _ended(subprocess.Popen(command, cwd=ROOT, env={**os.environ, REPORT: folder}))
        if code == _INTERRUPTED:
            raise SystemExit(_INTERRUPTED)
        return Done(part=part, code=code, seconds=time.monotonic() - began, report=read_report(Path(folder)))


def _ended(session: subprocess.Popen[bytes]) -> int:
    """Wait until a session has ended, even after Ctrl-C: it ends its servers by itself, and reports leftovers."""
    while True:
        try:
            return session.wait()
        except KeyboardInterrupt:
            continue


def show(lane: str, done: Sequence[Done]) -> None:
    """Print durations, and at the end failures.

    Args:
        lane: its name.
        done: its parts, as they ran.
    """
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    parts = Table("part", "workers", "seconds", "tests", "failed", title=f"make {lane}")
    for each in done:
        outcome = (
            "no test"
            if each.code == _NOTHING
            else str(len(each.report.failed) or f"exit code {each.code}")
            if each.code
            else "0"
        )
        parts.add_row(
            each.part.name, str(each.part.workers), f"{each.seconds:.0f}", str(len(each.report.seconds)), outcome
        )
    parts.add_row(
        "all",
        "",
        f"{sum(each.seconds for each in done):.0f}",
        str(sum(len(each.report.seconds) for each in done)),
        "",
        style="bold",
    )
    console.print(parts)
    units: dict[str, float] = defaultdict(float)
    for name, spent in (
        (name, spent)
        for each in done
        if _GROUPED[0] in each.part.arguments
        for name, spent in each.report.seconds.items()
    ):
        units[name.rpartition("@")[2]] += spent
    if units:
        console.print(
            "units: "
            + ", ".join(f"{name} {spent:.0f} s" for name, spent in sorted(units.items(), key=lambda each: -each[1]))
        )
    slowest = Table("seconds", "test", title=f"the {SLOWEST} slowest, with set-up and clean-up")
    seconds = Counter[str]()
    for each in done:
        seconds.update(each.report.seconds)
    for name, spent in seconds.most_common(SLOWEST):
        slowest.add_row(f"{spent:.1f}", Text(name))
    console.print(slowest)
    files = Counter[str]()
    for name, spent in seconds.items():
        files[name.partition("::")[0]] += spent
    console.print("files: " + ", ".join(f"{name} {spent:.0f} s" for name, spent in files.most_common(SLOWEST)))
    started = Counter(kind for each in done for kind in each.report.started)
    console.print(
        "started: " + (", ".join(f"{count} x {kind}" for kind, count in started.most_common()) or "no topology")
    )
    # Failures come last, where a reader who has only the end of the output sees them.
    for name, said in (failure for each in done for failure in each.report.failed.items()):
        console.print(Text(f"FAILED {name}\n{said}"))


if __name__ == "__main__":
    sys.exit(main())
