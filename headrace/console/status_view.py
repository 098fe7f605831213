"""The overview of a topology as text: findings first, then one line per flow and one per component."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.base.errors import COPY_ONE_AGAIN, counted
from headrace.console.output import bytes_text, scn_text, seconds_text
from headrace.console.remedies import for_component
from headrace.lcr.table_name import literal, quoted
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

# An overview older than this shows a problem of the controller, not the state of the topology.
STALE_S = 10.0
SHOWN_MAX = 12  # components in the short form: with the flows and a finding or two they fit 24 lines
LOSS_TOLD_S = 86_400.0  # after it is over: an operator looks at least once a day
REFUSAL_TOLD_S = LOSS_TOLD_S  # for the same reason
_LOST_COMMITS = "find out why it lost commits; Headrace repairs only its own changes, not what others wrote there"
_NO_DATABASE = frozenset({"DATABASE DOES NOT ANSWER", "WAITING FOR DATABASE"})
_BAD = frozenset({"ABORTED", "UNREACHABLE", "RETRYING", *_NO_DATABASE})
_NOT_CREATED = "NOT CREATED"
_START_DATABASE = (
    "start the database, or correct its connection string and run `headrace up`; Headrace connects by itself"
)
_END_TRANSACTION = "end that transaction, or wait until it ends: Headrace goes on by itself then"
_APPLIED = frozenset({"DONE", "KEPT"})  # whatever is said of the table: its changes are applied
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
        is_outage: a database does not answer; what needs it goes on by itself once it does.
        subscriber: of the component, whose destination it is about; empty: it is about the component.
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


def is_healthy(overview: Mapping[str, Any]) -> bool:
    """Whether everything runs that should and nothing needs an operator: `headrace status` exits with 0."""
    return (
        overview["state"] == "RUNNING"
        and not any(
            component["state"] in _BAD | {_NOT_CREATED} or _is_paused(component) for component in overview["components"]
        )
        and all(note.is_remark for note in notes(overview))
    )


def everything_runs(overview: Mapping[str, Any]) -> bool:
    """Whether every component runs that is not stopped; tables may still need an operator."""
    return overview["state"] == "RUNNING" and not any(
        component["state"] in _BAD | STARTING | {_NOT_CREATED} for component in overview["components"]
    )


def _is_paused(component: Mapping[str, Any]) -> bool:
    """Whether it waits for something other than credit: an ALTER, or free disk space."""
    return str(component["state"]).startswith("PAUSED: ")


def notes(overview: Mapping[str, Any]) -> list[Note]:
    """The findings about the components, in their order."""
    flows = overview.get("flows", ())
    return [
        replace(note, fix=for_component(note.fix, note.subscriber or note.component, flows))
        for note in _all_notes(overview)
    ]


def _all_notes(overview: Mapping[str, Any]) -> list[Note]:
    return [
        *(_split_note(split) for split in overview.get("splits", ())),
        *(note for component in overview["components"] for note in _notes(component)),
        *(_left_note(site) for site in overview.get("left", ()) if site["is_running"] or site["kind"] != "embedded"),
        *(
            Note(
                component="controller",
                problem=f"alerts cannot be sent to {target['to']}: {target['problem']}",
                fix="repair it; or correct `alerts.to` in the file, then headrace up FILE",
            )
            for target in overview.get("alerts", ())
            if target["problem"]
        ),
        *(
            Note(
                component="controller",
                problem=f"{counted(target['left_out_before_next'], 'alert')} to {target['to']} left out: the hour's"
                " limit, or its queue, is full",
                fix="set `alerts.per_hour_max` in the file higher, then headrace up FILE; the next alert says how many"
                " were left out",
                is_remark=True,
            )
            for target in overview.get("alerts", ())
            if target.get("left_out_before_next")
        ),
    ]


def _left_note(site: Mapping[str, Any]) -> Note:
    """A site that left the file, or is no source any more, and whose database was not cleared yet."""
    what = "was taken out of the file" if site["is_removed"] else "is no source any more"
    keeps = f": its database keeps WAL for slot {site['slot']} until it is dropped" if site["slot"] else ""
    drop = f"there, SELECT pg_drop_replication_slot({literal(site['slot'])})"
    if not site["is_running"]:  # nobody has its connection string
        return Note(
            component=f"site:{site['name']}",
            problem=what + keeps,
            fix=f"{drop}, and DROP PUBLICATION {quoted(site['slot'])}",
            is_remark=True,
        )
    why = f" ({site['problem']})" if site["problem"] else ""
    return Note(
        component=f"site:{site['name']}",
        problem=f"{what}, and is not cleared yet{why}{keeps}",
        fix=f"let its database answer: it is tried every few seconds; or, {drop}"
        if site["slot"]
        else "it is tried every few seconds",
    )


def _split_note(split: Mapping[str, Any]) -> Note:
    """A propagation that is split off: since when, by whom, how far behind, and what becomes of it.

    Or that is to be, and what that waits for.
    """
    if split["phase"] == "together":
        return Note(
            component=f"propagation:{split['propagation']}",
            is_remark=True,
            problem=f"is to be split off from queue {split['queue']}: {split_waits_for(split)}",
        )
    behind = "unknown" if split["behind_s"] is None else seconds_text(split["behind_s"])
    by = "by its split_threshold" if split["by"] == "threshold" else "by the operator"
    stopped = ", ".join(split.get("stopped", ()))  # not in what an earlier version's controller says
    if stopped and split["phase"] == "splitting":
        then = f"it reads {split['queue']} until {stopped} is started: it would get what the stop holds back"
    elif stopped:
        then = f"it is merged once {stopped} is started: the stop would end with the merge"
    elif split["phase"] == "merging":
        then = f"it is being merged with queue {split['queue']}"
    elif split["merges"]:
        then = f"it is merged once it is connected and at most {seconds_text(split['merge_threshold_s'])} behind"
    else:
        then = f"it stays so until `headrace merge FILE {split['propagation']}`"
    since_s = max(0.0, time.time() - split["since_us"] / 1e6)
    return Note(
        component=f"propagation:{split['propagation']}",
        is_remark=True,
        problem=f"is split off from queue {split['queue']} for {seconds_text(since_s)}, {by}; {behind} behind the"
        f" others; {then}",
    )


def split_waits_for(split: Mapping[str, Any]) -> str:
    """What a stream waits for that an operator wants to be split off, and is not.

    Args:
        split: what the controller says of it.
    """
    if split.get("hindrance"):
        return f"{split['hindrance']}; `headrace merge FILE {split['propagation']}` takes that back"
    if stopped := ", ".join(split.get("stopped", ())):
        return f"it waits until {stopped} is started: it would get what the stop holds back"
    return "every component must have its part of the last change first, and the queue and its site must answer"


def stuck_notes(overview: Mapping[str, Any]) -> list[Note]:
    """The findings that stop changes until an operator acts."""
    return [note for note in notes(overview) if note.is_stuck]


def holding_notes(overview: Mapping[str, Any]) -> list[Note]:
    """The findings that stop changes until an operator acts, a database answers, or a window opens."""
    return [note for note in notes(overview) if note.is_stuck or note.is_outage or note.is_scheduled]


def _notes(component: Mapping[str, Any]) -> Iterator[Note]:
    name, state, error = str(component["name"]), component["state"], component.get("last_error")
    if state == "DISABLED" and not component.get("enabled", True):
        yield Note(
            component=name, problem="is stopped", fix=f"headrace start FILE {name}", is_stuck=True, is_remark=True
        )
    elif error and state in _BAD:
        yield Note(
            component=name,
            problem=error["message"].removeprefix(f"{name}: "),
            fix=error["hint"],
            is_stuck=state == "ABORTED",
            is_outage=state in _NO_DATABASE,
        )
    if component.get("problem"):
        yield Note(
            component=name,
            problem=str(component["problem"]),
            fix=str(component.get("fix", "")),
            is_stuck=_is_paused(component),
        )
    if component.get("database_problem"):
        yield Note(component=name, problem=str(component["database_problem"]), fix=_START_DATABASE, is_outage=True)
    yield from _refusals(name, component.get("wire") or {})
    for held_up in component.get("held_up_by", ()):
        yield Note(component=name, problem=f"waits for {held_up}", fix=_END_TRANSACTION, is_remark=True)
    if component.get("closed_until"):
        yield Note(
            component=name,
            is_remark=True,
            is_scheduled=True,
            problem=f"is closed by its schedule until {component['closed_until']}: changes wait in queue"
            f" {component['from_queue']}",
        )
    for subscriber in component.get("subscribers", ()):
        yield from _losses(name, subscriber)
    if component.get("detail"):
        hint = str(component.get("hint") or "")
        problem = str(component["detail"]).removesuffix(hint).removesuffix(": ")  # a message may end with the statement
        is_stuck = _is_paused(component)
        yield Note(component=name, problem=problem, fix=hint, is_stuck=is_stuck, is_remark=not is_stuck)
    yield from _table_notes(name, component.get("instantiation", ()))
    if component.get("unmatched_rules"):
        yield Note(
            component=name, problem=f"no table matches {', '.join(component['unmatched_rules'])}", is_remark=True
        )
    if component.get("missing_tables"):
        yield Note(
            component=name,
            problem=f"its virtual dependency definitions name {', '.join(component['missing_tables'])}, which is not at"
            " its site: nothing keeps such rows in order with others",
            fix="name the table in FILE as it is called now, then headrace up FILE",
        )
    # before that, `up` is about to capture them
    if component.get("uncaptured_tables") and component.get("is_prepared", True):
        yield Note(
            component=name,
            problem=f"created after `up`, and not replicated yet: {', '.join(component['uncaptured_tables'])}",
            fix="headrace up FILE",
        )
    if component.get("strayed_tables"):
        yield Note(
            component=name,
            problem=f"renamed since `up`, and matched by no rule now: {', '.join(component['strayed_tables'])}; "
            "the next change of such a table holds up the capture process",
            fix=f"to replicate them on, rename them at the destinations, too{_statements(component)}, and name the new"
            " names in the rules; to leave them out, leave the rules as they are; then headrace up FILE",
        )
    if component.get("lost_columns"):
        yield Note(
            component=name,
            problem="renamed or dropped since `up`, and named by a transformation:"
            f" {', '.join(component['lost_columns'])}; under another name a column that is to be kept is left out, and"
            " one that is to be left out or masked travels as it is",
            # Where a column is to be left out, apply waits for it at the destination; where it is to be kept, rows came
            # without it.
            fix="give the column its name back at the source, and do not add it at the destination; then headrace copy"
            " FILE TABLE brings what changed meanwhile. Or take the table out of the rules, run headrace up FILE and"
            " headrace wait FILE --caught-up, and put it back with the names of now: it is copied anew. Where others"
            " write the table, too, it is not copied: give the column its name back, then headrace verify FILE TABLE,"
            " and the fix that it prints",
        )
    if component.get("errors"):
        yield Note(
            component=name,
            problem=f"{counted(component['errors'], 'error transaction')} in the error queue",
            fix="headrace errors list FILE",
        )


def _statements(component: Mapping[str, Any]) -> str:
    """Where destinations have the source's names; elsewhere rules name their tables."""
    found = component.get("strayed_renames", ())  # not in what an earlier version's site says
    return f" ({'; '.join(found)};)" if found else ""


def _refusals(component: str, wire: Mapping[str, Any]) -> Iterator[Note]:
    """Callers that were refused or held back within the last day: a wrong certificate of our own, or nobody of ours."""
    if problem := wire.get("problem"):
        yield Note(
            component=component, problem=str(problem), fix="replace the certificate; new connections fail until then"
        )
    if problem := wire.get("revoked_problem"):
        yield Note(
            component=component,
            problem=f"{problem}; what the component had read there before stays revoked",
            fix=LIST_FIX,
        )
    calls, connections = wire.get("refused_calls", 0), wire.get("refused_connections", 0)
    if wire.get("tls") and calls and time.time() - wire["last_refusal_us"] / 1e6 < REFUSAL_TOLD_S:
        yield Note(
            component=component, problem=f"refused {calls} calls; the last one: {wire['last_refusal']}", is_remark=True
        )
    held = wire.get("held_back", 0)
    if held and time.time() - wire["last_held_back_us"] / 1e6 < REFUSAL_TOLD_S:
        yield Note(
            component=component,
            problem=f"held back {counted(held, 'time')} a caller that sends more than any component does; the last one: "
            f"{wire['last_held_back']}",
            is_remark=True,
        )
    # Of a process that tells no time it is now.
    if connections and time.time() - wire.get("last_refused_connection_us", time.time() * 1e6) / 1e6 < REFUSAL_TOLD_S:
        yield Note(
            component=component,
            problem=f"{connections} connections failed: they showed no certificate that the authority signed, "
            "or broke off",
            is_remark=True,
        )


def _table_notes(component: str, tables: Sequence[Mapping[str, Any]]) -> Iterator[Note]:
    """Tables of an apply process that cannot be copied, were not copied, or left."""
    for table in tables:
        if table["state"] == "FAILED":
            yield Note(
                component=component,
                problem=f"table {table['owner']}.{table['name']}: {table['problem']}",
                fix="correct it: the table is checked again every few seconds; the others are applied meanwhile",
                is_stuck=True,
                is_of_table=True,
            )
        elif table.get("problem"):
            problem, _, fix = str(table["problem"]).partition("; fix: ")
            yield Note(
                component=component,
                problem=f"table {table['owner']}.{table['name']}: {problem}",
                fix=fix,
                is_stuck=table["state"] not in _APPLIED,
                is_of_table=True,
            )
    kept, left = (
        ", ".join(f"{table['owner']}.{table['name']}" for table in tables if table["state"] == state)
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
            problem=f"not replicated any more, and out of date at the destination: {left}",
            fix="name them in the rules, then headrace up FILE copies them again; this ends, too, when the destination"
            " has them no more",
            is_remark=True,
        )


def render(overview: Mapping[str, Any], *, is_verbose: bool = False) -> RenderableType:
    """Render the findings first, so that a terminal never cuts them off, then the flows and the components.

    Args:
        overview: of the topology.
        is_verbose: with SCNs and details of every component; else what two sites have fits 80 columns and 24 lines.
    """
    from rich.console import Group

    parts: list[RenderableType] = [_head(overview), *_told_first(overview)]
    if overview["flows"]:
        parts += [_flows(overview["flows"], is_verbose=is_verbose), ""]
    return Group(
        *parts, *(_every_component(overview["components"]) if is_verbose else _components(overview["components"]))
    )


def _flows(flows: Sequence[Mapping[str, Any]], *, is_verbose: bool) -> RenderableType:
    table = _table(
        "flow", "lag", *(("applied SCN", "source SCN") if is_verbose else ()), "behind", "errors", whole="lag"
    )
    ways = Counter((flow["source"], flow["destination"]) for flow in flows)
    for flow in flows:
        is_one_of_several = ways[flow["source"], flow["destination"]] > 1
        table.add_row(
            f"{flow['source']} -> {flow['destination']}"
            + (f" ({flow['apply']})" if is_verbose or is_one_of_several else ""),
            seconds_text(flow["lag_s"]),
            *((scn_text(flow["applied_scn"]), scn_text(flow["source_scn"])) if is_verbose else ()),
            bytes_text(flow["scn_gap"]),
            "unknown" if flow["errors"] is None else str(flow["errors"]),
        )
    return table


def _every_component(components: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    table = _table("component", "site", "state", "throughput", "details", whole="component")
    for component in components:
        table.add_row(
            component["name"], component.get("site", ""), _state(component), _throughput(component), _details(component)
        )
    yield table


def _components(components: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """What does not run because of a bypass is left out; of many, those that work are counted alone."""
    from rich.text import Text

    present = [component for component in components if component["state"] != "BYPASSED"]
    shown = (
        present if len(present) <= SHOWN_MAX else [component for component in present if _style(component) != "green"]
    )
    table = _table("component", "state", "throughput", whole="component")
    for component in shown:
        table.add_row(component["name"], _state(component), _throughput(component))
    if shown:
        yield table
    if len(shown) < len(present):
        yield Text(
            f"{counted(len(present) - len(shown), 'component')} {'work' if shown else 'work, all there are'} (--verbose"
            " shows each)"
        )


def _table(*columns: str, whole: str) -> Table:
    """A table whose column `whole` is never broken: part of a name cannot be copied."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == whole)
    return table


def _style(component: Mapping[str, Any]) -> str:
    state = str(component["state"])
    return (
        "red"
        if state in _BAD
        else "yellow"
        if state.startswith(("PAUSED", "DISABLED", "CLOSED", _NOT_CREATED)) or state in STARTING
        else "green"
    )


def _state(component: Mapping[str, Any]) -> Text:
    from rich.text import Text

    return Text(
        str(component["state"]) + (f" until {component['closed_until']}" if component.get("closed_until") else ""),
        style=_style(component),
    )


def _told_first(overview: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Findings of a refused `up` and the components' notes, problems before remarks."""
    from rich.text import Text

    if overview["state"] == "REFUSED":
        yield Text(
            "the last `headrace up` was refused for what is below, and changed nothing. Fix it, then run headrace up"
            " FILE: only that looks again\n",
            style="red",
        )
        for finding in overview["findings"]:
            if finding["is_error"]:
                yield Text(f"refused: {finding['path']}: {finding['problem']}\n  fix: {finding['fix']}\n", style="red")
    for note in sorted(notes(overview), key=lambda note: note.is_remark):
        # Outside the table, where a statement is not wrapped and can be copied.
        style = "" if note.is_remark else "red" if note.is_stuck else "yellow"
        yield Text(
            f"{note.component}: {note.problem}" + (f"\n  fix: {note.fix}" if note.fix else "") + "\n", style=style
        )


def summary_line(overview: Mapping[str, Any], *, is_starting: bool = False) -> str:
    """One line while a command waits: what is not ready yet, and why.

    Args:
        overview: of the topology.
        is_starting: `up` waits: what does not answer is being replaced by it, or started.
    """
    components = overview["components"]
    if is_starting and overview["state"] == "CONTROLLER UNREACHABLE":
        return "starting the controller"
    if is_starting:
        components = [
            {**each, "state": "RESTARTING", "problem": ""}
            if each["state"] == "UNREACHABLE" and each.get("outdated")
            else each
            for each in components
        ]
    waiting: dict[str, list[str]] = {}
    for component in components:
        if component["state"] in _BAD | STARTING | {"RESTARTING"}:
            waiting.setdefault(str(component["state"]).lower(), []).append(str(component["name"]))
    parts = [f"{', '.join(names)} {state}" for state, names in waiting.items()]
    if created_later := sum(component["state"] == _NOT_CREATED for component in components):
        parts.append(f"{created_later} components to be created")
    parts += filter(None, [copying_line([table for c in components for table in c.get("instantiation", ())])])
    parts += [overview["problem"]] if overview.get("problem") else []
    alike: dict[str, list[str]] = {}  # when a site's process is busy, all of its components say the same
    for component in components:
        if component["state"] in _BAD | STARTING or component.get("held_up_by") or component.get("closed_until"):
            for note in _notes(component):
                alike.setdefault(note.problem, []).append(note.component)
    parts += [f"{', '.join(dict.fromkeys(names))}: {problem}" for problem, names in alike.items()]
    return f"{overview['state'].lower()}" + (f": {'; '.join(parts)}" if parts else "")


def copying_line(tables: Sequence[Mapping[str, Any]]) -> str:
    """Progress of all copies as a sum, with the largest table in progress; empty: every table is copied."""
    tables = [table for table in tables if table["state"] != "LEFT OUT"]
    left = [table for table in tables if table["state"] not in {"DONE", "KEPT"}]
    if not left:
        return ""
    failed = sum(table["state"] == "FAILED" for table in left)
    words = [f"copying {len(left) - failed} of {len(tables)} tables"]
    sized = [table for table in left if table["state"] != "FAILED" and table.get("bytes_total")]
    if sized:
        done, total = (sum(int(table[key]) for table in sized) for key in ("bytes_done", "bytes_total"))
        words.append(f"{bytes_text(done)} of {bytes_text(total)}")
        largest = max(sized, key=lambda table: table["bytes_total"] - table["bytes_done"])
        share = 100 * largest["bytes_done"] // largest["bytes_total"]
        words.append(f"largest: {largest['owner']}.{largest['name']} {share} %")
    if failed:
        words.append(f"{failed} cannot be copied")
    return ", ".join(words)


def _head(overview: Mapping[str, Any]) -> RenderableType:
    from rich.text import Text

    head = Text(f"topology {overview['topology']}: {overview['state']}\n", style="bold")
    age_s = time.time() - overview["at_us"] / 1e6
    if overview["at_us"] and age_s > STALE_S:
        head.append(f"as of {seconds_text(age_s)} ago\n", style="yellow")
    if overview.get("problem"):
        fix = f"\n  fix: {overview['fix']}" if overview.get("fix") else ""
        head.append(f"{overview['problem']}{fix}\n", style="red")
    return head


def _losses(queue: str, subscriber: Mapping[str, Any]) -> Iterator[Note]:
    """Destinations that lost acknowledged commits: while the changes are applied again, and for a while after."""
    if subscriber.get("gone_scn") is not None:
        yield Note(
            component=queue,
            subscriber=str(subscriber["subscriber"]),
            is_stuck=True,
            fix=COPY_ONE_AGAIN,
            problem=f"{subscriber['subscriber']} is refused: the changes of {subscriber['source']} that its destination"
            f" lost are gone from the redo log up to SCN {scn_text(subscriber['gone_scn'])}",
        )
    elif subscriber.get("lost"):
        acknowledged, found, at_us = subscriber["lost"]
        is_over = subscriber["acknowledged_scn"] >= acknowledged
        if not is_over or time.time() - at_us / 1e6 < LOSS_TOLD_S:
            yield Note(
                component=queue,
                is_remark=is_over,
                problem=f"the destination of {subscriber['subscriber']} lost commits (a failover, or a restored"
                f" backup): the changes of {subscriber['source']} from SCN {scn_text(found)} to"
                f" {scn_text(acknowledged)}" + (" were applied again" if is_over else " are applied again"),
                fix=_LOST_COMMITS,
            )


def _throughput(component: Mapping[str, Any]) -> str:
    parts = []
    if "transactions_per_s" in component:
        parts.append(f"{component['transactions_per_s']:.0f} tx/s")
    if "rows_per_s" in component:
        parts.append(f"{component['rows_per_s']:.0f} rows/s")
    elif "bytes_per_s" in component:
        parts.append(f"{bytes_text(int(component['bytes_per_s']))}/s")
    return " ".join(parts)


def _compression(found: Mapping[str, Any]) -> str:
    """How much smaller a propagation makes what it sends, and what that costs its machine."""
    if not found["bytes_after"]:
        return str(found["method"])
    ratio, ms = found["bytes_before"] / found["bytes_after"], 1e3 * found["cpu_s"] / (found["bytes_before"] / 1e6)
    return f"{found['method']} {ratio:.1f}:1, {ms:.1f} ms CPU per MB"


def _details(component: Mapping[str, Any]) -> str:
    known = (
        ("redo_bytes", "redo {}", bytes_text),
        ("source_retained_bytes", "WAL retained {}", bytes_text),
        ("redo_scn", "redo to {}", scn_text),
        ("captured_scn", "captured to {}", scn_text),
        ("applied_scn", "applied to {}", scn_text),
        ("required_checkpoint_scn", "needs redo from {}", scn_text),
        ("first_scn", "first SCN {}", scn_text),
        ("start_scn", "start SCN {}", scn_text),
        ("max_checkpoint_scn", "checkpoint at {}", scn_text),
        ("memory_bytes", "memory {}", bytes_text),
        ("spill_bytes", "spilled {}", bytes_text),
        ("through_scn", "to {}", scn_text),
        ("bandwidth_max", "at most {}/s", bytes_text),
        ("compression", "{}", _compression),
        ("combined_with", "combined with {}", str),
        ("dequeues_from", "dequeues from {}", str),
        ("bypassed_by", "by {}", str),
        ("to_be_bypassed_by", "until {} bypasses it", str),
        ("low_watermark_scn", "applied to {}", scn_text),
        ("recorded_scn", "recorded to {}", scn_text),
        ("errors", "errors {}", str),
        ("errors_total", "retried {}", str),
        (
            "functions",
            "runs {}",
            lambda functions: ", ".join(f"{name} ({version})" for name, version in functions.items()),
        ),
    )
    return ", ".join(words.format(text(component[key])) for key, words, text in known if component.get(key))
