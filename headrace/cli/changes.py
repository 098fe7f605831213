"""Verbs that follow a change: track its transaction, explain where it stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.deployments import deployment_of
from headrace.cli.options import Address, File, Json
from headrace.console.exit_codes import DONE
from headrace.console.output import Output

__all__ = ["track", "explain"]


def track(
    file: File,
    label: Annotated[
        str,
        typer.Option("--label", help="The transactions' label, as headrace.track('LABEL') set it.", show_default=False),
    ],
    address: Address = "",
    as_json: Json = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Look until they have arrived everywhere; with --json, print one document per line."
        ),
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Longest --watch in seconds; unlimited by default.")
    ] = None,
    sql: Annotated[
        bool,
        typer.Option(
            "--sql",
            help="Print the statement that labels a transaction, also for a source without the schema headrace; works"
            " while nothing runs.",
        ),
    ] = False,
) -> int:
    """Follow labelled transactions through every component, with times.

    Exits with 1 when one has not arrived everywhere.
    """
    from headrace.tracing.track import checked_label, labelling, look
    from headrace.tracing.track import track as track_label

    output, wanted = Output(as_json=as_json, in_lines=watch), checked_label(label)
    if sql:
        output.json({"statement": labelling(wanted)})
        output.result(labelling(wanted))
        return DONE
    with deployment_of(file, address) as deployment:
        actors = deployment.connect()
        return track_label(
            output,
            lambda: look(deployment.running, actors, wanted, deployment.overview()),
            watch=watch,
            timeout_s=timeout,
        )


def explain(
    file: File,
    table: Annotated[str, typer.Argument(help="The table with its schema, named as at the source.")],
    key: Annotated[str, typer.Argument(help="The row: 42, or id=42, or order=7,line=1.")],
    address: Address = "",
    as_json: Json = False,
    at: Annotated[str, typer.Option("--at", help="Only at this destination.")] = "",
) -> int:
    """Say why a row is missing or different at its destinations: the first place where its change stopped."""
    from headrace.commands.verification import table_name
    from headrace.console.progress import live_lines
    from headrace.lcr.table_name import TableName
    from headrace.tracing.explain import RowQuestion, explain_row, parsed_key

    output = Output(as_json=as_json)
    question = RowQuestion(table=TableName(*table_name(table)), key=parsed_key(key), at=at)
    with deployment_of(file, address) as deployment, live_lines(output, "explain") as show:
        actors = deployment.connect()
        return explain_row(output, deployment.running, actors, question, overview=deployment.overview(), progress=show)
