"""Groups as a coordinator assigns them to an apply server: at their first attempt, applied in sets."""

from __future__ import annotations

from typing import Any

from spark_apply.conversation.groups import GroupAssignment, GroupMode

__all__ = ["error_group", "streamed_group", "whole_group"]


def whole_group(*batches: bytes, after_scn: int, through_scn: int, group: int = 1, **fields: Any) -> GroupAssignment:
    """Make a group with complete transactions.

    Args:
        batches: serialized LcrBatches.
        after_scn: as in `GroupAssignment`.
        through_scn: as in `GroupAssignment`.
        group: its number.
        fields: other fields of `GroupAssignment`.
    """
    given = {"attempt": 0, "mode": GroupMode.SETS, "streamed": False, "batches": batches, **fields}
    return GroupAssignment(group=group, after_scn=after_scn, through_scn=through_scn, **given)


def streamed_group(*, after_scn: int, group: int = 1, **fields: Any) -> GroupAssignment:
    """Make a group of one transaction whose parts follow.

    Args:
        after_scn: as in `GroupAssignment`.
        group: its number.
        fields: other fields of `GroupAssignment`.
    """
    return whole_group(group=group, after_scn=after_scn, through_scn=0, streamed=True, **fields)


def error_group(number: int, *, group: int, scn: int, **fields: Any) -> GroupAssignment:
    """Make a group that executes an error transaction.

    Args:
        number: of the error transaction.
        group: its number.
        scn: what the server has applied.
        fields: other fields of `GroupAssignment`.
    """
    mode = GroupMode.EXECUTE_ERROR
    return whole_group(group=group, after_scn=scn, through_scn=scn, mode=mode, error_numbers=(number,), **fields)
