"""Results of checks before a start: findings, planned statements, and the shapes of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.lcr.table_name import TableName
from headrace.rules.rule import Rule, RuleSet, TruthValue, passages
from headrace.rules.transformations.transformation import Transformation, columns_at_the_end

__all__ = [
    "UNFIT_TABLE",
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

UNFIT_TABLE = "the table does not fit the source's rows"
"""The problem of a `Finding` whose fix gives a destination's table the columns of its source's."""


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
        lock: what it locks, in which mode and for how long; empty: nothing that could block a user's statement.
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
    """A need for values in a source's log.

    Args:
        place: path in the file.
        rule: selects the tables; its condition or subset reads the values.
        before: the rules of the earlier clients, as far as they transform: the rule names columns as they are after
            these. For a handler or a substitute key: of all clients.
        old, new: columns whose values before or after a change a handler or a substitute key needs, of the one table
            that the rule names, under its name after `before`. Empty: the rule says what it needs.
        every_old: every column's value before a change is needed, of that table.
        function: the function that the rule's LCRs go through, as the file names it: it reads new values of the columns
            `new`, or of every column where that is empty. Its rule's own steps are in `before`.
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
        """Whether the rule itself says what is needed."""
        return not self.old and not self.new and not self.every_old and not self.function

    def concerns(self, owner: str, name: str) -> bool:
        """Whether it needs values of a table.

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
        """Return the name of a table where the rule is evaluated; for a function's rule: before its own steps.

        Args:
            owner: the table's schema at the source.
            name: the table's name there.
        """
        found = tuple(passages(self._renaming, TableName(owner, name)))
        return found[-1].behind if found else TableName(owner, name)

    @property
    def _renaming(self) -> tuple[RuleSet, ...]:
        """The earlier clients' rules that rename tables."""
        return tuple(rules for rules in (self.before[:-1] if self.function else self.before) if rules.renames)

    def transformations(self, owner: str, name: str) -> tuple[Transformation, ...]:
        """Return the transformations of a table before it reaches the rule.

        Args:
            owner: the table's schema at the source.
            name: the table's name there.
        """
        found = (each.transformation for each in passages(self.before, TableName(owner, name)))
        return tuple(each for each in found if each is not None)

    def at_source(self, owner: str, name: str, columns: Sequence[str]) -> dict[str, str]:
        """Map the column names that the rule sees to the source's names.

        Columns that transformations add are not included.

        Args:
            owner: the table's schema.
            name: the table's name.
            columns: of the table at the source.

        Raises:
            TransformationError: a transformation cannot be applied to the table.
        """
        found = columns_at_the_end(columns, self.transformations(owner, name), table=TableName(owner, name))
        return {column: origin for column, origin in found if isinstance(origin, str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTable:
    """What the log must have of a table's rows beyond its key: supplemental logging.

    Args:
        owner, name: of the table, or of a separately logged partition.
        place: what needs it, as a path in the file.
        columns: "old NAME" or "new NAME".
        lacking: those of them that the log does not have.
        uncertain: those that the log lacks for some rows.
        statement: adds them to the log; empty: the log has them.
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
    """What a destination needs to know of an apply process for a plan.

    Args:
        name: of the apply process.
        source: site whose changes it applies.
        parallelism: apply servers, one session each.
        tag: mark of its changes; empty: no mark.
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
        parent: its direct parent.
        bound: in DDL syntax.
        rows: which rows of the table it holds (`headrace.lcr.batch.Partition`).
        partitioned_by: its own partitioning; empty: none.
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
        numbers: of the labels, which survive a rename, as in `RowMark.labels`.
    """

    owner: str
    name: str
    labels: tuple[str, ...]
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainColumn:
    """A type below one column of a domain, or of an array or composite type that contains one.

    Args:
        name: of the column.
        domain: its type, in the form of `headrace.lcr.type_name.type_text`.
        base_type: the type below, in the same form.
        modifier: of the base type; -1: none.
        part: which part of the column: `[]` are an array's elements, `<>` a range's bounds, `.name` is a field.
        holder: composite type of the innermost field, in the same form; empty: no field.
    """

    name: str
    domain: str
    base_type: str
    modifier: int
    part: str = ""
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPart:
    """A partition's expression for a computed column: each partition may have its own.

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
        expression: in the database's SQL; for a partitioned table, what new partitions get.
        type_name: in DDL syntax.
        is_logged: its values are in the source's log.
        is_virtual: values are computed on read.
        parts: the partitions that have rows; empty: the table is not partitioned, or has none.
    """

    name: str
    expression: str
    type_name: str
    is_logged: bool
    is_virtual: bool = False
    parts: tuple[ComputedPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedDifference:
    """A difference between what the destination and the source compute in a column.

    Args:
        column: its name.
        there, here: the differing expressions at source and destination, in DDL syntax; empty: rows have equal values.
        is_table_same: the table's own expressions, which new partitions get, are equal.
        lacking: partitions of the source, under the names they would have here, that a partitioned table here lacks.
        hanging: objects that depend on the column here, and would be dropped with it.
        statements: make the destination compute what the source does.
        obstacle: why no statements are given, and what an operator does instead.
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
        """Whether row values differ."""
        return bool(self.there)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedType:
    """A column's type that is not built in, without arrays and domains around it.

    Args:
        column: the column.
        owner, name: of the type.
        kind: the connector's kind of type.
        extension: the extension that owns it; empty: a user's own type.
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
    """One comparison in a constraint between two rows.

    Args:
        column: empty: it compares an expression.
        expression: empty: it compares a column.
        operator: schema-qualified.
        is_equality: the operator is `=`.
    """

    column: str
    expression: str
    operator: str
    is_equality: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A constraint in which rows with different values can collide: EXCLUDE, or a temporal key (WITHOUT OVERLAPS).

    Args:
        name: of it.
        kind: `x`, or for a temporal key `p` (primary) or `u` (unique).
        definition: as ALTER TABLE ... ADD CONSTRAINT takes it.
        terms: rows collide where all of them are true.
        condition: which rows it compares; empty: all.
    """

    name: str
    kind: str
    definition: str
    terms: tuple[ExclusionTerm, ...]
    condition: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it compares directly."""
        return tuple(term.column for term in self.terms if term.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """Properties of a table that may differ between two databases though its columns fit.

    Args:
        owner, name: of the table.
        partitioned_by: its partitioning; empty: none.
        partitions: at every level, parents first.
        enums: the enumerated types of its columns, directly or nested.
        domains: types below columns of types that are not built in, which the log does not say; only from
            `domain_shapes`, which reads nothing else but `computed` and `types`.
        computed: its computed columns; only from `domain_shapes`.
        types: of its columns, those that are not built in; only from `domain_shapes`.
        keys: columns of each unique key.
        exclusions: its exclusion constraints and temporal keys.
        identity: columns of the key whose values the log has of a changed row; empty: it has the whole row, or nothing.
        encoding: of text in its database, by the database's name for it; empty: not read.
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
