"""What an apply process is: everything its driver, its tasks' welcome and its copies need to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.databases.connectors import DatabaseAccess
from headrace.lcr.table_name import TableName
from headrace.lcr.tags import DEFAULT_APPLY_TAG
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES, ConflictRules
from headrace.rules.transformations.transformation import AddColumn, Transformation, columns_at_the_end
from headrace.rules.user_code.handlers import NO_HANDLERS, HandlerRules
from headrace.rules.virtual_dependencies import NO_VIRTUAL_DEPENDENCIES, VirtualDependencies
from protos.wire.identity import Identity
from spark_apply.conversation.groups import OnError

if TYPE_CHECKING:
    from headrace.rules.clients_before import ClientsBefore
    from headrace.rules.rule import RuleSet

__all__ = ["COPIES_BESIDE", "ApplyConfig", "TableToInstantiate"]

# Tasks of an apply process that copy tables while others are applied: one reads while the other writes. Not more: they
# share the databases with the apply servers, and each takes a replication origin at the destination.
COPIES_BESIDE = 2

GROUP_TRANSACTIONS_DEFAULT = 1000
GROUP_ROWS_DEFAULT = 10_000
HOST_DEFAULT = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableToInstantiate:
    """A table this apply process replicates.

    Args:
        identity: which table of the source it is, see `headrace.databases.ports.CapturedTable`.
        source: its name at the source.
        destination: its name at the destination, under which its changes arrive.
        object_numbers: of the table and its partitions, when the driver was started: its changes arrive with them.
        keep_existing: the destination's rows are kept as they are, only the instantiation SCN is set; False:
            a destination table that is not empty is refused.
        is_sent_on: changes of the destination table go to other sites: nobody is told to empty it.
        returned_by: the apply process at the source that gets the destination table, whole and unchanged, as the table
            that it is there; empty: none does.
        rows: which of the source's rows it gets, as a condition in SQL (`headrace.rules.conditions.spelling`): they are copied
            and compared; empty: all.
        transformations: what becomes of its rows on the way, one client after the other.
        may_empty: nothing else writes the destination table: rows that were copied once and are out of date are removed
            before it is copied again; False: an operator decides.
        shared_by: of each further site that writes the destination table, the apply process here and the one at the
            source, where the table is one that all sites send to each other (`topology.routing.ways.shared_by`).
        part_of: of a partition that is copied alone, the name of its table at the source; None: it is a table.
    """

    identity: str
    source: TableName
    destination: TableName
    object_numbers: tuple[int, ...]
    rows: str = ""
    keep_existing: bool = False
    is_sent_on: bool = False
    returned_by: str = ""
    may_empty: bool = False
    transformations: tuple[Transformation, ...] = ()
    shared_by: tuple[tuple[str, str], ...] = ()
    part_of: TableName | None = None

    def columns(self, names: Sequence[str]) -> tuple[tuple[str, str | AddColumn], ...]:
        """Its columns at the destination: name there, and the column at the source, or what adds it.

        Args:
            names: of its columns at the source.

        Raises:
            TransformationError: a transformation cannot be applied to it.
        """
        return columns_at_the_end(names, self.transformations, table=str(self.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyConfig:
    """Everything one incarnation of an apply process needs.

    Args:
        topology: its name.
        apply: the apply process's name.
        source: the source site and its database (for instantiation and comparison).
        destination: the site applied to.
        queue: name of the queue it dequeues from.
        tables: what it replicates.
        tag: what its changes are tagged with; empty: a NULL tag.
        parallelism: apply servers.
        group_transactions: most source transactions in one destination transaction.
        group_rows: most rows in one group.
        host: address at which executors reach the coordinator.
        identity: certificate of the destination site; None: without TLS.
        rules: what it evaluates (`topology.routing.ways.rules_at_the_end`).
        returned_from: apply processes whose changes were made here: they count as returned when they come back.
        beside: of each third site that both the source and this site get changes from, the apply process here and the
            one at the source.
        conflicts: its conflict handlers, and what is compared.
        commits_in_order: transactions are committed in the order of the source; False: dependent ones are.
        dependencies: its virtual dependency definitions.
        on_error: what becomes of others when a transaction enters the error queue.
        handlers: users' handlers, with their code.
        commits_lazily: commits of rows do not wait for the destination's disk (`spark_apply.driver.loop.flushes`).
        goes_by_record: `tables` are those of the controller's record; a table that is captured besides waits for `up`.
    """

    topology: str
    apply: str
    source: DatabaseAccess
    destination: DatabaseAccess
    queue: str
    tables: tuple[TableToInstantiate, ...] = ()
    tag: bytes = DEFAULT_APPLY_TAG
    parallelism: int = 2
    group_transactions: int = GROUP_TRANSACTIONS_DEFAULT
    group_rows: int = GROUP_ROWS_DEFAULT
    host: str = HOST_DEFAULT
    identity: Identity | None = None
    rules: tuple[RuleSet | ClientsBefore, ...] = ()
    returned_from: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    conflicts: ConflictRules = NO_CONFLICT_RULES
    commits_in_order: bool = False
    dependencies: VirtualDependencies = NO_VIRTUAL_DEPENDENCIES
    on_error: OnError = OnError.HOLD_DEPENDENTS
    handlers: HandlerRules = NO_HANDLERS
    commits_lazily: bool = True
    goes_by_record: bool = False

    def __post_init__(self) -> None:
        if self.parallelism < 1 or self.group_transactions < 1 or self.group_rows < 1:
            message = f"apply {self.apply}: parallelism, group_transactions and group_rows are at least 1"
            raise ConfigError(message)
