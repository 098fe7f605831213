"""The connector for each kind of database, imported on use.

The only module that knows the kinds: another database gets its package beside `headrace.databases.postgres` and a line
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

if TYPE_CHECKING:
    from headrace.databases.ports import (
        DestinationDatabase,
        LogDecoder,
        PlannedApply,
        PlannedStatement,
        SourceDatabase,
        StreamOptions,
    )
    from headrace.databases.ports.copying import TableReader
    from headrace.databases.ports.operator import (
        ColumnSequences,
        DestinationAdmin,
        RowReader,
        SourceAdmin,
        TopologyClaim,
    )
    from headrace.lcr.batch import Column
    from headrace.rules.conditions.values import ValueTypes
    from headrace.rules.rule import RuleSet

__all__ = [
    "SESSION_MODULES",
    "DatabaseAccess",
    "decoder_for",
    "has_password",
    "hosts_of",
    "log_session_name",
    "open_admin",
    "open_claim",
    "open_column_sequences",
    "open_destination",
    "open_reader",
    "open_row_reader",
    "open_source",
    "open_source_admin",
    "plan_copy",
    "plan_unseen",
    "removal_by_hand",
    "server_is_verified",
    "unused_secrets",
    "value_reader",
    "value_types",
]

_POSTGRES = ("postgres", "embedded")
SESSION_MODULES = (
    "headrace.databases.postgres.destination.database",
    "headrace.databases.postgres.destination.server_session.session",
    "headrace.databases.postgres.copying.table_copy",
    "headrace.databases.postgres.destination.writing.write_kernels",
)
"""Modules of the connectors that apply servers and copying tasks import, for a process that forks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAccess:
    """How to reach one site's database.

    Args:
        site: the site's name, for messages.
        kind: connector, "postgres" (an embedded server too).
        dsn: connection string, secrets included: never shown.
        allow_any_version: do not refuse untested versions.
        tables: table settings of the apply process for which a destination is opened.
        decoding_memory: bytes for transactions in flight in the session that reads a source's log; 0: the server's own
            settings apply.
        has_admin: another role creates and drops what a destination needs (`open_admin`) and a source's publication
            (`open_source_admin`); this role only uses them.
    """

    site: str
    kind: str
    dsn: str = field(repr=False)
    allow_any_version: bool = False
    tables: TableSettings = NO_TABLE_SETTINGS
    decoding_memory: int = 0
    has_admin: bool = False


def open_source(access: DatabaseAccess) -> SourceDatabase:
    """Open the source half of a site's connector; connects on first use.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.source.database import PostgresSource

        return PostgresSource(
            access.dsn,
            site=access.site,
            allow_any_version=access.allow_any_version,
            decoding_memory=access.decoding_memory,
            has_admin=access.has_admin,
        )
    raise ConfigError(f"site {access.site}: nothing can be captured or copied from a {access.kind} database")


def hosts_of(dsn: str) -> tuple[str, ...]:
    """Return the hosts in a user's connection string; an empty one is this machine.

    Raises:
        ConfigError: the connection string cannot be parsed.
    """
    from headrace.databases.postgres.connection import hosts

    return hosts(dsn)


def server_is_verified(dsn: str) -> bool:
    """Whether a connection verifies the server's identity by its certificate.

    False where only a service file or an environment variable requires this: they are not examined.

    Raises:
        ConfigError: the connection string cannot be parsed.
    """
    from headrace.databases.postgres.connection import is_verified

    return is_verified(dsn)


def unused_secrets(dsns: Iterable[str]) -> frozenset[str]:
    """Return environment variables with a secret that a connection would use if its connection string had none.

    Empty if one of these connections may use it.

    Args:
        dsns: of all sites with a user's own database.
    """
    from headrace.databases.postgres.connection import unused_secrets

    return unused_secrets(dsns)


def has_password(text: str) -> bool:
    """Whether a text is a connection string that contains a password.

    Args:
        text: any text.
    """
    from headrace.databases.postgres.connection import has_password

    return has_password(text)


def log_session_name(kind: str, topology: str, site: str) -> str:
    """Return the application name of the session that reads a source's log: databases can make commits wait for it.

    Args:
        kind: of the database.
        topology: name of the topology.
        site: name of the source's site.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if kind in _POSTGRES:
        from headrace.databases.postgres.catalog.source_tables import slot_name

        return slot_name(topology, site)
    raise ConfigError(f"nothing can be captured from a {kind} database")


def removal_by_hand(
    kind: str, topology: str, site: str, *, is_source: bool, is_destination: bool, has_ddl: bool
) -> tuple[str, ...]:
    """Return the statements that remove a topology from a database that no command can reach.

    Args:
        kind: of the database.
        topology: name of the topology.
        site: name of the site.
        is_source: whether changes are captured there.
        is_destination: whether changes are applied there.
        has_ddl: whether its DDL is recorded.
    """
    if kind not in _POSTGRES:
        return ()
    from headrace.databases.postgres.left_behind import removal_statements

    return removal_statements(topology, site, is_source=is_source, is_destination=is_destination, has_ddl=has_ddl)


def open_destination(access: DatabaseAccess) -> DestinationDatabase:
    """Open the destination half of a site's connector; connects on first use.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.destination.database import PostgresDestination

        return PostgresDestination(
            access.dsn,
            site=access.site,
            allow_any_version=access.allow_any_version,
            settings=access.tables,
            has_admin=access.has_admin,
        )
    raise ConfigError(f"site {access.site}: nothing can be applied to a {access.kind} database")


def open_admin(access: DatabaseAccess, admin_dsn: str) -> DestinationAdmin:
    """Open a destination as its administrator; connects on first use.

    Args:
        access: of the role that the running processes use.
        admin_dsn: connection string of the administrator.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.destination.admin import PostgresAdmin

        return PostgresAdmin(admin_dsn, access.dsn, site=access.site)
    raise ConfigError(f"site {access.site}: nothing can be applied to a {access.kind} database")


def open_source_admin(access: DatabaseAccess, admin_dsn: str) -> SourceAdmin:
    """Open a source as its administrator; connects on first use.

    Args:
        access: of the role that the running processes use.
        admin_dsn: connection string of the administrator.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.source.admin import PostgresSourceAdmin

        return PostgresSourceAdmin(admin_dsn, access.dsn, site=access.site)
    raise ConfigError(f"site {access.site}: nothing can be captured or copied from a {access.kind} database")


def open_reader(
    access: DatabaseAccess, other: DatabaseAccess, *, application_name: str = "headrace copy"
) -> TableReader:
    """Open a reader of a site's tables, for copies or comparisons; connects on first use.

    Args:
        access: to the database.
        other: to the database whose rows they are compared with.
        application_name: of its session.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.copying.table_copy import PostgresTableReader

        return PostgresTableReader(access.dsn, application_name=application_name, other_dsn=other.dsn)
    raise ConfigError(f"site {access.site}: tables of a {access.kind} database cannot be copied or compared")


def open_claim(access: DatabaseAccess, topology: str, *, place: str, identity: str) -> TopologyClaim:
    """Open the claim of one copy of a topology on a site's database; connects when it is first held.

    Args:
        access: to the database.
        topology: its name.
        place: "host:folder" where this copy keeps its state, for people.
        identity: of the state folder.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.claim import PostgresClaim

        return PostgresClaim(access.dsn, topology=topology, site=access.site, place=place, identity=identity)
    raise ConfigError(f"site {access.site}: no connector for a {access.kind} database")


def decoder_for(options: StreamOptions) -> LogDecoder:
    """Return the decoder of a log stream's bytes.

    Raises:
        ConfigError: redo of a database this version cannot read.
    """
    if options.database_kind == "postgres":
        from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder

        return PostgresLogDecoder(options)
    raise ConfigError(
        f"redo of a {options.database_kind} database cannot be read", hint="upgrade Headrace at this site"
    )


def open_column_sequences(access: DatabaseAccess) -> ColumnSequences:
    """Open the sequences of a site's database; connects on first use.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.sequences import PostgresSequences

        return PostgresSequences(access.dsn)
    raise ConfigError(f"site {access.site}: sequences of a {access.kind} database cannot be read")


def open_row_reader(access: DatabaseAccess) -> RowReader:
    """Open a reader that shows rows and values to people as a destination's database does; connects on first use.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.destination.row_reader import PostgresRowReader

        return PostgresRowReader(access.dsn, access.tables)
    raise ConfigError(f"site {access.site}: values of a {access.kind} database cannot be read")


def value_reader(kind: str) -> Callable[[Column, bytes], str]:
    """Return the function that shows a raw value of a kind of database to people without a connection.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if kind in _POSTGRES:
        from headrace.databases.postgres.values.value_text import value_text

        return value_text
    raise ConfigError(f"values of a {kind} database cannot be read")


def value_types() -> ValueTypes:
    """Return how values of LCRs compare in conditions. Every supported log names its types as PostgreSQL does."""
    from headrace.databases.postgres.values.comparable import PostgresValueTypes

    return PostgresValueTypes()


def python_values() -> tuple[Callable[[Column, bytes], object], Callable[[Column, object], bytes]]:
    """Return the functions that convert values of LCRs into Python objects and back, for users' code.

    Every supported log names its types as PostgreSQL does.
    """
    from headrace.databases.postgres.values.python_values import decoded, encoded

    return decoded, encoded


def column_of_type(name: str, type_name: str) -> Column:
    """Return a column of a built-in type, described as a log would describe it.

    Every supported log names its types as PostgreSQL does.

    Args:
        name: of the column.
        type_name: without a schema: "int4", "text".

    Raises:
        ConfigError: no such type exists.
    """
    from headrace.databases.postgres.values.builtin_types import BUILTIN_TYPES
    from headrace.databases.postgres.values.python_values import is_written_binary
    from headrace.lcr.batch import Column

    number = next((number for number, (known, _) in BUILTIN_TYPES.items() if known == type_name), None)
    if number is None:
        raise ConfigError(
            f"{type_name!r} is no built-in type",
            hint="name it as the database keeps it: int4, int8, text, numeric, timestamptz, ...",
        )
    return Column(
        name=name,
        type_name=f"pg_catalog.{type_name}",
        type_number=number,
        is_binary=BUILTIN_TYPES[number][1] and is_written_binary(type_name),
    )


def plan_copy(kind: str, site: str) -> PlannedStatement:
    """Return what the copy of the tables does to a source, for `headrace plan`.

    Args:
        kind: of the source's database.
        site: the site whose tables are copied.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if kind in _POSTGRES:
        from headrace.databases.postgres.source.planning import plan_instantiation

        return plan_instantiation(site)
    raise ConfigError(f"site {site}: nothing can be copied from a {kind} database")


def plan_unseen(
    kind: str, topology: str, site: str, *, rules: Sequence[RuleSet], applies: Sequence[PlannedApply], version: int
) -> tuple[PlannedStatement, ...]:
    """Return what will be done to a database that does not exist yet or does not run.

    Args:
        kind: of the database.
        topology: name of the topology.
        site: name of the site.
        rules: rule sets of the captures from it; empty: it is no source.
        applies: apply processes there; empty: it is no destination.
        version: major version that the server will have.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if kind not in _POSTGRES:
        raise ConfigError(f"site {site}: a {kind} database cannot be planned for")
    from headrace.databases.postgres.destination.planning import plan_destination
    from headrace.databases.postgres.source.planning import plan_unseen_source

    statements: tuple[PlannedStatement, ...] = ()
    if rules:
        statements = (*plan_unseen_source(topology, site, rules, version=version), plan_copy(kind, site))
    return statements + (plan_destination(None, topology, applies) if applies else ())
