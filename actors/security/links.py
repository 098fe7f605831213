"""Links of a topology to other services that attackers could use, read or impersonate.

These are databases, alerts with a token, and a user's Ray cluster.
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
        if site.database.dsn:  # a command that connects to no database may not know it
            yield from _database_findings(site)
    for target in spec.alerts.to if spec.alerts is not None else ():
        parts = urlsplit(target.url)
        if target.token and parts.scheme == "http" and not is_this_machine(parts.hostname or ""):
            yield Finding(
                path=f"alerts {target.name}",
                is_error=False,
                problem="its token travels over http://, where anyone on the path can read it",
                fix=f"write https:// in the address of {target.name}",
            )


def _database_findings(site: SiteSpec) -> Iterator[Finding]:
    yield from server_findings(
        site.name,
        site.database.dsn,
        " and ".join(f"${{{name}}}" for name in sorted(site.database.environment)) or "the connection string",
    )


def server_findings(site: str, dsn: str, where: str) -> Iterator[Finding]:
    """Warn of a remote database that does not prove its identity.

    Args:
        site: name of the site.
        dsn: a connection string to its database.
        where: location of the connection string, for the operator.

    Raises:
        ConfigError: the connection string cannot be parsed.
    """
    from headrace.databases.connectors import hosts_of, server_is_verified

    remote = [host for host in hosts_of(dsn) if not is_this_machine(host)]
    if remote and not server_is_verified(dsn):
        yield Finding(
            path=f"sites.{site}",
            is_error=False,
            problem=f"nothing proves that {', '.join(remote)} is the database: anyone on the path can impersonate it, and"
            " read the traffic",
            fix=f"in {where}: sslmode=verify-full sslrootcert=FILE, the certificate of the server's authority"
            " (sslrootcert=system where a public one signed it; in a URI: ?sslmode=verify-full&sslrootcert=FILE);"
            " PGSSLMODE, PGSSLROOTCERT and service files do not count: Ray's processes, which connect, may have others",
        )


def ray_findings(address: str) -> Iterator[Finding]:
    """Warn of a Ray cluster that accepts work from any caller; the check queries it without a token.

    Args:
        address: address of a user's cluster; empty: the topology runs on its private one, which has a token.
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
    """Warn of a node on which other users of its machine can replace Ray's sockets, or read its logs.

    Args:
        site: site of the node.
        session: folder of Ray's session there. On a private cluster it is in a folder that only its user can enter.
    """
    opened: list[Path] = []
    for folder in (session, *session.parents):
        mode = folder.stat().st_mode
        if not mode & (stat.S_IXGRP | stat.S_IXOTH):
            return  # other users cannot reach its contents
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            opened.append(folder)
    if opened:
        yield Finding(
            path=f"sites.{site.name}{'.node' if site.node else ''}",
            is_error=False,
            problem=f"other users of its machine may write {opened[-1]}, where Ray's sockets and logs are: they can"
            " impersonate Ray, and receive what its processes are told",
            fix="where the machine has other users: `ray start --temp-dir=DIR`, with DIR in a folder of mode 0700, as"
            " cluster.local.yaml does",
        )


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine: a loopback address, its name, or a socket's folder.

    Args:
        host: host in a connection string or an address; empty: none is named.
    """
    if host.startswith(("/", "@")) or host in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
