"""Which connector speaks to a site's database; imported where it is used, in the driver and in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.errors import ConfigError

if TYPE_CHECKING:
    from databases.ports import DestinationDatabase, SourceDatabase
    from spark_apply.job_config import DatabaseAccess

__all__ = ["open_destination", "open_source"]

_POSTGRES = ("postgres", "embedded")


def open_destination(access: DatabaseAccess) -> DestinationDatabase:
    """The destination half of a site's connector; connects when it is first used.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from databases.postgres.destination import PostgresDestination

        return PostgresDestination(access.dsn, site=access.site)
    raise ConfigError(f"site {access.site}: nothing can be applied to a {access.kind} database")


def open_source(access: DatabaseAccess) -> SourceDatabase:
    """The source half of a site's connector; connects when it is first used.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if access.kind in _POSTGRES:
        from databases.postgres.source import PostgresSource

        return PostgresSource(access.dsn, site=access.site)
    raise ConfigError(f"site {access.site}: nothing can be copied from a {access.kind} database")
