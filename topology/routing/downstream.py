"""Downstream capture: the redo logs that are copied to other sites, for the capture processes there.

A capture process mines redo at its own site. If that is not the source's site (`site` is not `source`), a redo receiver
of that site gets the source's redo log from its log writer. It keeps a copy, the standby redo log. One receiver serves
every capture process of that source there.

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
        site: the site of the copy.
        is_sync: the source confirms to its database only what is durable here too (`transport: sync`).
        captures: names of the capture processes that mine it.
        is_archived_log: it gets complete segments only.
        archive: the folder into which they are copied; empty: they are sent.
        archive_lag_s: the source completes a partly filled segment after this many seconds.
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
    """Return every redo receiver of a topology, in the order of the file."""
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
    """Return the receiver of a name; KeyError when it does not exist.

    Args:
        spec: the topology.
        name: such as dbs1@dbs3.
    """
    return {receiver.name: receiver for receiver in redo_receivers(spec)}[name]


def receivers_from(spec: TopologySpec, source: str) -> tuple[RedoReceiver, ...]:
    """Return the receivers of a source's redo."""
    return tuple(receiver for receiver in redo_receivers(spec) if receiver.source == source)


def receivers_at(spec: TopologySpec, site: str) -> tuple[RedoReceiver, ...]:
    """Return the receivers at a downstream site."""
    return tuple(receiver for receiver in redo_receivers(spec) if receiver.site == site)


def receiver_at(spec: TopologySpec, capture: CaptureSpec) -> RedoReceiver | None:
    """Return the receiver whose copy a capture process mines; None: it mines the source's own redo log.

    Args:
        spec: the topology.
        capture: of `spec`.
    """
    return next((each for each in receivers_at(spec, capture.site) if each.source == capture.source), None)


def keeper_of(source: str, site: str) -> str:
    """Return the full name of the component that keeps the redo of a source for capture processes at a site.

    Args:
        source: name of the source site.
        site: where they run: the source itself, or a downstream site, which has a redo receiver.
    """
    return f"site:{source}" if source == site else f"redo:{source}@{site}"
