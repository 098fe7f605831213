"""`headrace track`: ask every component about a label, until its transactions have arrived or the time is up."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError, HeadraceError
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import scn_text
from headrace.lcr.table_name import literal
from headrace.lcr.tracking import LABEL_BYTES_MAX, TRACK_PREFIX
from headrace.status.overview import Overview
from headrace.tracing.following import Tracking, follow
from topology.edits.changes import components_of

if TYPE_CHECKING:
    from actors.hosting.runtime import RayActors
    from headrace.console.output import Output
    from headrace.tracing.following import Arrival, Followed, Step
    from topology.spec import TopologySpec

__all__ = ["checked_label", "labelling", "lines_of", "look", "track"]

POLL_S = 0.5  # hops take milliseconds; longer waits are for a component
CALL_TIMEOUT_S = 5.0  # a component answers from memory
_TRACKING = frozenset({"capture", "queue", "propagation", "apply"})  # kinds of components that see labels


def checked_label(label: str) -> str:
    """Return the label, if a transaction can have it.

    Raises:
        ConfigError: it is empty or too long.
    """
    if not 0 < len(label.encode()) <= LABEL_BYTES_MAX:
        raise ConfigError(
            f"a label has 1 to {LABEL_BYTES_MAX} bytes, this one {len(label.encode())}",
            hint="SELECT headrace.track('LABEL') in the transaction labels it",
        )
    return label


def labelling(label: str) -> str:
    """Return the statement that labels the current transaction.

    It does the same as `headrace.track`, a function that a source lacks unless it is also a destination.
    """
    return (
        f"SELECT pg_catalog.pg_logical_emit_message(true, '{TRACK_PREFIX}',"
        f" pg_catalog.convert_to({literal(label)}, 'UTF8'));"
    )


def look(spec: TopologySpec, actors: RayActors, label: str, overview: Overview) -> Tracking:
    """Ask every running component.

    Args:
        spec: the topology.
        actors: its actors.
        label: the label.
        overview: the topology's overview, for positions.
    """
    statuses = {each.name: each for each in overview.components}
    answers: dict[str, Mapping[str, Any] | HeadraceError] = {}
    for component in components_of(spec):
        if component.kind not in _TRACKING:
            continue
        try:
            answers[component.name] = actors.call(component.name, "tracked", label, timeout_s=CALL_TIMEOUT_S)
        except HeadraceError as error:
            answers[component.name] = error
    return follow(spec, label, answers, statuses, queued=_queued(spec, actors, answers))


def _queued(
    spec: TopologySpec, actors: RayActors, answers: Mapping[str, Mapping[str, Any] | HeadraceError]
) -> dict[str, tuple[int, ...]]:
    """Return the error queues of apply processes that remember putting a transaction there."""
    queued = {}
    for apply in spec.applies:
        answer = answers.get(f"apply:{apply.name}")
        if isinstance(answer, Mapping) and any(note["action"] == "ERROR QUEUE" for note in answer["notes"]):
            try:
                errors = actors.call(f"apply:{apply.name}", "errors", timeout_s=CALL_TIMEOUT_S)
            except HeadraceError:
                continue
            queued[apply.name] = tuple(int(error["commit_scn"]) for error in errors)
    return queued


def track(
    output: Output,
    looks: Callable[[], Tracking],
    *,
    watch: bool,
    timeout_s: float | None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> int:
    """Look once, or until everything has arrived; print the history and the destinations.

    Args:
        output: prints it.
        looks: looks at the components.
        watch: look until every transaction has arrived everywhere, or is in an error queue.
        timeout_s: longest watch in seconds; None: unlimited.
        sleep: pauses between two looks.
        now: monotonic time in seconds.

    Returns:
        The exit code: a finding when a transaction has not arrived everywhere, or none was found.
    """
    deadline = None if timeout_s is None else now() + timeout_s
    printed = 0
    while True:
        found = looks()
        waits = not found.transactions or any(
            a.verdict == "ON THE WAY" for each in found.transactions for a in each.arrivals
        )
        is_last = not watch or not waits or (deadline is not None and now() >= deadline)
        lines = lines_of(found)
        if output.as_json or is_last:
            output.json(_document(found))
        if is_last:
            output.result("\n".join(lines))
            return DONE if found.is_settled else FINDING
        steps = sum(len(each.steps) for each in found.transactions)
        if steps != printed:
            printed = steps
            output.say(f"{steps} steps so far; {_counts(found)}")
        sleep(POLL_S)


def lines_of(found: Tracking) -> list[str]:
    """Return the histories for people, with the verdicts last."""
    lines = [line for each in found.transactions for line in _transaction_lines(each)]
    if not found.transactions:
        since = max(found.since_us.values(), default=0)
        lines.append(
            f"label {found.label}: no component remembers a transaction with it; every one that answers remembers since"
            f" {_time(since)}"
        )
        lines += [f"  {name} has mined up to SCN {scn_text(scn)}" for name, scn in found.captured.items()]
        lines.append("  a transaction is labelled by SELECT headrace.track('LABEL') inside it, before its COMMIT")
    lines += [f"  no answer from {name}: {why}" for name, why in found.silent.items()]
    lines.append(f"label {found.label}: {_counts(found)}")
    return lines


def _transaction_lines(each: Followed) -> list[str]:
    commit = f"commit SCN {scn_text(each.commit_scn)}" if each.commit_scn else "not committed as far as was seen"
    lines = [f"transaction {each.transaction_id} of {each.source}, {commit}"]
    begin = each.steps[0].first_us
    lines += [_step_line(step, begin) for step in each.steps]
    lines += [_arrival_line(arrival, begin) for arrival in each.arrivals]
    return lines


def _step_line(step: Step, begin_us: int) -> str:
    parts = [
        f"  {_time(step.first_us)}",
        f"+{(step.first_us - begin_us) / 1e6:.3f} s",
        f"{step.component:<34}",
        step.action,
    ]
    if step.peer:
        parts.append(step.peer)
    if step.rows:
        parts.append(f"{step.rows} rows")
    if step.detail:
        parts.append(f"({step.detail})")
    if step.times > 1:
        parts.append(f"{step.times} times, last {_time(step.last_us)}")
    return "  ".join(parts)


def _arrival_line(arrival: Arrival, begin_us: int) -> str:
    after = f" {(arrival.at_us - begin_us) / 1e6:.3f} s after it was first seen" if arrival.verdict == "APPLIED" else ""
    return f"  {arrival.site} ({arrival.apply}): {arrival.verdict}{after}: {arrival.text}"


def _counts(found: Tracking) -> str:
    """Return the final line: where it arrived and where not."""
    if not found.transactions:
        return "not found"
    words = []
    for verdict in ("APPLIED", "DISCARDED", "PASSED", "ERROR QUEUE", "ON THE WAY"):
        sites = [arrival.site for each in found.transactions for arrival in each.arrivals if arrival.verdict == verdict]
        if sites:
            words.append(f"{verdict} at {', '.join(dict.fromkeys(sites))}")
    return "; ".join(words) or "no apply process takes its source's changes"


def _document(found: Tracking) -> dict[str, Any]:
    return {**asdict(found), "settled": found.is_settled}


def _time(time_us: int) -> str:
    if not time_us:
        return "an unknown time"
    return dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
