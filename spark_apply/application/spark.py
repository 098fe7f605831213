"""One RayDP Spark application per incarnation of an apply process, in its own Ray namespace.

The namespace is new for each incarnation because RayDP's actor names are fixed and a killed driver's
application master lingers for a moment. Everything the application consists of (application master,
executors, Python workers) belongs to the driver process: when that dies, by whatever cause, Ray and Spark end
the rest within seconds, and the destination's epoch keeps orphans from writing meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from spark_apply.application.environment import LOOPBACK, java_environment
from spark_apply.application.ray_class import write_ray_class
from streams.errors import ApplyError, Retry

if TYPE_CHECKING:
    from spark_apply.application.job_config import ApplyJobConfig

__all__ = ["SEE_LOG", "SparkApplication", "SparkUnavailable", "remove_left_scratch"]

# The JVMs only carry task descriptions: a small heap, one collector thread and the quick compiler start faster
# and leave the cores to the Python workers (measured: 1.6 GB resident for the whole application, up in 10 s).
_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ActiveProcessorCount=2"
_APP_MASTER_OPTIONS = f"{_JVM_OPTIONS} -Xmx256m"
_MEMORY_OVERHEAD_MB = 256  # thread stacks, metaspace and direct buffers next to a heap of that size
_MASTER_CPUS = "0.01"  # the application master sleeps; it must never wait for a CPU
# An apply server's task is run again however often it is killed: the watchdog decides, not a count.
_TASK_FAILURES_MAX = "1000000"
_ACTOR_TIMEOUT_S = 10.0  # an actor that is being restarted answers within seconds or is asked again
_LOOPBACK_HOST = "127.0.0.1"
_SCRATCH = "spark"

SEE_LOG = "it is tried again; if it stays so, see the driver's log, and `headrace doctor`"

log = logging.getLogger("headrace.apply")


class SparkUnavailable(ApplyError):  # noqa: N818 - says what is the matter
    """The Spark application did not start, has ended, or does nothing: the machine is short of something, or a process of it died.

    Time, or another application, heals it: the apply process starts one.
    """

    code = "HDR-5010"
    retry = Retry.TIMED


def scratch_folder(state_dir: str) -> Path:
    """Where the JVMs that belong to this process put what does not outlive them; see `remove_left_scratch`."""
    return Path(state_dir) / _SCRATCH / str(os.getpid())


def remove_left_scratch(state_dir: Path) -> None:
    """Remove what JVMs that were killed left: the folders of driver processes that are gone."""
    for folder in (state_dir / _SCRATCH).glob("[0-9]*"):
        if not psutil.pid_exists(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


class SparkApplication:
    """A running Spark application on Ray.

    Start it before any gRPC channel or server exists in the process: Spark's gateway forks.
    """

    def __init__(self, config: ApplyJobConfig) -> None:
        self._config = config
        self.namespace = f"headrace-{config.topology}-{config.apply}-{uuid.uuid4().hex[:12]}"
        self._session: Any = None

    @property
    def context(self) -> Any:  # noqa: ANN401 - pyspark is untyped here
        """The SparkContext."""
        if self._session is None:
            message = f"apply {self._config.apply}: Spark is not running"
            raise ApplyError(message)
        return self._session.sparkContext

    @property
    def slots(self) -> int:
        """Task slots of all executors together."""
        return self._config.resources.executors * self._config.executor_cores

    def start(self) -> None:
        """Start Ray's client, the application master and the executors; returns when tasks can be submitted.

        Raises:
            SparkUnavailable: RayDP could not start the application; the whole story is in the log.
        """
        os.environ.update(java_environment())
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = self._config.host
        if self._is_local:
            os.environ.update(LOOPBACK)
        import ray
        import raydp

        resources, configuration = self._config.resources, self._spark_configuration()
        try:
            ray.init(
                address=self._config.ray_address, namespace=self.namespace, log_to_driver=False, configure_logging=False,
                **({"_node_ip_address": _LOOPBACK_HOST} if self._is_local else {}),
            )
            self._session = raydp.init_spark(
                f"{self._config.topology}-{self._config.apply}", num_executors=resources.executors,
                executor_cores=self._config.executor_cores, executor_memory=f"{resources.memory_mb}m",
                fault_tolerant_mode=False, configs=configuration,
            )
        except Exception as error:
            log.exception("apply %s: the Spark application did not start", self._config.apply)
            message = f"the Spark application did not start: {_reason(error)}"
            raise SparkUnavailable(message, hint=SEE_LOG) from error
        self._session.sparkContext.setLogLevel("ERROR")

    @property
    def _is_local(self) -> bool:
        """Ray is the private cluster on this machine."""
        return self._config.ray_address.startswith(_LOOPBACK_HOST)

    def _spark_configuration(self) -> dict[str, str]:
        resources, host = self._config.resources, self._config.host
        options, app_master_options = _JVM_OPTIONS, _APP_MASTER_OPTIONS
        scratch: dict[str, str] = {}
        if self._config.state_dir and self._is_local:
            # Everything runs on this machine: what killed JVMs leave behind lies where it is found again. Elsewhere
            # an executor's node need not have this folder.
            folder = scratch_folder(self._config.state_dir)
            folder.mkdir(parents=True, exist_ok=True)
            scratch = {"spark.local.dir": str(folder)}
            # On a class path, a colon ends a folder's name.
            if ":" not in str(folder):
                write_ray_class(folder / "classes", folder / "ray")
                scratch["spark.ray.preferClassPath"] = str(folder / "classes")
            if " " not in str(folder):  # options are split at blanks
                options, app_master_options = (f"{each} -Djava.io.tmpdir={folder}" for each in (options, app_master_options))
        configuration = {
            **scratch,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": host,
            "spark.driver.bindAddress": host,
            "spark.driver.memory": f"{resources.driver_memory_mb}m",
            "spark.executor.memoryOverhead": f"{_MEMORY_OVERHEAD_MB}m",
            "spark.driver.extraJavaOptions": options,
            "spark.executor.extraJavaOptions": options,
            "spark.ray.raydp_app_master.extraJavaOptions": app_master_options,
            "spark.ray.raydp_spark_master.actor.resource.CPU": _MASTER_CPUS,
            "spark.ray.raydp_spark_executor.actor.resource.cpu": str(resources.cpus),
            "spark.task.maxFailures": _TASK_FAILURES_MAX,
            "spark.stage.maxConsecutiveAttempts": _TASK_FAILURES_MAX,
            # A killed executor is replaced by Ray at once; Spark must not give up on the node or the application.
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.excludeOnFailure.enabled": "false",
            "spark.locality.wait": "0",  # no task has data near it
            "spark.python.worker.reuse": "true",
            # A lost executor is noticed by its broken connection; these only bound a half-open one.
            "spark.executor.heartbeatInterval": "5s",
            "spark.network.timeout": "60s",
        }
        for name, amount in resources.node:
            configuration[f"spark.ray.raydp_spark_executor.actor.resource.{name}"] = str(amount)
        return configuration

    def queue_endpoint(self) -> str:
        """Ask the queue's actor where it serves now; its port changes when it restarts.

        Raises:
            ApplyError: no such actor, or it does not answer (try again).
        """
        if self._config.queue_endpoint:
            return self._config.queue_endpoint
        import ray

        try:
            actor = ray.get_actor(self._config.queue, namespace=self._config.ray_namespace)
            return str(ray.get(actor.endpoint.remote(), timeout=_ACTOR_TIMEOUT_S))
        except (ValueError, ray.exceptions.RayError) as error:
            message = f"apply {self._config.apply}: {self._config.queue} does not answer ({type(error).__name__})"
            raise ApplyError(message) from error

    def stop(self) -> None:
        """End the application in order; idempotent. Not needed for cleaning up: see the module."""
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
    """The innermost cause in one line: what comes from a JVM or another process brings all its stacks along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1].rstrip(")") if causes else f"{type(error).__name__}: {lines[-1] if lines else ''}"
