"""Verbs around a topology: doctor for the machine, certs for its sites, audit for who ran what."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import File, Json
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import Output

__all__ = ["doctor", "certs", "audit"]


def doctor(
    file: Annotated[Path | None, typer.Argument(help="Also ask this topology's databases.", show_default=False)] = None,
    as_json: Json = False,
) -> int:
    """Check this machine's prerequisites, and a topology's databases, with exact fixes."""
    from headrace.commands.doctor import examine
    from headrace.deployment.inspection import check_topology

    output = Output(as_json=as_json)
    report = examine()
    findings = [*report.findings, *(check_topology(file, ask_databases=True).findings if file is not None else ())]
    output.json({"facts": report.facts, "findings": [asdict(finding) for finding in findings]})
    output.result("\n".join(f"{name}: {fact}" for name, fact in report.facts.items()))
    output.findings(findings)
    return FINDING if any(finding.is_error for finding in findings) else DONE


def certs(
    topology: Annotated[Path, typer.Option("--topology", help="The topology's YAML file.", show_default=False)],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The folder for the files.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Make a private authority and a certificate for every site that has none in DIR. Overwrites nothing.

    Without DIR: print the fingerprints of the certificates in use.
    """
    from headrace.commands.certificates import make, show
    from topology.file.reading import read_topology

    spec = read_topology(topology, to_start=False, to_connect=False)
    if folder is None:
        show(spec, Output(as_json=as_json))
    else:
        make(spec, folder, Output(as_json=as_json))
    return DONE


def audit(
    file: File,
    as_json: Json = False,
    last: Annotated[int, typer.Option("--last", min=1, max=100_000, help="Number of newest commands.")] = 100,
) -> int:
    """List the commands that changed what runs or rows: when, who, and how they ended."""
    from headrace.audit.listing import list_commands
    from topology.file.reading import read_topology

    spec = read_topology(file, to_start=False, to_connect=False)
    return list_commands(Output(as_json=as_json), spec.state_dir, last)
