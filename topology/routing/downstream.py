"""Downstream capture: which redo logs are copied to which sites, for the capture processes there.

A capture process mines redo at its own site. Where that is not the source's site (`site` is not `source`), a redo
receiver of that site takes the source's redo log from its log writer and keeps a copy, the standby redo log; one
receiver serves every capture process of that source there.

Source: Oracle Streams Concepts and Administration 11.2, "Local Capture and Downstream Capture".
"""

from __future__ import annotations

from dataclasses import dataclass

from topology.spec import CaptureSpec, TopologySpec

__all__ = [
    "RedoReceiver",
    "keeper_of",
    "receiver_at",
    "receiver_of",
    "receivers_at",
    "receivers_from",
    "redo_receivers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoReceiver:
    """A copy of a source's redo log at another site.

    Args:
        source: the site whose redo it is.
        site: where the copy is.
        is_sync: the source confirms nothing to its database that is not durable here too (`transport: sync`).
        captures: names of the capture processes that mine it.
        is_archived_log: it gets complete segments only.
        archive: the folder into which they are copied; empty: they are sent.
        archive_lag_s: after so many seconds the source completes a segment that is not full.
    """

    source: str
    site: str
    is_sync: bool
    captures: tuple[str, ...]
    is_archived_log: bool
    archive: str
    archive_lag_s: float

    @property
    def name(self) -> str:
        """Its name, as other components know it."""
        return f"{self.source}@{self.site}"

    @property
    def component(self) -> str:
        """The full name of its component."""
        return f"redo:{self.name}"


def redo_receivers(spec: TopologySpec) -> tuple[RedoReceiver, ...]:
    """Every redo receiver of a topology, in the order of the file."""
    captures: dict[tuple[str, str], list[CaptureSpec]] = {}
    for capture in spec.captures:
        if capture.is_downstream:
            captures.setdefault((capture.source, capture.site), []).append(capture)
    return tuple(
        RedoReceiver(
            source=source,
            site=site,
            is_sync=any(each.transport == "sync" for each in found),
            captures=tuple(each.name for each in found),
            is_archived_log=found[0].mode == "archived_log",
            archive=found[0].archive,
            archive_lag_s=min(each.archive_lag_s for each in found),
        )
        for (source, site), found in captures.items()
    )


def receiver_of(spec: TopologySpec, name: str) -> RedoReceiver:
    """The receiver of a name; KeyError when there is none.

    Args:
        spec: the topology.
        name: such as dbs1@dbs3.
    """
    return {receiver.name: receiver for receiver in redo_receivers(spec)}[name]


def receivers_from(spec: TopologySpec, source: str) -> tuple[RedoReceiver, ...]:
    """The receivers of a source's redo.

    Args:
        spec: the topology.
        source: name of the site.
    """
    return tuple(receiver for receiver in redo_receivers(spec) if receiver.source == source)


def receivers_at(spec: TopologySpec, site: str) -> tuple[RedoReceiver, ...]:
    """The receivers at a downstream site.

    Args:
        spec: the topology.
        site: name of the site.
    """
    return tuple(receiver for receiver in redo_receivers(spec) if receiver.site == site)


def receiver_at(spec: TopologySpec, capture: CaptureSpec) -> RedoReceiver | None:
    """The receiver whose copy a capture process mines; None: it mines the source's own redo log.

    Args:
        spec: the topology.
        capture: of `spec`.
    """
    return next((each for each in receivers_at(spec, capture.site) if each.source == capture.source), None)


def keeper_of(source: str, site: str) -> str:
    """Full name of the component that keeps the redo of a source which capture processes mine at a site.

    Args:
        source: name of the source site.
        site: where they run: the source itself, or a downstream site, which has a redo receiver.
    """
    return f"site:{source}" if source == site else f"redo:{source}@{site}"
