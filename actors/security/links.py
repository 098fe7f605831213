"""Links of a topology to others that anybody could use, read, or answer in the place of the right one.

Databases, alerts with a token, a Ray cluster of the user's.
"""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.databases.ports import Finding

if TYPE_CHECKING:
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["is_this_machine", "link_findings", "ray_findings", "ray_folder_findings"]


def link_findings(spec: TopologySpec) -> Iterator[Finding]:
    """Warn of links over a network that are not authenticated; nothing is connected to.

    Args:
        spec: the topology, with its connection strings.

    Raises:
        ConfigError: a connection string cannot be parsed.
    """
    for site in spec.sites:
        if site.database.kind == "postgres":
            yield from _database_findings(site)
    for target in spec.alerts.to if spec.alerts is not None else ():
        parts = urlsplit(target.url)
        if target.token and parts.scheme == "http" and not is_this_machine(parts.hostname or ""):
            yield Finding(
                path=f"alerts {target.name}",
                is_error=False,
                problem="its token goes over http://, and everybody on the way can read it",
                fix=f"write https:// in the address of {target.name}",
            )


def _database_findings(site: SiteSpec) -> Iterator[Finding]:
    yield from server_findings(
        site.name,
        site.database.dsn,
        " and ".join(f"${{{name}}}" for name in sorted(site.database.environment)) or "the connection string",
    )


def server_findings(site: str, dsn: str, where: str) -> Iterator[Finding]:
    """Warn of a remote database that does not prove who it is.

    Args:
        site: name of the site.
        dsn: a connection string to its database.
        where: it stands, for the operator.

    Raises:
        ConfigError: it cannot be parsed.
    """
    from headrace.databases.connectors import hosts_of, server_is_verified

    remote = [host for host in hosts_of(dsn) if not is_this_machine(host)]
    if remote and not server_is_verified(dsn):
        yield Finding(
            path=f"sites.{site}",
            is_error=False,
            problem=f"nothing proves that {', '.join(remote)} is the database: whoever is on the way can answer in its"
            " place, and read what passes",
            fix=f"in {where}: sslmode=verify-full sslrootcert=FILE, the certificate of the server's authority"
            " (sslrootcert=system where a public one signed it; in a URI: ?sslmode=verify-full&sslrootcert=FILE);"
            " PGSSLMODE, PGSSLROOTCERT and service files do not count: Ray's processes, which connect, may have others",
        )


def ray_findings(address: str) -> Iterator[Finding]:
    """Warn of a Ray cluster that takes work from whoever reaches it: it is asked, without a token.

    Args:
        address: of a cluster of the user's; empty: the topology runs on its private one, which has a token.
    """
    from actors.cluster.openness import takes_work_from_anybody

    if address and takes_work_from_anybody(address):
        yield Finding(
            path=f"Ray at {address}",
            is_error=False,
            problem="takes work from anybody who reaches it: they run programs on all its nodes, and read the"
            " connection strings of all sites",
            fix="start it with RAY_AUTH_MODE=token, and give the nodes and the users of this topology one token (ray"
            " get-auth-token --generate), as cluster.yaml does",
        )


def ray_folder_findings(site: SiteSpec, session: Path) -> Iterator[Finding]:
    """Warn of a node on which other users of its machine can take the place of Ray's sockets, or read its logs.

    Args:
        site: whose node it is.
        session: folder of Ray's session there. On a private cluster it is in a folder of its user alone.
    """
    opened: list[Path] = []
    for folder in (session, *session.parents):
        mode = folder.stat().st_mode
        if not mode & (stat.S_IXGRP | stat.S_IXOTH):
            return  # nobody else comes to what is in it
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            opened.append(folder)
    if opened:
        yield Finding(
            path=f"sites.{site.name}{'.node' if site.node else ''}",
            is_error=False,
            problem=f"other users of its machine may write {opened[-1]}, where Ray's sockets and logs are: they can answer"
            " in Ray's place, and be given what its processes are told",
            fix="where the machine has other users: `ray start --temp-dir=DIR`, with DIR in a folder of mode 0700, as"
            " cluster.local.yaml does",
        )


def is_this_machine(host: str) -> bool:
    """Whether a host is this machine: a loopback address, its name, or a socket's folder.

    Args:
        host: as a connection string or an address names it; empty: it names none.
    """
    if host.startswith(("/", "@")) or host in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
