"""Capture of DDL at a source: what `check`, `up` and `down --purge` do about the schema headrace_ddl.

Its objects are in `headrace.databases.postgres.source.ddl.objects`. They exist while the publication of some topology
names the log of DDL: the last one that stops naming it drops them.

Worked flow (a rule with `ddl: true` is new)
    `up`: install_step -> the log, its functions and the event triggers exist, every DDL is recorded -> rules_step
    (`rules`): the event triggers know which new tables to publish -> the publication names the log: from now on they
    do -> watch_step: each table's structure is its first record -> the slot, if it does not exist yet.
    A statement between any two of these is recorded in full or is in the table's first record.

Durable when
    Each step is one transaction, or one for each table, and can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.base.errors import DatabaseError
from headrace.databases.ports import Finding, MissedDdl, PlannedStatement
from headrace.databases.postgres.catalog.source_tables import CatalogTable, Leaf, unlogged_tables
from headrace.databases.postgres.connection import qualified, quote
from headrace.databases.postgres.source.ddl.compared import Compared, compared_by
from headrace.databases.postgres.source.ddl.objects import (
    EVENT_TRIGGERS,
    INSTALL,
    LOG,
    REMOVE,
    ROUTINES,
    SCHEMA,
    VERSION,
)
from headrace.databases.postgres.source.ddl.publishing import GUARDED
from headrace.databases.postgres.source.ddl.trimming import trim_log
from headrace.lcr.ddl import DDL_LOG
from headrace.lcr.table_name import literal, remark
from headrace.rules.rule import Rule, RuleSet

__all__ = [
    "DDL_PLAN",
    "DdlStep",
    "ddl_due",
    "ddl_findings",
    "ddl_tables",
    "install_step",
    "is_published",
    "log_tables",
    "missed_ddl",
    "removal_step",
    "takes_ddl",
    "trim_ddl",
    "unrecorded",
    "watch_step",
]

_INSTALLED = f"CREATE SCHEMA {SCHEMA}; CREATE TABLE {SCHEMA}.{LOG}; CREATE EVENT TRIGGER {', '.join(EVENT_TRIGGERS)}"
_EFFECT = "records what each DDL statement of this database changes, in the statement's own transaction"
_WATCH_EFFECT = "records how the tables look now, which later records are compared with"
_WATCH_LOCK = (
    "SHARE UPDATE EXCLUSIVE on one table after another, for a moment: waits for and holds up VACUUM, ALTER TABLE, CREATE"
    " INDEX"
)
_OURS = re.compile(r"headrace (\d+)")  # the comment on the schema

# Rights of others would let them forge records.
_STATE = f"""
SELECT r.rolsuper, r.rolname::text, pg_catalog.pg_has_role(n.nspowner, 'USAGE'), coalesce(obj_description(n.oid, 'pg_namespace'), ''),
       coalesce(l.oid, 0)::int8,
       ARRAY(SELECT p.proname::text FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid),
       ARRAY(SELECT e.evtname::text FROM pg_catalog.pg_event_trigger e JOIN pg_catalog.pg_proc p ON p.oid = e.evtfoid
             WHERE p.pronamespace = n.oid AND e.evtenabled = 'A'),
       {len(GUARDED)} = (SELECT count(*) FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
            WHERE c.relnamespace = n.oid AND c.relname IN ({", ".join(map(literal, GUARDED))}) AND t.tgname = 'refuse' AND t.tgenabled = 'A'),
       EXISTS (SELECT FROM (SELECT n.nspowner, n.nspacl UNION ALL SELECT l.relowner, l.relacl) AS object (owner, acl)
               CROSS JOIN LATERAL aclexplode(object.acl) a WHERE a.grantee <> object.owner),
       ARRAY(SELECT p.pubname::text FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_rel x ON x.prpubid = p.oid
             WHERE x.prrelid = l.oid),
       EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'compared' AND c.relkind = 'r'),
       EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid AND p.proname = 'publish')
FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner
LEFT JOIN pg_catalog.pg_class l ON l.relnamespace = n.oid AND l.relname = 'log' AND l.relkind = 'r'
WHERE n.nspname = 'headrace_ddl'
"""

# Of the tables in question, those whose last record is not how they look now.
_DUE = """
SELECT t.number::int8 FROM unnest(%s::oid[]) AS t (number)
LEFT JOIN LATERAL (
    SELECT l.content FROM headrace_ddl.log l WHERE l.relation = t.number ORDER BY l.number DESC LIMIT 1
) AS last ON true
WHERE nullif(last.content::jsonb -> 'after', 'null') - 'role' IS DISTINCT FROM headrace_ddl.structure_of(t.number) - 'role'
ORDER BY 1
"""

# Settings with which DDL is not recorded, or without the structure before it: of the server, of this database, of a role.
# Sessions of Headrace set the second one themselves. The first one exists from version 17 on.
_HARMFUL = ("event_triggers=off", "default_transaction_isolation=serializable")
_SET = """
SELECT s.name || '=' || s.reset_val, '', format('ALTER SYSTEM RESET %%I; SELECT pg_reload_conf();', s.name)
FROM pg_catalog.pg_settings s WHERE s.name || '=' || s.reset_val = ANY (%(harmful)s)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting x WHERE s.name || '=' || s.reset_val = ANY (x.setconfig))
UNION ALL
SELECT c.setting, ' for ' || of.what, format('ALTER %%s RESET %%I;', of.what, split_part(c.setting, '=', 1))
FROM pg_catalog.pg_db_role_setting x
CROSS JOIN LATERAL unnest(x.setconfig) AS c (setting)
LEFT JOIN pg_catalog.pg_database d ON d.oid = x.setdatabase LEFT JOIN pg_catalog.pg_roles r ON r.oid = x.setrole
CROSS JOIN LATERAL (
    SELECT CASE WHEN x.setrole = 0 THEN 'DATABASE ' || quote_ident(d.datname)
                ELSE concat('ROLE ', quote_ident(r.rolname), ' IN DATABASE ' || quote_ident(d.datname)) END
) AS of (what)
WHERE (x.setdatabase = 0 OR d.datname = pg_catalog.current_database()) AND c.setting = ANY (%(harmful)s)
ORDER BY 1, 2
"""
_OF_ALL_TABLES = (
    "SELECT p.pubname::text FROM pg_catalog.pg_publication p WHERE p.puballtables AND p.pubinsert ORDER BY 1"
)

_INHERITING = """
SELECT c.oid::int8, c.relkind = 'p' FROM pg_catalog.pg_class c
WHERE c.oid = ANY (%s::oid[]) AND (c.relkind = 'p' OR EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlStep(PlannedStatement):
    """A step of `prepare` of which `statement` is a summary.

    Args:
        sent: what is sent: SQL of any length.
    """

    sent: str


DDL_PLAN = (
    PlannedStatement(statement=_INSTALLED, effect=_EFFECT),
    PlannedStatement(
        statement=f"CALL {SCHEMA}.watch(<each table with ddl: true>)", effect=_WATCH_EFFECT, lock=_WATCH_LOCK
    ),
)
"""The first and the last step at a server that does not exist yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What exists of the schema headrace_ddl.

    Args:
        is_superusers: a superuser owns the schema.
        owner: its owner.
        is_owned: this session's role can act as the owner.
        comment: on the schema.
        log: number of the log; 0: there is none.
        is_recording: the log, the routines and the event triggers exist and are enabled.
        is_closed: nobody but the owner may write the log.
        publications: those that name the log.
        has_compared: the table `compared` exists.
        can_publish: new tables can be published.
    """

    is_superusers: bool
    owner: str
    is_owned: bool
    comment: str
    log: int
    is_recording: bool
    is_closed: bool
    publications: tuple[str, ...]
    has_compared: bool
    can_publish: bool

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to create, repair or replace."""
        return (
            self.is_recording and self.can_publish and self.is_closed and self.has_compared and self.version >= VERSION
        )

    @property
    def is_readable(self) -> bool:
        """Whether this session can read the log, and what was compared."""
        return self.version > 0 and self.is_owned and self.log > 0 and self.has_compared

    @property
    def version(self) -> int:
        """Version of the texts; 0: another hand made the schema."""
        found = _OURS.fullmatch(self.comment)
        return int(found[1]) if found and self.is_superusers else 0


def missed_ddl(connection: psycopg.Connection[Any], publication: str) -> MissedDdl | None:
    """Return the statements that could not be recorded since the last comparison.

    Args:
        connection: to the source.
        publication: its name.

    Returns:
        None: it does not name the log, or this role cannot read it.
    """
    state = _state(connection)
    if state is None or not state.is_readable or publication not in state.publications:
        return None
    return compared_by(connection, publication).missed


def _state(connection: psycopg.Connection[Any]) -> _State | None:
    row = connection.execute(_STATE.encode()).fetchone()
    if row is None:
        return None
    routines, triggers, is_guarded, is_open = row[5], row[6], row[7], row[8]
    return _State(
        is_superusers=row[0],
        owner=row[1],
        is_owned=row[2],
        comment=row[3],
        log=int(row[4]),
        is_recording=bool(row[4]) and set(ROUTINES) <= set(routines) and set(EVENT_TRIGGERS) <= set(triggers),
        is_closed=is_guarded and not is_open,
        publications=tuple(row[9]),
        has_compared=row[10],
        can_publish=row[11],
    )


def takes_ddl(rules: Sequence[object]) -> bool:
    """Whether some positive rule takes DDL.

    Args:
        rules: rule sets (`headrace.rules.rule.RuleSet`) of a source's captures.
    """
    return any(_ddl_rules(rules))


def _ddl_rules(rules: Sequence[object]) -> Iterator[Rule]:
    for rule_set in rules:
        if isinstance(rule_set, RuleSet):
            yield from (rule for rule in rule_set.include or () if rule.ddl)


def ddl_tables(rules: Sequence[object], tables: Sequence[CatalogTable]) -> list[CatalogTable]:
    """Return the tables whose DDL a rule takes.

    Args:
        rules: as for `takes_ddl`.
        tables: captured tables.
    """
    taking = list(_ddl_rules(rules))
    return [table for table in tables if any(rule.matches_object(table.owner, table.name) for rule in taking)]


def is_published(connection: psycopg.Connection[Any], publication: str) -> bool:
    """Whether a publication names the log of DDL.

    Args:
        connection: to the source.
        publication: its name.
    """
    state = _state(connection)
    return state is not None and publication in state.publications


def unrecorded(connection: psycopg.Connection[Any], publication: str, rules: Sequence[object]) -> tuple[str, ...]:
    """Return the name of the log if rules take DDL and it is not recorded, or not published, now.

    Args:
        connection: to the source.
        publication: its name.
        rules: as for `takes_ddl`.
    """
    if not takes_ddl(rules):
        return ()
    state = _state(connection)
    is_recorded = state is not None and state.version > 0 and state.is_recording and publication in state.publications
    return () if is_recorded else (str(DDL_LOG),)


def log_tables(connection: psycopg.Connection[Any], rules: Sequence[object]) -> tuple[CatalogTable, ...]:
    """Return what a publication names for DDL, beside the tables: the log, or nothing.

    Args:
        connection: to the source; the log need not exist yet.
        rules: as for `takes_ddl`.
    """
    if not takes_ddl(rules):
        return ()
    state = _state(connection)
    number = state.log if state is not None else 0
    leaf = Leaf(
        number=number,
        owner=SCHEMA,
        name=LOG,
        identity="d",
        has_identity=True,
        has_primary_key=True,
        is_unlogged=False,
        generated_virtual=(),
    )
    log = CatalogTable(
        number=number,
        owner=SCHEMA,
        name=LOG,
        is_partitioned=False,
        has_primary_key=True,
        owner_role=state.owner if state is not None else "",
        is_superusers=True,
        is_owned=True,
        can_select=True,
        hides_rows=False,
        leaves=(leaf,),
    )
    return (log,)


# ---------------------------------------------------------------------- steps


def install_step(connection: psycopg.Connection[Any]) -> DdlStep:
    """Return the step that creates, completes or replaces the objects.

    Args:
        connection: to the source.

    Raises:
        DatabaseError: another hand made the schema.
    """
    state = _state(connection)
    for found in _foreign(state, ""):
        raise DatabaseError(found.problem, hint=found.fix)
    return DdlStep(
        statement=_INSTALLED,
        effect=_EFFECT,
        is_done=state is not None and state.is_current,
        # Not IF NOT EXISTS: the schema could be another's by then.
        sent=INSTALL if state is not None else f"CREATE SCHEMA {SCHEMA}; {INSTALL}",
    )


def watch_step(connection: psycopg.Connection[Any], publication: str, tables: Sequence[CatalogTable]) -> DdlStep:
    """Return the step that records how tables look now, and what a publication has missed.

    While nothing was recorded, any of the tables may have changed, or be changing now. A role that may not read the log
    takes the step as done if DDL is recorded: an administrator does it.

    Args:
        connection: to the source.
        publication: its name.
        tables: from `ddl_tables`.
    """
    state = _state(connection)
    # Before the tables are: its snapshot must not see more.
    compared = compared_by(connection, publication) if state is not None and state.is_readable else Compared()
    numbers = [table.number for table in tables]
    if state is not None and state.version and state.is_recording and not state.is_owned:
        numbers = []
    elif state is not None and state.is_recording and compared.seen and not compared.was_unpublished:
        numbers = [int(number) for (number,) in connection.execute(_DUE.encode(), (numbers,)).fetchall()]
    names = [qualified(table.owner, table.name) for table in tables if table.number in set(numbers)]
    listed = ",".join(map(str, numbers))
    since = literal(compared.since) if compared.was_unpublished else "NULL"
    seen = literal(compared.seen) if compared.seen else "NULL"
    return DdlStep(
        statement=f"CALL {SCHEMA}.watch({', '.join(names) or 'no table'})",
        effect=_WATCH_EFFECT,
        lock=_WATCH_LOCK if numbers else "",
        is_done=not numbers and compared.is_settled,
        sent=f"CALL {SCHEMA}.watch('{{{listed}}}', {literal(publication)}, {since}, {seen})",
    )


def ddl_due(
    connection: psycopg.Connection[Any], publication: str, rules: Sequence[object], tables: Sequence[CatalogTable]
) -> tuple[DdlStep, ...]:
    """Return which of `install_step` and `watch_step` has something to do.

    Args:
        connection: to the source.
        publication: its name.
        rules: as for `takes_ddl`; one of them takes DDL.
        tables: captured tables.

    Raises:
        DatabaseError: another hand made the schema.
    """
    steps = (install_step(connection), watch_step(connection, publication, ddl_tables(rules, tables)))
    return tuple(step for step in steps if not step.is_done)


def trim_ddl(connection: psycopg.Connection[Any]) -> bool:
    """Remove some old records of DDL, if this role may; return whether more may be left."""
    state = _state(connection)
    return state is not None and state.is_readable and trim_log(connection)


def removal_step(connection: psycopg.Connection[Any], publication: str) -> DdlStep | None:
    """Return the step that drops the objects; None: there are none, others use them, or they are another's.

    Args:
        connection: to the source.
        publication: one that no longer names the log, or will not when the step runs.
    """
    state = _state(connection)
    if state is None or not state.version or not state.is_owned or set(state.publications) - {publication}:
        return None
    return DdlStep(
        statement=f"DROP SCHEMA {SCHEMA} CASCADE",
        effect="stops recording DDL, which no topology replicates from here any more",
        lock="ACCESS EXCLUSIVE on the log of DDL, for a moment",
        sent=REMOVE,
    )


# ---------------------------------------------------------------------- findings


def ddl_findings(
    connection: psycopg.Connection[Any], path: str, rules: Sequence[object], tables: Sequence[CatalogTable]
) -> Iterator[Finding]:
    """Find what prevents this database from being a source of DDL; nothing if no rule takes any.

    Args:
        connection: to the source.
        path: of the findings.
        rules: as for `takes_ddl`.
        tables: captured tables.
    """
    if not takes_ddl(rules):
        return
    state = _state(connection)
    yield from _foreign(state, path)
    if state is not None and state.version and state.publications and not state.is_recording:
        yield Finding(
            path=path,
            is_error=False,  # `up` repairs it
            problem=f"DDL is not recorded: an event trigger or a function of the schema {SCHEMA} was dropped, disabled or"
            " renamed",
            fix="headrace up FILE",
        )
    for setting, where, fix in connection.execute(_SET.encode(), {"harmful": list(_HARMFUL)}).fetchall():
        name, _, value = setting.partition("=")
        is_off = setting == _HARMFUL[0]
        yield Finding(
            path=path,
            is_error=is_off,
            problem=f"{name} is {value}{where}: "
            + ("DDL is not recorded then" if is_off else "DDL in such transactions is recorded and not replicated"),
            fix=fix if is_off else "run DDL in transactions that begin with BEGIN ISOLATION LEVEL READ COMMITTED",
        )
    for (name,) in connection.execute(_OF_ALL_TABLES).fetchall():
        yield Finding(
            path=path,
            is_error=False,
            problem=f"the publication {quote(name)} is for all tables, and so for {SCHEMA}.{LOG}, too: subscribers of"
            " PostgreSQL's own replication stop at the first DDL if they do not have that table",
            fix=f"create {SCHEMA}.{LOG} at them; or name the publication's tables",
        )
    taken = {table.number: table for table in ddl_tables(rules, tables)}
    kinds = {
        int(number): "is partitioned" if is_partitioned else "inherits, or others inherit from it"
        for number, is_partitioned in connection.execute(_INHERITING, (list(taken),)).fetchall()
    }
    unusual = [(taken[number].owner, taken[number].name, kind) for number, kind in kinds.items()]
    ddl_sets = [RuleSet(include=tuple(_ddl_rules(rules)))]
    unusual += [(each.owner, each.name, "is unlogged") for each in unlogged_tables(connection, ddl_sets)]
    for owner, name, kind in sorted(unusual):
        yield Finding(
            path=f"{path} table {owner}.{name}",
            problem=f"{kind}: its DDL is not replicated",
            fix="take it with a rule of its own, without ddl: true",
        )


def _foreign(state: _State | None, path: str) -> Iterator[Finding]:
    if state is not None and not state.version:
        yield Finding(
            path=path,
            problem=f"there is a schema {SCHEMA} that Headrace did not make; its owner is {quote(state.owner)}",
            fix=f"ALTER SCHEMA {SCHEMA} RENAME TO <another name>; {remark('or drop it')}",
        )
