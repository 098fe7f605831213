"""Split streams: what a topology runs while a propagation is split off, derived from the file and the record.

A propagation whose destination is away holds back everything else that reads its queue: batches wait for it there, and
redo is needed from its position on. Split off, it reads a clone of the queue, which clones of the queue's capture
processes fill. Merged, it reads the original queue again. The propagation keeps its name, so nothing changes for its
destination.

    together    capture -> queue ----> propagation -> destination        (nothing is recorded)
    splitting   the clones start and keep redo for themselves; the propagation still reads the original queue
    split       capture.P -> queue.P -> propagation -> destination; the original queue has forgotten the propagation
    merging     as in split, and the original queue holds what follows the position at which the propagation will return

Every phase is a version of the topology. A step from one phase to the next is an edit that changes only what it must
(`topology.edits.changes`). `actors.splitting.phases` decides when a phase begins.

Source: Oracle Streams Replication Administrator's Guide, "Splitting and Merging a Streams Destination"; `semantics.md`
4.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigError
from headrace.base.plain_data import from_json
from headrace.databases.ports import Finding
from headrace.lcr.scn import FIRST_SCN
from topology.edits.stored import prepared_document
from topology.routing.combined import combination
from topology.routing.ways import sites_behind
from topology.spec import CaptureSpec, PropagationSpec, TopologySpec

__all__ = [
    "MERGING",
    "SPLIT",
    "SPLITTING",
    "TOGETHER",
    "Split",
    "clone_captures",
    "clone_queue",
    "fitting",
    "hindrance",
    "misfits",
    "prepared_splits",
    "splits_of",
    "with_splits",
]

SPLITTING, SPLIT, MERGING = "splitting", "split", "merging"
TOGETHER = "together"  # phase of a stream that will be split off: nothing is recorded yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The record of a propagation that is split off.

    Args:
        propagation: its name.
        queue: the original queue, which it reads according to the file.
        to_queue: the queue that it sends to according to the file.
        phase: `SPLITTING`, `SPLIT` or `MERGING`, as the module describes them.
        merges: whether it is merged when it is close enough; False: only when an operator says so.
        by: "operator" or "threshold".
        since_us: when it was split off, microseconds since the epoch.
    """

    propagation: str
    queue: str
    to_queue: str
    phase: str
    merges: bool
    by: str
    since_us: int


def splits_of(prepared: Mapping[str, Any]) -> tuple[Split, ...]:
    """Return the splits in the record of the topology prepared last (`topology.edits.stored.PREPARED_FILE`)."""
    return tuple(from_json(Split, each) for each in prepared.get("splits", ()))


def prepared_splits(state_dir: Path) -> tuple[Split, ...]:
    """Return the splits recorded in a state folder.

    Empty when no record exists or another version of Headrace wrote it.
    """
    try:
        return splits_of(prepared_document(state_dir))
    except ConfigError:
        return ()


def clone_queue(split: Split) -> str:
    """Return the name of a split stream's queue. It has a dot, which no name in a file can have."""
    return f"{split.queue}.{split.propagation}"


def clone_captures(spec: TopologySpec, split: Split) -> tuple[CaptureSpec, ...]:
    """Return the capture processes of a split stream.

    Args:
        spec: of the file.
        split: one that fits the file.
    """
    sources = spec.propagation(split.propagation).sources
    return tuple(
        # A clone begins at the oldest redo that is left (`actors.splitting.phases`).
        replace(
            each,
            name=f"{each.name}.{split.propagation}",
            queue=clone_queue(split),
            first_scn=FIRST_SCN,
            start_scn=FIRST_SCN,
        )
        for each in spec.captures
        if each.queue == split.queue and each.source in sources
    )


def with_splits(spec: TopologySpec, splits: Iterable[Split]) -> TopologySpec:
    """Return the topology that runs.

    Args:
        spec: of the file, routed.
        splits: those that fit the file.
    """
    running = spec
    for split in splits:
        clone, queue = clone_queue(split), spec.queue(split.queue)
        reads, held_in = {
            SPLITTING: (queue.name, clone),
            SPLIT: (clone, ""),
            MERGING: (clone, queue.name),
        }[split.phase]
        running = replace(
            # The clone queue spills nothing: its capture processes can mine what exceeds its memory later, from the
            # redo at the same site.
            running,
            queues=(*running.queues, replace(queue, name=clone, spill_bytes_max=0)),
            captures=(*running.captures, *clone_captures(spec, split)),
            propagations=tuple(
                replace(each, from_queue=reads, held_in=held_in, split_from=queue.name)
                if each.name == split.propagation
                else each
                for each in running.propagations
            ),
        )
    return running


def misfit(spec: TopologySpec, split: Split) -> str:
    """Say why a file cannot take effect while a stream is split off; empty: it can.

    Args:
        spec: routed, of the file.
        split: of a propagation that the file has.
    """
    propagation = spec.propagation(split.propagation)
    if propagation.from_queue != split.queue:
        return f"it reads {propagation.from_queue}"
    # The queue's other readers may be gone. Then the split helps no one, but a merge still works.
    return uncloneable(spec, propagation)


def misfits(spec: TopologySpec, splits: Iterable[Split], before: TopologySpec | None = None) -> tuple[Finding, ...]:
    """Return findings for split streams that do not fit a file.

    Args:
        spec: routed, of the file.
        splits: recorded. A split whose propagation the file no longer has is ignored, unless another propagation
            replaces it, even at only one site.
        before: the topology prepared last, with the splits; None: unknown.
    """
    splits = tuple(splits)
    named = {each.name for each in spec.propagations}
    # The original queue has forgotten the propagation. A replacement would begin there at the other readers' position
    # and would miss everything before it.
    replaced = (
        Finding(
            path=f"propagations.{other.name}",
            problem=f"takes the place of {each.propagation}, which is split off from queue {each.queue}",
            fix=f"merge it first with the previous file: headrace merge FILE {each.propagation}",
        )
        for each in splits
        for other in _instead_of(each, spec, before)
    )
    return (
        *replaced,
        *(
            Finding(
                path=f"propagations.{each.propagation}",
                problem=f"is split off from queue {each.queue}, and in this file {reason}",
                fix=f"merge it with the previous file: headrace merge FILE {each.propagation}; or remove it from the"
                " file",
            )
            for each in splits
            if each.propagation in named and (reason := misfit(spec, each))
        ),
    )


def _instead_of(split: Split, spec: TopologySpec, before: TopologySpec | None) -> Iterator[PropagationSpec]:
    """Yield the propagations of a file that replace a split one: they bring its changes to sites that it served before."""
    others = [each for each in spec.propagations if each.name != split.propagation]
    earlier = {} if before is None else {each.name: each for each in before.propagations}
    split_off = earlier.get(split.propagation)
    if before is None or split_off is None:
        yield from (each for each in others if (each.from_queue, each.to_queue) == (split.queue, split.to_queue))
        return
    stays = [each for each in spec.propagations if each.name == split.propagation]
    for each in others:
        known = earlier.get(each.name)
        if known is not None and (known.split_from or known.from_queue) != each.from_queue:
            known = None  # its new queue does not know it
        for source in split_off.sources:
            gives_up = sites_behind(before, split_off, source) - frozenset[str]().union(
                *(sites_behind(spec, one, source) for one in stays)
            )
            reached = frozenset[str]() if known is None else sites_behind(before, known, source)
            if gives_up & (sites_behind(spec, each, source) - reached):
                yield each
                break


def fitting(spec: TopologySpec, splits: Iterable[Split]) -> tuple[Split, ...]:
    """Return the streams that stay split off under a file.

    Args:
        spec: routed, of the file.
        splits: recorded.
    """
    named = {each.name for each in spec.propagations}
    return tuple(each for each in splits if each.propagation in named and not misfit(spec, each))


def uncloneable(spec: TopologySpec, propagation: PropagationSpec) -> str:
    """Say why no capture process could fill another queue for a propagation; empty: those of its queue can be cloned.

    Args:
        spec: routed, of the file.
        propagation: of `spec`.
    """
    queue = propagation.from_queue
    for each in spec.propagations:
        for source in each.sources if each.to_queue == queue else ():
            if source in propagation.sources:
                return (
                    f"{queue} receives the changes of {source} from {each.name}: no redo of {source} is there to"
                    " be captured again"
                )
    captured = {each.source for each in spec.captures if each.queue == queue}
    return "" if captured & set(propagation.sources) else f"nothing that it sends is captured into {queue}"


def hindrance(spec: TopologySpec, propagation: PropagationSpec) -> str:
    """Say why a propagation cannot be split off, or need not be; empty: it can.

    Args:
        spec: routed, of the file.
        propagation: of `spec`.
    """
    queue = propagation.from_queue
    for capture in spec.captures:
        if capture.queue == queue and (found := combination(spec, capture)).apply is not None:
            return f"{capture.name} sends its changes straight to {found.apply.name} alone (combined capture and apply)"
    others = [each.name for each in spec.propagations if each.from_queue == queue and each.name != propagation.name]
    others += [each.name for each in spec.applies if each.queue == queue]
    return uncloneable(spec, propagation) or ("" if others else f"nothing else reads {queue}")
