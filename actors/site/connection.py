"""A site's database, derived from the topology: its location, connections to it, and its removal."""

from __future__ import annotations

import secrets
import shutil
import socket
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

from actors.state_folder import site_folder
from headrace.base.durable_file import replace_file
from headrace.base.errors import ConfigError
from headrace.base.folder_place import is_copy
from headrace.databases.connectors import DatabaseAccess, open_claim, open_destination, open_source
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from topology.checks.logging_needs import log_needs
from topology.routing.ways import may_be_copied

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.databases.embedded.servers import EmbeddedServer
    from headrace.databases.ports import Finding, SourceDatabase
    from headrace.databases.ports.operator import TopologyClaim
    from topology.spec import SiteSpec, TopologySpec

__all__ = [
    "access_if_running",
    "access_to",
    "claim_on",
    "embedded_server",
    "left_servers",
    "original_of",
    "redo_folder",
    "remove_but_server",
    "remove_from",
    "retained_bytes",
    "running_access",
    "source_findings",
]

_IDENTITY = "identity"  # file in a site's folder
_SERVER = "database"  # folder of the embedded server in a site's folder


def redo_folder(spec: TopologySpec, *, source: str, site: str) -> Path:
    """Return the folder of a source's redo at a site: its redo log, or at another site the standby redo log.

    Args:
        spec: the topology.
        source: name of the source site.
        site: name of the site that mines the redo.
    """
    return site_folder(spec, site) / ("redo" if site == source else f"standby_redo/{source}")


def embedded_server(spec: TopologySpec, site: SiteSpec) -> EmbeddedServer:
    """Return the controls of a site's embedded server, which may be stopped.

    Args:
        spec: the topology.
        site: site with an embedded database.
    """
    from headrace.databases.embedded.servers import EmbeddedServer

    return EmbeddedServer(
        site_folder(spec, site.name) / _SERVER, version=site.database.version, name=f"{spec.name}-{site.name}"
    )


def remove_but_server(folder: Path) -> None:
    """Remove a site's files except its embedded server, and the folder if it is empty then; idempotent.

    Args:
        folder: the site's folder.
    """
    for path in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
        if path.name == _SERVER:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # the server is in it, or it is already gone
        folder.rmdir()


def left_servers(spec: TopologySpec) -> dict[str, EmbeddedServer]:
    """Return the controls of embedded servers whose sites are gone from the file, by name of the site.

    The servers may be stopped.

    Args:
        spec: the topology with the state folder.
    """
    from headrace.databases.embedded.servers import EmbeddedServer

    names = {site.name for site in spec.sites}
    folders = sorted((spec.state_dir / "sites").glob(f"*/{_SERVER}"))
    return {
        folder.parent.name: EmbeddedServer(folder, name=f"{spec.name}-{folder.parent.name}")
        for folder in folders
        if folder.parent.name not in names
    }


def access_to(site: SiteSpec, dsn: str, tables: TableSettings = NO_TABLE_SETTINGS) -> DatabaseAccess:
    """Describe the access to a site's database.

    Args:
        site: the site.
        dsn: connection string of the site, or of its embedded server.
        tables: table settings of the apply process that uses it.
    """
    database = site.database
    return DatabaseAccess(
        site=site.name,
        kind=database.kind,
        dsn=dsn,
        allow_any_version=database.allow_any_version,
        tables=tables,
        decoding_memory=database.decoding_memory,
        has_admin=database.has_admin,
    )


def running_access(spec: TopologySpec, site: SiteSpec) -> DatabaseAccess:
    """Describe the access to a site's database from this process, whether the topology runs or not.

    Args:
        spec: the topology.
        site: site with a database.

    Raises:
        ConfigError: the database is embedded and does not run on this machine.
    """
    access = access_if_running(spec, site)
    if access is None:
        raise ConfigError(
            f"the embedded server of site {site.name} does not run here", hint="headrace up FILE starts it"
        )
    return access


def access_if_running(spec: TopologySpec, site: SiteSpec) -> DatabaseAccess | None:
    """Describe the access as `running_access` does; None: the database is embedded and does not run on this machine.

    Args:
        spec: the topology.
        site: site with a database.
    """
    if site.database.kind != "embedded":
        return access_to(site, site.database.dsn)
    server = embedded_server(spec, site)
    return access_to(site, server.dsn()) if server.is_running else None


def claim_on(spec: TopologySpec, site: SiteSpec) -> TopologyClaim:
    """Make this state folder's claim on a user's database; an embedded database belongs to its folder anyway.

    Args:
        spec: the topology; a state folder without an identity, and a copied one, get a new identity.
        site: site with a user's database.
    """
    folder = site_folder(spec, site.name)
    lines = [] if original_of(spec, site.name) else _identity(folder)
    identity = [*lines[:1], str(folder)] if lines else [secrets.token_hex(8), str(folder)]
    if identity != lines:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _IDENTITY, "\n".join(identity) + "\n")
    place = f"{socket.gethostname()}:{spec.state_dir}"
    return open_claim(access_to(site, site.database.dsn), spec.name, place=place, identity=identity[0])


def original_of(spec: TopologySpec, site: str) -> str:
    """Return the original of a site's folder that was copied and has not run; empty: it is no such copy.

    The topology's objects in the user's database then belong to the original.

    Args:
        spec: the topology.
        site: name of a site with a user's database; it may have left the file.
    """
    folder = site_folder(spec, site)
    lines = _identity(folder)
    is_known = len(lines) > 1  # not written by an earlier version
    return lines[1] if is_known and is_copy(folder, lines[1], lambda original: _identity(original) == lines) else ""


def _identity(folder: Path) -> list[str]:
    """Return a site folder's identity: a random word, and the folder in which it was written; empty: none."""
    try:
        return (folder / _IDENTITY).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def retained_bytes(spec: TopologySpec, site: SiteSpec) -> int | None:
    """Return the bytes of log that a user's source currently keeps for the topology; None: it has no slot.

    Args:
        spec: the topology.
        site: source with a user's database.

    Raises:
        DatabaseUnavailable: the database does not answer.
    """
    with closing(open_source(access_to(site, site.database.dsn))) as source:
        return source.retained_bytes(spec.name)


def source_findings(spec: TopologySpec, site: SiteSpec, source: SourceDatabase) -> tuple[Finding, ...]:
    """Return what prevents a database from being the source that a topology wants.

    Args:
        spec: the topology.
        site: the source.
        source: connection to its database, as the role that captures.
    """
    # The log stream, and a snapshot for each destination that is being instantiated or compared.
    streams = 1 + sum(1 for apply in spec.applies if apply.source == site.name)
    return source.preflight(
        spec.capture_rules(site.name),
        streams=streams,
        needs=log_needs(spec, site.name),
        may_be_copied=partial(may_be_copied, spec, site.name),
        topology=spec.name,
    )


def remove_from(spec: TopologySpec, site: SiteSpec, dsn: str) -> tuple[str, ...]:
    """Remove the topology's objects from a site's database.

    Args:
        spec: the topology.
        site: the site.
        dsn: connection string of its database.

    Returns:
        One line for each object that was removed, or that stays, with the reason.
    """
    lines: tuple[str, ...] = ()
    access = access_to(site, dsn)
    # Also at a former source: its slot may not have been dropped yet.
    with closing(open_source(access)) as source:
        lines += source.remove(spec.name)
    # Only after the slot: log that only the slot would read no longer needs origins.
    if any(apply.site == site.name for apply in spec.applies):
        with closing(open_destination(access)) as destination:
            lines += destination.remove(spec.name)
    return lines
