"""Why a row is missing or different at a destination: the first place where one of its changes stopped.

Job
    Derive a verdict from what was found about a row (`Evidence`), with the positions that prove it and the next step.

How a change is followed
    Along its way to the destination, in this order. Is it in the redo that is kept? Do the rules of capture, of every
    propagation and of apply take a change of this table with this tag? Does the destination's copy of the table include
    it, or is there no copy yet? Is its transaction in the error queue? Is the low watermark above it, and if not, which
    component is the last to have it? A change that passes all of this was applied.

Verdicts
    SAME             the rows are equal now, or absent at both sites: nothing needs an explanation.
    RULE             the rules of a client on the way skip the table.
    TAG              they skip changes with this tag.
    CONDITION        a condition, or a subset, of a client on the way discards the change.
    TRANSFORMATION   the transformation of a client on the way cannot be applied to it: the client stops there.
    NOT CAPTURED     no change of the row is in the redo that is kept, or the table is not in the source's log at all.
    NOT COPIED       the table is not copied yet, or could not be: its changes are skipped until then.
    IN THE COPY      the change was committed before the table's instantiation SCN, so it counts as copied, but the row
                     differs nevertheless.
    ERROR QUEUE      its transaction could not be applied, or waits behind one that could not.
    ON THE WAY       a component on the way does not have it yet, or makes no progress.
    ARRIVED          every known change was applied: something at the destination changed the row afterwards, or before.
    UNKNOWN          a database or component that had to be asked did not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.console.output import scn_text
from headrace.databases.connectors import value_types
from headrace.lcr.table_name import argument
from headrace.rules.conditions.nodes import ConditionError
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.transformations.transformation import TransformationError
from headrace.status.applies import apply_status
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus
from headrace.status.queues import QueueStatus
from headrace.tracing.following import low_watermark_of
from spark_apply.copy.records.standing import correct_alone
from spark_apply.tables.arriving import restart_hint
from topology.routing.combined import bypassed_on
from topology.routing.ways import writes_alone

if TYPE_CHECKING:
    from headrace.databases.ports import ErrorTransaction, Instantiation
    from headrace.lcr.table_name import TableName
    from headrace.redo.mining.key_search import FoundChange
    from headrace.rules.rule import Passage
    from topology.routing.ways import Way
    from topology.spec import TopologySpec

__all__ = ["Evidence", "Verdict", "explain"]

_COPIED = frozenset({"DONE", "KEPT"})
_FINE = frozenset({"SAME"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts about one row and one destination.

    Args:
        spec: the topology.
        way: from the source to the destination's apply process.
        table: its name at the source.
        source_row, destination_row: the row now, as texts by column; None: absent.
        is_destination_read: whether the destination answered; otherwise its row is unknown.
        is_captured: whether the source's log has changes of the table; None: unknown.
        searched: (from, through) SCNs of the searched redo; None: it was not searched.
        changes: the newest changes of the row, in source order.
        left_out: number of its older changes in that redo.
        source_scn: position of the source's log when the rows had been read; 0: unknown.
        instantiation: the table's instantiation at the destination; None: no record.
        errors: the apply process's error queue; None: unknown.
        statuses: statuses by component.
        unknown: what could not be found out, one sentence each.
    """

    spec: TopologySpec
    way: Way
    table: TableName
    source_row: Mapping[str, str | None] | None
    destination_row: Mapping[str, str | None] | None
    is_captured: bool | None
    searched: tuple[int, int] | None
    changes: Sequence[FoundChange]
    left_out: int
    source_scn: int
    instantiation: Instantiation | None
    errors: Sequence[ErrorTransaction] | None
    statuses: Mapping[str, ComponentStatus]
    unknown: Sequence[str] = ()
    is_destination_read: bool = True

    @property
    def low_watermark_scn(self) -> int:
        """Low watermark of the apply process; 0: unknown."""
        return low_watermark_of(self.statuses, self.way.apply.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why the row is as it is at one destination.

    Args:
        site, apply, source: the destination, its apply process and the source.
        verdict: one of the module's verdicts.
        place: the component at which it stopped; empty: none.
        text: the reason, for people.
        evidence: the facts behind it, with SCNs, one sentence each.
        fix: what to do next.
        scn: commit SCN of the change that stopped; 0: none.
    """

    site: str
    apply: str
    source: str
    verdict: str
    place: str
    text: str
    evidence: tuple[str, ...]
    fix: str
    scn: int = 0

    @property
    def is_fine(self) -> bool:
        """Whether nothing needs to be done."""
        return self.verdict in _FINE


@dataclass(frozen=True, slots=True)
class _Stop:
    """Where a change stopped."""

    verdict: str
    place: str
    text: str
    fix: str


def explain(found: Evidence) -> Verdict:
    """Return the first place where a change of the row stopped."""
    facts = [*_row_facts(found), *_redo_facts(found)]
    if found.is_destination_read and (
        found.source_row == found.destination_row or _same(found.source_row, found.destination_row)
    ):
        words = "the rows are equal now" if found.source_row is not None else "there is no such row at both sites"
        return _verdict(found, _Stop("SAME", "", words, ""), facts)
    if (stop := _left_out_always(found)) is not None:
        return _verdict(found, stop, facts)
    for change in found.changes:
        stop = _stop_of(found, change)
        if stop is not None:
            return _verdict(found, stop, [*facts, *_change_facts(found, change)], scn=change.commit_scn)
    if (stop := _not_in_redo(found)) is not None:
        return _verdict(found, stop, facts)
    if found.unknown:
        return _verdict(
            found,
            _Stop("UNKNOWN", "", "; ".join(found.unknown), "repeat when everything runs: headrace status"),
            facts,
        )
    if not found.changes:
        return _verdict(found, _without_changes(found), facts)
    newest = found.changes[-1]
    record = found.instantiation
    if record is not None and newest.commit_scn <= record.scn:
        return _verdict(
            found, _in_the_copy(found, record), [*facts, *_change_facts(found, newest)], scn=newest.commit_scn
        )
    text = (
        f"every change of the row that redo still has was applied, the last one at SCN {scn_text(newest.commit_scn)}:"
        f" the row was changed or deleted at {found.way.apply.site} itself, or differed before"
    )
    return _verdict(
        found, _Stop("ARRIVED", "", text, _mend(found)), [*facts, *_change_facts(found, newest)], scn=newest.commit_scn
    )


# --------------------------------------------------------------------------- places in order


def _left_out_always(found: Evidence) -> _Stop | None:
    """Return the client whose rules skip the table with any tag, or the log that lacks the table."""
    for client, name, (table, *_) in _clients(found):
        if not client.rules.keeps(*table):
            called = "" if table == found.table else f", which is called {table} there"
            return _Stop(
                "RULE",
                name,
                f"the rules of {name} skip table {found.table}{called}",
                f"add the table to the rules of {name}",
            )
    if found.is_captured is False:
        return _Stop(
            "NOT CAPTURED",
            f"site:{found.way.capture.source}",
            f"the log of {found.way.capture.source} has no changes of {found.table}: it was created after the last"
            " `up`",
            "headrace up FILE",
        )
    return None


def _stop_of(found: Evidence, change: FoundChange) -> _Stop | None:
    """Return where a change stopped; None: it was applied, or a later copy includes it."""
    if (stop := _discarded(found, change)) is not None:
        return stop
    if (stop := _not_copied(found)) is not None:
        return stop
    record = found.instantiation
    if record is not None and change.commit_scn <= record.scn:
        return None  # the copy includes it: `_in_the_copy`, unless something else stopped
    if (stop := _in_error_queue(found, change)) is not None:
        return stop
    return _under_way(found, change)


def _discarded(found: Evidence, change: FoundChange) -> _Stop | None:
    for client, name, (table, *_) in _clients(found):
        if client.rules.keeps(*table, tag=change.tag):
            continue
        tag = "NULL" if change.tag is None else change.tag.hex()
        by = f" of apply process {change.tagged_by}" if change.tagged_by else ""
        return _Stop(
            "TAG",
            name,
            f"the rules of {name} skip changes with tag {tag}{by}",
            f"let the rules of {name} take this tag, if that makes no cycle (headrace check); otherwise correct the row"
            " at the destination",
        )
    return _left_out_by_values(found, change)


def _left_out_by_values(found: Evidence, change: FoundChange) -> _Stop | None:
    """Return the client whose conditions discard a change, or turn it into one that the next client discards."""
    batch = change.alone
    for client, name, (table, transformation, _) in _clients(found):
        if batch is None or not (client.rules.looks_at_rows or client.rules.transforms):
            continue
        try:
            batch = RuleEvaluation(client.rules, types=value_types()).filter(batch)
        except ConditionError as error:
            return _Stop(
                "CONDITION", name, f"the conditions of {name} cannot be evaluated: {error.message}", error.hint
            )
        except TransformationError as error:
            return _Stop(
                "TRANSFORMATION", name, f"the transformation of {name} cannot be applied: {error.message}", error.hint
            )
        if not batch.row_count:
            rules = (*(client.rules.include or ()), *client.rules.exclude)
            conditions = "; ".join(
                str(rule.condition or rule.subset)
                for rule in rules
                if rule.looks_at_rows and rule.matches_object(*table)
            )
            if not conditions and transformation is not None and transformation.custom is not None:
                return _Stop(
                    "CONDITION",
                    name,
                    f"the function {transformation.custom.function} of {name} discards this change",
                    "nothing, if that is intended; otherwise correct the function, run headrace up FILE, and"
                    f" {_brought_up(found)}",
                )
            return _Stop(
                "CONDITION",
                name,
                f"the conditions of {name} discard this change ({conditions})",
                f"nothing, if that is intended; otherwise correct the conditions of {name}, and {_brought_up(found)}",
            )
    return None


def _not_copied(found: Evidence) -> _Stop | None:
    record = found.instantiation
    place = f"apply:{found.way.apply.name}"
    if record is None:
        if any("instantiation" in each for each in found.unknown):
            return None
        return _Stop(
            "NOT COPIED",
            place,
            f"{found.table} was never copied to {found.way.apply.site}: its changes are skipped",
            restart_hint(found.way.apply.name),
        )
    if record.state in _COPIED or record.state == "JOINING":
        return None
    why = f": {record.problem}" if record.problem else ""
    fix = {
        "LEFT": _brought_up(found),
        # The obstacle may be rows that exist nowhere else.
        "FAILED": "correct what it says: apply checks the table again every few seconds, and then copies it",
    }.get(record.state, "wait: headrace status FILE shows the copy")
    return _Stop(
        "NOT COPIED",
        place,
        f"the copy of {found.table} is {record.state}{why}; its changes are skipped until it is done",
        fix,
    )


def _in_error_queue(found: Evidence, change: FoundChange) -> _Stop | None:
    for error in found.errors or ():
        if error.commit_scn == change.commit_scn:
            why = f"it waits behind error transaction {error.depends_on}" if error.depends_on else error.message
            # The transaction that failed must be corrected; the others can be executed after it.
            first = (
                error.depends_on
                if any(other.number == error.depends_on for other in found.errors or ())
                else error.number
            )
            return _Stop(
                "ERROR QUEUE",
                f"apply:{found.way.apply.name}",
                f"its transaction is error transaction {error.number}: {why}",
                f"headrace errors show FILE {first}, correct what it names, then headrace errors execute FILE --all",
            )
    return None


def _under_way(found: Evidence, change: FoundChange) -> _Stop | None:
    """Return the component that does not have the change yet; None: it is applied, or its position is unknown."""
    if found.low_watermark_scn == 0:
        return None  # `unknown` says so
    if change.commit_scn <= found.low_watermark_scn:
        return None
    place, text = _first_behind(found, change.commit_scn)
    status = found.statuses.get(place, ComponentStatus(name=place))
    detail = status.detail or status.problem or ("" if status.last_error is None else status.last_error.message)
    state = f", which is {status.state}" if status.state else ""
    return _Stop(
        "ON THE WAY",
        place,
        f"{text}{state}{f': {detail}' if detail else ''}",
        status.hint or f"wait (headrace wait FILE --caught-up), or check headrace status for what blocks {place}",
    )


def _not_in_redo(found: Evidence) -> _Stop | None:
    """Return the component that keeps the source's newest changes from the searched redo.

    None: the redo was searched to the end of the log.
    """
    if found.searched is None or found.searched[1] >= found.source_scn:
        return None
    capture, source = f"capture:{found.way.capture.name}", found.way.capture.source
    reads = capture in found.statuses and found.statuses[capture].state in {"CAPTURING CHANGES", "WAITING FOR REDO"}
    place = f"site:{source}" if reads else capture
    state = found.statuses[place].state if place in found.statuses else "unknown"
    return _Stop(
        "ON THE WAY",
        place,
        f"the log of {source} is at SCN {scn_text(found.source_scn)}, and {capture} has redo up to SCN"
        f" {scn_text(found.searched[1])}: a change may be in between; {place} is"
        f" {state}",
        f"wait (headrace wait FILE --caught-up), or check headrace status for what blocks {place}",
    )


def _first_behind(found: Evidence, scn: int) -> tuple[str, str]:
    """Return the first component on the way whose position is below `scn`, and what it lacks, in words."""
    way, source, statuses = found.way, found.way.capture.source, found.statuses
    capture = f"capture:{way.capture.name}"
    captured, applied = statuses.get(capture), statuses.get(f"apply:{way.apply.name}")
    at = (captured.sent_scn or 0) if isinstance(captured, CaptureStatus) else 0
    if at < scn:
        return capture, f"{capture} has sent what was committed up to SCN {scn_text(at)}"
    without = bypassed_on(found.spec, way)
    for name, next_queue in ((None, way.capture.queue), *((each.name, each.to_queue) for each in way.propagations)):
        if f"queue:{next_queue}" not in without:
            queue = statuses.get(f"queue:{next_queue}")
            arrived = queue.sources.get(source) if isinstance(queue, QueueStatus) else None
            position = 0 if arrived is None else arrived.position_scn
            if position < scn:
                place = capture if name is None else f"propagation:{name}"
                return (
                    place,
                    f"{place} has not brought it to queue {next_queue}, which has what was committed up to SCN"
                    f" {scn_text(position)}",
                )
    apply = f"apply:{way.apply.name}"
    received = apply_status(applied).received_scn or 0
    if received < scn:
        return apply, f"{apply} has read what was committed up to SCN {scn_text(received)}"
    return apply, f"{apply} has read it, and has applied everything up to SCN {scn_text(found.low_watermark_scn)}"


def _in_the_copy(found: Evidence, record: Instantiation) -> _Stop:
    """Return the verdict when every known change is older than the table's copy."""
    kept = "the rows that were there were kept as they were (--keep-existing)" if record.is_kept else "the copy had it"
    return _Stop(
        "IN THE COPY",
        f"apply:{found.way.apply.name}",
        f"no change of the row was committed after the instantiation SCN {scn_text(record.scn)} of {found.table}:"
        f" changes up to it are not applied, because {kept}; the row was changed at {found.way.apply.site} itself, or"
        " differed then",
        _mend(found),
    )


def _without_changes(found: Evidence) -> _Stop:
    """Return the verdict when the redo that is kept has no change of the row."""
    record, capture = found.instantiation, f"capture:{found.way.capture.name}"
    if found.searched is None:
        return _Stop("UNKNOWN", capture, "redo was not searched", "repeat when everything runs: headrace status")
    if (stop := _not_copied(found)) is not None:
        return stop
    since = scn_text(found.searched[0])
    where = "the table's copy, or a change before that SCN, should have brought the row as it is at the source"
    if record is not None and record.scn > found.searched[0]:
        where = f"the table was copied as of SCN {scn_text(record.scn)}, and nothing changed the row since"
    return _Stop(
        "NOT CAPTURED",
        capture,
        f"redo of {found.way.capture.source} since SCN {since} has no change of the row; {where}",
        _mend(found),
    )


# --------------------------------------------------------------------------- facts


def _row_facts(found: Evidence) -> list[str]:
    facts = []
    for site, row in ((found.way.capture.source, found.source_row), (found.way.apply.site, found.destination_row)):
        facts.append(f"{site} now: {'no row' if row is None else 'the row is there'}")
    if not found.is_destination_read:
        facts[-1] = f"{found.way.apply.site} now: unknown, its database does not answer"
    elif found.source_row is not None and found.destination_row is not None:
        differing = [
            name
            for name, value in found.source_row.items()
            if name in found.destination_row and found.destination_row[name] != value
        ]
        if differing:
            facts[-1] += f"; different in {', '.join(differing)}"
    return facts


def _redo_facts(found: Evidence) -> list[str]:
    if found.searched is None:
        return []
    first, through = found.searched
    more = f", and {found.left_out} older ones" if found.left_out else ""
    return [f"redo from SCN {scn_text(first)} to {scn_text(through)} has {len(found.changes)} changes of the row{more}"]


def _change_facts(found: Evidence, change: FoundChange) -> list[str]:
    tag = "no tag" if change.tag is None else f"tag {change.tag.hex()}"
    facts = [
        f"{change.command} in transaction {change.transaction_id}, commit SCN {scn_text(change.commit_scn)}, {tag}"
    ]
    if found.instantiation is not None:
        facts.append(
            f"{found.table} at {found.way.apply.site}: {found.instantiation.state}, instantiation SCN"
            f" {scn_text(found.instantiation.scn)}"
        )
    if found.low_watermark_scn:
        facts.append(f"low watermark of {found.way.apply.name}: SCN {scn_text(found.low_watermark_scn)}")
    return facts


def _same(source: Mapping[str, str | None] | None, destination: Mapping[str, str | None] | None) -> bool:
    """Return whether the columns at both sites are equal; extra columns of the destination do not count."""
    if source is None or destination is None:
        return False
    return all(destination.get(name, value) == value for name, value in source.items())


def _clients(found: Evidence) -> list[tuple[Any, str, Passage]]:
    """Return the clients of the way, their full names, and the table's name at each of them."""
    way = found.way
    names = (
        f"capture:{way.capture.name}",
        *(f"propagation:{each.name}" for each in way.propagations),
        f"apply:{way.apply.name}",
    )
    return list(zip(way.clients, names, way.passages(found.table), strict=True))


def _mend(found: Evidence) -> str:
    if _may_be_copied(found):
        return f"correct the row at {found.way.apply.site}, or {_brought_up(found)}"
    return f"correct the row at {found.way.apply.site} alone: {correct_alone()}"


def _may_be_copied(found: Evidence) -> bool:
    """Return whether `headrace copy` accepts the table."""
    *_, last = found.way.passages(found.table)
    return writes_alone(found.spec, found.way.apply, last.behind)


def _brought_up(found: Evidence) -> str:
    """Return how to bring the table's rows up to date with its source."""
    if _may_be_copied(found):
        return f"copy the table again: headrace copy FILE {argument(found.table)}"
    return (
        f"correct the rows that headrace verify FILE {argument(found.table)} names, at {found.way.apply.site}"
        f" alone: {correct_alone()}"
    )


def _verdict(found: Evidence, stop: _Stop, facts: Sequence[str], *, scn: int = 0) -> Verdict:
    return Verdict(
        site=found.way.apply.site,
        apply=found.way.apply.name,
        source=found.way.capture.source,
        verdict=stop.verdict,
        place=stop.place,
        text=stop.text,
        evidence=tuple(facts),
        fix=stop.fix,
        scn=scn,
    )
