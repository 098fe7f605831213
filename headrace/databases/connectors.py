"""Which connector speaks to a kind of database; each is imported where it is used.

The one place that knows the kinds: another database gets its package beside `headrace.databases.postgres` and a line here.
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
"""What apply servers and copying tasks import of the connectors, for a process that forks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAccess:
    """How to reach one site's database.

    Args:
        site: the site's name, for messages.
        kind: connector, "postgres" (an embedded server too).
        dsn: connection string, secrets included: never shown.
        allow_any_version: do not refuse versions that were never tried.
        tables: how the apply process for which a destination is opened sees its tables.
        decoding_memory: bytes for transactions in flight of the session that reads a source's log; 0: by the server's
            own settings.
        has_admin: another role creates and drops what a destination needs (`open_admin`), and a source's publication
            (`open_source_admin`); this one only uses it.
    """

    site: str
    kind: str
    dsn: str = field(repr=False)
    allow_any_version: bool = False
    tables: TableSettings = NO_TABLE_SETTINGS
    decoding_memory: int = 0
    has_admin: bool = False


def open_source(access: DatabaseAccess) -> SourceDatabase:
    """The source half of a site's connector; connects when it is first used.

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
    """The hosts that a user's connection string leads to; an empty one is this machine.

    Raises:
        ConfigError: it cannot be parsed.
    """
    from headrace.databases.postgres.connection import hosts

    return hosts(dsn)


def server_is_verified(dsn: str) -> bool:
    """Whether a connection proves by a certificate that the server is the right one.

    Not where a service file or a variable of the environment alone says so: they are not looked at.

    Raises:
        ConfigError: the connection string cannot be parsed.
    """
    from headrace.databases.postgres.connection import is_verified

    return is_verified(dsn)


def unused_secrets(dsns: Iterable[str]) -> frozenset[str]:
    """Variables of the environment with a secret that connections take where their connection strings have none.

    Empty, if one of these may take it.

    Args:
        dsns: of all sites with a database of the user's.
    """
    from headrace.databases.postgres.connection import unused_secrets

    return unused_secrets(dsns)


def has_password(text: str) -> bool:
    """Whether a text is a connection string with a password in it.

    Args:
        text: of whatever kind.
    """
    from headrace.databases.postgres.connection import has_password

    return has_password(text)


def log_session_name(kind: str, topology: str, site: str) -> str:
    """What the session that reads a source's log calls itself: what the database can be told to make commits wait for.

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


def open_destination(access: DatabaseAccess) -> DestinationDatabase:
    """The destination half of a site's connector; connects when it is first used.

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
    """A destination as its administrator sees it; connects when it is first used.

    Args:
        access: as what runs has it.
        admin_dsn: connection string of the administrator.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.destination.admin import PostgresAdmin

        return PostgresAdmin(admin_dsn, access.dsn, site=access.site)
    raise ConfigError(f"site {access.site}: nothing can be applied to a {access.kind} database")


def open_source_admin(access: DatabaseAccess, admin_dsn: str) -> SourceAdmin:
    """A source as its administrator sees it; connects when it is first used.

    Args:
        access: as what runs has it.
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
    """What reads a site's tables, to copy or to compare them; connects when it is first used.

    Args:
        access: to the database.
        other: to the one with whose rows they are compared.
        application_name: what its session calls itself there.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.copying.table_copy import PostgresTableReader

        return PostgresTableReader(access.dsn, application_name=application_name, other_dsn=other.dsn)
    raise ConfigError(f"site {access.site}: tables of a {access.kind} database cannot be copied or compared")


def open_claim(access: DatabaseAccess, topology: str, *, place: str, identity: str) -> TopologyClaim:
    """The claim of one copy of a topology on a site's database; connects when it is first held.

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
    """The decoder of a log stream's bytes.

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
    """The sequences of a site's database; connects when first asked.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.sequences import PostgresSequences

        return PostgresSequences(access.dsn)
    raise ConfigError(f"site {access.site}: sequences of a {access.kind} database cannot be read")


def open_row_reader(access: DatabaseAccess) -> RowReader:
    """What shows rows and values to a person, as a destination's database understands them; connects when first asked.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from headrace.databases.postgres.destination.row_reader import PostgresRowReader

        return PostgresRowReader(access.dsn, access.tables)
    raise ConfigError(f"site {access.site}: values of a {access.kind} database cannot be read")


def value_reader(kind: str) -> Callable[[Column, bytes], str]:
    """How a raw value of a kind of database is shown to a person where no database is asked.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if kind in _POSTGRES:
        from headrace.databases.postgres.values.value_text import value_text

        return value_text
    raise ConfigError(f"values of a {kind} database cannot be read")


def value_types() -> ValueTypes:
    """How the values of LCRs compare in conditions. Every log there is names its types as PostgreSQL does."""
    from headrace.databases.postgres.values.comparable import PostgresValueTypes

    return PostgresValueTypes()


def python_values() -> tuple[Callable[[Column, bytes], object], Callable[[Column, object], bytes]]:
    """How values of LCRs become Python objects, and back, for users' code.

    Every log there is names its types as PostgreSQL does.
    """
    from headrace.databases.postgres.values.python_values import decoded, encoded

    return decoded, encoded


def column_of_type(name: str, type_name: str) -> Column:
    """A column of a built-in type as a log describes it, in the form that a log has.

    Every log there is names its types as PostgreSQL does.

    Args:
        name: of the column.
        type_name: without a schema: "int4", "text".

    Raises:
        ConfigError: there is no such type.
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
    """What the copy of the tables does to a source, for `headrace plan`.

    Args:
        kind: of the source's database.
        site: whose tables are copied.

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
    """What will be done to a database that cannot be asked: it does not exist yet, or does not run.

    Args:
        kind: of the database.
        topology: name of the topology.
        site: name of the site.
        rules: rule sets of the captures from it; empty: it is no source.
        applies: apply processes there; empty: it is no destination.
        version: major version of the server it will be.

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
