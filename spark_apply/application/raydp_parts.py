"""RayDP without the parts that a topology never uses.

`import raydp` includes the conversion of Spark's data frames to Ray's data sets, and with it `ray.data`, pandas and
pyarrow. That costs 87 MB, half of them private, and two seconds of CPU time. Two processes of each Spark application
import it: the one that starts the application, and the actor whose child is the application master's JVM.
"""

from __future__ import annotations

import os
import shlex
import sys
import types
from pathlib import Path
from typing import Any

from spark_apply.application.access.authentication import master_option
from spark_apply.application.access.master_gateway import open_gateway

__all__ = ["FOLDER", "SPARK_HOME", "SparkMaster", "asks_for_secret", "use_own_master", "without_data_sets"]

SPARK_HOME = "spark.headrace.home"
"""Setting with the Spark home of the application's JVMs (`spark_apply.application.jvm.spark_home`); absent: the
installed one.
"""
FOLDER = "spark.headrace.folder"
"""Setting with the working folder of the application master's JVM (`spark_apply.application.jvm.class_path`)."""

_MASTER_OPTIONS = "spark.ray.raydp_app_master.extraJavaOptions"
_DATA_SETS = "raydp.spark.dataset"
# Names that `raydp.spark` imports from that module.
_NAMES = (
    "PartitionObjectsOwner",
    "from_spark_recoverable",
    "get_raydp_master_owner",
    "ray_dataset_to_spark_dataframe",
    "release_spark_recoverable",
    "spark_dataframe_to_ray_dataset",
)


def without_data_sets() -> None:
    """Exclude RayDP's data sets in this process; only effective before the first `import raydp`."""
    if "raydp" not in sys.modules:
        module = types.ModuleType(_DATA_SETS)
        for name in _NAMES:
            setattr(module, name, None)
        sys.modules[_DATA_SETS] = module


def use_own_master() -> None:
    """Make RayDP's next application, started by this process, use `SparkMaster` as its master."""
    import ray
    import raydp.spark.ray_cluster

    raydp.spark.ray_cluster.RayDPSparkMaster = ray.remote(SparkMaster)


class SparkMaster:
    """RayDP's own master, in an actor process that imports no data sets.

    Ray sends RayDP's actor class by value, and its references import all of RayDP before any line of ours can run. This
    class is sent by its module's name.

    Args:
        configs: Spark's configuration, as RayDP completes it.
    """

    def __init__(self, configs: dict[str, str]) -> None:
        without_data_sets()
        if SPARK_HOME in configs:
            os.environ["SPARK_HOME"] = configs[SPARK_HOME]
        if FOLDER in configs:
            os.chdir(configs[FOLDER])
        from raydp.spark.ray_cluster_master import RayDPSparkMaster

        self._master: Any = asks_for_secret(RayDPSparkMaster.__ray_metadata__.modified_class)(configs)

    def start_up(self) -> None:
        """Start the application master's JVM; return when it can be reached."""
        self._master.start_up()

    def get_master_url(self) -> str:
        """Return the address at which Spark's driver finds the application master."""
        return str(self._master.get_master_url())

    def stop(self, cleanup_data: bool) -> None:  # noqa: FBT001 - as RayDP calls it
        """End the JVM; also end this actor if nothing is to be kept."""
        self._master.stop(cleanup_data)


def asks_for_secret(master: type) -> type:
    """Return RayDP's master with a JVM that asks for a secret.

    Args:
        master: RayDP's class, without Ray's wrapper.
    """

    class Master(master):  # type: ignore[misc] # known at run time only
        """RayDP's master; callers reach its JVM through the gateway of `open_gateway`."""

        def _launch_gateway(self, class_path: str, popen_kwargs: object = None) -> Any:  # noqa: ANN401, ARG002 - as RayDP calls it
            settings = self._configs
            command = [
                "java",
                *shlex.split(settings.get(_MASTER_OPTIONS, "")),
                *shlex.split(os.environ.get("JAVA_OPTS", "")),
                f"-javaagent:{settings['spark.javaagent']}",
                f"-Dray.logging.dir={_ray_logs()}",
                *(f"-D{name}={settings[key]}" for name, key in _log_settings()),
                "-cp",
                class_path,
            ]
            gateway = open_gateway(command, os.environ)
            if FOLDER in settings:
                # For the application master, which this JVM has Ray start in another one; it needs no secret itself.
                option = master_option(Path(settings[SPARK_HOME]).relative_to(settings[FOLDER]))
                settings[_MASTER_OPTIONS] = f"{settings.get(_MASTER_OPTIONS, '')} {option}"
            bridge = gateway.jvm.org.apache.spark.deploy.raydp.AppMasterJavaBridge
            gateway.entry_point = types.SimpleNamespace(getAppMasterBridge=bridge)
            return gateway

    return Master


def _ray_logs() -> str:
    import ray

    return str(ray._private.worker._global_node.get_logs_dir_path())  # noqa: SLF001 - as RayDP has it


def _log_settings() -> tuple[tuple[str, str], ...]:
    """Return the JVM's logging properties, and the settings that have their values."""
    from raydp import versions
    from raydp.spark import ray_cluster_master as raydp

    return (
        (raydp.SPARK_RAY_LOG4J_FACTORY_CLASS_KEY, raydp.SPARK_RAY_LOG4J_FACTORY_CLASS_KEY),
        (versions.RAY_LOG4J_CONFIG_FILE_NAME_KEY, raydp.RAY_LOG4J_CONFIG_FILE_NAME),
    )
