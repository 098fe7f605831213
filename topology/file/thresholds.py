"""Thresholds of a file for splitting and merging propagations (`topology.split`), for each of them or for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.databases.ports import Finding
from topology.spec import MERGE_WITHIN_DEFAULT_S, SPLIT_AFTER_DEFAULT_S
from topology.split import hindrance

if TYPE_CHECKING:
    from topology.file.shape.models import PropagationModel, TopologyModel
    from topology.spec import PropagationSpec, TopologySpec

__all__ = ["threshold_findings", "with_thresholds"]


def with_thresholds(spec: PropagationSpec, own: PropagationModel | None, top: TopologyModel | None) -> PropagationSpec:
    """Fill in when a propagation is split off and merged.

    A propagation with a schedule is away intentionally: only a threshold of its own splits it off.

    Args:
        spec: of the propagation.
        own: its entry; None: the shorthand made it.
        top: the top of the file; None: it is unreadable.
    """
    mode = (own and own.split) or (top.split if top else "auto")
    for_all = (top and top.split_threshold) or SPLIT_AFTER_DEFAULT_S
    after = (own and own.split_threshold) or (None if spec.schedule else for_all)
    within = (own and own.merge_threshold) or (top and top.merge_threshold) or MERGE_WITHIN_DEFAULT_S
    return replace(spec, split_after_s=None if mode == "never" else after, merge_within_s=within)


def threshold_findings(
    spec: TopologySpec, written: Mapping[str, PropagationModel], top: TopologyModel | None
) -> Iterator[Finding]:
    """Yield problems of the thresholds of a file without other errors.

    Args:
        spec: routed.
        written: the entries of its propagations, by name.
        top: the top of the file; None: it is unreadable.
    """
    if top and top.split == "never" and top.split_threshold is not None:
        yield _never("split_threshold")
    is_reported = False  # the thresholds at the top of the file are reported once
    for each in spec.propagations:
        own = written.get(each.name)
        path = f"propagations.{each.name}.split_threshold"
        if own and own.split == "never" and own.split_threshold is not None:
            yield _never(path)
        if each.split_after_s is not None and each.merge_within_s >= each.split_after_s:
            has_own = own is not None and (own.split_threshold or own.merge_threshold) is not None
            if is_reported and not has_own:
                continue
            is_reported |= not has_own
            yield Finding(
                path=f"propagations.{each.name}" if has_own else "merge_threshold",
                problem=f"is split off when it is {each.split_after_s:g} s behind, and merged when it is"
                f" {each.merge_within_s:g} s behind",
                fix="write a merge_threshold below the split_threshold: between them a stream is left as it is",
            )
        if own and own.split_threshold is not None and (reason := hindrance(spec, each)):
            yield Finding(
                path=path,
                problem=f"{each.name} is never split off: {reason}",
                fix="leave split_threshold out",
                is_error=False,
            )


def _never(path: str) -> Finding:
    return Finding(path=path, problem="has no meaning with split: never", fix="leave one of the two out")
