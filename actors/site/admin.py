"""What a site's administrator does at its destination, from a command: see `databases.postgres.destination.admin`.

Only commands call it. What runs has no `admin_dsn`, and finds done what `up` did as its role.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from actors.security.links import server_findings
from actors.site.connection import access_to
from databases.connectors import open_admin, open_destination
from databases.ports import Finding
from streams.errors import ConfigError, DatabaseError, DatabaseUnavailable, StreamsError
from topology.file.admin import admin_dsn

if TYPE_CHECKING:
    from databases.operator_ports import DestinationAdmin
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["admin_findings", "administered", "prepare_as_admin", "remove_as_admin"]


def administered(spec: TopologySpec) -> tuple[SiteSpec, ...]:
    """The destinations whose objects an administrator makes."""
    return tuple(site for site in spec.sites if site.database.has_admin and any(apply.site == site.name for apply in spec.applies))


def admin_findings(spec: TopologySpec, site: SiteSpec) -> Iterator[Finding]:
    """What keeps the administrator from its work.

    Args:
        spec: the topology.
        site: see `administered`.

    Raises:
        StreamsError: the administrator cannot be asked, as of `prepare_as_admin`.
    """
    try:
        dsn = admin_dsn(spec, site)
        yield from server_findings(site.name, dsn, "admin_dsn")
        yield from _admin(site, dsn).preflight(_tombstones(spec, site))
    except (DatabaseUnavailable, ConfigError) as error:
        yield _unasked(spec, site, error)


def prepare_as_admin(spec: TopologySpec) -> tuple[Finding, ...]:
    """Make at every destination that has an administrator what the topology needs there; idempotent.

    After a restart of the machine everything is there: then nothing runs later because the administrator has no access now, or is not to have any.

    Args:
        spec: the topology.

    Returns:
        Why an administrator could not be asked whose work is done, or whose database the role of `dsn` does not reach either: what runs waits for that, and
        looks then.

    Raises:
        StreamsError: an administrator cannot be asked, and something is to be made; or a right is missing.
    """
    found: list[Finding] = []
    for site in administered(spec):
        try:
            _admin(site, admin_dsn(spec, site)).prepare(_tombstones(spec, site))
        except (DatabaseUnavailable, ConfigError) as error:
            found.append(_unasked(spec, site, error))
    return tuple(found)


def _unasked(spec: TopologySpec, site: SiteSpec, error: StreamsError) -> Finding:
    """The warning that an administrator could not be asked; raises the error where it is needed."""
    if not _may_wait(spec, site):
        raise error
    return Finding(
        path=f"sites.{site.name}.database.admin_dsn", is_error=False, problem=f"{error.message}: nothing can be made or upgraded as its role",
        fix=f"{error.hint or 'make sure that the database runs'}; needed for a new version, and for new tables with tombstones",
    )


def _may_wait(spec: TopologySpec, site: SiteSpec) -> bool:
    """Whether the role of `dsn` finds done what the administrator does, or the database does not answer."""
    with closing(open_destination(access_to(site, site.database.dsn))) as destination:
        try:
            destination.prepare(spec.name)
            destination.keep_tombstones(_tombstones(spec, site))
        except DatabaseUnavailable:
            return True
        except DatabaseError:
            return False
        return True


def remove_as_admin(spec: TopologySpec, site: SiteSpec) -> tuple[str, ...]:
    """Drop what is left once the site has removed its own rows.

    Args:
        spec: the topology.
        site: see `administered`.

    Raises:
        StreamsError: the database does not answer, or the connection string has no value.
    """
    return _admin(site, admin_dsn(spec, site)).remove(spec.name)


def _admin(site: SiteSpec, dsn: str) -> DestinationAdmin:
    return open_admin(access_to(site, site.database.dsn), dsn)


def _tombstones(spec: TopologySpec, site: SiteSpec) -> frozenset[tuple[str, str]]:
    return frozenset(table for apply in spec.applies if apply.site == site.name for table in apply.conflicts.with_tombstones)
