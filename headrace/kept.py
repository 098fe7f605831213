"""What `down` leaves at the databases, and what `down --purge` takes away for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.console import bytes_text
from streams.errors import StreamsError

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["KeptSlot", "purge_losses", "slots_kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSlot:
    """What stays at a source after `down`.

    Args:
        site: the source's site.
        retained_bytes: of log that the source keeps for it now; None: the database does not answer.
        problem: why it does not.
    """

    site: str
    retained_bytes: int | None
    problem: str = ""

    def text(self) -> str:
        """For people."""
        if self.retained_bytes is None:
            return f"{self.site} cannot be asked ({self.problem}): if a slot is there, that database keeps its WAL"
        return f"the slot at {self.site} stays, and the database keeps its WAL for it ({bytes_text(self.retained_bytes)} now)"


def slots_kept(spec: TopologySpec) -> list[KeptSlot]:
    """The slots that exist at the users' databases, asked of them now."""
    from actors.site_connection import retained_bytes

    kept = []
    for site in spec.sites:
        if site.database.kind != "postgres" or not any(c.source == site.name for c in spec.captures):
            continue
        try:
            retained = retained_bytes(spec, site)
        except StreamsError as error:
            kept.append(KeptSlot(site=site.name, retained_bytes=None, problem=error.message))
        else:
            kept += [] if retained is None else [KeptSlot(site=site.name, retained_bytes=retained)]
    return kept


def purge_losses(spec: TopologySpec) -> list[str]:
    """What `down --purge` removes, for people, a line each."""
    losses = [f"{spec.state_dir}: redo logs, spilled queues, logs"]
    for site in spec.sites:
        if site.database.kind == "embedded":
            losses.append(f"{site.name}: its embedded server, with every table in it")
        elif site.database.kind == "postgres":
            losses.append(f"{site.name}: publication, slot, apply progress, error queue; your tables stay as they are")
    return losses
