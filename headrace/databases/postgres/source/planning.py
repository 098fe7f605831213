"""Planned statements at a PostgreSQL source for `headrace plan`, beyond what its own `plan` returns.

`plan_unseen_source` is for a server that does not exist yet, `plan_instantiation` shows the effect of copying tables.
Locks are named as in PostgreSQL's manual ("Explicit Locking").
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.databases.ports import PlannedStatement
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.source.ddl.capture import DDL_PLAN, takes_ddl
from headrace.databases.postgres.source.ddl.rules import planned_rules
from headrace.databases.postgres.source.log_stream.slot import slot_statement
from headrace.databases.postgres.source.publication import TABLE_LOCK, publication_options
from headrace.rules.rule import Rule, RuleSet

__all__ = ["plan_instantiation", "plan_unseen_source"]


def plan_instantiation(site: str) -> PlannedStatement:
    """Return what the copy of the tables does to a source.

    Args:
        site: the site whose tables are copied.
    """
    return PlannedStatement(
        statement="CREATE_REPLICATION_SLOT ... TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export'); LOCK TABLE ... IN ACCESS"
        " SHARE MODE; COPY (SELECT ... WHERE ctid ...) TO STDOUT",
        effect=f"copies the tables of {site} as of one snapshot, in pieces, if they were not copied yet; a table that"
        " is rewritten between two pieces is copied again",
        lock="ACCESS SHARE on each table while a piece of it is read: waits for and holds up only DROP, TRUNCATE,"
        " VACUUM FULL and most forms of ALTER TABLE; the snapshot keeps VACUUM from removing rows that died after it",
    )


def plan_unseen_source(
    topology: str, site: str, rules: Sequence[RuleSet], *, version: int
) -> tuple[PlannedStatement, ...]:
    """Return what `prepare` will do to a source that does not exist yet.

    Args:
        topology: name of the topology.
        site: name of the site.
        rules: rule sets of its captures.
        version: major version that the server will have.
    """
    name = slot_name(topology, site)
    wanted = ", ".join(dict.fromkeys(_pattern(rule) for rule_set in rules for rule in rule_set.include or (Rule(),)))
    options = publication_options(version * 10000)
    install, watch = ((step,) for step in DDL_PLAN) if takes_ddl(rules) else ((), ())
    return (
        *install,
        *([planned_rules(rules)] if install else []),
        PlannedStatement(
            statement=f"CREATE PUBLICATION {quote(name)} FOR TABLE <each table like {wanted}> WITH ({options})",
            effect="names the captured tables to the log decoder",
            lock=TABLE_LOCK,
            breaks=(
                "UPDATE and DELETE on a captured table without a primary key, unless its REPLICA IDENTITY is FULL",
            ),
        ),
        *watch,
        PlannedStatement(
            statement=slot_statement(name, has_failover=version >= 17),
            effect="makes the server keep its log until Headrace has written it to its own redo log",
            lock="none, but it waits until every transaction that is running then has ended",
        ),
    )


def _pattern(rule: Rule) -> str:
    return f"{rule.owner}.{rule.name}"
