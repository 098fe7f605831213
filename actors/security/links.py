"""Links of a topology to others that anybody could use, read, or answer in the place of the right one.

Databases, alerts with a token, a Ray cluster of the user's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.databases.ports import Finding

if TYPE_CHECKING:
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["is_this_machine", "link_findings", "ray_findings"]


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
