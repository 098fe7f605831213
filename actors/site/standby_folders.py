"""Leftovers of earlier redo receivers at a site."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from actors.site.connection import redo_folder
from topology.routing.downstream import receivers_at

if TYPE_CHECKING:
    from collections.abc import Collection

    from topology.spec import TopologySpec

__all__ = ["forget_standby_logs"]


def forget_standby_logs(spec: TopologySpec, site: str, components: Collection[str]) -> None:
    """Delete the standby redo logs of a site's receivers that are among these components; none of them may run.

    The source has kept no redo for them since, so they could not continue from their end.

    Args:
        spec: the topology.
        site: name of the site.
        components: full names of components.
    """
    for receiver in receivers_at(spec, site):
        folder = redo_folder(spec, source=receiver.source, site=site)
        if receiver.component in components and folder.exists():
            shutil.rmtree(folder)
