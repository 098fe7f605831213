"""A test session's record for the table at the end of a lane: the seconds of each test, and the topologies started."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["REPORT", "Report", "Reporting", "note_started", "read_report"]

# The report's folder; every process of the session inherits the variable.
REPORT = "HEADRACE_TEST_REPORT"
_SECONDS, _STARTED = "seconds.json", "started"
_SAID = 600  # characters of a failure: enough to recognise it; pytest prints the whole above


@dataclass(slots=True)
class Report:
    """The report of one session.

    Args:
        seconds: of each test, with set-up and clean-up.
        failed: tests that failed, in any phase, with the first lines of each failure.
        started: what was started, an entry each time.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)


def note_started(kind: str) -> None:
    """Record the start of something costly.

    Args:
        kind: "topology", "Ray" or "Spark application".
    """
    if folder := os.environ.get(REPORT):
        # a short line is written atomically among those of other workers
        with (Path(folder) / _STARTED).open("a") as file:
            file.write(f"{kind}\n")


def read_report(folder: Path) -> Report:
    """Return a session's report from its folder; empty if the session ended before writing it."""
    report = Report()
    with contextlib.suppress(FileNotFoundError):
        report.started = (folder / _STARTED).read_text().splitlines()
    with contextlib.suppress(FileNotFoundError):
        told: dict[str, Any] = json.loads((folder / _SECONDS).read_text())
        report.seconds, report.failed = told["seconds"], told["failed"]
    return report


class Reporting:
    """A pytest plugin of the session's main process.

    Args:
        folder: where the report is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._failed = folder, dict[str, str]()
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)  # absent if the set-up itself is missing
            said = crash.message if crash else report.longreprtext
            self._failed.setdefault(report.nodeid, f"{report.when}: {said[:_SAID]}")

    def pytest_sessionfinish(self) -> None:
        told = {"seconds": self._seconds, "failed": self._failed}
        (self._folder / _SECONDS).write_text(json.dumps(told))
