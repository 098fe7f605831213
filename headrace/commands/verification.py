"""`headrace verify`: wait until everything committed so far is applied, then compare every replicated table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.base.errors import NOT_REPLICATED, ApplyError, ConfigError, counted
from headrace.console.status_view import Note, stuck_notes
from headrace.deployment.waiting import LOOK_INTERVAL_S, fixes_of, halts, problems_of, wait_caught_up
from headrace.lcr.table_name import TableName
from topology.patterns import parse_table
from topology.routing.ways import ways_to, writes_alone

if TYPE_CHECKING:
    from actors.hosting.runtime import RayActors
    from headrace.deployment.waiting import Look
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["KNOWN_TABLES", "comparison_line", "difference_lines", "table_name", "verify_topology"]

KNOWN_TABLES = (
    "headrace verify FILE names all tables; a schema or table with a dot in its name stands in double"
    " quotes, as in the file"
)

# Rows that are written meanwhile differ until the destination has caught up: they are compared again.
RECHECKS = 5
RECHECK_DELAY_S = 1.0
SHOWN_COLUMNS_MAX = 10  # of a row that differs: keys have fewer, and a line of hundreds would not be read
SHOWN_CHARACTERS_MAX = 60  # of one value, as in `errors show`
COMPARE_TIMEOUT_S = 24 * 3600.0  # large tables take long


def verify_topology(
    spec: TopologySpec,
    actors: RayActors,
    *,
    timeout_s: float,
    progress: Callable[[str], None],
    overview: Look | None = None,
    tables: Sequence[tuple[str, str]] = (),
) -> list[dict[str, Any]]:
    """Compare all tables, or some.

    Args:
        spec: the topology.
        actors: its actors.
        timeout_s: longest wait for catching up, in seconds.
        progress: receives lines of text about the progress.
        overview: returns the overview, which shows what is stuck.
        tables: schema and name at the source; empty: all. An apply process without any of them is not asked.

    Returns:
        One entry per apply process and table; `can_be_copied` is False for a table that others also write.

    Raises:
        ApplyError: something is stuck until an operator acts: the tables cannot become equal, and the apply process
            whose Spark job compares them may itself be stuck.
        NotCaughtUp: the destinations did not catch up in time, or cannot until an operator acts.
        ConfigError: no apply process replicates such a table.
    """
    stuck = _stuck(overview)
    if stuck:
        raise ApplyError(
            f"nothing can be compared now: {problems_of(stuck)} (the Spark jobs of the apply processes compare the"
            " tables after everything is applied)",
            hint=fixes_of(stuck),
        )
    progress("waiting until caught up")
    wait_caught_up(
        spec,
        actors,
        timeout_s=timeout_s,
        overview=overview,
        of_applied_tables=True,
        ends_when_stuck=True,
        progress=lambda text: progress(f"waiting until caught up: {text}"),
    )
    comparisons = []
    for apply in spec.applies:
        progress(f"comparing the tables of {apply.name}")
        answers: list[dict[str, Any]] = actors.call(
            f"apply:{apply.name}", "compare", tuple(tables), RECHECKS, RECHECK_DELAY_S, timeout_s=COMPARE_TIMEOUT_S
        )
        answers = [answer for answer in answers if not tables or NOT_REPLICATED not in answer["problem"]]
        comparisons += [
            {
                "apply": apply.name,
                "source": apply.source,
                "destination": apply.site,
                **answer,
                "conditions": list(discarding_conditions(spec, apply, TableName(answer["owner"], answer["name"]))),
                "handlers": list(
                    handlers_of(apply, TableName(answer["destination_owner"], answer["destination_name"]))
                ),
                "can_be_copied": writes_alone(
                    spec, apply, TableName(answer["destination_owner"], answer["destination_name"])
                ),
            }
            for answer in answers
        ]
    for owner, name in tables:
        if not any((each["owner"], each["name"]) == (owner, name) for each in comparisons):
            raise ConfigError(f"no apply process replicates {owner}.{name}", hint=KNOWN_TABLES)
    return comparisons


def table_name(text: str) -> tuple[str, str]:
    """Parse `schema.table`, with double quotes where the file needs them: `"Odd.Schema".orders`.

    Raises:
        ConfigError: the text is something else.
    """
    try:
        return parse_table(text)
    except ValueError:  # as this command prints it: after the shell's quotes, blanks need no others
        owner, dot, name = text.partition(".")
    if not (owner and dot and name):
        raise ConfigError(f"{text!r} is no table", hint="name it with its schema: public.orders")
    return owner, name


def _stuck(overview: Look | None) -> list[Note]:
    """Return findings that stop changes until an operator acts, if they are seen twice.

    A component that has just started can look stuck once.
    """
    for pause_s in (LOOK_INTERVAL_S, 0.0):
        found = [note for note in stuck_notes(overview()) if halts(note)] if overview is not None else []
        if not found:
            break
        time.sleep(pause_s)
    return found


def discarding_conditions(spec: TopologySpec, apply: ApplySpec, table: TableName) -> tuple[str, ...]:
    """Return the conditions that keep some changes of a table from an apply process.

    Its destination may then differ from its source on purpose.

    Args:
        spec: a routed topology.
        apply: one of its apply processes.
        table: the table's name at the source.

    Returns:
        Each condition as text, with its client. Subsets are not included: copies and comparisons cover the subset too.
    """
    found: dict[str, None] = {}
    for way in ways_to(spec, apply):
        kinds = ("capture", *("propagation" for _ in way.propagations), "apply")
        for kind, client, passage in zip(kinds, way.clients, way.passages(table), strict=True):
            rules = [rule for rule in client.rules.include or () if rule.dml and rule.matches_object(*passage.table)]
            # A rule without a condition takes what another rule's condition rejects.
            wanted = [rule for rule in rules if all(each.condition is not None for each in rules)]
            unwanted = [rule for rule in client.rules.exclude if rule.dml and rule.matches_object(*passage.table)]
            for word, rule in [*(("only", each) for each in wanted), *(("not", each) for each in unwanted)]:
                if rule.condition is not None:
                    found[f"{kind} {client.name}: {word} where {rule.condition.text}"] = None
    return tuple(found)


def handlers_of(apply: ApplySpec, table: TableName) -> tuple[str, ...]:
    """Return the handlers that may process changes of a table instead of applying them.

    Its destination may then differ from its source on purpose.

    Args:
        apply: the apply process.
        table: the table's name at the destination.
    """
    found = [
        each.function.name if each.function else "statements"
        for each in apply.handlers.dml
        if (each.owner, each.name) == table
    ]
    found += [each.function.name for each in apply.handlers.errors if (each.owner, each.name) == table]
    return tuple(dict.fromkeys(found))


def difference_lines(comparison: Mapping[str, Any]) -> list[str]:
    """Return lines about what was not compared, and about the rows that differ."""
    lines = [f"  not compared: {each}" for each in comparison.get("left_out", ())]
    lines += [f"  {_row_text(row)}: {row['what']}" for row in comparison.get("differences", ())]
    if comparison.get("has_more_differences"):
        lines.append("  ... and others")
    if moving := comparison.get("in_flight_rows"):
        named = [f"{_row_text(row)}: {row['what']}" for row in comparison["in_flight"]]
        lines.append(
            f"  not compared: {counted(moving, 'row')} in flight:"
            f" {'; '.join(named)}{'; ...' if moving > len(named) else ''}"
        )
    if not comparison["equal"] and not comparison["problem"] and (conditions := comparison.get("conditions")):
        lines.append(
            f"  conditions discard some of its changes ({'; '.join(conditions)}), and a copy has all rows: it may"
            " differ as the file says, and would again behind a new copy. To copy and compare the rows of a condition"
            " only, write it as `subset`"
        )
    if not comparison["equal"] and not comparison["problem"] and (computed := comparison.get("computed")):
        lines.append(
            f"  the destination computes {', '.join(computed)} itself, and a copy changes nothing of that: `headrace"
            " check` names expressions that differ from the source's"
        )
    if not comparison["equal"] and not comparison["problem"] and (padded := comparison.get("padded")):
        lines.append(f"  {padded}")
    if not comparison["equal"] and not comparison["problem"] and (handlers := comparison.get("handlers")):
        lines.append(
            f"  handlers deal with its changes ({', '.join(handlers)}): it may differ as they mean it. A new copy has"
            " the source's rows, which no handler sees: what handlers have made of them is lost"
        )
    return lines


def _row_text(row: Mapping[str, Any]) -> str:
    """Return the values that identify a row (without a key, all of its columns), cut to one line."""
    values = [
        f"{column}={'NULL' if is_null else value if len(value) <= SHOWN_CHARACTERS_MAX else value[:SHOWN_CHARACTERS_MAX] + '...'}"
        for column, value, is_null in zip(row["columns"], row["values"], row["nulls"], strict=True)
    ]
    beyond = len(values) - SHOWN_COLUMNS_MAX
    return ", ".join(values[:SHOWN_COLUMNS_MAX]) + (
        f", ... {counted(beyond, 'column')} more (--json has them)" if beyond > 0 else ""
    )


def comparison_line(comparison: Mapping[str, Any]) -> str:
    """Return one comparison as a line of text."""
    name = f"{comparison['owner']}.{comparison['name']}"
    there = f"{comparison['destination_owner']}.{comparison['destination_name']}"
    table = f"{name} {comparison['source']} -> {comparison['destination']}{'' if there == name else f' {there}'}"
    if comparison["equal"]:
        moving, settled = comparison.get("in_flight_rows", 0), comparison.get("settled", 0)
        exception = f", all but {counted(moving, 'row')} in flight" if moving else ""
        again = f" ({counted(settled, 'row')} on the way, and compared again)" if settled else ""
        return f"{table}: identical{exception}, {comparison['source_rows']} rows{again}"
    if comparison["problem"]:
        return f"{table}: not compared: {comparison['problem']}"
    return (
        f"{table}: DIFFERENT: {comparison['source_rows']} rows ({comparison['source_digest']}) at the source, "
        f"{comparison['destination_rows']} ({comparison['destination_digest']}) at the destination"
    )
