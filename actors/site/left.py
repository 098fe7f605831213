"""Sites that an edit left: a former source, and an embedded database whose site is gone from the file.

A slot keeps its database's WAL until it is dropped, and an embedded server runs until it is stopped. When the file no
longer names the connection string, only the site's own process has it: the process runs until the clean-up is done.

Durable when
    `desired.json` names what an edit leaves in the same write that puts the edit in force, and until its site has
    cleared it.

Worked flow
    an edit removes the source c -> prepared, and c is left -> site:c ends its log writer and drops slot and publication
    -> c is cleared -> site:c ends
    site:c does not answer -> `status` names the slot -> `down`, `up`: no process has the connection string, so the
    operator drops the slot -> c is added again: it starts as a new source, without the earlier redo
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.base.plain_data import from_json
from headrace.databases.connectors import log_session_name
from topology.edits.stored import prepared_document

if TYPE_CHECKING:
    from pathlib import Path

    from topology.spec import TopologySpec

__all__ = ["LeftSite", "left_by", "left_in", "left_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftSite:
    """A site that an edit left, until it is cleared.

    Args:
        name: name of the site.
        kind: kind of its database.
        slot: name of the slot that its database keeps; empty: it was no source.
        is_removed: whether the site is gone from the file; False: it is only no longer a source.
    """

    name: str
    kind: str
    slot: str
    is_removed: bool

    @property
    def component(self) -> str:
        """Full name of the site's component."""
        return f"site:{self.name}"


def left_by(before: TopologySpec | None, wanted: TopologySpec) -> tuple[LeftSite, ...]:
    """Return the sites that an edit leaves.

    Args:
        before: the topology that was prepared last; None: unknown, or unchanged.
        wanted: the topology that is prepared now.
    """
    if before is None:
        return ()
    sites, sources = {site.name for site in wanted.sites}, {capture.source for capture in wanted.captures}
    sources_before = {capture.source for capture in before.captures}
    found = []
    for site in before.sites:
        was_source, is_removed = site.name in sources_before - sources, site.name not in sites
        if was_source or (is_removed and site.database.kind == "embedded"):
            slot = log_session_name(site.database.kind, before.name, site.name) if was_source else ""
            found.append(LeftSite(name=site.name, kind=site.database.kind, slot=slot, is_removed=is_removed))
    return tuple(found)


def left_of(prepared: Mapping[str, Any]) -> tuple[LeftSite, ...]:
    """Return the left sites in the record of the last prepared topology (`topology.edits.stored.PREPARED_FILE`)."""
    return tuple(from_json(LeftSite, each) for each in prepared.get("left", ()))


def left_in(state_dir: Path) -> tuple[LeftSite, ...]:
    """Return the left sites in the record of a state folder; none without a record."""
    return left_of(prepared_document(state_dir))
