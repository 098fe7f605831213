"""Arithmetic of apply progress: a low watermark, ranges of SCNs applied above it, and the epoch that owns them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.base.errors import DestinationRestarted, FencedError
from headrace.databases.ports import ScnRange
from headrace.lcr.scn import Scn

__all__ = ["check_epoch", "covers", "fold_ranges", "merge_ranges", "ranges_from_bounds", "ranges_to_bounds"]


def merge_ranges(ranges: Iterable[ScnRange], low_watermark: int) -> tuple[ScnRange, ...]:
    """Return the ranges that reach above the low watermark, ascending, with neighbours joined.

    Args:
        ranges: in any order; they may overlap.
        low_watermark: SCN of the same source. Ranges that end at it or below are dropped; one that begins below stays
            whole.
    """
    merged: list[ScnRange] = []
    for found in sorted((r for r in ranges if r.through > low_watermark), key=lambda r: (r.after, r.through)):
        if merged and found.after <= merged[-1].through:
            through = Scn(max(merged[-1].through, found.through))
            merged[-1] = ScnRange(after=merged[-1].after, through=through)
        else:
            merged.append(found)
    return tuple(merged)


def fold_ranges(low_watermark: int, ranges: Iterable[ScnRange]) -> tuple[Scn, tuple[ScnRange, ...]]:
    """Move the low watermark through every range that reaches down to it.

    Args:
        low_watermark: SCN up to which everything is applied.
        ranges: applied ranges of the same source, in any order.

    Returns:
        The new low watermark, and the ranges above it as `merge_ranges` gives them.
    """
    above = list(merge_ranges(ranges, low_watermark))
    while above and above[0].after <= low_watermark:
        low_watermark = above.pop(0).through
    return Scn(low_watermark), tuple(above)


def covers(low_watermark: int, ranges: Sequence[ScnRange], wanted: ScnRange) -> bool:
    """Whether everything in `wanted` is applied.

    Args:
        low_watermark: SCN up to which everything is applied.
        ranges: applied ranges above it, as `merge_ranges` returns them.
        wanted: the transactions in question.
    """
    return wanted.through <= low_watermark or any(
        r.after <= max(wanted.after, low_watermark) and wanted.through <= r.through for r in ranges
    )


def ranges_from_bounds(bounds: Sequence[int]) -> tuple[ScnRange, ...]:
    """Convert (after, through, after, through, ...), the stored form, into ranges."""
    return tuple(ScnRange(after=Scn(bounds[k]), through=Scn(bounds[k + 1])) for k in range(0, len(bounds), 2))


def ranges_to_bounds(ranges: Iterable[ScnRange]) -> list[int]:
    """Convert ranges into the form that `ranges_from_bounds` reads."""
    return [bound for found in ranges for bound in (found.after, found.through)]


def check_epoch(found: int, *, apply: str, epoch: int, lives: bool = True) -> None:
    """Compare an epoch with the destination's.

    Args:
        found: the destination's; 0: it has none.
        apply: name of the apply process.
        epoch: the caller's.
        lives: no restart, crash or failover of the destination's server has ended its epoch.

    Raises:
        FencedError: the destination has a newer one.
        DestinationRestarted: it has an older one, or its epoch has ended.
    """
    if found > epoch:
        raise FencedError(f"apply process {apply} has epoch {found}, this one {epoch}", apply=apply, epoch=epoch)
    problem = ""
    if found < epoch:
        problem = (
            f"the destination of apply process {apply} went back from epoch {epoch} to {found}: it was restored"
            " or replaced"
        )
    elif not lives:
        problem = f"the destination's server was restarted, crashed or failed over after apply process {apply} began"
    if problem:
        hint = "nothing to do: the apply process restarts and continues from the destination's progress"
        raise DestinationRestarted(problem, hint=hint, apply=apply, epoch=epoch)
