"""What of a site's database follows from the topology: where it is, and how it is reached and cleaned."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from databases.connectors import DatabaseAccess, open_destination, open_source

if TYPE_CHECKING:
    from databases.embedded import EmbeddedServer
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["access_to", "embedded_server", "remove_from", "retained_bytes", "site_folder"]


def site_folder(spec: TopologySpec, site: str) -> Path:
    """Everything a site keeps on disk."""
    return spec.state_dir / "sites" / site


def embedded_server(spec: TopologySpec, site: SiteSpec) -> EmbeddedServer:
    """The steering of a site's embedded server; it need not run."""
    from databases.embedded import EmbeddedServer

    return EmbeddedServer(
        site_folder(spec, site.name) / "database", version=site.database.version, name=f"{spec.name}-{site.name}"
    )


def access_to(site: SiteSpec, dsn: str) -> DatabaseAccess:
    """How a site's database is reached; `dsn`: the site's own, or its embedded server's."""
    database = site.database
    return DatabaseAccess(
        site=site.name, kind=database.kind, dsn=dsn, allow_any_version=database.allow_any_version
    )


def retained_bytes(spec: TopologySpec, site: SiteSpec) -> int | None:
    """Bytes of log that a source of the user's own keeps for the topology now; None: it keeps none, there is no slot."""
    with closing(open_source(access_to(site, site.database.dsn))) as source:
        return source.retained_bytes(spec.name)


def remove_from(spec: TopologySpec, site: SiteSpec, dsn: str) -> tuple[str, ...]:
    """Remove what the topology made in a site's database: what was done, and what stays and why, a line each."""
    lines: tuple[str, ...] = ()
    access = access_to(site, dsn)
    if any(capture.source == site.name for capture in spec.captures):
        with closing(open_source(access)) as source:
            lines += source.remove(spec.name)
    # After the slot: what it alone would still read needs no origins any more.
    if any(apply.site == site.name for apply in spec.applies):
        with closing(open_destination(access)) as destination:
            lines += destination.remove(spec.name)
    return lines
