"""`headrace errors delete`: error transactions are deleted in groups.

Thousands then take seconds, and no call lasts longer than one group.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.base.errors import counted
from headrace.commands.error_execution import LINES_MAX, PROGRESS_S, outcome_of
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import Output
from headrace.console.process_end import goes_on

__all__ = ["delete_together"]

DELETED_AT_ONCE = 500  # in one transaction of the destination, about 0.1 s


def delete_together(
    output: Output,
    errors: Sequence[Mapping[str, Any]],
    delete: Callable[[str, list[int]], Sequence[Mapping[str, Any]]],
) -> int:
    """Delete error transactions, group by group.

    Args:
        output: prints each outcome if there are few; otherwise a total and those that were not deleted.
        errors: sorted by apply process.
        delete: deletes an apply process's error transactions by number; returns `number`, `done` and `problem` of each.

    Returns:
        The exit code: a finding when any is left.
    """
    outcomes: list[dict[str, Any]] = []
    said_at = time.monotonic()
    for apply, mine in itertools.groupby(errors, key=lambda error: str(error["apply"])):
        numbers = [int(error["number"]) for error in mine]
        for first in range(0, len(numbers), DELETED_AT_ONCE):
            chosen = numbers[first : first + DELETED_AT_ONCE]
            behind = len(errors) - len(outcomes) - len(chosen)
            left = f"; {counted(behind, 'other')} not tried" if behind else ""
            with goes_on(
                output, f"{apply}: what was begun goes on: `headrace errors list FILE` shows what became of it{left}"
            ):
                answers = delete(apply, chosen)
            for answer in answers:
                outcome, words = outcome_of(apply, answer, "deleted")
                outcomes.append(outcome)
                if len(errors) <= LINES_MAX or not outcome["done"]:
                    output.result(f"{len(outcomes)}/{len(errors)} {apply} {outcome['number']}: {words}")
            if len(errors) > LINES_MAX and time.monotonic() - said_at > PROGRESS_S:
                said_at = time.monotonic()
                output.say(f"{apply}: {len(outcomes):,} of {len(errors):,} done")
    output.json({"outcomes": outcomes})
    if not outcomes:
        output.result("no error transactions")
    elif len(errors) > LINES_MAX:
        output.result(
            f"{sum(outcome['done'] for outcome in outcomes):,} of {counted(len(outcomes), 'error transaction')} deleted"
        )
    return DONE if all(outcome["done"] for outcome in outcomes) else FINDING
