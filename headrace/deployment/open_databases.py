"""The databases of a topology while they are compared: each is opened once for all questions.

A session costs a login and starts with an empty catalog cache. A check of three sites that all write opens 15 sessions;
it opened 30 when each question had its own. The tests of checks take a quarter less time.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from actors.site.connection import access_if_running
from headrace.base.errors import DatabaseUnavailable
from headrace.databases.connectors import open_destination, open_source
from headrace.rules.table_settings import NO_TABLE_SETTINGS

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.databases.connectors import DatabaseAccess
    from headrace.databases.ports import DestinationDatabase, SourceDatabase
    from headrace.rules.table_settings import TableSettings
    from topology.spec import TopologySpec

__all__ = ["OpenDatabases"]


class OpenDatabases:
    """Open databases of a topology; a context manager that closes them.

    Args:
        spec: the topology.
    """

    def __init__(self, spec: TopologySpec) -> None:
        self._spec = spec
        self._opened = ExitStack()
        self._access: dict[str, DatabaseAccess | None] = {}
        self._sources: dict[str, SourceDatabase] = {}
        self._destinations: dict[tuple[str, TableSettings], DestinationDatabase] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    def access(self, site: str) -> DatabaseAccess | None:
        """Return the access to a site's database; None: it has none, or its embedded server does not run."""
        if site not in self._access:
            self._access[site] = self._reached(site)
        return self._access[site]

    def source(self, site: str) -> SourceDatabase:
        """Return a site's database as a source.

        Args:
            site: a site for which `access` is not None.
        """
        if site not in self._sources:
            self._sources[site] = self._opened.enter_context(closing(open_source(self._reach(site))))
        return self._sources[site]

    def destination(self, site: str, tables: TableSettings = NO_TABLE_SETTINGS) -> DestinationDatabase:
        """Return a site's database as a destination.

        Args:
            site: a site for which `access` is not None.
            tables: an apply process's settings of its tables.
        """
        if (site, tables) not in self._destinations:
            opened = open_destination(replace(self._reach(site), tables=tables))
            self._destinations[site, tables] = self._opened.enter_context(closing(opened))
        return self._destinations[site, tables]

    def _reach(self, site: str) -> DatabaseAccess:
        access = self.access(site)
        assert access is not None, f"{site}: callers ask `access` first"
        return access

    def _reached(self, name: str) -> DatabaseAccess | None:
        site = self._spec.site(name)
        if site.database.kind == "none":
            return None
        try:
            return access_if_running(self._spec, site)
        except DatabaseUnavailable:
            return None
