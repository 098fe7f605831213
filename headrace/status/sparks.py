"""The status of a site's Spark application."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.status.component import ComponentStatus

__all__ = ["SparkStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStatus(ComponentStatus):
    """A Spark application, in which a site's apply servers run.

    Args:
        application_pid: process id of its driver; 0: it does not run.
        applications_started: applications started since the component's process began.
        executors: number of its executors.
        runs: what runs in it for apply processes.
    """

    application_pid: int = 0
    applications_started: int = 0
    executors: int = 0
    runs: int = 0
