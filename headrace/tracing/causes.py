"""Why a row is missing or different at a destination: the first place where one of its changes stopped.

Job
    From what was found out about a row (`Evidence`) to a verdict, with the positions that prove it and what to do next.

How a change is followed
    Over its way to the destination, in order: is it in the redo that is kept; do the rules of capture, of every
    propagation and of apply take a change of this table with this tag; has the destination's copy of the table it
    already, or is there no copy yet; is its transaction in the error queue; is the low watermark above it, and if not,
    which component is the last that has it. Where all of that is passed, the change was applied.

Verdicts
    SAME             the rows are equal now, or there is none at both sites: nothing is to be explained.
    RULE             the rules of a client on the way leave out the table.
    TAG              they leave out changes with this tag.
    CONDITION        a condition, or a subset, of a client on the way leaves out the change.
    TRANSFORMATION   the transformation of a client on the way cannot be applied to it: the client stops there.
    NOT CAPTURED     no change of the row is in the redo that is kept, or the table is not in the source's log at all.
    NOT COPIED       the table is not copied yet, or could not be: its changes are left out until then.
    IN THE COPY      the change was committed before the table's instantiation SCN, so that it counts as copied, and the
                     row differs all the same.
    ERROR QUEUE      its transaction could not be applied, or waits behind one that could not.
    ON THE WAY       a component on the way has it not yet, or does not go on.
    ARRIVED          every change that is known was applied: something at the destination changed the row afterwards, or before.
    UNKNOWN          somebody who had to be asked did not answer.
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
    """What was found out about one row and one destination.

    Args:
        spec: the topology.
        way: from the source to the destination's apply process.
        table: as the source calls it.
        source_row, destination_row: the row now, texts by column; None: there is none.
        is_destination_read: whether the destination answered; else its row is not known.
        is_captured: the source's log has changes of the table; None: not known.
        searched: (from, through) SCN of the redo that was searched; None: it was not.
        changes: of the row, in source order, the newest ones.
        left_out: older changes of it in that redo.
        source_scn: where the source's log was when the rows had been read; 0: not known.
        instantiation: of the table at the destination; None: there is no record.
        errors: the apply process's error queue; None: not known.
        statuses: by component, its status.
        unknown: what could not be found out, a sentence each.
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
        """Of the apply process; 0: not known."""
        return low_watermark_of(self.statuses, self.way.apply.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why the row is as it is at one destination.

    Args:
        site, apply, source: the destination, its apply process and the source.
        verdict: see the module.
        place: the component at which it stopped; empty: none.
        text: the reason, for people.
        evidence: the facts behind it, with SCNs, a sentence each.
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
        """Whether nothing is to be done."""
        return self.verdict in _FINE


@dataclass(frozen=True, slots=True)
class _Stop:
    """Where a change stopped."""

    verdict: str
    place: str
    text: str
    fix: str


def explain(found: Evidence) -> Verdict:
    """Find the first place where a change of the row stopped."""
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
            _Stop("UNKNOWN", "", "; ".join(found.unknown), "repeat it when everything runs: headrace status"),
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


# --------------------------------------------------------------------------- the places in their order


def _left_out_always(found: Evidence) -> _Stop | None:
    """The client whose rules leave out the table, whatever the tag; or the log, which does not have it."""
    for client, name, (table, *_) in _clients(found):
        if not client.rules.keeps(*table):
            called = "" if table == found.table else f", which is called {table} there"
            return _Stop(
                "RULE",
                name,
                f"the rules of {name} leave out table {found.table}{called}",
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
    """Where a change stopped; None: it was applied, or a later copy has it."""
    if (stop := _discarded(found, change)) is not None:
        return stop
    if (stop := _not_copied(found)) is not None:
        return stop
    record = found.instantiation
    if record is not None and change.commit_scn <= record.scn:
        return None  # the copy has it: `_in_the_copy`, when nothing else stopped
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
            f"the rules of {name} leave out changes with tag {tag}{by}",
            f"let the rules of {name} take this tag, if that makes no cycle (headrace check); else correct the row at"
            " the destination",
        )
    return _left_out_by_values(found, change)


def _left_out_by_values(found: Evidence, change: FoundChange) -> _Stop | None:
    """The client whose conditions leave out a change, or make of it something that the next client leaves out."""
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
                    "nothing, if that is meant; else correct the function, run headrace up FILE, and"
                    f" {_brought_up(found)}",
                )
            return _Stop(
                "CONDITION",
                name,
                f"the conditions of {name} leave out this change ({conditions})",
                f"nothing, if that is meant; else correct the conditions of {name}, and {_brought_up(found)}",
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
            f"{found.table} was never copied to {found.way.apply.site}: its changes are left out",
            restart_hint(found.way.apply.name),
        )
    if record.state in _COPIED or record.state == "JOINING":
        return None
    why = f": {record.problem}" if record.problem else ""
    fix = {
        "LEFT": _brought_up(found),
        # What is in its way may be rows that nobody else has.
        "FAILED": "correct what it says: apply looks at the table again every few seconds, and copies it then",
    }.get(record.state, "wait: headrace status FILE shows the copy")
    return _Stop(
        "NOT COPIED",
        place,
        f"the copy of {found.table} is {record.state}{why}; its changes are left out until it is done",
        fix,
    )


def _in_error_queue(found: Evidence, change: FoundChange) -> _Stop | None:
    for error in found.errors or ():
        if error.commit_scn == change.commit_scn:
            why = f"it waits behind error transaction {error.depends_on}" if error.depends_on else error.message
            # What has to be corrected is the one that failed; the others can be executed behind it.
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
    """The component that has the change not yet; None: it is applied, or nobody knows."""
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
        status.hint or f"wait (headrace wait FILE --caught-up), or see headrace status for what holds {place} up",
    )


def _not_in_redo(found: Evidence) -> _Stop | None:
    """The log writer, or who else keeps what the source has logged from the redo that was searched.

    None: all of it was searched.
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
        f"wait (headrace wait FILE --caught-up), or see headrace status for what holds {place} up",
    )


def _first_behind(found: Evidence, scn: int) -> tuple[str, str]:
    """The first component on the way whose position is below `scn`, and in words what it lacks."""
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
    """Every change that is known is older than the table's copy."""
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
    """The redo that is kept has no change of the row."""
    record, capture = found.instantiation, f"capture:{found.way.capture.name}"
    if found.searched is None:
        return _Stop("UNKNOWN", capture, "redo was not searched", "repeat it when everything runs: headrace status")
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
        facts[-1] = f"{found.way.apply.site} now: not known, its database does not answer"
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
    """Whether the columns that both have are equal; further columns of the destination are its own."""
    if source is None or destination is None:
        return False
    return all(destination.get(name, value) == value for name, value in source.items())


def _clients(found: Evidence) -> list[tuple[Any, str, Passage]]:
    """The clients of the way, their full names, and what the table is called at each of them."""
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
    """Whether `headrace copy` does not refuse the table."""
    *_, last = found.way.passages(found.table)
    return writes_alone(found.spec, found.way.apply, last.behind)


def _brought_up(found: Evidence) -> str:
    """What brings the table's rows up to those of its source."""
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
