"""Sites that an edit left: a source that is none any more, and an embedded database whose site is gone from the file.

A slot keeps its database's WAL until it is dropped, and an embedded server runs until it is stopped. Only the site's
own process has the connection string when the file does not name it any more: it goes on until that is done.

Durable when
    `desired.json` names what an edit leaves in the same write that makes the edit valid, and until its site has cleared
    it.

Worked flow
    an edit takes the source c out -> prepared, and c is left -> site:c ends its log writer and drops slot and
    publication -> c is left no more -> site:c ends
    site:c does not answer -> `status` names the slot -> `down`, `up`: nobody has its connection string, so the operator
    drops the slot -> c comes back: it begins as a new source, without the redo of before
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
    """One site, until it is cleared.

    Args:
        name: of the site.
        kind: of its database.
        slot: name of the slot that its database keeps; empty: it was no source.
        is_removed: it is gone from the file; False: it is no source any more.
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
    """What an edit leaves.

    Args:
        before: the topology that was prepared last; None: it is not known, or the same.
        wanted: the one that is prepared now.
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
    """What is left by the record of the topology that was prepared last (`topology.edits.stored.PREPARED_FILE`)."""
    return tuple(from_json(LeftSite, each) for each in prepared.get("left", ()))


def left_in(state_dir: Path) -> tuple[LeftSite, ...]:
    """What is left by the record in a state folder; nothing when there is none."""
    return left_of(prepared_document(state_dir))
