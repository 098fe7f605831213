"""The database of one site: its embedded server, or the user's, and connections to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.site.connection import access_to, embedded_server, remove_from
from actors.state_folder import make_private
from headrace.base.errors import DatabaseUnavailable
from headrace.databases.connectors import open_destination, open_source
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings

if TYPE_CHECKING:
    from headrace.databases.embedded.servers import EmbeddedServer
    from headrace.databases.ports import DestinationDatabase, SourceDatabase
    from topology.spec import TopologySpec

__all__ = ["SiteDatabase"]


class SiteDatabase:
    """The database of one site. A site whose database changes is created again, so this object needs no update.

    Attributes:
        site: the site in the topology.
    """

    def __init__(self, spec: TopologySpec, site: str) -> None:
        self.site = spec.site(site)
        self._state_dir = spec.state_dir
        self._server: EmbeddedServer | None = (
            embedded_server(spec, self.site) if self.site.database.kind == "embedded" else None
        )

    def start(self) -> None:
        """Start an embedded server; idempotent.

        Raises:
            DatabaseUnavailable: the server does not start.
        """
        if self._server is not None:
            self._server.folder.mkdir(exist_ok=True)
            make_private(self._state_dir)  # the server's user must be able to traverse it
            self._server.start()

    def stop(self) -> None:
        """Stop an embedded server; idempotent."""
        if self._server is not None:
            self._server.stop()

    def destroy(self) -> None:
        """Remove an embedded server with its data; idempotent."""
        if self._server is not None:
            self._server.destroy()

    @property
    def server_pid(self) -> int | None:
        """Process id of the embedded server, 0 if it does not run; None: the server is the user's."""
        return None if self._server is None else self._server.pid() or 0

    def check_running(self) -> None:
        """Raise an error if an embedded server does not run.

        Raises:
            DatabaseUnavailable: the server does not run.
        """
        if self._server is not None and not self._server.is_running:
            raise DatabaseUnavailable(f"site:{self.site.name}: the embedded server does not run")

    def dsn(self) -> str:
        """Return the connection string, with the password: only for components, never displayed.

        Raises:
            DatabaseUnavailable: the embedded server does not run.
        """
        if self._server is None:
            return str(self.site.database.dsn)
        if not self._server.is_running:
            raise DatabaseUnavailable(f"site:{self.site.name}: the embedded server does not run yet")
        return str(self._server.dsn())

    def open_source(self) -> SourceDatabase:
        """Connect to the database as a source."""
        return open_source(access_to(self.site, self.dsn()))

    def open_destination(self, tables: TableSettings = NO_TABLE_SETTINGS) -> DestinationDatabase:
        """Connect to the database as a destination.

        Args:
            tables: table settings of the apply process that uses it.
        """
        return open_destination(access_to(self.site, self.dsn(), tables))

    def remove(self, spec: TopologySpec) -> tuple[str, ...]:
        """Remove the topology's objects from the database; return one line per object."""
        return remove_from(spec, self.site, self.dsn())
