"""Which connector speaks to a site's database; imported where it is used, in the driver and in tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from streams.errors import ConfigError

if TYPE_CHECKING:
    from databases.ports import DestinationDatabase, SourceDatabase
    from spark_apply.job_config import DatabaseAccess
    from streams.lcr_batch import Column

__all__ = ["open_destination", "open_source", "value_reader"]

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


def value_reader(kind: str) -> Callable[[Column, bytes], str]:
    """How a raw value of a kind of database is shown to a person.

    Raises:
        ConfigError: no connector for this kind of database.
    """
    if kind in _POSTGRES:
        from databases.postgres.value_text import value_text

        return value_text
    raise ConfigError(f"values of a {kind} database cannot be read")
