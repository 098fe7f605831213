"""Intermediate site: queues only, no database. It exists so that every site answers the same calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.site.host import SiteHost
from actors.site.standby_folders import forget_standby_logs
from actors.staging.queue_host import forget_queues
from headrace.base.errors import ConfigError
from headrace.status.sites import SiteStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.databases.ports import Finding
    from topology.spec import TopologySpec

__all__ = ["IntermediateSite", "build"]

WATCH_INTERVAL_S = 1.0  # an idle step only shows that the process is alive


class IntermediateSite(SiteHost):
    """One site without a database."""

    def __init__(self, spec: TopologySpec, name: str, fingerprint: str) -> None:
        super().__init__(f"site:{name}", spec.state_dir)
        self._spec, self._name = spec, name
        self._fingerprint = fingerprint

    def step(self) -> float:
        """Do nothing."""
        return WATCH_INTERVAL_S

    def detail_state(self) -> str:
        """Return READY, always."""
        return "READY"

    def details(self) -> SiteStatus:
        """Return that the site has no database and is ready."""
        return SiteStatus(name=self.name, site=self._name, fingerprint=self._fingerprint, database="none", ready=True)

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """Adopt a changed topology; only the label depends on it.

        See `Host.adopt` for the arguments.
        """
        self._spec, self._fingerprint = spec, fingerprint

    def database_identity(self) -> str:
        """Return an empty identity: the site has no database."""
        return ""

    def preflight(self, spec: TopologySpec) -> tuple[Finding, ...]:  # noqa: ARG002 - as of a site with a database
        """Return no findings: there is no database to check."""
        return ()

    def prepare(self, spec: TopologySpec, new: Collection[str] = ()) -> tuple[str, ...]:
        """Delete what earlier components left under the names of new ones; there is no database to prepare.

        See `DatabaseSite.prepare` for the arguments.
        """
        forget_queues(spec, self._name, new)
        forget_standby_logs(spec, self._name, new)
        return ()

    def end_source(self) -> tuple[str, ...]:
        """Refuse: without a database the site cannot drop a source's objects.

        Raises:
            ConfigError: the file no longer names the database that was a source here.
        """
        raise ConfigError(f"{self.name} has no database now, and no connection string of its former one")

    def remove(self) -> tuple[str, ...]:
        """Remove nothing."""
        return ()


def build(spec: TopologySpec, name: str, fingerprint: str) -> IntermediateSite:
    """Build the host of a site without a database (`actors.hosting.runtime.Factory`).

    Args:
        spec: the topology.
        name: name of the site.
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
    """
    return IntermediateSite(spec, name, fingerprint)
