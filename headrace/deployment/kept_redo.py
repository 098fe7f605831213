"""Redo that an edit's capture processes will find, as far as this machine and the databases can tell before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.site.connection import redo_folder
from headrace.base.errors import HeadraceError
from headrace.redo.standby.kept_segments import read_oldest_scn
from topology.edits.capture_scns import scn_findings
from topology.edits.stored import prepared_topology

if TYPE_CHECKING:
    from headrace.databases.ports import Finding
    from headrace.deployment.open_databases import OpenDatabases
    from headrace.lcr.scn import Scn
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["redo_findings"]


def redo_findings(spec: TopologySpec, databases: OpenDatabases) -> tuple[Finding, ...]:
    """Return what `up` would refuse because redo is missing; redo on another machine is examined by `up` only.

    Args:
        spec: the wanted topology.
        databases: its databases.
    """

    def oldest_scn(source: str, site: str) -> Scn | None:
        return read_oldest_scn(redo_folder(spec, source=source, site=site))

    def applied_scn(apply: ApplySpec) -> Scn | None:
        if databases.access(apply.site) is None:
            return None
        try:
            found = databases.destination(apply.site).progress(spec.name, apply.name)
        except HeadraceError:
            return None  # reported separately
        return None if found is None else found.low_watermark

    return scn_findings(prepared_topology(spec.state_dir), spec, oldest_scn=oldest_scn, applied_scn=applied_scn)
