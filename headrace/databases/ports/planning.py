"""What a database says beforehand: what is missing, and what would be done to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet, TruthValue, passages
from headrace.rules.transformations.transformation import Transformation, columns_at_the_end

__all__ = [
    "ComputedColumn",
    "DomainColumn",
    "EnumLabels",
    "Exclusion",
    "ExclusionTerm",
    "Finding",
    "LogNeed",
    "LoggedTable",
    "NamedType",
    "PlannedApply",
    "PlannedStatement",
    "ShapedPartition",
    "TableShape",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a preflight found.

    Args:
        path: what it is about ("sites.dbs1", "sites.dbs1 table public.t").
        problem: what is wrong.
        fix: the statement or setting that fixes it.
        is_error: replication cannot start; False: a warning the operator should know.
    """

    path: str
    problem: str
    fix: str
    is_error: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatement:
    """One thing that `prepare`, instantiation or apply would do to a database, for `headrace plan`.

    Args:
        statement: as it would be sent (shortened where it repeats), without secrets.
        effect: what it creates or changes, in one sentence.
        lock: what it locks, how, and how long; empty: nothing that a user's statement could wait for.
        breaks: user statements that would start to fail, and why; empty: none.
        is_done: the database has it already: `up` changes nothing.
    """

    statement: str
    effect: str
    lock: str = ""
    breaks: tuple[str, ...] = ()
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNeed:
    """Something that needs values in a source's log.

    Args:
        place: in the file.
        rule: whose tables, and whose condition or subset.
        before: the rules of the clients before it, as far as they transform: the rule speaks of columns as they are
            behind them. Of a handler or a substitute key: of all clients.
        old, new: columns whose values before or after a change a handler or a substitute key needs: of the one table
            that the rule names, as it is called behind `before`. Empty: the rule says what it needs.
        every_old: every column's value before a change is needed, of that table.
        function: that the rule's LCRs go through, as the file names it: it looks at new values, of `new`, or of every
            column where that is empty. Its rule's own steps are in `before`.
    """

    place: str
    rule: Rule
    before: tuple[RuleSet, ...] = ()
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    every_old: bool = False
    function: str = ""

    @property
    def is_of_rule(self) -> bool:
        """Whether the rule says what is needed."""
        return not self.old and not self.new and not self.every_old and not self.function

    def concerns(self, owner: str, name: str) -> bool:
        """Whether it needs something of a table.

        Args:
            owner: the table's schema at the source.
            name: the table's name there.
        """
        before = self._renaming if self.is_of_rule or self.function else self.before
        found = tuple(passages(before, TableName(owner, name)))
        if any(rules.prefilter(*each.table) is TruthValue.FALSE for rules, each in zip(before, found, strict=True)):
            return False
        called = found[-1].behind if found else (owner, name)
        return (
            self.rule.matches_object(*called)
            if self.is_of_rule or self.function
            else called == (self.rule.owner, self.rule.name)
        )

    def called(self, owner: str, name: str) -> TableName:
        """What a table is called where the rule is asked; of a function's rule: before its own steps.

        Args:
            owner: the table's schema at the source.
            name: the table's name there.
        """
        found = tuple(passages(self._renaming, TableName(owner, name)))
        return found[-1].behind if found else TableName(owner, name)

    @property
    def _renaming(self) -> tuple[RuleSet, ...]:
        """Those of the clients before it that give tables other names."""
        return tuple(rules for rules in (self.before[:-1] if self.function else self.before) if rules.renames)

    def transformations(self, owner: str, name: str) -> tuple[Transformation, ...]:
        """What becomes of a table before it comes to the rule.

        Args:
            owner: the table's schema at the source.
            name: the table's name there.
        """
        found = (each.transformation for each in passages(self.before, TableName(owner, name)))
        return tuple(each for each in found if each is not None)

    def at_source(self, owner: str, name: str, columns: Sequence[str]) -> dict[str, str]:
        """The source's names of the columns that the rule sees, by their names there.

        Without those that transformations add.

        Args:
            owner: the table's schema.
            name: the table's name.
            columns: of the table at the source.

        Raises:
            TransformationError: a transformation cannot be applied to the table.
        """
        found = columns_at_the_end(columns, self.transformations(owner, name), table=f"{owner}.{name}")
        return {column: origin for column, origin in found if isinstance(origin, str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTable:
    """What the log must have of a table's rows beyond its key: supplemental logging.

    Args:
        owner, name: of the table, or of a partition that is logged by itself.
        place: what needs it, in the file.
        columns: "old NAME" or "new NAME".
        lacking: those of them that the log does not have.
        uncertain: those that it lacks of some rows.
        statement: makes the log have them; empty: it has.
    """

    owner: str
    name: str
    place: str
    columns: tuple[str, ...]
    lacking: tuple[str, ...]
    uncertain: tuple[str, ...]
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedApply:
    """An apply process, as far as its destination notices it.

    Args:
        name: of the apply process.
        source: whose changes it applies.
        parallelism: apply servers, a session each.
        tag: what marks its changes; empty: nothing.
        tombstones: owners and names of tables whose deletes are noted.
    """

    name: str
    source: str
    parallelism: int
    tag: bytes
    tombstones: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedPartition:
    """A partition, at any level.

    Args:
        owner, name: its own.
        parent: what it is a partition of.
        bound: as DDL spells it.
        rows: which rows of the table it holds (`headrace.lcr.batch.Partition`).
        partitioned_by: how it is partitioned itself; empty: it is not.
    """

    owner: str
    name: str
    parent: TableName
    bound: str
    rows: str
    partitioned_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnumLabels:
    """An enumerated type and its labels, in their order.

    Args:
        owner, name: of the type.
        labels: their names.
        numbers: of the labels, which they keep when they are renamed, as `RowMark.labels` has them.
    """

    owner: str
    name: str
    labels: tuple[str, ...]
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainColumn:
    """A column of a domain, of an array of such or of a composite type.

    Its name, the type's own, and one of the types that are below it.

    Args:
        name: of the column.
        domain: its type, as `headrace.lcr.type_name.type_text` writes it.
        base_type: below it, likewise written.
        modifier: of the base type; -1: none.
        part: which one is meant: `[]` are an array's elements, `<>` a range's bounds, `.name` is a field.
        holder: of the innermost field the composite type, likewise written; empty: there is none.
    """

    name: str
    domain: str
    base_type: str
    modifier: int
    part: str = ""
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPart:
    """How a partition computes a column: each may have an expression of its own.

    Args:
        owner, name: of the partition.
        expression: in the database's SQL.
    """

    owner: str
    name: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedColumn:
    """A column that a database computes from the row's other columns.

    Args:
        name: of the column.
        expression: in the database's SQL; of a partitioned table, what new partitions get.
        type_name: as DDL spells it.
        is_logged: its values are in the log of a source.
        is_virtual: they are computed when they are read.
        parts: the partitions that have rows; none: the table is not partitioned, or has none.
    """

    name: str
    expression: str
    type_name: str
    is_logged: bool
    is_virtual: bool = False
    parts: tuple[ComputedPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedDifference:
    """What the destination computes in a column beside what the source does.

    Args:
        column: its name.
        there, here: expressions that are not the same, as DDL has them; empty: rows have the same values.
        is_table_same: the table's own expressions, which new partitions get, are the same.
        lacking: partitions of the source, under the names they would have here, that a partitioned table here lacks.
        hanging: what hangs on the column here, and goes with it if it is dropped.
        statements: which make the destination compute what the source does.
        obstacle: why there are none, and what an operator does.
    """

    column: str
    there: str = ""
    here: str = ""
    is_table_same: bool = True
    lacking: tuple[TableName, ...] = ()
    hanging: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    obstacle: str = ""

    @property
    def is_of_rows(self) -> bool:
        """Whether rows have other values."""
        return bool(self.there)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedType:
    """The type of a column that is not built in, without arrays and domains around it.

    Args:
        column: whose type it is.
        owner, name: of the type.
        kind: as the connector tells kinds of types apart.
        extension: that it belongs to; empty: it is a user's own.
        labels: of an enumerated type.
    """

    column: str
    owner: str
    name: str
    kind: str
    extension: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionTerm:
    """What a constraint compares of two rows.

    Args:
        column: empty: it compares an expression.
        expression: empty: it compares a column.
        operator: qualified.
        is_equality: it is `=`.
    """

    column: str
    expression: str
    operator: str
    is_equality: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A constraint in which rows collide whose values differ: EXCLUDE, or a temporal key (WITHOUT OVERLAPS).

    Args:
        name: of it.
        kind: `x`, or of a temporal key `p` (primary) or `u` (unique).
        definition: as ALTER TABLE ... ADD CONSTRAINT takes it.
        terms: rows collide where all of them are true.
        condition: of the rows that it compares; empty: all.
    """

    name: str
    kind: str
    definition: str
    terms: tuple[ExclusionTerm, ...]
    condition: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that it compares as they are."""
        return tuple(term.column for term in self.terms if term.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """What two databases may have differently though a table's columns fit.

    Args:
        owner, name: of the table.
        partitioned_by: how; empty: it is not partitioned.
        partitions: at every level, parents first.
        enums: the types of its columns, and those that are part of them.
        domains: what is below its columns of types that are not built in, of which the log does not say it; only from
            `domain_shapes`, which read nothing else but `computed`.
        computed: columns that it computes; only from `domain_shapes`.
        types: of its columns, those that are not built in; only from `domain_shapes`.
        keys: columns of each unique key.
        exclusions: its exclusion constraints and temporal keys.
        identity: columns of the key whose values the log has of a row that is changed; empty: it has all of the row, or
            nothing.
        encoding: of text in its database, as that calls it; empty: not read.
    """

    owner: str
    name: str
    partitioned_by: str = ""
    partitions: tuple[ShapedPartition, ...] = ()
    enums: tuple[EnumLabels, ...] = ()
    domains: tuple[DomainColumn, ...] = ()
    computed: tuple[ComputedColumn, ...] = ()
    types: tuple[NamedType, ...] = ()
    keys: tuple[tuple[str, ...], ...] = ()
    identity: tuple[str, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    encoding: str = ""
