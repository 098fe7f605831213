"""The process of a site's Spark application.

Started as `python -m spark_apply.application.process` and held by `actors.spark_application`.

Job
    Start Spark, run the tasks that the site's apply processes request, and end when Spark can no longer run tasks.

Main path
    main -> one line of configuration from standard input -> SparkApplication.start -> serve_tasks (the line on standard
    output has its endpoint and its token) -> SparkRuns.run for each call; meanwhile _watch monitors the executors.

States
    None: runs live as long as their calls (`spark_apply.application.runs`).

Durable when
    Never.

Ends when
    Standard input closes (the actor ended or closed it), or the application is unusable: its driver's JVM is gone, or
    it has had no executor for too long. Then the whole application ends with the process
    (`spark_apply.application.spark`). The reason is the last line on standard error and on standard output, as JSON.
    Exit code 0: ended on request; 1: anything else.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

from headrace.base.errors import BugError, HeadraceError
from spark_apply.application.config import ApplicationConfig
from spark_apply.application.spark import SEE_LOG, SparkApplication, SparkUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_apply.application.runs import SparkRuns

__all__ = ["ApplicationWatch", "main"]

_LOOK_INTERVAL_S = 1.0
# If all executors are gone, Ray replaces them within 10 s, unless the application master died, which nothing replaces.
# Another application starts in 20 s.
ALL_LOST_TIMEOUT_S = 30.0
FIRST_TIMEOUT_S = 180.0  # for the first executor, on a loaded machine
# The driver's JVM answers within milliseconds; one that is silent for this long hangs.
SILENCE_MAX_S = 60.0

log = logging.getLogger("headrace.spark")


class ApplicationWatch:
    """Decides whether an application can still run tasks.

    Args:
        executors: returns the number of living executors; raises SparkUnavailable when the driver's JVM is gone.
        counted: called with each count.
        now: monotonic time in seconds.
    """

    def __init__(self, executors: Callable[[], int], counted: Callable[[int], None], now: float) -> None:
        self._executors, self._counted = executors, counted
        self._seen_at, self._looked_at = now, now
        self._has_seen = False
        self._failure: HeadraceError | None = None

    def look(self, now: float) -> None:
        """Count the executors; this blocks while the driver's JVM hangs, so another thread calls `check`."""
        try:
            count = self._executors()
        except HeadraceError as error:
            self._failure = error
            return
        self._counted(count)
        self._looked_at = now
        if count > 0:
            self._seen_at, self._has_seen = now, True

    def check(self, now: float) -> None:
        """Raise if the application is no longer usable.

        Raises:
            SparkUnavailable: its driver's JVM is gone or hangs, or it has had no executor for too long.
        """
        if self._failure is not None:
            raise self._failure
        if now - self._looked_at > SILENCE_MAX_S:
            raise SparkUnavailable(
                f"the JVM of the Spark application's driver has not answered for {SILENCE_MAX_S:g} s", hint=SEE_LOG
            )
        lost_s = now - self._seen_at
        if lost_s > (ALL_LOST_TIMEOUT_S if self._has_seen else FIRST_TIMEOUT_S):
            words = "has come back" if self._has_seen else "started"
            raise SparkUnavailable(
                f"no executor {words} for {lost_s:.0f} s", hint=f"{SEE_LOG}: executors may lack memory or CPUs"
            )


def run(config: ApplicationConfig, tell: Callable[[dict[str, object]], None]) -> None:
    """Run the application until it is no longer usable.

    Args:
        config: configuration of the application.
        tell: called once with endpoint and token, when it serves.

    Raises:
        HeadraceError: it cannot continue.
    """
    application = SparkApplication(config)
    application.start()
    # Imported only now: gRPC must not exist in the process when Spark's gateway forks.
    from protos.links.spark_link import serve_tasks
    from protos.wire.admission import Admission
    from spark_apply.application.runs import SparkRuns

    runs, token = SparkRuns(application, config.identity), secrets.token_hex(16)
    admission = Admission(f"the Spark application of {config.site}", config.identity)
    server = serve_tasks(config.host, runs, token, admission=admission)
    tell({"endpoint": server.endpoint, "token": token, "pid": os.getpid()})
    _watch(application, runs)


def _watch(application: SparkApplication, runs: SparkRuns) -> None:
    def counted(executors: int) -> None:
        runs.executors = executors

    watch = ApplicationWatch(application.executors, counted, time.monotonic())

    def look() -> None:
        while True:
            watch.look(time.monotonic())
            time.sleep(_LOOK_INTERVAL_S)

    threading.Thread(target=look, name="look", daemon=True).start()
    while True:
        time.sleep(_LOOK_INTERVAL_S)
        watch.check(time.monotonic())


# --------------------------------------------------------------------------- the process


def _end_with_standard_input() -> None:
    """Wait until standard input closes, then exit at once: Ray and Spark end everything else of this process."""
    while sys.stdin.readline():
        pass
    os._exit(0)


def _own_standard_output() -> IO[str]:
    """Reserve standard output for this process's answers: Spark's JVM inherits descriptor 1 and would log there."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def main() -> None:
    """Read the configuration, run, and report the reason for the end."""
    output = _own_standard_output()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("headrace").setLevel(logging.INFO)

    def tell(document: Mapping[str, object]) -> None:
        output.write(json.dumps(document) + "\n")
        output.flush()

    failure: HeadraceError
    try:
        config = ApplicationConfig.from_json(sys.stdin.readline())
        threading.Thread(target=_end_with_standard_input, name="standard-input", daemon=True).start()
        run(config, tell)
        return
    except HeadraceError as error:
        failure = error
    except Exception as error:
        log.exception("unexpected error")
        failure = BugError(f"the Spark application: {type(error).__name__}: {error}", hint="see its log; report it")
    line = failure.described()
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stderr.flush()
    tell(line)
    # Threads of Ray, Spark and gRPC may still run: do not wait for them.
    os._exit(1)


if __name__ == "__main__":
    main()
