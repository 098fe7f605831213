"""The configuration that the actor of a site's Spark application sends its process: one JSON line on standard input.

It contains no database secret: each apply process gives its tasks the connection strings.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from headrace.base.errors import ConfigError
from protos.wire.identity import Identity

__all__ = ["TASK_SLOTS", "ApplicationConfig", "ExecutorResources"]

# Bounds of the JVMs' heaps. Only task descriptions pass through them, never data; but Spark demands 450 MB, which it
# does not use.
EXECUTOR_MEMORY_MB_DEFAULT = 512
DRIVER_MEMORY_MB_DEFAULT = 512
# Ray CPUs per executor. Apply servers mostly wait for the database. Two applications whose cores do not fit the node's
# CPUs would wait for each other forever.
EXECUTOR_CPUS_DEFAULT = 0.05
# A slot is only a number: a task costs memory while it runs, whatever the number is. An executor has more slots than a
# site has tasks (parallelism of every apply process, plus copies and comparisons). So apply processes come and go
# without another executor, and one executor can run all of them while Ray replaces the other.
TASK_SLOTS = 256
HOST_DEFAULT = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorResources:
    """The resources that the Spark application requests from Ray.

    Args:
        executors: number of Spark executors (Ray actors).
        memory_mb: JVM heap of each executor.
        driver_memory_mb: JVM heap of the driver.
        cpus: Ray CPUs per executor.
        node: Ray custom resources that place executors and application master on the site's nodes, as (name, amount
            for each of them).
    """

    executors: int
    memory_mb: int = EXECUTOR_MEMORY_MB_DEFAULT
    driver_memory_mb: int = DRIVER_MEMORY_MB_DEFAULT
    cpus: float = EXECUTOR_CPUS_DEFAULT
    node: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationConfig:
    """Everything one incarnation of a site's Spark application needs.

    Args:
        site: the destination site whose apply processes it serves.
        ray_address: address of the Ray cluster.
        state_dir: folder of this application.
        host: address at which executors and apply processes reach it; also Spark's own.
        identity: certificate of the site, as the names of its files; None: without TLS.
        resources: resources requested from Ray.
    """

    topology: str
    site: str
    ray_address: str
    state_dir: str
    host: str = HOST_DEFAULT
    identity: Identity | None = None
    resources: ExecutorResources

    def to_json(self) -> str:
        """Return one line for the process's standard input."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> ApplicationConfig:
        """Parse the output of `to_json`.

        Raises:
            ConfigError: the line is not such a configuration (the message shows no values).
        """
        try:
            fields = json.loads(line)
            resources = fields.pop("resources")
            resources["node"] = tuple((name, amount) for name, amount in resources["node"])
            identity = Identity.from_json(fields.pop("identity"))
            return cls(resources=ExecutorResources(**resources), identity=identity, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"the Spark application's configuration is invalid ({type(error).__name__})"
            raise ConfigError(message) from None
