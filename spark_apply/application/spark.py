"""One RayDP Spark application per destination site, in a Ray namespace that is new for each incarnation.

The namespace is new because RayDP's actor names are fixed and a killed driver's application master lingers for a
moment. All parts of the application (application master, executors, Python workers) belong to the process that started
it: when that dies for any reason, Ray and Spark end the rest within seconds. Tasks that linger meanwhile are refused by
the destination, and by their apply process, which accepts only the tasks of its newest run.

It runs one job for each run of tasks that an apply process requests (`spark_apply.application.runs`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from headrace.base.errors import ApplyError, Retry
from spark_apply.application.access.authentication import SETTINGS, executor_option, join_application, write_secret
from spark_apply.application.access.peers import guard_accumulator_server
from spark_apply.application.config import TASK_SLOTS
from spark_apply.application.environment import LOOPBACK, OWN_MODULES, java_environment
from spark_apply.application.jvm.class_path import class_path
from spark_apply.application.jvm.spark_home import home_environment, write_spark_home
from spark_apply.application.raydp_parts import FOLDER, SPARK_HOME, use_own_master, without_data_sets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from spark_apply.application.config import ApplicationConfig

__all__ = ["SEE_LOG", "SparkApplication", "SparkUnavailable", "remove_left_scratch"]

# The JVMs only carry task descriptions. A small heap, one collector thread and the quick compiler start faster and
# leave the cores to the Python workers (measured: 1.6 GB resident for the whole application, up in 10 s).
_JVM_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ActiveProcessorCount=2 "
    "-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20 -Xss512k -XX:-UsePerfData "
    # Task descriptions and results are small: chunks of 64 KiB for network buffers instead of 4 MB, and 128 log
    # messages in flight (log4j's minimum) instead of 262,144.
    "-Dio.netty.allocator.maxOrder=3 -Dlog4j2.asyncLoggerConfigRingBufferSize=128 "
    # Its logging thread sleeps until there is a message, instead of polling a hundred times a second (measured: 0.45 %
    # of a core per JVM).
    "-Dlog4j2.asyncLoggerConfigWaitStrategy=Block"
)
# The defaults are fractions of the machine's memory, and a JVM touches all of it before the first collection.
_HEAP = "-Xms24m -Xmn6m"
# The application master forgets a lost executor's handle. If the JVM collects the handle before the executor that Ray
# is restarting has reported again, Ray destroys that executor, and none replaces it. With a young generation of 6 MB
# this happened each time both executors were killed.
_APP_MASTER_HEAP = "-Xms40m -Xmn16m -Xmx256m"
_MEMORY_OVERHEAD_MB = 256  # thread stacks, metaspace and direct buffers besides the heap
_MASTER_CPUS = "0.01"  # the application master is idle; it must never wait for a CPU
# Spark reruns an apply server's task however often it is killed: the watchdog decides, not a count.
_TASK_FAILURES_MAX = "1000000"
_MESSAGE_THREADS = "2"
_LOOPBACK_HOST = "127.0.0.1"
_SCRATCH = "spark"

SEE_LOG = "retrying; if it persists, see the log of the site's Spark application, and `headrace doctor`"

log = logging.getLogger("headrace.apply")


class SparkUnavailable(ApplyError):  # noqa: N818 - the name states the condition
    """The Spark application did not start, has ended, or hangs.

    The machine lacks a resource, or one of its processes died.

    The error is transient: the site's actor starts another application.
    """

    code = "HDR-5010"
    fix = "Nothing, if it starts again. Otherwise give the machine what the message names, usually memory or CPUs."
    retry = Retry.TIMED


def scratch_folder(state_dir: str) -> Path:
    """Return the folder for temporary files of this process's JVMs; `remove_left_scratch` removes it later."""
    return Path(state_dir) / _SCRATCH / str(os.getpid())


def remove_left_scratch(state_dir: Path) -> None:
    """Remove the folders of ended driver processes, which killed JVMs left behind."""
    for folder in (state_dir / _SCRATCH).glob("[0-9]*"):
        if not psutil.pid_exists(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


class SparkApplication:
    """A running Spark application on Ray.

    Start it before any gRPC channel or server exists in the process: Spark's gateway forks.

    Args:
        jvm_options: further options of its JVMs.
    """

    def __init__(self, config: ApplicationConfig, *, jvm_options: Sequence[str] = ()) -> None:
        self._config, self._jvm_options = config, tuple(jvm_options)
        # Ray started this process in the environment of its workers, so they run the same Java.
        self._java = shutil.which("java")
        self.namespace = f"headrace-{config.topology}-spark-{config.site}-{uuid.uuid4().hex[:12]}"
        self._session: Any = None

    @property
    def _context(self) -> Any:  # noqa: ANN401 - pyspark is untyped here
        if self._session is None:
            raise SparkUnavailable(f"the Spark application of {self._config.site} does not run", hint=SEE_LOG)
        return self._session.sparkContext

    # ------------------------------------------------------------------ jobs

    def run_job(
        self,
        group: str,
        task: Callable[[int, Iterable[Any]], Iterator[Any]],
        items: Sequence[Any],
        tasks: int,
    ) -> list[Any]:
        """Run one job on this thread until every task has ended.

        Args:
            group: name of the job, for `cancel`.
            task: called in a worker with its number and its share of the items.
            items: divided among the tasks, in order.
            tasks: number of tasks; each takes a slot.

        Returns:
            The tasks' results, in order.

        Raises:
            SparkUnavailable: the job was cancelled, or the application ended.
        """
        try:
            # With interruption, Spark ends the Python worker of a cancelled task, which may be waiting for its
            # database.
            self._context.setJobGroup(group, group, interruptOnCancel=True)
            found: list[Any] = self._context.parallelize(items, tasks).mapPartitionsWithIndex(task).collect()
        except Exception as error:
            raise SparkUnavailable(f"the Spark job {group} ended: {_reason(error)}", hint=SEE_LOG) from error
        return found

    def cancel(self, group: str) -> None:
        """Cancel a job if it runs.

        A job submitted later is not cancelled: call again until `run_job` has returned.
        """
        # An ending application has cancelled everything already.
        with contextlib.suppress(Exception):
            self._context.cancelJobGroup(group)

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Start a thread that may call `run_job`; its counterpart in the JVM ends with it.

        Args:
            target: runs on the thread.
            name: name of the thread.

        Raises:
            SparkUnavailable: the driver's JVM no longer answers.
        """
        from pyspark import InheritableThread

        try:
            thread: threading.Thread = InheritableThread(target=target, name=name, daemon=True)
            thread.start()
        except Exception as error:
            raise self._jvm_ended(error) from error
        return thread

    def executors(self) -> int:
        """Return the number of living executors.

        Raises:
            SparkUnavailable: the driver's JVM no longer answers.
        """
        try:
            # The driver's own block manager is counted too.
            return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001 - not in pyspark's API
        except Exception as error:
            raise self._jvm_ended(error) from error

    @staticmethod
    def _jvm_ended(error: Exception) -> SparkUnavailable:
        return SparkUnavailable(f"the JVM of the Spark application's driver has ended: {_reason(error)}", hint=SEE_LOG)

    # ------------------------------------------------------------------ start and end

    def start(self) -> None:
        """Start Ray's client, the application master and the executors; return when tasks can be submitted.

        Raises:
            SparkUnavailable: RayDP could not start the application; the log has the details.
        """
        os.environ.update(java_environment())
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = self._config.host
        if self._is_local:
            os.environ.update(LOOPBACK)
        without_data_sets()
        import ray
        import raydp

        use_own_master()
        guard_accumulator_server()
        resources, configuration = self._config.resources, self._spark_configuration()
        if SPARK_HOME in configuration:
            os.environ.update(home_environment(Path(configuration[SPARK_HOME])))
        try:
            ray.init(
                address=self._config.ray_address,
                namespace=self.namespace,
                log_to_driver=False,
                configure_logging=False,
                # The node on which this process was started. Of several on one machine Ray would take the head.
                _node_ip_address=self._config.host,
            )
            self._session = raydp.init_spark(
                f"{self._config.topology}-{self._config.site}",
                num_executors=resources.executors,
                executor_cores=TASK_SLOTS,
                executor_memory=f"{resources.memory_mb}m",
                fault_tolerant_mode=False,
                configs=configuration,
            )
            join_application(self._session.sparkContext)
        except Exception as error:
            log.exception("the Spark application of %s did not start", self._config.site)
            message = f"the Spark application did not start: {_reason(error)}"
            raise SparkUnavailable(message, hint=SEE_LOG) from error
        self._session.sparkContext.setLogLevel("ERROR")

    @property
    def _is_local(self) -> bool:
        """Whether Ray is the private cluster on this machine."""
        return self._config.ray_address.startswith(_LOOPBACK_HOST)

    def _spark_configuration(self) -> dict[str, str]:
        resources, host = self._config.resources, self._config.host
        options = executor_options = f"{_JVM_OPTIONS} {_HEAP}"
        app_master_options = f"{_JVM_OPTIONS} {_APP_MASTER_HEAP}"
        scratch: dict[str, str] = {}
        if self._config.state_dir:
            # The whole application runs on this folder's machine, so files of killed JVMs are found in it.
            folder = scratch_folder(self._config.state_dir)
            folder.mkdir(parents=True, exist_ok=True)
            write_spark_home(folder / "home")
            write_secret(folder / "home")
            path = class_path(folder, self._java)
            scratch = {
                "spark.local.dir": str(folder),
                FOLDER: str(folder),
                SPARK_HOME: str(folder / "home"),
                "spark.preferClassPath": str(path),
                "spark.ray.preferClassPath": str(path),
                **SETTINGS,
            }
            own = [*path.options, *self._jvm_options]
            if " " not in str(folder):  # options are split at blanks
                own.append(f"-Djava.io.tmpdir={folder}")
            options, app_master_options = (" ".join((each, *own)) for each in (options, app_master_options))
            executor_options = f"{options} {executor_option(folder / 'home')}"
        configuration = {
            **scratch,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": host,
            "spark.driver.bindAddress": host,
            "spark.driver.memory": f"{resources.driver_memory_mb}m",
            "spark.executor.memoryOverhead": f"{_MEMORY_OVERHEAD_MB}m",
            "spark.driver.extraJavaOptions": options,
            "spark.executor.extraJavaOptions": executor_options,
            "spark.ray.raydp_app_master.extraJavaOptions": app_master_options,
            "spark.ray.raydp_spark_master.actor.resource.CPU": _MASTER_CPUS,
            "spark.ray.raydp_spark_executor.actor.resource.cpu": str(resources.cpus),
            "spark.task.maxFailures": _TASK_FAILURES_MAX,
            "spark.stage.maxConsecutiveAttempts": _TASK_FAILURES_MAX,
            # Ray replaces a killed executor at once; Spark must not give up on the node or the application.
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.excludeOnFailure.enabled": "false",
            "spark.locality.wait": "0",  # no task has local data
            "spark.python.worker.reuse": "true",
            "spark.python.daemon.module": "spark_apply.application.daemon",
            **{f"spark.executorEnv.{name}": value for name, value in OWN_MODULES.items()},
            # Spark creates one message thread per slot.
            "spark.driver.rpc.netty.dispatcher.numThreads": _MESSAGE_THREADS,
            "spark.executor.rpc.netty.dispatcher.numThreads": _MESSAGE_THREADS,
            "spark.rpc.io.serverThreads": _MESSAGE_THREADS,
            "spark.rpc.io.clientThreads": _MESSAGE_THREADS,
            # A broken connection reveals a lost executor; these only bound a half-open one.
            "spark.executor.heartbeatInterval": "5s",
            "spark.network.timeout": "60s",
        }
        # Executors and master: an application whose master is on another node would end with that node.
        for name, amount in resources.node:
            configuration[f"spark.ray.raydp_spark_executor.actor.resource.{name}"] = str(amount)
            configuration[f"spark.ray.raydp_spark_master.actor.resource.{name}"] = str(amount)
        return configuration

    def stop(self) -> None:
        """End the application in order; idempotent. Cleaning up does not depend on it: Ray and Spark do that."""
        if self._session is None:
            return
        import ray
        import raydp

        self._session = None
        with contextlib.suppress(Exception):  # already dying: the process exits next
            raydp.stop_spark()
        with contextlib.suppress(Exception):
            ray.shutdown()


def _reason(error: Exception) -> str:
    """Return the innermost cause in one line: errors from a JVM or another process contain all their stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1].rstrip(")") if causes else f"{type(error).__name__}: {lines[-1] if lines else ''}"
