"""The rules by which event triggers publish new tables: what `up` writes into `headrace_ddl.rule`.

A new table is published if its publication's capture process keeps its DDL and cannot discard any of its rows: a positive
rule with `ddl: true` matches it, and no negative rule at all does. LIKE with these patterns has the meaning of a rule's
own (`Rule.matches_object`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from headrace.databases.ports import PlannedStatement
from headrace.databases.postgres.catalog.source_tables import may_read
from headrace.databases.postgres.source.ddl.capture import DdlStep
from headrace.databases.postgres.source.ddl.objects import SCHEMA
from headrace.lcr.table_name import TableName, literal
from headrace.rules.rule import Rule, RuleSet

__all__ = ["planned_rules", "rules_step"]

_EFFECT = "publishes new tables in the statements that create them"
_LIKE = str.maketrans({"*": "%", "?": "_", "%": "\\%", "_": "\\_", "\\": "\\\\"})

_ROWS = """
SELECT topology, rule_set, is_positive, owner_like, name_like FROM headrace_ddl.rule WHERE publication = %s ORDER BY number
"""

_Row = tuple[str, int, bool, str, str]


def planned_rules(rules: Sequence[object]) -> PlannedStatement:
    """Return the step at a server that does not exist yet.

    Args:
        rules: rule sets (`headrace.rules.rule.RuleSet`) of the source's captures.
    """
    return PlannedStatement(statement=_summary(rules), effect=_EFFECT)


def rules_step(
    connection: psycopg.Connection[Any], publication: str, topology: str, rules: Sequence[object]
) -> DdlStep | None:
    """Return the step that replaces the rules of a publication; None: it has none, and needs none.

    A role that may not read them takes the step as done: an administrator does it.

    Args:
        connection: to the source.
        publication: its name.
        topology: its name.
        rules: as for `planned_rules`; those without `ddl: true` publish nothing.
    """
    wanted = list(_rows(topology, rules))
    is_readable = may_read(connection, TableName(SCHEMA, "rule"))
    found: list[_Row] = connection.execute(_ROWS, (publication,)).fetchall() if is_readable else []
    if not wanted and not found:
        return None
    values = ", ".join(
        f"({literal(publication)}, {number}, {literal(name)}, {rule_set}, {is_positive}, {literal(owner)}, {literal(table)})"
        for number, (name, rule_set, is_positive, owner, table) in enumerate(wanted)
    )
    return DdlStep(
        statement=_summary(rules) if wanted else f"DELETE FROM {SCHEMA}.rule",
        effect=_EFFECT if wanted else "no longer publishes new tables in the statements that create them",
        is_done=is_readable is False or wanted == found,
        # One transaction. The lock is for another `up`; readers do not wait for it.
        sent=f"LOCK TABLE {SCHEMA}.rule IN SHARE ROW EXCLUSIVE MODE;"
        f" DELETE FROM {SCHEMA}.rule WHERE publication = {literal(publication)};"
        + (f" INSERT INTO {SCHEMA}.rule VALUES {values};" if wanted else "")
        + f" DELETE FROM {SCHEMA}.made m"
        " WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.oid = m.entry)",
    )


def _rows(topology: str, rules: Sequence[object]) -> Iterator[_Row]:
    for number, rule_set in enumerate(rules):
        include, exclude = _taking(rule_set)
        for is_positive, each in ((True, include), (False, exclude if include else ())):
            for rule in each:
                yield topology, number, is_positive, rule.owner.translate(_LIKE), rule.name.translate(_LIKE)


def _taking(rule_set: object) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """Return the rules that publish tables, and those that keep them from it."""
    if not isinstance(rule_set, RuleSet):
        return (), ()
    include = (
        rule for rule in rule_set.include or () if rule.ddl and not rule.looks_at_rows and not rule.transformation
    )
    return tuple(include), rule_set.exclude


def _summary(rules: Sequence[object]) -> str:
    taking = [_taking(rule_set) for rule_set in rules]
    named = [str(rule) for include, _ in taking for rule in include]
    named += [f"but not {rule}" for include, exclude in taking if include for rule in exclude]
    return f"INSERT INTO {SCHEMA}.rule VALUES ({', '.join(dict.fromkeys(named))})"
