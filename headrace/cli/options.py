"""Arguments and options that several verbs share, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Address",
    "Apply",
    "Component",
    "File",
    "Json",
    "Number",
    "Numbers",
    "Propagation",
    "Tables",
    "Verbose",
]

File = Annotated[Path, typer.Argument(help="The topology's YAML file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="List each finding; otherwise several of one kind are merged.")
]
Address = Annotated[
    str,
    typer.Option(
        "--address",
        help="Ray cluster to run on; without it, a private one on this machine.",
        envvar="HEADRACE_RAY_ADDRESS",
    ),
]
Component = Annotated[
    str,
    typer.Argument(
        help="A component of the topology, with or without its kind: capture:capture_hr or capture_hr.",
        show_default=False,
    ),
]
Propagation = Annotated[str, typer.Argument(help="A propagation of the topology.", show_default=False)]
Number = Annotated[int, typer.Argument(help="Number of an error transaction.", show_default=False)]
Numbers = Annotated[list[int] | None, typer.Argument(help="Numbers of error transactions.", show_default=False)]
Tables = Annotated[
    list[str] | None, typer.Argument(help="Tables with their schemas, named as at the source.", show_default=False)
]
Apply = Annotated[str, typer.Option("--apply", help="Only this apply process.")]
