"""Relations and values that a rule's names cover and no log brings.

`check` reports them, because otherwise they would only be missed after a switch-over.

A materialized view and a foreign table have rows, as a table has. A partition is captured with its table. A large
object is known by a number: the number is replicated, its bytes are not. Sequences and views are looked up only by name
(`headrace sequences` compares sequences).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from headrace.databases.ports import NEVER_CAPTURED, Finding
from headrace.rules.rule import RuleSet

if TYPE_CHECKING:
    from headrace.databases.postgres.catalog.source_tables import CatalogTable

__all__ = ["Relation", "large_object_findings", "left_out_findings", "not_captured"]

# A partition is captured through its root. Foreign partitions are reported with their table (`rows_of_others`).
_RELATIONS = """
SELECT n.nspname::text, c.relname::text, CASE WHEN c.relispartition THEN 'partition' ELSE
           CASE c.relkind WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table' WHEN 'v' THEN 'view' ELSE 'sequence' END END,
       coalesce((SELECT rn.nspname || '.' || r.relname FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace
                 WHERE c.relispartition AND r.oid = pg_partition_root(c.oid)), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (c.relkind IN ('m', 'f', 'v', 'S') OR c.relispartition) AND c.relkind NOT IN ('i', 'I') AND NOT n.nspname = ANY (%s) AND n.nspname !~ '^pg_(temp|toast)'
ORDER BY 1, 2
"""
_LARGE_OBJECTS = """
SELECT a.attrelid::int8, a.attname::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped AND (a.atttypid = 'oid'::regtype OR (t.typname = 'lo' AND t.typbasetype = 'oid'::regtype))
  AND EXISTS (SELECT FROM pg_largeobject_metadata)
ORDER BY a.attrelid, a.attnum
"""
_WITH_ROWS = {
    "materialized view": "REFRESH MATERIALIZED VIEW at the destination whenever you need it; or exclude it",
    "foreign table": "make it at the destination too, if its server can be reached from there; or exclude it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A relation that is not an independent table.

    Args:
        owner, name: as in the catalog.
        kind: for people.
        root: the table that it is a partition of; empty: it is not a partition.
    """

    owner: str
    name: str
    kind: str
    root: str = ""

    def described(self) -> str:
        """Describe it, and what a rule should name instead."""
        if self.root:
            return (
                f"{self.owner}.{self.name} is a partition: name its table, {self.root}, which is captured with all"
                " of its partitions"
            )
        return f"{self.owner}.{self.name} is a {self.kind}, and only tables are captured"


def not_captured(connection: psycopg.Connection[Any]) -> tuple[Relation, ...]:
    """Return everything that a rule could name and that is never captured under its own name.

    Args:
        connection: to the source.
    """
    return tuple(
        Relation(owner=owner, name=name, kind=kind, root=root)
        for owner, name, kind, root in connection.execute(_RELATIONS, (list(NEVER_CAPTURED),)).fetchall()
    )


def left_out_findings(relations: Sequence[Relation], rules: Sequence[object], path: str) -> Iterator[Finding]:
    """Report relations with rows that the rules would select if they were tables.

    Relations that a rule names are reported with that rule.

    Args:
        relations: from `not_captured`.
        rules: rule sets of the captures.
        path: of the findings.
    """
    sets = [rule_set for rule_set in rules if isinstance(rule_set, RuleSet)]
    named = {(rule.owner, rule.name) for rule_set in sets for rule in rule_set.include or ()}
    for each in relations:
        if (
            each.kind in _WITH_ROWS
            and (each.owner, each.name) not in named
            and any(rule_set.keeps(each.owner, each.name) for rule_set in sets)
        ):
            yield Finding(
                path=f"{path} table {each.owner}.{each.name}",
                problem=f"is a {each.kind}: its rows are in no log",
                fix=_WITH_ROWS[each.kind],
                is_error=False,
            )


def large_object_findings(
    connection: psycopg.Connection[Any], tables: Sequence[CatalogTable], path: str
) -> Iterator[Finding]:
    """Report columns that may contain numbers of large objects, if the database has any.

    Args:
        connection: to the source.
        tables: captured tables.
        path: of the findings.
    """
    names = {table.number: f"{table.owner}.{table.name}" for table in tables}
    for number, column in connection.execute(_LARGE_OBJECTS, (list(names),)).fetchall():
        yield Finding(
            path=f"{path} table {names[int(number)]}",
            problem=f"column {column} is a number, and this database has large objects: if it names one, the number is"
            " replicated, and the object is not",
            fix="keep the values in a bytea column; or copy the objects yourself (pg_dump --large-objects)",
            is_error=False,
        )
