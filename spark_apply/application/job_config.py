"""What the apply actor hands to its Spark driver: one JSON line on the driver's standard input.

Secrets (connection strings) travel only here and, from the driver to its tasks, over the driver's own
authenticated gRPC stream: never in arguments, the environment, Spark's configuration or a log.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from databases.connectors import DatabaseAccess
from rules.rule import Rule, RuleSet
from streams.errors import ConfigError, StreamsError
from streams.table_name import TableName
from streams.tags import DEFAULT_APPLY_TAG

__all__ = ["ApplyJobConfig", "ExecutorResources", "TableToInstantiate", "describe_failure"]

EXECUTORS_DEFAULT = 2  # one goes on while Ray replaces the other (5.7 s measured)
EXECUTOR_MEMORY_MB_DEFAULT = 512  # JVM heap: data never passes through it, only task descriptions do
DRIVER_MEMORY_MB_DEFAULT = 512  # likewise
# Of Ray's CPUs, per executor: apply servers wait for the database most of the time, and two applications whose
# cores do not fit the node's CPUs would wait for each other for ever.
EXECUTOR_CPUS_DEFAULT = 0.05
GROUP_TRANSACTIONS_DEFAULT = 1000
GROUP_ROWS_DEFAULT = 10_000
HOST_DEFAULT = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableToInstantiate:
    """A table this apply process replicates.

    Args:
        identity: which table of the source it is, see `databases.ports.CapturedTable`.
        source: its name at the source.
        destination: its name at the destination, under which its changes arrive.
        keep_existing: the destination's rows are kept as they are, only the instantiation SCN is set; False:
            a destination table that is not empty is refused.
        may_empty: nothing else writes the destination table: rows that were copied once and are out of date are removed
            before it is copied again; False: an operator decides.
    """

    identity: str
    source: TableName
    destination: TableName
    keep_existing: bool = False
    may_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorResources:
    """What the Spark application asks of Ray.

    Args:
        executors: Spark executors (Ray actors).
        cores: task slots of each; 0: apply servers + 1, so that one executor alone can carry everything and
            instantiation and comparison run beside the servers.
        memory_mb: JVM heap of each executor.
        driver_memory_mb: JVM heap of the driver.
        cpus: of Ray's CPUs, per executor.
        node: Ray custom resources that place executors on the site's nodes, as (name, amount).
    """

    executors: int = EXECUTORS_DEFAULT
    cores: int = 0
    memory_mb: int = EXECUTOR_MEMORY_MB_DEFAULT
    driver_memory_mb: int = DRIVER_MEMORY_MB_DEFAULT
    cpus: float = EXECUTOR_CPUS_DEFAULT
    node: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyJobConfig:
    """Everything one incarnation of an apply process's driver needs.

    Args:
        topology: its name.
        apply: the apply process's name.
        source: the source site and its database (for instantiation and comparison).
        destination: the site applied to.
        queue: name of the queue's actor ("queue:<name>") in `ray_namespace`.
        queue_name: the queue's own name.
        ray_address: of the Ray cluster.
        ray_namespace: where the topology's actors live.
        state_dir: folder of this apply process.
        tables: what it replicates.
        tag: what its changes are tagged with.
        parallelism: apply servers.
        group_transactions: most source transactions in one destination transaction.
        group_rows: most rows in one group.
        host: address at which executors reach this driver; also Spark's own.
        resources: see `ExecutorResources`.
        rules: what it takes of what the queue has.
        returned_from: apply processes whose changes were made here: they count as returned when they come back.
        queue_endpoint: fixed "host:port" of the queue instead of the actor's answer (tests and tools).
    """

    topology: str
    apply: str
    source: DatabaseAccess
    destination: DatabaseAccess
    queue: str
    queue_name: str
    ray_address: str
    ray_namespace: str
    state_dir: str
    tables: tuple[TableToInstantiate, ...] = ()
    tag: bytes = DEFAULT_APPLY_TAG
    parallelism: int = 2
    group_transactions: int = GROUP_TRANSACTIONS_DEFAULT
    group_rows: int = GROUP_ROWS_DEFAULT
    host: str = HOST_DEFAULT
    resources: ExecutorResources = field(default_factory=ExecutorResources)
    rules: RuleSet = field(default_factory=RuleSet)
    returned_from: tuple[str, ...] = ()
    queue_endpoint: str = ""

    def __post_init__(self) -> None:
        if self.parallelism < 1 or self.group_transactions < 1 or self.group_rows < 1:
            message = f"apply {self.apply}: parallelism, group_transactions and group_rows are at least 1"
            raise ConfigError(message)

    @property
    def executor_cores(self) -> int:
        """Task slots of each executor."""
        return self.resources.cores or self.parallelism + 1

    def to_json(self) -> str:
        """One line for the driver's standard input. Contains secrets: write it nowhere else."""
        return json.dumps({**asdict(self), "tag": self.tag.hex()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> ApplyJobConfig:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: the line is not such a configuration (the message shows no values).
        """
        try:
            fields = json.loads(line)
            resources = fields.pop("resources")
            resources["node"] = tuple((name, amount) for name, amount in resources["node"])
            return cls(
                source=DatabaseAccess(**fields.pop("source")),
                destination=DatabaseAccess(**fields.pop("destination")),
                tables=tuple(_table(**table) for table in fields.pop("tables")),
                tag=bytes.fromhex(fields.pop("tag")),
                resources=ExecutorResources(**resources),
                rules=_rules(fields.pop("rules")),
                returned_from=tuple(fields.pop("returned_from")),
                **fields,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"the apply driver's configuration is not what it should be ({type(error).__name__})"
            raise ConfigError(message) from None


def _table(source: list[str], destination: list[str], **rest: Any) -> TableToInstantiate:  # noqa: ANN401 - as it was written
    return TableToInstantiate(source=TableName(*source), destination=TableName(*destination), **rest)


def _rules(document: dict[str, list[dict[str, bool]] | None]) -> RuleSet:
    include, exclude = document["include"], document["exclude"]
    return RuleSet(
        include=None if include is None else tuple(Rule(**rule) for rule in include),  # type: ignore[arg-type]
        exclude=tuple(Rule(**rule) for rule in exclude or ()),  # type: ignore[arg-type]
    )


def describe_failure(error: StreamsError) -> dict[str, object]:
    """What the driver says of the error that ended it: one JSON object on its last line."""
    return {
        "error": type(error).__name__, "code": error.code, "message": error.message, "hint": error.hint,
        "retry": error.retry.value,
    }
