"""Configuration of an apply process, for its driver, its tasks' access to the databases, and its copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from headrace.base.errors import ConfigError
from headrace.databases.connectors import DatabaseAccess
from headrace.lcr.scn import FIRST_SCN, Scn
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

__all__ = ["BY_RECORD_SCN", "COPIES_BESIDE", "ApplyConfig", "ReplicatedTables", "TableToInstantiate"]

# Tasks of an apply process that copy tables while others are applied: one reads while the other writes. More would
# compete with the apply servers for the databases, and each takes a replication origin at the destination.
COPIES_BESIDE = 2

BY_RECORD_SCN = Scn((1 << 63) - 1)
"""`TableToInstantiate.as_of` of a table that was taken up from its record: without one it is never copied."""

GROUP_TRANSACTIONS_DEFAULT = 1000
GROUP_ROWS_DEFAULT = 10_000
HOST_DEFAULT = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableToInstantiate:
    """A table this apply process replicates.

    Args:
        identity: the source table's identity, as in `headrace.databases.ports.CapturedTable`.
        source: name at the source.
        destination: name at the destination, under which its changes arrive.
        object_numbers: object numbers of the table and its partitions when the driver started; changes carry them.
        keep_existing: keep the destination's rows as they are and only set the instantiation SCN; False: refuse a
            destination table that is not empty.
        rests: the operator has said, with `headrace up --keep-existing`, that changes of the table rest at every site. So
            an empty destination table is copied although other ways have begun without this source's rows.
        is_sent_on: changes of the destination table go to other sites, so no message asks the operator to empty it.
        returned_by: apply process at the source that gets the destination table back whole, unchanged and as the same
            table; empty: none does.
        rows: SQL condition (`headrace.rules.conditions.spelling`) for the source rows that are copied and compared;
            empty: all.
        transformations: transformations of its rows on the way, one per client, in order.
        may_empty: nothing else writes the destination table, so stale copied rows are removed before the table is
            copied again; False: an operator decides.
        shared_by: for a table that all sites send to each other (`topology.routing.ways.shared_by`): of each further
            site that writes the destination table, the apply process here and the one at the source.
        part_of: for a partition that is copied alone, the name of its table at the source; None: a whole table.
        as_of: for a table that DDL made: the source named it, with this name, at this SCN. Until everything below is
            applied, its CREATE TABLE may still arrive, so without a record it is not copied. FIRST_SCN: not made by DDL.
        takes_ddl: its DDL arrives, too, and may rename it: the destination's record says what it is called there.
    """

    identity: str
    source: TableName
    destination: TableName
    object_numbers: tuple[int, ...]
    rows: str = ""
    keep_existing: bool = False
    rests: bool = False
    is_sent_on: bool = False
    returned_by: str = ""
    may_empty: bool = False
    transformations: tuple[Transformation, ...] = ()
    shared_by: tuple[tuple[str, str], ...] = ()
    part_of: TableName | None = None
    as_of: Scn = FIRST_SCN
    takes_ddl: bool = False

    def columns(self, names: Sequence[str]) -> tuple[tuple[str, str | AddColumn], ...]:
        """Map its source columns, `names`, to (name at the destination, source column or operation that adds it).

        Raises:
            TransformationError: a transformation cannot be applied to it.
        """
        return columns_at_the_end(names, self.transformations, table=self.source, numbers=self.object_numbers)


class ReplicatedTables(Sequence[TableToInstantiate]):
    """The tables that an apply process replicates now: DDL adds and removes some while it runs.

    One thread changes them. The others may read them at any time, and see all tables before a change, or all after it.

    Args:
        tables: to begin with.
    """

    def __init__(self, tables: Iterable[TableToInstantiate] = ()) -> None:
        self._tables = tuple(tables)

    @overload
    def __getitem__(self, place: int) -> TableToInstantiate: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[TableToInstantiate, ...]: ...

    def __getitem__(self, place: int | slice) -> TableToInstantiate | tuple[TableToInstantiate, ...]:
        return self._tables[place]

    def __iter__(self) -> Iterator[TableToInstantiate]:
        return iter(self._tables)  # of one moment, also if it takes long

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        return repr(self._tables)

    def add(self, table: TableToInstantiate) -> None:
        """Add a table. Those of its identity or with its name at the destination are removed."""
        others = (each for each in self._tables if each.destination != table.destination)
        self._tables = (*(each for each in others if each.identity != table.identity), table)

    def put(self, *tables: TableToInstantiate) -> None:
        """Replace the tables of the same identities, all at once; nothing happens without one."""
        new = {table.identity: table for table in tables}
        self._tables = tuple(new.get(each.identity, each) for each in self._tables)

    def remove(self, identity: str) -> None:
        """Remove a table; nothing happens without it."""
        self._tables = tuple(each for each in self._tables if each.identity != identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyConfig:
    """Everything one incarnation of an apply process needs.

    Args:
        source: the source site and its database (for instantiation and comparison).
        destination: the site applied to.
        queue: name of the queue it dequeues from.
        tables: the tables it replicates; they become `replicated`, which changes when DDL makes and drops tables.
        tag: tag of its changes; empty: a NULL tag.
        parallelism: number of apply servers.
        group_transactions: most source transactions in one destination transaction.
        group_rows: most rows in one group.
        host: address at which executors reach the coordinator.
        identity: certificate of the destination site; None: without TLS.
        rules: the rules that it evaluates (`topology.routing.ways.rules_at_the_end`).
        returned_from: apply processes that apply changes made at this site; what comes back from them counts as
            returned.
        beside: of each third site that sends changes to both the source and this site, the apply process here and the
            one at the source.
        conflicts: its conflict handlers, and the columns it compares.
        commits_in_order: transactions commit in the source's order; False: only dependent ones do.
        dependencies: its virtual dependency definitions.
        on_error: fate of the other transactions when one enters the error queue.
        handlers: users' handlers, with their code.
        commits_lazily: commits of rows do not wait for the destination's disk (`spark_apply.driver.loop.flushes`).
        goes_by_record: `tables` come from the controller's record; any other captured table waits for `headrace up`.
    """

    topology: str
    apply: str
    source: DatabaseAccess
    destination: DatabaseAccess
    queue: str
    tables: Sequence[TableToInstantiate] = ()
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
        if not isinstance(self.tables, ReplicatedTables):
            object.__setattr__(self, "tables", ReplicatedTables(self.tables))

    @property
    def takes_ddl(self) -> bool:
        """Whether DDL LCRs may pass its rules."""
        return all(each.takes_ddl for each in self.rules)

    @property
    def replicated(self) -> ReplicatedTables:
        """The tables that it replicates now: `tables`, to be changed by whoever applies DDL."""
        assert isinstance(self.tables, ReplicatedTables)
        return self.tables
