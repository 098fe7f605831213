"""Split streams: what a topology runs while a propagation is split off, derived from the file and from what is recorded.

A propagation whose destination is away holds back everything else that reads its queue: batches wait for it there, and
redo is needed from its position on. Split off, it reads a queue of its own, which a capture process of its own fills:
clones of the queue and of the capture processes that publish into it. Merged, it reads the original queue again. The
propagation keeps its name, so nothing changes for its destination.

    together    capture -> queue ----> propagation -> destination        (nothing is recorded)
    splitting   the clones begin, and keep redo for themselves; the propagation still reads the original queue
    split       capture.P -> queue.P -> propagation -> destination; the original queue has forgotten the propagation
    merging     the same, and the original queue holds what follows the position at which the propagation is to come back

Every phase is a version of the topology, and the way from one to the next an edit that changes only what it must
(`topology.edits.changes`). When which phase begins: `actors.splitting.phases`.

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
TOGETHER = "together"  # of a stream that is to be split off: nothing is recorded yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A propagation that is split off, as it is recorded.

    Args:
        propagation: its name.
        queue: the original queue, which it reads by the file.
        to_queue: the queue that it sends to by the file.
        phase: `SPLITTING`, `SPLIT` or `MERGING`; see the module.
        merges: it is to be merged as soon as it is close enough; False: not before an operator says so.
        by: "operator", or "threshold".
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
    """What is split off by the record of the topology that was prepared last (`topology.edits.stored.PREPARED_FILE`)."""
    return tuple(from_json(Split, each) for each in prepared.get("splits", ()))


def prepared_splits(state_dir: Path) -> tuple[Split, ...]:
    """What is split off by the record in a state folder.

    Nothing when there is none, or another version of Headrace wrote it.
    """
    try:
        return splits_of(prepared_document(state_dir))
    except ConfigError:
        return ()


def clone_queue(split: Split) -> str:
    """Name of the queue of a split stream; no name in a file has a dot."""
    return f"{split.queue}.{split.propagation}"


def clone_captures(spec: TopologySpec, split: Split) -> tuple[CaptureSpec, ...]:
    """The capture processes of a split stream.

    Args:
        spec: of the file.
        split: that fits it.
    """
    sources = spec.propagation(split.propagation).sources
    return tuple(
        # A clone begins with what is left: see `actors.splitting.phases`.
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
    """The topology that runs.

    Args:
        spec: of the file, routed.
        splits: that fit it.
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
            # It spills nothing: what does not fit into its memory, its capture processes mine later from the redo at
            # the same site.
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
    """Why a file cannot come into force while a stream is split off; empty: it can.

    Args:
        spec: routed, of the file.
        split: of a propagation that the file has.
    """
    propagation = spec.propagation(split.propagation)
    if propagation.from_queue != split.queue:
        return f"it reads {propagation.from_queue}"
    # What else reads the queue may be gone: then nobody is relieved any more, and it can be merged all the same.
    return uncloneable(spec, propagation)


def misfits(spec: TopologySpec, splits: Iterable[Split], before: TopologySpec | None = None) -> tuple[Finding, ...]:
    """Streams that are split off and do not fit a file.

    Args:
        spec: routed, of the file.
        splits: recorded. One whose propagation the file does not have any more is of no concern, unless another one
            takes its place, at one site perhaps.
        before: the topology that was prepared last, with them; None: it is not known.
    """
    splits = tuple(splits)
    named = {each.name for each in spec.propagations}
    # The original queue has forgotten the propagation: another one would begin there where the others are, and lack the
    # rest.
    replaced = (
        Finding(
            path=f"propagations.{other.name}",
            problem=f"takes the place of {each.propagation}, which is split off from queue {each.queue}",
            fix=f"merge it first, by the file of before: headrace merge FILE {each.propagation}",
        )
        for each in splits
        for other in _instead_of(each, spec, before)
    )
    return (
        *replaced,
        *(
            Finding(
                path=f"propagations.{each.propagation}",
                problem=f"is split off from queue {each.queue}, and by this file {reason}",
                fix=f"merge it by the file of before: headrace merge FILE {each.propagation}; or take it out of the"
                " file",
            )
            for each in splits
            if each.propagation in named and (reason := misfit(spec, each))
        ),
    )


def _instead_of(split: Split, spec: TopologySpec, before: TopologySpec | None) -> Iterator[PropagationSpec]:
    """The propagations of a file that bring the changes of a stream to sites, instead of the one that brought them there."""
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
            known = None  # another queue does not know it
        for source in split_off.sources:
            gives_up = sites_behind(before, split_off, source) - frozenset[str]().union(
                *(sites_behind(spec, one, source) for one in stays)
            )
            reached = frozenset[str]() if known is None else sites_behind(before, known, source)
            if gives_up & (sites_behind(spec, each, source) - reached):
                yield each
                break


def fitting(spec: TopologySpec, splits: Iterable[Split]) -> tuple[Split, ...]:
    """The streams that stay split off by a file.

    Args:
        spec: routed, of the file.
        splits: recorded.
    """
    named = {each.name for each in spec.propagations}
    return tuple(each for each in splits if each.propagation in named and not misfit(spec, each))


def uncloneable(spec: TopologySpec, propagation: PropagationSpec) -> str:
    """Why no capture process could fill another queue for a propagation; empty: those of its queue can be cloned.

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
    """Why a propagation cannot be split off, or need not; empty: it can.

    Args:
        spec: routed, of the file.
        propagation: of `spec`.
    """
    queue = propagation.from_queue
    for capture in spec.captures:
        if capture.queue == queue and (found := combination(spec, capture)).apply is not None:
            return (
                f"{capture.name} sends its changes straight to {found.apply.name}, and to nobody else (combined"
                " capture and apply)"
            )
    others = [each.name for each in spec.propagations if each.from_queue == queue and each.name != propagation.name]
    others += [each.name for each in spec.applies if each.queue == queue]
    return uncloneable(spec, propagation) or ("" if others else f"nothing else reads {queue}")
