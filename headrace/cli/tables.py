"""Verbs for tables: verify, copy, sequences."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Annotated

import typer

from headrace.audit.verbs import began
from headrace.base.errors import ConfigError, counted
from headrace.cli.deployments import deployment_of
from headrace.cli.options import Address, Apply, File, Json, Tables
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import Output
from headrace.console.process_end import goes_on

__all__ = ["verify", "copy", "sequences"]

CAUGHT_UP_S = 600.0  # before tables are compared: for a backlog of some minutes


def verify(
    file: File,
    tables: Tables = None,
    address: Address = "",
    as_json: Json = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Longest wait for catch-up in seconds.")] = CAUGHT_UP_S,
) -> int:
    """Compare every replicated table, or those named, at source and destination.

    Rows that differ are identified by their keys.
    """
    from headrace.commands.table_copies import different_tables
    from headrace.commands.verification import comparison_line, difference_lines, table_name, verify_topology
    from headrace.console.progress import live_lines
    from headrace.lcr.table_name import TableName, quoted_name
    from spark_apply.copy.records.standing import correct_alone

    output = Output(as_json=as_json)
    with deployment_of(file, address) as deployment, live_lines(output, "verify") as show:
        comparisons = verify_topology(
            deployment.spec,
            deployment.connect(),
            timeout_s=timeout,
            progress=show,
            overview=deployment.overview,
            tables=[table_name(table) for table in tables or ()],
        )
    identical = all(comparison["equal"] for comparison in comparisons)
    output.json({"identical": identical, "tables": comparisons})
    for comparison in comparisons:
        output.result("\n".join([comparison_line(comparison), *difference_lines(comparison)]))
    differing, uncompared = different_tables(comparisons), sum(bool(each["problem"]) for each in comparisons)
    words = ["different"] if differing else []
    words += [f"{counted(uncompared, 'table')} not compared"] if uncompared else []
    output.result(", ".join(words) or "identical")
    if differing:
        copied = different_tables([each for each in comparisons if each["can_be_copied"]])
        names = shlex.join(quoted_name(TableName(*table)) for table in copied)
        shared = len(copied) < len(differing) or any(len(copied[table]) < len(differing[table]) for table in copied)
        output.say(
            "fix: transactions that could not be applied are in the error queue (headrace errors list FILE); correct"
            " rows that were changed by hand at the destination"
            + (f", or copy again: headrace copy FILE {names}" if names else "")
            + (
                "; a table that others write too is not copied again: correct its rows at the destination alone:"
                f" {correct_alone()}"
                if shared
                else ""
            )
        )
    return DONE if identical else FINDING


def copy(
    file: File,
    tables: Tables = None,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    different: Annotated[
        bool,
        typer.Option(
            "--different",
            help="Compare first (all tables, or those named), and copy those that differ, where they differ.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the destination tables are emptied.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the tables are copied and have joined the others.")
    ] = True,
) -> int:
    """Empty tables at their destinations and copy them again, while the others are applied."""
    from headrace.commands.table_copies import copied_line, copy_again, different_tables, wait_copied
    from headrace.commands.verification import comparison_line, table_name, verify_topology
    from headrace.console.progress import live_lines

    output, names = Output(as_json=as_json), [table_name(table) for table in tables or ()]
    if not names and not different:
        raise ConfigError(
            "no table is named",
            hint="headrace copy FILE TABLE ..., or those that differ: headrace copy FILE --different",
        )
    with deployment_of(file, address) as deployment, live_lines(output, "copy") as show:
        wanted = {name: [apply] if apply else [] for name in names}
        if different:
            compared = verify_topology(
                deployment.spec,
                deployment.connect(),
                timeout_s=CAUGHT_UP_S,
                progress=show,
                overview=deployment.overview,
                tables=names,
            )
            wanted = different_tables([each for each in compared if apply in {"", each["apply"]}])
            for each in compared:
                if each["problem"]:
                    output.say(comparison_line(each))
        if (
            wanted
            and not yes
            and not typer.confirm(
                f"Remove the rows of {_listed(wanted)} at their destinations and copy them again?", err=True
            )
        ):
            output.say("nothing was done")
            return FINDING
        begun = copy_again(deployment.spec, deployment.connect(), wanted)
        with goes_on(output, "the copy continues: `headrace status FILE` shows it"):
            copied = wait_copied(deployment.overview, begun, progress=show) if wait else begun
    output.json({"tables": copied})
    for each in copied:
        output.result(copied_line(each))
    if not copied:
        output.result("no table differs")
    return DONE


def _listed(tables: Iterable[tuple[str, str]]) -> str:
    return ", ".join(".".join(table) for table in tables)


def sequences(
    file: File,
    as_json: Json = False,
    advance: Annotated[
        bool, typer.Option("--advance", help="Set the destinations' sequences ahead of the sources'.")
    ] = False,
    ahead: Annotated[
        int,
        typer.Option("--ahead", help="Number of values to skip between the source's next one and the destination's."),
    ] = 0,
    at: Annotated[str, typer.Option("--at", help="Only at this destination.")] = "",
) -> int:
    """Compare the sequences of replicated columns before a switch-over; exit with 1 if a destination's is behind."""
    from headrace.commands.sequences import compare_sequences
    from topology.file.reading import read_topology

    output = Output(as_json=as_json)
    spec = read_topology(file, to_start=False)
    began(spec.state_dir)
    found = compare_sequences(spec, advance=advance, ahead=ahead, at=at)
    behind = [line for line in found.lines if line.problem and line.destination_next is not None]
    output.json(
        {
            "sequences": [line.as_dict() for line in found.lines],
            "not_looked_at": [each.as_dict() for each in found.not_looked_at],
        }
    )
    for text in (each.text() for part in (found.lines, found.not_looked_at) for each in part):
        output.result(text)
    output.result(f"{len(found.lines)} sequences, {len(behind)} behind")
    if behind and not advance:
        output.say("fix: stop the writers, wait until everything is applied, then run the same command with --advance")
    return FINDING if behind else DONE
