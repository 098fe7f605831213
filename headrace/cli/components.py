"""Verbs of one component: start, stop, split, merge, capture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.deployments import deployment_of
from headrace.cli.options import Address, Component, File, Json, Propagation
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import Output

__all__ = ["start", "stop", "split", "merge", "capture"]


def start(file: File, component: Component, address: Address = "") -> int:
    """Start a component that was stopped or has aborted; it stays started across restarts."""
    return _switch(file, component, address, on=True)


def stop(file: File, component: Component, address: Address = "") -> int:
    """Stop a component; it stays stopped across restarts."""
    return _switch(file, component, address, on=False)


def _switch(file: Path, component: str, address: str, *, on: bool) -> int:
    with deployment_of(file, address) as deployment:
        Output().say(deployment.switch(component, on=on))
    return DONE


def split(file: File, propagation: Propagation, address: Address = "", as_json: Json = False) -> int:
    """Split a propagation off: it gets its own queue and capture processes, and nothing else waits for it any longer.

    If split off by hand, it stays so until it is merged by hand.
    """
    from headrace.commands.split_streams import split_off

    output = Output(as_json=as_json)
    with deployment_of(file, address) as deployment:
        found = split_off(deployment, propagation)
    output.json(found.document)
    output.result(found.text)
    return DONE if found.is_done else FINDING


def merge(file: File, propagation: Propagation, address: Address = "", as_json: Json = False) -> int:
    """Merge a split propagation when it is at most its merge_threshold behind the others."""
    from headrace.commands.split_streams import merge as merge_stream

    output = Output(as_json=as_json)
    with deployment_of(file, address) as deployment:
        found = merge_stream(deployment, propagation)
    output.json(found.document)
    output.result(found.text)
    return DONE


def capture(
    file: File,
    name: Annotated[str, typer.Argument(help="A capture process of the topology.", show_default=False)],
    address: Address = "",
    as_json: Json = False,
    first_scn: Annotated[
        str,
        typer.Option(
            "--first-scn", help="Raise the first SCN: redo before it is no longer kept for this capture process."
        ),
    ] = "",
    start_scn: Annotated[
        str,
        typer.Option("--start-scn", help="Capture everything after this SCN again; destinations drop duplicates."),
    ] = "",
) -> int:
    """Show the SCNs of a capture process, or set its first or start SCN.

    SCNs are written as in status, or as numbers.
    """
    from headrace.commands.capture_scns import scn_given, scns_of, set_scns, text_of

    output = Output(as_json=as_json)
    first, start = scn_given(first_scn, "--first-scn"), scn_given(start_scn, "--start-scn")
    with deployment_of(file, address) as deployment:
        set_scns(deployment, name, first_scn=first, start_scn=start)
        found = scns_of(deployment, name)
    output.json(found)
    output.result(text_of(found))
    return DONE
