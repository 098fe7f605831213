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

WATCH_INTERVAL_S = 1.0  # nothing to do; only shows that the process is alive


class IntermediateSite(SiteHost):
    """One site without a database."""

    def __init__(self, spec: TopologySpec, name: str, fingerprint: str) -> None:
        super().__init__(f"site:{name}", spec.state_dir)
        self._spec, self._name = spec, name
        self._fingerprint = fingerprint

    def step(self) -> float:
        """Nothing to do."""
        return WATCH_INTERVAL_S

    def detail_state(self) -> str:
        """Always READY."""
        return "READY"

    def details(self) -> SiteStatus:
        """See `Host.details`."""
        return SiteStatus(name=self.name, site=self._name, fingerprint=self._fingerprint, database="none", ready=True)

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:
        """See `Host.adopt`. Only the label depends on the topology."""
        self._spec, self._fingerprint = spec, fingerprint

    def database_identity(self) -> str:
        """There is no database, so there is no identity."""
        return ""

    def preflight(self, spec: TopologySpec) -> tuple[Finding, ...]:  # noqa: ARG002 - as of a site with a database
        """There is no database to check."""
        return ()

    def prepare(self, spec: TopologySpec, new: Collection[str] = ()) -> tuple[str, ...]:
        """See `DatabaseSite.prepare`. There is no database: only what new queues left from an earlier time is deleted."""
        forget_queues(spec, self._name, new)
        forget_standby_logs(spec, self._name, new)
        return ()

    def end_source(self) -> tuple[str, ...]:
        """See `DatabaseSite.end_source`.

        Raises:
            ConfigError: the file does not name the database any more that was a source here.
        """
        raise ConfigError(f"{self.name} has no database now, and no connection string of the one that it had")

    def remove(self) -> tuple[str, ...]:
        """Nothing to remove."""
        return ()


def build(spec: TopologySpec, name: str, fingerprint: str) -> IntermediateSite:
    """Make the host of a site without a database; called by name, see `actors.hosting.runtime.Factory`.

    Args:
        spec: the topology.
        name: of the site in it.
        fingerprint: of the topology that brought this component's part; shown in its status.
    """
    return IntermediateSite(spec, name, fingerprint)
