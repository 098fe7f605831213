"""Verbs for a whole topology: check, plan, up, down, status, wait."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from headrace.base.errors import ConfigError, counted
from headrace.cli.deployments import deployment_of
from headrace.cli.options import Address, File, Json, Verbose
from headrace.console.exit_codes import DONE, FAILURE, FINDING
from headrace.console.output import Output
from headrace.console.process_end import goes_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.deployment.deployment import Deployment
    from topology.spec import TopologySpec

__all__ = ["check", "plan", "up", "down", "status", "wait"]


def check(
    file: File,
    as_json: Json = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the databases.")] = False,
    verbose: Verbose = False,
) -> int:
    """Report every problem of a topology, and of its databases if they can be reached."""
    from headrace.deployment.inspection import check_topology

    output = Output(as_json=as_json)
    checked = check_topology(file, ask_databases=not offline)
    findings = checked.findings
    output.json(
        {"findings": [asdict(finding) for finding in findings], "reach": [asdict(line) for line in checked.reach]}
    )
    output.findings(findings, is_verbose=verbose)
    if checked.is_proven:
        output.result(
            "proven from the file: every change arrives once wherever it goes, and none returns to its origin"
            " (`headrace plan` shows which changes arrive where)"
        )
    problems = sum(1 for finding in findings if finding.is_error)
    output.result(f"{file}: {counted(problems, 'problem')}, {counted(len(findings) - problems, 'warning')}")
    return FINDING if problems else DONE


def plan(
    file: File,
    as_json: Json = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the databases.")] = False,
) -> int:
    """Show what `up` would create or change, and every lock it takes. Changes nothing."""
    from headrace.deployment.inspection import plan_topology

    output = Output(as_json=as_json)
    made = plan_topology(file, ask_databases=not offline)
    output.json(made.as_dict())
    output.result(made.as_text())
    return FINDING if any(finding.is_error for finding in made.findings) else DONE


def up(
    file: File,
    address: Address = "",
    as_json: Json = False,
    keep_existing: Annotated[
        bool,
        typer.Option(
            "--keep-existing",
            help="Accept destination tables that hold rows, and keep their rows; applies only to the tables of this call.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until every table is instantiated.")] = True,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Take the databases from a copy of this topology that was started elsewhere."),
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Longest wait in seconds; what was started keeps running.")
    ] = None,
    verbose: Verbose = False,
) -> int:
    """Start a topology, or bring a running one in line with the file. Idempotent."""
    from actors.control.observation import found_problems
    from actors.security.links import ray_findings
    from headrace.console.progress import live_lines
    from headrace.console.status_view import render, summary_line
    from headrace.status.plain import plain_overview

    output = Output(as_json=as_json)
    started = goes_on(output, "the start continues: `headrace status FILE` shows it, `headrace down FILE` ends it")
    with deployment_of(file, address, to_start=True) as deployment, live_lines(output, "up") as show, started:
        show("comparing what runs with the file" if deployment.is_cluster_there() else "starting Ray and the servers")
        overview = deployment.up(
            environment=_failpoints(),
            keep_existing=keep_existing,
            take_over=take_over,
            wait=wait,
            timeout_s=timeout,
            progress=lambda overview: show(summary_line(overview, is_starting=True)),
        )
        shells = deployment.embedded_shells()
        found = found_problems(ray_findings(deployment.address))
        overview = replace(overview, findings=(*overview.findings, *found))
    output.json(plain_overview(overview))
    output.findings(overview.findings, is_verbose=verbose)
    for line in shells:
        output.say(line)
    if overview.state == "REFUSED":
        return FINDING
    output.result(render(overview))
    return DONE


def _failpoints() -> dict[str, str]:
    from headrace.base.failpoints import ENVIRONMENT

    return {ENVIRONMENT: os.environ[ENVIRONMENT]} if os.environ.get(ENVIRONMENT) else {}


def down(
    file: File,
    address: Address = "",
    as_json: Json = False,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Also remove what Headrace created: objects in the databases, redo, embedded servers."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --purge.")] = False,
    keep_servers: Annotated[
        bool,
        typer.Option(
            "--keep-servers",
            help="With --purge: embedded servers stay and keep running, with their tables; what Headrace created in"
            " them is removed.",
        ),
    ] = False,
    lost: Annotated[
        list[str] | None,
        typer.Option(
            "--lost",
            metavar="SITE",
            help="With --purge: the site's database is lost for ever; ends without it, and prints what removes the rest"
            " there. May be repeated.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Stop a topology; its objects in the databases stay unless purged. Idempotent."""
    from headrace.commands.kept import slots_kept, tombstones_kept

    output = Output(as_json=as_json)
    if keep_servers and not purge:
        raise ConfigError("--keep-servers works only with --purge", hint="`headrace down` alone removes nothing")
    if lost and not purge:
        raise ConfigError("--lost works only with --purge", hint="`headrace down` alone removes nothing")
    with deployment_of(file, address, to_connect=not lost) as deployment:
        _check_lost(deployment.spec, lost or ())
        if purge and not yes and not _may_purge(output, deployment, keep_servers=keep_servers):
            output.say("nothing was done")
            return FINDING
        problems = deployment.down(purge=purge, keep_servers=keep_servers, lost=lost or (), progress=output.say)
        for shell in deployment.embedded_shells() if keep_servers else ():
            output.say(shell)
        kept = [] if purge else slots_kept(deployment.spec)
        noting = {} if purge else tombstones_kept(deployment.spec)
    output.json(
        {
            "problems": problems,
            "slots_kept_at": [slot.site for slot in kept],
            "slots": [asdict(slot) for slot in kept],
            "tombstones_kept": noting,
        }
    )
    for problem in problems:
        output.say(f"error: {problem}")
    if problems and purge:
        output.say(
            "fix: correct it and run the same command again; completed steps stay done. With a database that is lost for"
            " ever: add --lost SITE"
        )
    for slot in kept:
        output.say(f"warning: {slot.text()}; it ends with `headrace up FILE` or `headrace down FILE --purge`")
    for site, tables in noting.items():
        output.say(
            f"the triggers at {site} continue to record deletes of {', '.join(tables)} (tombstones), and old records"
            " are not removed until `headrace up FILE`; `down --purge` drops the triggers"
        )
    return FAILURE if problems else DONE


def _check_lost(spec: TopologySpec, lost: Sequence[str]) -> None:
    """Refuse `--lost` for sites that have no database of a user, or whose connection string is needed and unknown.

    Raises:
        ConfigError: names the site.
    """
    sites = {site.name: site for site in spec.sites if site.database.kind == "postgres"}
    for name in lost:
        if name not in sites:
            raise ConfigError(
                f"--lost {name}: the file has no such site with a database of kind postgres",
                hint=f"name one of {', '.join(sorted(sites)) or 'none'}",
            )
    for name, site in sites.items() if lost else ():
        if name not in lost and not site.database.dsn:
            raise ConfigError(
                f"the connection string of site {name} has no value",
                hint="`headrace check FILE` names what is missing",
            )


def _may_purge(output: Output, deployment: Deployment, *, keep_servers: bool) -> bool:
    """Ask for confirmation of what cannot be undone.

    Raises:
        ConfigError: there is no terminal at which to ask.
    """
    from headrace.commands.kept import purge_losses

    losses = purge_losses(deployment.spec, keep_servers=keep_servers)
    if output.as_json or not sys.stdin.isatty():
        raise ConfigError(
            f"`down --purge` of topology {deployment.spec.name} removes for good: {'; '.join(losses)}",
            hint="confirm with --yes",
        )
    output.say(f"`down --purge` of topology {deployment.spec.name} removes for good:")
    for loss in losses:
        output.say(f"  {loss}")
    return typer.confirm("Remove all that?", err=True)


def status(
    file: File,
    address: Address = "",
    as_json: Json = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Refresh every second until Ctrl-C; with --json, print one document per line."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Add SCNs and details of every component.")] = False,
) -> int:
    """Show what needs an operator, then lag and errors of every flow, and the components' states.

    Exits with 1 when something does not work or needs an operator.
    """
    from headrace.commands.described import with_descriptions
    from headrace.console.progress import watch_forever
    from headrace.console.status_view import is_healthy, render

    output = Output(as_json=as_json, in_lines=watch)
    with deployment_of(file, address, to_connect=False) as deployment:
        if watch and as_json:
            _watch_in_lines(output, deployment)
        if watch:
            watch_forever(output, lambda: render(deployment.overview(), is_verbose=verbose))
        overview = deployment.overview()
        if as_json:
            output.json(with_descriptions(overview, deployment.connect))
    output.result(render(overview, is_verbose=verbose))
    return DONE if is_healthy(overview) else FINDING


def _watch_in_lines(output: Output, deployment: Deployment) -> NoReturn:
    """Print the overview repeatedly until Ctrl-C, one JSON document per line."""
    from headrace.console.progress import WATCH_INTERVAL_S
    from headrace.status.plain import plain_overview

    while True:
        output.json(plain_overview(deployment.overview()))
        time.sleep(WATCH_INTERVAL_S)


def wait(
    file: File,
    address: Address = "",
    as_json: Json = False,
    caught_up: Annotated[
        bool, typer.Option("--caught-up", help="Wait until everything committed so far is applied.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Longest wait in seconds; unlimited by default.")
    ] = None,
) -> int:
    """Wait until everything committed at the sources before this call is applied at the destinations."""
    from headrace.console.progress import live_lines
    from headrace.deployment.waiting import look_at_tables, wait_caught_up

    if not caught_up:
        raise ConfigError("say what to wait for", hint="headrace wait FILE --caught-up")
    output = Output(as_json=as_json)
    with deployment_of(file, address) as deployment, live_lines(output, "wait") as show:
        markers = wait_caught_up(
            deployment.spec,
            deployment.connect(),
            timeout_s=timeout,
            progress=show,
            overview=deployment.overview,
        )
        look_at_tables(deployment.spec, deployment.connect())
    output.json({"caught_up": True, "markers": markers})
    output.result("caught up")
    return DONE
