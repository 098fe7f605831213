"""`headrace conflicts`: list the conflicts that apply processes met, and how they were resolved.

It reads the destinations' databases, so it works while the topology is down.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from headrace.console.exit_codes import DONE
from headrace.console.output import Output, scn_text

if TYPE_CHECKING:
    from headrace.commands.error_queue import ErrorQueue
    from headrace.databases.ports import ConflictRecord

__all__ = ["list_conflicts"]


def list_conflicts(queue: ErrorQueue, output: Output, apply: str, last: int) -> int:
    """List the newest conflicts of a topology, in the order in which they were resolved.

    Args:
        queue: the error queues of the destinations.
        output: prints the conflicts.
        apply: name of an apply process; empty: all of the topology.
        last: number of newest conflicts to list, over all apply processes together.

    Returns:
        The exit code.
    """
    found = sorted(queue.conflicts(apply, last), key=lambda record: (record.resolved_us, record.apply, record.number))[
        -last:
    ]
    output.json({"conflicts": [asdict(record) for record in found]})
    for record in found:
        for line in _lines(record):
            output.result(line)
    output.result(f"{len(found)} conflicts")
    return DONE


def _lines(record: ConflictRecord) -> Iterator[str]:
    when = dt.datetime.fromtimestamp(record.resolved_us / 1e6, tz=dt.UTC).isoformat(timespec="seconds")
    end = f"{record.outcome} {record.error_number}" if record.error_number else record.outcome
    by = f" by {record.handler}" if record.handler else ""
    yield (
        f"{record.number} {record.apply} from {record.source}: {record.kind} in {record.owner}.{record.name}, {when}:"
        f" {end}{by}; transaction {record.transaction_id} at {scn_text(record.commit_scn)}, LCR {record.position}"
    )
    if record.columns:
        yield f"      conflicting: {', '.join(record.columns)}"
    if record.applied_columns:
        yield f"      written: {', '.join(record.applied_columns)}"
    for label, texts in (("LCR old", record.old), ("LCR new", record.new), ("row", record.current)):
        if texts:
            yield f"      {label}: {', '.join(texts)}"
