"""What `down` leaves in the databases, and what `down --purge` removes permanently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.site.left import left_in
from headrace.base.errors import HeadraceError
from headrace.console.output import bytes_text

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["KeptSlot", "purge_losses", "slots_kept", "tombstones_kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSlot:
    """A replication slot that stays at a source after `down`.

    Args:
        site: the source's site.
        retained_bytes: bytes of log that the source currently keeps for the slot; None: the database does not answer.
        problem: why the database does not answer.
    """

    site: str
    retained_bytes: int | None
    problem: str = ""

    def text(self) -> str:
        """Return a line for people."""
        if self.retained_bytes is None:
            return f"{self.site} cannot be reached ({self.problem}): if it has a slot, that database keeps its WAL"
        return (
            f"the slot at {self.site} stays, and the database keeps its WAL for it"
            f" ({bytes_text(self.retained_bytes)} now)"
        )


def slots_kept(spec: TopologySpec) -> list[KeptSlot]:
    """Return the slots that exist in the users' databases now."""
    from actors.site.connection import retained_bytes

    kept = []
    for site in spec.sites:
        if site.database.kind != "postgres" or not any(c.source == site.name for c in spec.captures):
            continue
        try:
            retained = retained_bytes(spec, site)
        except HeadraceError as error:
            kept.append(KeptSlot(site=site.name, retained_bytes=None, problem=error.message))
        else:
            kept += [] if retained is None else [KeptSlot(site=site.name, retained_bytes=retained)]
    return [
        *kept,
        *(
            KeptSlot(
                site=each.name, retained_bytes=None, problem=f"the file does not name it any more; slot {each.slot}"
            )
            for each in left_in(spec.state_dir)
            if each.is_removed and each.kind != "embedded"
        ),
    ]


def tombstones_kept(spec: TopologySpec) -> dict[str, list[str]]:
    """Return, by site, the tables whose triggers continue to record deletes; embedded servers are stopped then."""
    found: dict[str, set[str]] = {}
    for apply in spec.applies:
        if spec.site(apply.site).database.kind == "postgres":
            names = {f"{owner}.{name}" for owner, name in apply.conflicts.with_tombstones}
            found[apply.site] = found.get(apply.site, set()) | names
    return {site: sorted(names) for site, names in sorted(found.items()) if names}


def purge_losses(spec: TopologySpec, *, keep_servers: bool = False) -> list[str]:
    """Describe what `down --purge` removes, one line each.

    Args:
        spec: the topology.
        keep_servers: whether embedded servers stay.
    """
    from actors.site.connection import left_servers

    losses = [f"{spec.state_dir}: redo logs, spilled queues, logs"]
    for site in spec.sites:
        if site.database.kind == "embedded" and not keep_servers:
            losses.append(f"{site.name}: its embedded server, with every table in it")
        elif site.database.kind != "none":
            losses.append(f"{site.name}: publication, slot, apply progress, error queue; your tables stay as they are")
    losses += (
        []
        if keep_servers
        else [
            f"{name}: its embedded server, with every table in it, although the file does not name it any more"
            for name in left_servers(spec)
        ]
    )
    return losses
