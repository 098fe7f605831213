"""A site's claim on its database (`headrace.databases.ports.operator.TopologyClaim`).

The site's actor holds it, and its threads check it. Only an operator can regain a lost claim: two copies of a topology
that retook it by themselves would take it from each other forever.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from actors.site.connection import claim_on
from headrace.base.errors import RunsElsewhere
from headrace.databases.ports import Finding

if TYPE_CHECKING:
    from headrace.databases.ports.operator import TopologyClaim
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["SiteClaim"]


class SiteClaim:
    """The claim of one site; callable from any thread.

    Args:
        site: the site. An embedded database needs no claim: it belongs to the state folder.
    """

    def __init__(self, spec: TopologySpec, site: SiteSpec) -> None:
        self._spec, self._site = spec, site
        self._lock = threading.Lock()  # calls of the connector's claim must not overlap
        self._claim: TopologyClaim | None = None
        self.refused: RunsElsewhere | None = None

    def hold(self, *, take_over: bool = False) -> None:
        """Claim the database, or verify that the claim still holds.

        Args:
            take_over: end the claim of another copy of the topology.

        Raises:
            RunsElsewhere: another copy has the claim, or had it at the last check; `forget` causes another check.
            DatabaseUnavailable: the database does not answer.
        """
        with self._lock:
            if self._site.database.kind == "embedded":
                return
            if self.refused is not None and not take_over:
                raise self.refused
            self._claim = self._claim or claim_on(self._spec, self._site)
            try:
                self._claim.hold(take_over=take_over)
            except RunsElsewhere as error:
                self.refused = error
                raise
            self.refused = None

    def findings(self) -> tuple[Finding, ...]:
        """Check again, for a preflight. Return why the topology must not use the database; empty: it may."""
        self.forget()
        try:
            self.hold()
        except RunsElsewhere as error:
            return (Finding(path=f"sites.{self._site.name}", problem=error.message, fix=error.hint),)
        return ()

    def forget(self) -> None:
        """Check again at the next call, because an operator acted."""
        self.refused = None

    def close(self) -> None:
        """Release the claim."""
        with self._lock:
            if self._claim is not None:
                self._claim.close()
