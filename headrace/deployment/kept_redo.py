"""Before an edit runs: the redo that its capture processes will find, as far as this machine and the databases can tell."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from actors.site.connection import redo_folder
from headrace.base.errors import HeadraceError
from headrace.databases.connectors import open_destination
from headrace.redo.standby.kept_segments import read_oldest_scn
from topology.edits.capture_scns import scn_findings
from topology.edits.stored import prepared_topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.databases.connectors import DatabaseAccess
    from headrace.databases.ports import Finding
    from headrace.lcr.scn import Scn
    from topology.spec import ApplySpec, SiteSpec, TopologySpec

__all__ = ["redo_findings"]


def redo_findings(
    spec: TopologySpec, access: Callable[[TopologySpec, SiteSpec], DatabaseAccess | None]
) -> tuple[Finding, ...]:
    """What `up` would refuse because redo is not there; a site of another machine is examined by `up` alone.

    Args:
        spec: the topology that is wanted.
        access: how to reach a site's database; None: it does not run.
    """

    def oldest_scn(source: str, site: str) -> Scn | None:
        return read_oldest_scn(redo_folder(spec, source=source, site=site))

    def applied_scn(apply: ApplySpec) -> Scn | None:
        reached = access(spec, spec.site(apply.site))
        if reached is None:
            return None
        try:
            with closing(open_destination(reached)) as destination:
                found = destination.progress(spec.name, apply.name)
        except HeadraceError:
            return None  # it is reported as what it is
        return None if found is None else found.low_watermark

    return scn_findings(prepared_topology(spec.state_dir), spec, oldest_scn=oldest_scn, applied_scn=applied_scn)
