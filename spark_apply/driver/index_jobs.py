"""The driver's worker: makes indexes outside the transactions of the data, one after another.

Job
    Run the jobs that DDL LCRs have recorded at the destination (`headrace.databases.ports.DdlJob`), until each is done.

Main path
    IndexJobs.run, on a thread of its own with a connection of its own: ddl_jobs -> the first one that is due ->
    run_ddl_job -> again.

Durable when
    Everything is in the destination's records. A worker that is killed loses the time that an index has taken so far.

Bounds
    One index is made at a time: each reads a whole table. A job that fails is tried again after `_RETRY_MIN_S`, then
    twice as long each time up to `_RETRY_MAX_S`, and at the start of the next driver. Others run meanwhile. No failure
    ends the driver, and nothing of the apply process waits for this thread but the driver's end, for which an attempt is
    broken off.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from headrace.base.errors import DestinationRestarted, FencedError, HeadraceError
from headrace.databases.connectors import open_destination

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.databases.ports import DdlJob, DestinationDatabase
    from spark_apply.apply_config import ApplyConfig

__all__ = ["IndexJobs"]

_LOOK_S = 2.0  # between two looks for jobs; nobody waits for an index to begin
_RETRY_MIN_S = 5.0  # a deadlock, or a lock that another session holds for a moment
_RETRY_MAX_S = 300.0  # each attempt may read the whole table

log = logging.getLogger("headrace.apply")


class IndexJobs:
    """The jobs of one driver.

    Args:
        config: of the apply process.
        epoch: of the driver.
        should_end: whether the driver ends.
    """

    def __init__(self, config: ApplyConfig, epoch: int, should_end: Callable[[], bool]) -> None:
        self._config, self._epoch, self._should_end = config, epoch, should_end
        self._woken = threading.Event()
        self._failures: dict[int, tuple[int, float]] = {}  # of a job: how many, and when it is due again
        self._next_look = 0.0
        self.found: tuple[DdlJob, ...] = ()
        """The jobs as they were read last; any thread may read this."""

    def run(self) -> None:
        """Run jobs until the driver ends, or forget about it where no DDL is taken and none is left."""
        access = self._config.destination
        with (
            contextlib.closing(open_destination(access)) as looking,
            contextlib.closing(open_destination(access)) as making,
        ):
            while not self._should_end():
                try:
                    self._look(looking)
                    if not self.found and not self._config.takes_ddl:
                        return
                    is_run = self._run_next(making, looking)
                except (FencedError, DestinationRestarted):
                    return  # the driver itself ends, too, and says why
                except HeadraceError as error:
                    log.info("%s: indexes that are made beside the rest: %s", self._config.apply, error.message)
                    is_run = False
                if not is_run:
                    self._woken.wait(_LOOK_S)

    def end(self) -> None:
        """Wake the worker, which then sees that the driver ends."""
        self._woken.set()

    def _look(self, looking: DestinationDatabase) -> None:
        self.found = looking.ddl_jobs(self._config.topology, self._config.apply)
        self._next_look = time.monotonic() + _LOOK_S

    def _run_next(self, making: DestinationDatabase, looking: DestinationDatabase) -> bool:
        """Make one attempt at the first job that is due; return whether there was one."""
        now, config = time.monotonic(), self._config
        numbers = {job.number for job in self.found}
        self._failures = {number: each for number, each in self._failures.items() if number in numbers}
        number = next((n for n in sorted(numbers) if n not in self._failures or self._failures[n][1] <= now), None)
        if number is None:
            return False
        # Whatever comes of it. A job that is done is not found any more.
        count = self._failures.get(number, (0, 0.0))[0]

        def should_end() -> bool:
            """Look for jobs meanwhile: an index may take hours, and the status tells what waits behind it."""
            if time.monotonic() >= self._next_look:
                with contextlib.suppress(HeadraceError):
                    self._look(looking)
            return self._should_end()

        try:
            making.run_ddl_job(config.topology, config.apply, self._epoch, number, should_end=should_end)
        finally:
            making.close()  # until the next one
            pause = min(_RETRY_MIN_S * 2**count, _RETRY_MAX_S)
            self._failures[number] = (min(count + 1, 10), time.monotonic() + pause)
        return True
