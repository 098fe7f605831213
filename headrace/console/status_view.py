"""The overview of a topology as text: findings first, then one line per flow and one per component."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from headrace.base.errors import COPY_ONE_AGAIN, counted
from headrace.console.output import bytes_text, scn_text, seconds_text
from headrace.console.remedies import for_component
from headrace.lcr.ddl import DDL_LOG
from headrace.lcr.table_name import literal, quoted
from headrace.status.applies import ApplyStatus, TableCopy, apply_status
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus, WireStatus
from headrace.status.overview import Flow, Overview, SiteToClear, SplitStream
from headrace.status.propagations import CompressionStatus, PropagationStatus
from headrace.status.queues import QueueStatus, QueueSubscriber
from headrace.status.redo import RedoLogStatus
from headrace.status.sites import SiteStatus
from protos.wire.revoked import LIST_FIX

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "STARTING",
    "Note",
    "copying_line",
    "everything_runs",
    "holding_notes",
    "is_healthy",
    "notes",
    "render",
    "split_waits_for",
    "stuck_notes",
    "summary_line",
]

_T = TypeVar("_T")

# An overview older than this shows a problem of the controller, not the state of the topology.
STALE_S = 10.0
SHOWN_MAX = 12  # components in the short form: with the flows and a finding or two they fit on 24 lines
LOSS_TOLD_S = 86_400.0  # after it is over: an operator looks at least once a day
REFUSAL_TOLD_S = LOSS_TOLD_S  # because an operator looks at least once a day
_LOST_COMMITS = "find out why it lost commits; Headrace repairs only its own changes, not what others wrote there"
_NO_DATABASE = frozenset({"DATABASE DOES NOT ANSWER", "WAITING FOR DATABASE"})
_BAD = frozenset({"ABORTED", "UNREACHABLE", "RETRYING", *_NO_DATABASE})
_NOT_CREATED = "NOT CREATED"
_START_DATABASE = (
    "start the database, or correct its connection string and run `headrace up`; Headrace connects by itself"
)
_END_TRANSACTION = "end that transaction, or wait until it ends: Headrace then continues by itself"
_APPLIED = frozenset({"DONE", "KEPT"})  # changes of these tables are applied, whatever the problem
STARTING = frozenset({"INITIALIZING", "STARTING DATABASE", "WAITING FOR PREPARATION", "STARTING SPARK"})
"""States of components that are starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A finding about one component.

    Args:
        component: its name.
        problem: what is wrong.
        fix: what to do about it; empty: nothing, or the problem says it.
        is_stuck: no change passes here until an operator acts.
        is_of_table: only one table is affected; the others are applied.
        is_scheduled: no change passes here until a window of the schedule opens.
        is_remark: intended, or resolves without an operator.
        is_outage: a database does not answer; what needs it continues by itself when it answers.
        subscriber: a subscriber of the component, if the finding is about its destination; empty: about the component.
    """

    component: str
    problem: str
    fix: str = ""
    is_stuck: bool = False
    is_remark: bool = False
    is_of_table: bool = False
    is_scheduled: bool = False
    is_outage: bool = False
    subscriber: str = ""


def is_healthy(overview: Overview) -> bool:
    """Return whether everything runs that should, and nothing needs an operator: `headrace status` exits with 0."""
    return (
        overview.state == "RUNNING"
        and not any(
            component.state in _BAD | {_NOT_CREATED} or _is_paused(component) for component in overview.components
        )
        and all(note.is_remark for note in notes(overview))
    )


def everything_runs(overview: Overview) -> bool:
    """Return whether every component runs that is not stopped; tables may still need an operator."""
    return overview.state == "RUNNING" and not any(
        component.state in _BAD | STARTING | {_NOT_CREATED} for component in overview.components
    )


def _is_held_up(component: ComponentStatus) -> bool:
    """Return whether a transaction blocks its preparation, or its schedule has closed it."""
    return (isinstance(component, SiteStatus) and bool(component.held_up_by)) or (
        isinstance(component, PropagationStatus) and bool(component.closed_until)
    )


def _is_paused(component: ComponentStatus) -> bool:
    """Return whether it waits for something other than credit: an ALTER, or free disk space."""
    return component.state.startswith("PAUSED: ")


def notes(overview: Overview) -> list[Note]:
    """Return the findings about the components, in component order."""
    return [
        replace(note, fix=for_component(note.fix, note.subscriber or note.component, overview.flows))
        for note in _all_notes(overview)
    ]


def _all_notes(overview: Overview) -> list[Note]:
    counting = {
        each.name for each in overview.components if isinstance(each, SiteStatus) and each.ddl_failed_total is not None
    }
    return [
        *(_split_note(split) for split in overview.splits),
        *(note for component in overview.components for note in _notes(component, counting)),
        *(_left_note(site) for site in overview.left if site.is_running or site.kind != "embedded"),
        *(
            Note(
                component="controller",
                problem=f"alerts cannot be sent to {target.to}: {target.problem}",
                fix="repair it, or correct `alerts.to` in the file and run `headrace up FILE`",
            )
            for target in overview.alerts
            if target.problem
        ),
        *(
            Note(
                component="controller",
                problem=f"{counted(target.left_out_before_next, 'alert')} to {target.to} left out: the hour's"
                " limit, or its queue, is full",
                fix="set `alerts.per_hour_max` in the file higher, then headrace up FILE; the next alert says how many"
                " were left out",
                is_remark=True,
            )
            for target in overview.alerts
            if target.left_out_before_next
        ),
    ]


def _left_note(site: SiteToClear) -> Note:
    """Return the note about a site that was removed or is no longer a source, with a database that is not cleared."""
    what = "was taken out of the file" if site.is_removed else "is no longer a source"
    keeps = f": its database keeps WAL for slot {site.slot} until it is dropped" if site.slot else ""
    drop = f"there, SELECT pg_drop_replication_slot({literal(site.slot)})"
    if not site.is_running:  # no process has its connection string
        return Note(
            component=f"site:{site.name}",
            problem=what + keeps,
            fix=f"{drop}, and DROP PUBLICATION {quoted(site.slot)}",
            is_remark=True,
        )
    why = f" ({site.problem})" if site.problem else ""
    return Note(
        component=f"site:{site.name}",
        problem=f"{what}, and is not cleared yet{why}{keeps}",
        fix=f"let its database answer: retries follow every few seconds; or, {drop}"
        if site.slot
        else "retries follow every few seconds; if the problem stays, correct what it names",
    )


def _split_note(split: SplitStream) -> Note:
    """Return the note about a split propagation: since when, by whom, how far behind, and what happens next.

    For a propagation that is still to be split, the note says what that waits for.
    """
    if split.phase == "together":
        return Note(
            component=f"propagation:{split.propagation}",
            is_remark=True,
            problem=f"is to be split off from queue {split.queue}: {split_waits_for(split)}",
        )
    behind = "unknown" if split.behind_s is None else seconds_text(split.behind_s)
    by = "by its split_threshold" if split.by == "threshold" else "by the operator"
    stopped = ", ".join(split.stopped)
    if stopped and split.phase == "splitting":
        then = f"it reads {split.queue} until {stopped} is started: it would get what the stop holds back"
    elif stopped:
        then = f"it is merged once {stopped} is started: the stop would end with the merge"
    elif split.phase == "merging":
        then = f"it is being merged with queue {split.queue}"
    elif split.merges:
        then = f"it is merged once it is connected and at most {seconds_text(split.merge_threshold_s)} behind"
    else:
        then = f"it stays so until `headrace merge FILE {split.propagation}`"
    since_s = max(0.0, time.time() - split.since_us / 1e6)
    return Note(
        component=f"propagation:{split.propagation}",
        is_remark=True,
        problem=f"is split off from queue {split.queue} for {seconds_text(since_s)}, {by}; {behind} behind the"
        f" others; {then}",
    )


def split_waits_for(split: SplitStream) -> str:
    """Return what an operator's request to split a stream waits for.

    Args:
        split: the controller's status of the stream.
    """
    if split.hindrance:
        return f"{split.hindrance}; `headrace merge FILE {split.propagation}` withdraws the request"
    if stopped := ", ".join(split.stopped):
        return f"it waits until {stopped} is started: it would get what the stop holds back"
    return "every component must have its part of the last change first, and the queue and its site must answer"


def stuck_notes(overview: Overview) -> list[Note]:
    """Return the findings that stop changes until an operator acts."""
    return [note for note in notes(overview) if note.is_stuck]


def holding_notes(overview: Overview) -> list[Note]:
    """Return the findings that stop changes until an operator acts, a database answers, or a window opens."""
    return [note for note in notes(overview) if note.is_stuck or note.is_outage or note.is_scheduled]


def _notes(component: ComponentStatus, counting: Collection[str] = ()) -> Iterator[Note]:
    """Yield the findings about one component.

    Args:
        component: its status.
        counting: sites that know which DDL they could not record.
    """
    yield from _state_notes(component)
    if isinstance(component, SiteStatus) and component.database_problem:
        fix = component.database_fix or _START_DATABASE
        yield Note(component=component.name, problem=component.database_problem, fix=fix, is_outage=True)
    if component.wire is not None:
        yield from _refusals(component.name, component.wire)
    yield from _waiting_notes(component)
    match component:
        case ApplyStatus():
            yield from _apply_notes(component)
        case CaptureStatus():
            yield from _capture_notes(component)
            if f"site:{component.source}" not in counting:
                yield from _failed_ddl_notes(component, component.source)
        case SiteStatus():
            yield from _captured_notes(component)
            yield from _failed_ddl_notes(component, component.name.removeprefix("site:"))
        case _:
            pass


def _state_notes(component: ComponentStatus) -> Iterator[Note]:
    """Yield why it is in a bad state, and what else is wrong."""
    name, state, error = component.name, component.state, component.last_error
    if state == "DISABLED" and component.enabled is False:
        fix = f"headrace start FILE {name}"
        yield Note(component=name, problem="is stopped", fix=fix, is_stuck=True, is_remark=True)
    elif error is not None and state in _BAD:
        yield Note(
            component=name,
            problem=error.message.removeprefix(f"{name}: "),
            fix=error.hint,
            is_stuck=state == "ABORTED",
            is_outage=state in _NO_DATABASE,
        )
    if component.problem:
        yield Note(component=name, problem=component.problem, fix=component.fix, is_stuck=_is_paused(component))


def _waiting_notes(component: ComponentStatus) -> Iterator[Note]:
    """Yield what it waits for, and the destinations that lost commits."""
    name = component.name
    match component:
        case SiteStatus():
            for held_up in component.held_up_by:
                yield Note(component=name, problem=f"waits for {held_up}", fix=_END_TRANSACTION, is_remark=True)
        case PropagationStatus() if component.closed_until:
            yield Note(
                component=name,
                is_remark=True,
                is_scheduled=True,
                problem=f"is closed by its schedule until {component.closed_until}: changes wait in queue"
                f" {component.from_queue}",
            )
        case QueueStatus() | CaptureStatus():
            for subscriber in component.subscribers:
                yield from _losses(name, subscriber)
        case _:
            pass
    if component.detail:
        # a message may end with the statement of the hint
        problem, is_stuck = component.detail.removesuffix(component.hint).removesuffix(": "), _is_paused(component)
        yield Note(component=name, problem=problem, fix=component.hint, is_stuck=is_stuck, is_remark=not is_stuck)


def _capture_notes(capture: CaptureStatus) -> Iterator[Note]:
    """Yield rules of a capture process that take nothing."""
    if capture.unmatched_rules:
        problem = f"no table matches {', '.join(capture.unmatched_rules)}"
        yield Note(component=capture.name, problem=problem, is_remark=True)


def _failed_ddl_notes(status: CaptureStatus | SiteStatus, source: str) -> Iterator[Note]:
    """Yield DDL that a source could not record: its site counts it until `up`, a capture process since its own start."""
    if status.ddl_failed_total:
        last = f"; the last one: {status.last_failed_ddl}" if status.last_failed_ddl else ""
        yield Note(
            component=status.name,
            problem=f"{counted(status.ddl_failed_total, 'DDL statement')} of {source} could not be recorded: no"
            f" destination gets what changed{last}",
            fix="headrace up FILE; headrace.dba_ddl_not_applied at the destinations then has what changed: make the same"
            " changes there; the log of the source's server says why",
            is_remark=True,
        )


def _captured_notes(site: SiteStatus) -> Iterator[Note]:
    """Yield tables and columns of a source that are no longer captured, or not yet."""
    # Before preparation, `up` is about to capture them.
    uncaptured = site.uncaptured_tables if site.is_prepared is not False else ()
    if tables := [table for table in uncaptured if table != str(DDL_LOG)]:
        yield Note(
            component=site.name,
            problem=f"created after `up`, and not replicated yet: {', '.join(tables)}",
            fix="headrace up FILE",
        )
    if len(tables) < len(uncaptured):
        yield Note(
            component=site.name,
            problem="DDL is not recorded, and so not replicated: an event trigger or a function of the schema"
            f" {DDL_LOG.owner} was dropped or disabled, or {DDL_LOG} is not published any more",
            fix="headrace up FILE; headrace.dba_ddl_not_applied at the destinations then has what changed meanwhile: make"
            " the same changes there",
        )
    if site.strayed_tables:
        yield Note(
            component=site.name,
            problem="renamed since `up`, and matched by no rule now, or by one that transforms otherwise:"
            f" {', '.join(site.strayed_tables)}; the next change of such a table blocks the capture process",
            fix=f"to replicate them on, rename them at the destinations, too{_statements(site)}, and name the new"
            " names in the rules; to leave them out, leave the rules as they are; then headrace up FILE",
        )
    if site.lost_columns:
        yield Note(
            component=site.name,
            problem="renamed or dropped since `up`, and named by a transformation:"
            f" {', '.join(site.lost_columns)}; if the table has a new column, too, the client stops at its next change,"
            " and nothing passes unmasked",
            fix="give the column its name back at the source, before the next change of the table. Or, where only a"
            " function names the column (columns: [...]): write its name of now there, then headrace up FILE. Or take"
            " the table out of the rules, run headrace up FILE and headrace wait FILE --caught-up, and put it back with"
            " the names of now: it is copied anew. Where others write the table, too, headrace up FILE asks to empty it"
            " there first",
        )
    for refused in site.refused_changes:
        yield Note(component=site.name, problem=f"{refused.table}: {refused.problem}", fix=refused.fix)


def _statements(site: SiteStatus) -> str:
    """Return the renames for destinations that use the source's names; elsewhere the rules name the tables."""
    return f" ({'; '.join(site.strayed_renames)};)" if site.strayed_renames else ""


def _apply_notes(apply: ApplyStatus) -> Iterator[Note]:
    """Yield tables that cannot be copied or are missing, and the error queue."""
    yield from _table_notes(apply.name, apply.instantiation)
    if apply.missing_tables:
        yield Note(
            component=apply.name,
            problem=f"its virtual dependency definitions name {', '.join(apply.missing_tables)}, which is not at"
            " its site: nothing keeps such rows in order with others",
            fix="name the table in FILE as it is called now, then headrace up FILE",
        )
    if apply.errors:
        yield Note(
            component=apply.name,
            problem=f"{counted(apply.errors, 'error transaction')} in the error queue",
            fix="headrace errors list FILE",
        )
    yield from _job_notes(apply)
    if not_applied := (apply.counters or {}).get("ddl_not_applied", 0):
        yield Note(
            component=apply.name,
            problem=f"{counted(not_applied, 'DDL statement')} of {apply.source} not applied at {apply.site} since the apply"
            " process started: recorded only, because the table or the change is not replicated",
            fix=f"look at headrace.dba_ddl_not_applied at {apply.site}, which has each one and the reason; make the same"
            f" change there, if {apply.site} is to have it",
            is_remark=True,
        )


def _job_notes(apply: ApplyStatus) -> Iterator[Note]:
    """Yield indexes that are made outside the transactions of the data."""
    for job in apply.ddl_jobs:
        what = f"index {job.owner}.{job.index} of {job.owner}.{job.name}, made beside the rows at {apply.site},"
        if job.problem:
            yield Note(
                component=apply.name,
                problem=f"{what} failed and is tried again: {job.problem}",
                fix=job.fix,
            )
        elif job.state != "CANCELLED":
            minutes = max(0, int((time.time() - job.since_us / 1e6) / 60))
            yield Note(
                component=apply.name,
                problem=f"{what} {'is being made' if job.state == 'RUNNING' else 'waits for its turn'}, recorded"
                f" {counted(minutes, 'minute')} ago: rows are applied meanwhile",
                fix=f"no action needed: pg_stat_progress_create_index at {apply.site} has its progress",
                is_remark=True,
            )


def _refusals(component: str, wire: WireStatus) -> Iterator[Note]:
    """Yield callers refused or held back within the last day: a wrong certificate of our own, or a stranger."""
    if wire.problem:
        yield Note(
            component=component, problem=wire.problem, fix="replace the certificate; new connections fail until then"
        )
    if wire.revoked_problem:
        yield Note(
            component=component,
            problem=f"{wire.revoked_problem}; what the component had read there before stays revoked",
            fix=LIST_FIX,
        )
    if wire.tls and wire.refused_calls and time.time() - wire.last_refusal_us / 1e6 < REFUSAL_TOLD_S:
        yield Note(
            component=component,
            problem=f"refused {wire.refused_calls} calls; the last one: {wire.last_refusal}",
            is_remark=True,
        )
    if wire.held_back and time.time() - wire.last_held_back_us / 1e6 < REFUSAL_TOLD_S:
        yield Note(
            component=component,
            problem=f"held back {counted(wire.held_back, 'time')} a caller that sends more than any component does;"
            f" the last one: {wire.last_held_back}",
            is_remark=True,
        )
    at_us = wire.last_refused_connection_us  # None: the process reports no time, so it counts as now
    if wire.refused_connections and (at_us is None or time.time() - at_us / 1e6 < REFUSAL_TOLD_S):
        yield Note(
            component=component,
            problem=f"{wire.refused_connections} connections failed: they showed no certificate that the authority"
            " signed, or broke off",
            is_remark=True,
        )


def _table_notes(component: str, tables: Sequence[TableCopy]) -> Iterator[Note]:
    """Yield tables of an apply process that cannot be copied, were not copied, or are no longer replicated."""
    for table in tables:
        if table.state == "FAILED":
            yield Note(
                component=component,
                problem=f"table {table.owner}.{table.name}: {table.problem}",
                fix="correct it: the table is checked again every few seconds; the others are applied meanwhile",
                is_stuck=True,
                is_of_table=True,
            )
        elif table.problem:
            problem, _, fix = table.problem.partition("; fix: ")
            yield Note(
                component=component,
                problem=f"table {table.owner}.{table.name}: {problem}",
                fix=fix,
                is_stuck=table.state not in _APPLIED,
                is_of_table=True,
            )
    kept, left = (
        ", ".join(f"{table.owner}.{table.name}" for table in tables if table.state == state)
        for state in ("KEPT", "LEFT OUT")
    )
    if kept:
        yield Note(
            component=component,
            problem=f"not copied, their rows were kept as they were: {kept}",
            fix="headrace verify FILE compares them",
            is_remark=True,
        )
    if left:
        yield Note(
            component=component,
            problem=f"no longer replicated, and out of date at the destination: {left}",
            fix="name them in the rules, then headrace up FILE copies them again; this note also ends when the"
            " destination no longer has them",
            is_remark=True,
        )


def render(overview: Overview, *, is_verbose: bool = False) -> RenderableType:
    """Render the findings first, so that a terminal never cuts them off, then the flows and the components.

    Args:
        overview: the topology's overview.
        is_verbose: add SCNs and details of every component; otherwise a topology of two sites fits 80 columns and 24
            lines.
    """
    from rich.console import Group

    parts: list[RenderableType] = [_head(overview), *_told_first(overview)]
    if overview.flows:
        parts += [_flows(overview.flows, is_verbose=is_verbose), ""]
    return Group(*parts, *(_every_component(overview.components) if is_verbose else _components(overview.components)))


def _flows(flows: Sequence[Flow], *, is_verbose: bool) -> RenderableType:
    table = _table(
        "flow", "lag", *(("applied SCN", "source SCN") if is_verbose else ()), "behind", "errors", whole="lag"
    )
    ways = Counter((flow.source, flow.destination) for flow in flows)
    for flow in flows:
        is_one_of_several = ways[flow.source, flow.destination] > 1
        table.add_row(
            f"{flow.source} -> {flow.destination}" + (f" ({flow.apply})" if is_verbose or is_one_of_several else ""),
            seconds_text(flow.lag_s),
            *((scn_text(flow.applied_scn), scn_text(flow.source_scn)) if is_verbose else ()),
            bytes_text(flow.scn_gap),
            "unknown" if flow.errors is None else str(flow.errors),
        )
    return table


def _every_component(components: Sequence[ComponentStatus]) -> Iterator[RenderableType]:
    table = _table("component", "site", "state", "throughput", "details", whole="component")
    for component in components:
        table.add_row(component.name, component.site, _state(component), _throughput(component), _details(component))
    yield table


def _components(components: Sequence[ComponentStatus]) -> Iterator[RenderableType]:
    """Yield the table of components without bypassed ones; if there are many, healthy ones are only counted."""
    from rich.text import Text

    present = [component for component in components if component.state != "BYPASSED"]
    shown = (
        present if len(present) <= SHOWN_MAX else [component for component in present if _style(component) != "green"]
    )
    table = _table("component", "state", "throughput", whole="component")
    for component in shown:
        table.add_row(component.name, _state(component), _throughput(component))
    if shown:
        yield table
    if len(shown) < len(present):
        yield Text(
            f"{counted(len(present) - len(shown), 'component')} {'work' if shown else 'work, all of them'} (--verbose"
            " shows each)"
        )


def _table(*columns: str, whole: str) -> Table:
    """Return a table whose column `whole` is never wrapped: part of a name cannot be copied."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == whole)
    return table


def _style(component: ComponentStatus) -> str:
    state = component.state
    return (
        "red"
        if state in _BAD
        else "yellow"
        if state.startswith(("PAUSED", "DISABLED", "CLOSED", _NOT_CREATED)) or state in STARTING
        else "green"
    )


def _state(component: ComponentStatus) -> Text:
    from rich.text import Text

    closed_until = component.closed_until if isinstance(component, PropagationStatus) else None
    return Text(
        component.state + (f" until {closed_until}" if closed_until else ""),
        style=_style(component),
    )


def _told_first(overview: Overview) -> Iterator[RenderableType]:
    """Yield findings of a refused `up` and the components' notes, problems before remarks."""
    from rich.text import Text

    if overview.state == "REFUSED":
        yield Text(
            "the last `headrace up` was refused for the following reasons, and changed nothing. Fix them, then run"
            " headrace up FILE: only that checks again\n",
            style="red",
        )
        for finding in overview.findings:
            if finding.is_error:
                yield Text(f"refused: {finding.path}: {finding.problem}\n  fix: {finding.fix}\n", style="red")
    for note in sorted(notes(overview), key=lambda note: note.is_remark):
        # Outside the table, so that a statement is not wrapped and can be copied.
        style = "" if note.is_remark else "red" if note.is_stuck else "yellow"
        yield Text(
            f"{note.component}: {note.problem}" + (f"\n  fix: {note.fix}" if note.fix else "") + "\n", style=style
        )


def summary_line(overview: Overview, *, is_starting: bool = False) -> str:
    """Return one line for a waiting command: what is not ready yet, and why.

    Args:
        overview: the topology's overview.
        is_starting: whether `up` waits: it is replacing or starting what does not answer.
    """
    components: Sequence[ComponentStatus] = overview.components
    if is_starting and overview.state == "CONTROLLER UNREACHABLE":
        return "starting the controller"
    if is_starting:
        components = [
            replace(each, state="RESTARTING", problem="") if each.state == "UNREACHABLE" and each.outdated else each
            for each in components
        ]
    waiting: dict[str, list[str]] = {}
    for component in components:
        if component.state in _BAD | STARTING | {"RESTARTING"}:
            waiting.setdefault(component.state.lower(), []).append(component.name)
    parts = [f"{', '.join(names)} {state}" for state, names in waiting.items()]
    if created_later := sum(component.state == _NOT_CREATED for component in components):
        parts.append(f"{created_later} components to be created")
    parts += filter(None, [copying_line([table for c in components for table in apply_status(c).instantiation])])
    parts += [overview.problem] if overview.problem else []
    alike: dict[str, list[str]] = {}  # when a site's process is busy, all of its components report the same
    for component in components:
        if component.state in _BAD | STARTING or _is_held_up(component):
            for note in _notes(component):
                alike.setdefault(note.problem, []).append(note.component)
    parts += [f"{', '.join(dict.fromkeys(names))}: {problem}" for problem, names in alike.items()]
    return f"{overview.state.lower()}" + (f": {'; '.join(parts)}" if parts else "")


def copying_line(tables: Sequence[TableCopy]) -> str:
    """Return the progress of all copies as a sum, with the largest table in progress; empty: every table is copied."""
    tables = [table for table in tables if table.state != "LEFT OUT"]
    left = [table for table in tables if table.state not in {"DONE", "KEPT"}]
    if not left:
        return ""
    failed = sum(table.state == "FAILED" for table in left)
    words = [f"copying {len(left) - failed} of {len(tables)} tables"]
    sized = [table for table in left if table.state != "FAILED" and table.bytes_total]
    if sized:
        done, total = sum(table.bytes_done for table in sized), sum(table.bytes_total for table in sized)
        words.append(f"{bytes_text(done)} of {bytes_text(total)}")
        largest = max(sized, key=lambda table: table.bytes_total - table.bytes_done)
        share = 100 * largest.bytes_done // largest.bytes_total
        words.append(f"largest: {largest.owner}.{largest.name} {share} %")
    if failed:
        words.append(f"{failed} cannot be copied")
    return ", ".join(words)


def _head(overview: Overview) -> RenderableType:
    from rich.text import Text

    head = Text(f"topology {overview.topology}: {overview.state}\n", style="bold")
    age_s = time.time() - overview.at_us / 1e6
    if overview.at_us and age_s > STALE_S:
        head.append(f"as of {seconds_text(age_s)} ago\n", style="yellow")
    if overview.problem:
        fix = f"\n  fix: {overview.fix}" if overview.fix else ""
        head.append(f"{overview.problem}{fix}\n", style="red")
    return head


def _losses(queue: str, subscriber: QueueSubscriber) -> Iterator[Note]:
    """Yield destinations that lost acknowledged commits: while the changes are replayed, and for a while afterwards."""
    if subscriber.gone_scn is not None:
        yield Note(
            component=queue,
            subscriber=subscriber.subscriber,
            is_stuck=True,
            fix=COPY_ONE_AGAIN,
            problem=f"{subscriber.subscriber} is refused: the changes of {subscriber.source} that its destination"
            f" lost are gone from the redo log up to SCN {scn_text(subscriber.gone_scn)}",
        )
    elif (lost := subscriber.lost) is not None:
        is_over = subscriber.acknowledged_scn >= lost.acknowledged_scn
        if not is_over or time.time() - lost.at_us / 1e6 < LOSS_TOLD_S:
            yield Note(
                component=queue,
                is_remark=is_over,
                problem=f"the destination of {subscriber.subscriber} lost commits (a failover, or a restored"
                f" backup): the changes of {subscriber.source} from SCN {scn_text(lost.found_scn)} to"
                f" {scn_text(lost.acknowledged_scn)}" + (" were applied again" if is_over else " are applied again"),
                fix=_LOST_COMMITS,
            )


def _throughput(component: ComponentStatus) -> str:
    parts = []
    if component.transactions_per_s is not None:
        parts.append(f"{component.transactions_per_s:.0f} tx/s")
    if component.rows_per_s is not None:
        parts.append(f"{component.rows_per_s:.0f} rows/s")
    elif component.bytes_per_s is not None:
        parts.append(f"{bytes_text(int(component.bytes_per_s))}/s")
    return " ".join(parts)


def _compression(found: CompressionStatus) -> str:
    """Return how much smaller a propagation makes what it sends, and the CPU time that this costs."""
    if not found.bytes_after:
        return found.method
    ratio, ms = found.bytes_before / found.bytes_after, 1e3 * found.cpu_s / (found.bytes_before / 1e6)
    return f"{found.method} {ratio:.1f}:1, {ms:.1f} ms CPU per MB"


def _details(component: ComponentStatus) -> str:
    own: Iterable[str] = ()
    match component:
        case RedoLogStatus():
            own = _redo_details(component)
        case CaptureStatus():
            own = _capture_details(component)
        case QueueStatus():
            own = (
                _shown("memory {}", component.memory_bytes, bytes_text),
                _shown("spilled {}", component.spill_bytes, bytes_text),
            )
        case PropagationStatus():
            own = (
                _shown("at most {}/s", component.bandwidth_max, bytes_text),
                _shown("{}", component.compression, _compression),
            )
        case ApplyStatus():
            own = (
                _shown("combined with {}", component.combined_with, str),
                _shown("dequeues from {}", component.dequeues_from, str),
                _shown("applied to {}", component.low_watermark_scn, scn_text),
                _shown("recorded to {}", component.recorded_scn, scn_text),
                _shown("errors {}", component.errors, str),
            )
        case _:
            pass
    common = (
        _shown("by {}", component.bypassed_by, str),
        _shown("until {} bypasses it", component.to_be_bypassed_by, str),
        _shown("retried {}", component.errors_total, str),
        _shown("runs {}", component.functions, _versions),
    )
    return ", ".join(filter(None, (*own, *common)))


def _redo_details(component: RedoLogStatus) -> Iterator[str]:
    yield _shown("redo {}", component.redo_bytes, bytes_text)
    if isinstance(component, SiteStatus):
        yield _shown("WAL retained {}", component.source_retained_bytes, bytes_text)
    yield _shown("redo to {}", component.redo_scn, scn_text)
    yield _shown("needs redo from {}", component.required_checkpoint_scn, scn_text)


def _capture_details(component: CaptureStatus) -> tuple[str, ...]:
    return (
        _shown("captured to {}", component.captured_scn, scn_text),
        _shown("applied to {}", component.applied_scn, scn_text),
        _shown("needs redo from {}", component.required_checkpoint_scn, scn_text),
        _shown("first SCN {}", component.first_scn, scn_text),
        _shown("start SCN {}", component.start_scn, scn_text),
        _shown("checkpoint at {}", component.max_checkpoint_scn, scn_text),
        _shown("combined with {}", component.combined_with, str),
    )


def _shown(words: str, value: _T | None, text: Callable[[_T], str]) -> str:
    return words.format(text(value)) if value else ""


def _versions(functions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({version})" for name, version in functions.items())
