"""A driver's tasks as threads of the test, in place of Spark."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.base.errors import DestinationRestarted, PropagationError
from protos import apply_pb2 as pb
from spark_apply.application import runs
from spark_apply.application.access.run_tokens import RunTokens
from spark_apply.application.access.task_access import TaskAccess
from spark_apply.apply_config import ApplyConfig
from spark_apply.copy import instantiation
from spark_apply.driver import apply_driver

WAIT_S = 240.0  # generous: machines may run other work as well
_LOOK_AGAIN_S = 1.0  # a test acts at once on a table that needs an operator; ten in production


def run_on_threads(patch: pytest.MonkeyPatch) -> None:
    """Have drivers run their tasks as threads of the test, and look soon again at tables that need an operator.

    Args:
        patch: undoes it.
    """
    patch.setattr(apply_driver, "TaskRunner", Runner)
    patch.setattr(instantiation, "_LOOK_AGAIN_S", _LOOK_AGAIN_S)


class Run:
    """Replaces `TaskRun`: tasks on threads of the test."""

    error, problem = None, ""

    def __init__(
        self, runner: Runner, kind: pb.TaskKind, tasks: int, items: Sequence[bytes], moved: Callable[[bool], None]
    ) -> None:
        module, _, function = runs._CODE[kind].partition(":")
        code = getattr(importlib.import_module(module), function)
        access = TaskAccess(endpoint=runner.endpoint, token=runner.tokens.admit(), identity=runner.config.identity)
        moved(True)
        self.results: list[bytes] = []

        def work(number: int) -> None:
            # A driver that ends before it has welcomed a task, or a destination that crashed: Spark sees a failed task.
            with contextlib.suppress(PropagationError, DestinationRestarted):
                self.results.extend(
                    code(access, runner.config.topology, runner.config.apply, number, iter(items[number::tasks]))
                )

        self._threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(tasks)]
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        deadline = time.monotonic() + (timeout_s or WAIT_S)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None: ...


@dataclass
class Runner:
    """Replaces `TaskRunner`."""

    config: ApplyConfig
    find: Any
    tokens: RunTokens
    endpoint: str
    epoch: int

    def start(
        self,
        kind: int,
        tasks: int,
        *,
        items: Sequence[bytes] = (),
        is_kept: bool = False,
        moved: Callable[[bool], None] = lambda _: None,
    ) -> Run:
        return Run(self, kind, tasks, items, moved)
