"""The work of a site's administrator in its database, done by commands.

The statements are in `headrace.databases.postgres.destination.admin` and `headrace.databases.postgres.source.admin`.

Only commands call it. Running components have no `admin_dsn`; as their own role they find the work of `up` done.

Worked flow (a table is added to the file of a running topology)
    `up`: publish_as_admin -> the publication names the table; components ignore its changes as a stranger's -> the
    controller is called: preflight, prepare, the table is in its record, apply processes that know it begin ->
    everything runs: finish_as_admin
    refused -> retreat_as_admin: the publication no longer names the table
    the command is killed anywhere -> the next one repeats all of it
    the source is away while the command asks, and back when the controller does -> components follow what was in the
    log; the command repeats publish_as_admin, and calls the controller once more
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from actors.security.links import server_findings
from actors.site.connection import access_to, source_findings
from headrace.base.errors import ConfigError, DatabaseError, DatabaseUnavailable, HeadraceError
from headrace.databases.connectors import open_admin, open_destination, open_source, open_source_admin
from headrace.databases.ports import Finding
from topology.edits.stored import prepared_document
from topology.file.admin import admin_dsn

if TYPE_CHECKING:
    from headrace.databases.ports.operator import DestinationAdmin, SourceAdmin
    from topology.spec import SiteSpec, TopologySpec

__all__ = [
    "Published",
    "admin_findings",
    "administered",
    "both",
    "finish_as_admin",
    "prepare_as_admin",
    "publish_as_admin",
    "remove_as_admin",
    "retreat_as_admin",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The effect of `publish_as_admin` at a source.

    Args:
        statements: the statements that were run.
        added: identities of the tables that were not in the log before.
    """

    statements: tuple[str, ...]
    added: frozenset[str]


def administered(spec: TopologySpec) -> tuple[SiteSpec, ...]:
    """Return the destinations at which an administrator creates the objects."""
    return tuple(
        site
        for site in spec.sites
        if site.database.has_admin and any(apply.site == site.name for apply in spec.applies)
    )


def _published(spec: TopologySpec) -> tuple[SiteSpec, ...]:
    """Return the sources at which an administrator creates the publication."""
    return tuple(site for site in spec.sites if site.database.has_admin and spec.capture_rules(site.name))


def admin_findings(spec: TopologySpec, site: SiteSpec, before: TopologySpec | None) -> tuple[Finding, ...]:
    """Return what prevents the administrator from doing its work.

    Args:
        spec: the topology.
        site: site with an administrator.
        before: the topology that was prepared last; None: none was.

    Raises:
        HeadraceError: the administrator cannot connect (as in `prepare_as_admin` and `publish_as_admin`).
    """
    found: list[Finding] = []
    if site in _published(spec):
        try:
            dsn = admin_dsn(spec, site)
            found += (
                *server_findings(site.name, dsn, "admin_dsn"),
                *_source_admin(site, dsn).preflight(spec.name, spec.capture_rules(site.name)),
            )
        except (DatabaseUnavailable, ConfigError) as error:
            found.append(_unpublished(spec, site, error, before))
    if site in administered(spec):
        try:
            dsn = admin_dsn(spec, site)
            found += (
                *server_findings(site.name, dsn, "admin_dsn"),
                *_admin(site, dsn).preflight(_tombstones(spec, site)),
            )
        except (DatabaseUnavailable, ConfigError) as error:
            found.append(_unasked(spec, site, error))
    return tuple(dict.fromkeys(found))


def prepare_as_admin(spec: TopologySpec) -> tuple[Finding, ...]:
    """Create the objects that the topology needs at every destination with an administrator; idempotent.

    After a restart of the machine every object exists. Then an administrator who has no access now, or is not meant to
    have any, delays nothing.

    Returns:
        Why an administrator could not connect whose work is done, or whose database the role of `dsn` does not reach
        either. Components wait for such a database, and check it then.

    Raises:
        HeadraceError: an administrator cannot connect and an object is missing, or a right is missing.
    """
    found: list[Finding] = []
    for site in administered(spec):
        try:
            _admin(site, admin_dsn(spec, site)).prepare(_tombstones(spec, site))
        except (DatabaseUnavailable, ConfigError) as error:
            found.append(_unasked(spec, site, error))
    return tuple(found)


def publish_as_admin(
    spec: TopologySpec, before: TopologySpec | None
) -> tuple[tuple[Finding, ...], dict[str, Published]]:
    """Publish the changes of every table that the topology captures, before any component needs them; idempotent.

    Nothing changes where the source would be refused, because some tables must not be published as they are. The
    components' own preflight finds the same refusal.

    Args:
        spec: the topology.
        before: the topology that was prepared last; None: none was.

    Returns:
        Why an administrator could not connect, where the running components can continue as they are; and the
        published tables, by site.

    Raises:
        HeadraceError: an administrator cannot connect and the file needs something new, or a right is missing. Changes
            made at other sources before are reverted.
    """
    found: list[Finding] = []
    made: dict[str, Published] = {}
    try:
        for site in _published(spec):
            try:
                _publish(spec, site, before, made)
            except (DatabaseUnavailable, ConfigError) as error:
                found.append(_unpublished(spec, site, error, before))
    except HeadraceError as error:
        left = (f"{each.problem}: {each.fix}" for each in retreat_as_admin(spec, made))
        error.hint = "; ".join(filter(None, (error.hint, *left)))
        raise
    return tuple(found), made


def _publish(spec: TopologySpec, site: SiteSpec, before: TopologySpec | None, made: dict[str, Published]) -> None:
    """Publish the captured tables of one source, and record the effect in `made`."""
    dsn = admin_dsn(spec, site)
    was_source = before is not None and any(each.source == site.name for each in before.captures)
    with closing(open_source(access_to(site, site.database.dsn))) as source:
        rules = spec.capture_rules(site.name)
        is_due = any(not step.is_done for step in source.plan(spec.name, rules))
        if is_due and any(each.is_error for each in source_findings(spec, site, source)):
            return
        there = {each.identity for each in source.captured(spec.name)}
        if statements := _source_admin(site, dsn).prepare(spec.name, rules, was_source=was_source):
            now = {each.identity for each in source.captured(spec.name)}
            made[site.name] = Published(statements=statements, added=frozenset(now - there))


def retreat_as_admin(spec: TopologySpec, made: Mapping[str, Published]) -> tuple[Finding, ...]:
    """Revert `publish_as_admin` after a refusal: take its tables out of the log.

    Args:
        spec: the topology that was refused.
        made: from `publish_as_admin`.

    Returns:
        What could not be reverted; the next `up` that is not refused takes these tables up, or out.
    """
    found: list[Finding] = []
    for name, published in made.items():
        site = spec.site(name)
        try:
            # Another call may have had them taken up in the meantime.
            _source_admin(site, admin_dsn(spec, site)).take_out(
                spec.name,
                _recorded_now(spec, name),
                among=published.added,
                recorded=partial(_recorded_now, spec, name),
            )
        except (DatabaseError, ConfigError) as error:
            found.append(
                Finding(
                    path=f"sites.{name}.database.admin_dsn",
                    is_error=False,
                    problem=f"this was done before the refusal, and could not be reverted ({error.message}):"
                    f" {'; '.join(published.statements)}",
                    fix="headrace up FILE, with a file that is not refused, takes the tables up, or out of the"
                    " publication; nothing that runs applies them",
                )
            )
    return tuple(found)


def both(first: Mapping[str, Published], later: Mapping[str, Published]) -> dict[str, Published]:
    """Return the effects of two calls of `publish_as_admin`, by site.

    Args:
        first: effect of the first call.
        later: effect of the second call.
    """
    nothing = Published(statements=(), added=frozenset())
    return {
        name: Published(
            statements=(*(one := first.get(name, nothing)).statements, *(other := later.get(name, nothing)).statements),
            added=one.added | other.added,
        )
        for name in (*first, *(each for each in later if each not in first))
    }


def finish_as_admin(
    spec: TopologySpec, *, told: Collection[Finding] = (), again: str = "headrace up FILE"
) -> tuple[Finding, ...]:
    """Take tables out of the log that the topology no longer captures, when everything has settled; idempotent.

    Args:
        spec: the running topology.
        told: findings of `publish_as_admin`, which are not repeated.
        again: the command that was called.

    Returns:
        Why that was not possible, and which captured tables are not in the log: they were created too late for
        `publish_as_admin`, or their source was away. The next `up` handles both.
    """
    found: list[Finding] = []
    for site in spec.sites:
        if not site.database.has_admin:
            continue
        rules, recorded = spec.capture_rules(site.name), _recorded(spec, site.name)
        if rules and recorded is None:
            continue
        kept: set[str] = set()
        there: set[str] = set()
        keeps_ddl = True
        # a source that is away is left to the next `up`
        with suppress(DatabaseError), closing(open_source(access_to(site, site.database.dsn))) as source:
            found += _uncaptured(source.uncaptured(spec.name, rules) if rules else (), site, told, again)
            keeps_ddl = any(rule.names_ddl for rule in rules) or not source.captures_ddl(spec.name)
            for each in source.captured(spec.name):
                there.add(each.identity)
                # A recorded table was renamed since: its changes wait for an operator, and must not be dropped instead.
                if each.identity in (recorded or ()) or any(rule.keeps(each.owner, each.name) for rule in rules):
                    kept.add(each.identity)
        try:
            if kept != there or not keeps_ddl:
                _source_admin(site, admin_dsn(spec, site)).take_out(
                    spec.name,
                    kept,
                    among=there,
                    recorded=partial(_recorded_now, spec, site.name),
                    keeps_ddl=keeps_ddl,
                )
        except (DatabaseError, ConfigError) as error:
            found.append(
                Finding(
                    path=f"sites.{site.name}.database.admin_dsn",
                    is_error=False,
                    problem="tables that are no longer replicated are still published, which only costs the source a"
                    f" little: {error.message}",
                    fix="fix this, and run headrace up FILE again: it takes them out of the publication",
                )
            )
    return tuple(found)


def _uncaptured(tables: Sequence[str], site: SiteSpec, told: Collection[Finding], again: str) -> Iterator[Finding]:
    path, names = f"sites.{site.name}.database.admin_dsn", ", ".join(tables)
    if tables and not any(each.path == path and names in each.problem for each in told):
        yield Finding(
            path=path,
            is_error=False,
            problem=f"selected by the rules, and not captured: {names}",
            fix=again,
        )


def _recorded(spec: TopologySpec, source: str) -> frozenset[str] | None:
    """Return the identities of the tables in the controller's record; None: it has no record of this source."""
    found = prepared_document(spec.state_dir).get("receivers", {}).get(source)
    return None if found is None else frozenset(str(each["identity"]) for each in found.get("tables", ()))


def _recorded_now(spec: TopologySpec, source: str) -> frozenset[str]:
    return _recorded(spec, source) or frozenset()


def _unpublished(spec: TopologySpec, site: SiteSpec, error: HeadraceError, before: TopologySpec | None) -> Finding:
    """Return the warning that an administrator could not connect; raise the error where the file needs the administrator."""
    rules = spec.capture_rules(site.name)
    uncaptured: tuple[str, ...] = ()
    try:
        with closing(open_source(access_to(site, site.database.dsn))) as source:
            uncaptured = source.uncaptured(spec.name, rules)
            # Tables that were created since must not block what is captured already: a restarted machine must come up.
            may_wait = not uncaptured or (
                before is not None and before.capture_rules(site.name) == rules and bool(source.captured(spec.name))
            )
    except DatabaseUnavailable:
        may_wait = True
    if not may_wait:
        raise error
    what = f"not captured until then: {', '.join(uncaptured)}" if uncaptured else "no further table can be captured"
    return Finding(
        path=f"sites.{site.name}.database.admin_dsn",
        is_error=False,
        problem=f"{error.message}: {what}",
        fix=f"{error.hint or 'make sure that the database runs'}; needed for new tables",
    )


def _unasked(spec: TopologySpec, site: SiteSpec, error: HeadraceError) -> Finding:
    """Return the warning that an administrator could not connect; raise the error where work is due."""
    if not _may_wait(spec, site):
        raise error
    return Finding(
        path=f"sites.{site.name}.database.admin_dsn",
        is_error=False,
        problem=f"{error.message}: nothing can be made or upgraded as its role",
        fix=f"{error.hint or 'make sure that the database runs'}; needed for a new version, and for new tables with"
        " tombstones",
    )


def _may_wait(spec: TopologySpec, site: SiteSpec) -> bool:
    """Return whether the role of `dsn` finds the administrator's work done, or the database does not answer."""
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
    """Drop what remains after the site has removed its slot and its own rows.

    Args:
        spec: the topology.
        site: site with an administrator.

    Raises:
        HeadraceError: the database does not answer, or the connection string has no value.
    """
    dsn = admin_dsn(spec, site)
    lines = _source_admin(site, dsn).remove(spec.name)  # also at a former source
    return (*lines, *(_admin(site, dsn).remove(spec.name) if site in administered(spec) else ()))


def _source_admin(site: SiteSpec, dsn: str) -> SourceAdmin:
    return open_source_admin(access_to(site, site.database.dsn), dsn)


def _admin(site: SiteSpec, dsn: str) -> DestinationAdmin:
    return open_admin(access_to(site, site.database.dsn), dsn)


def _tombstones(spec: TopologySpec, site: SiteSpec) -> frozenset[tuple[str, str]]:
    return frozenset(
        table for apply in spec.applies if apply.site == site.name for table in apply.conflicts.with_tombstones
    )
