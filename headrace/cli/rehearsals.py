"""Verbs that break a topology on purpose: simulate in memory, chaos on a running one, demo on its own servers."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.deployments import deployment_of
from headrace.cli.options import File, Json
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import Output

__all__ = ["simulate", "chaos", "demo"]


def simulate(
    file: File,
    as_json: Json = False,
    seed: Annotated[
        str,
        typer.Option(
            "--seed", help="Decides everything: a number, or FIRST-LAST for several. Default: a random one, printed."
        ),
    ] = "",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds to run, from --seed on.")] = 1,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Virtual seconds in which users write and faults happen.")
    ] = 30.0,
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            help="all, none, or some of: crash, partition, delay, duplicate, reorder, clock; separated by commas.",
        ),
    ] = "all",
    edits: Annotated[
        bool,
        typer.Option(
            "--edits/--no-edits", help="The operator edits the topology, stops components, and restores a backup."
        ),
    ] = True,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes for several seeds; 0: one per core.")] = 0,
) -> int:
    """Run the topology on in-memory databases, in virtual time, under faults. Reads only the file."""
    from headrace.commands.simulated import run_seeds, seeds_of

    output = Output(as_json=as_json)
    return run_seeds(output, file, seeds_of(seed, seeds), seconds=seconds, faults=faults, edits=edits, jobs=jobs)


def chaos(
    file: File,
    as_json: Json = False,
    duration: Annotated[
        str, typer.Option("--for", help="How long, for example 90s, 5m or 1h; the last fault heals after that.")
    ] = "5m",
    seed: Annotated[
        int | None, typer.Option("--seed", help="Decides what breaks, in which order. Default: a random one, printed.")
    ] = None,
    faults: Annotated[
        str,
        typer.Option("--faults", help="all, or some of: crash, freeze, partition, delay, disk; separated by commas."),
    ] = "all",
    load: Annotated[
        bool, typer.Option("--load", help="Write at every source meanwhile (embedded servers; its own tables).")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first faults of the seed; break nothing.")
    ] = False,
    allow_servers: Annotated[
        bool,
        typer.Option(
            "--allow-servers", help="Accept databases that are servers of your own, for tests; they are never stopped."
        ),
    ] = False,
) -> int:
    """Break a running topology on purpose, repeatedly; report what healed, and compare everything.

    For test systems.
    """
    from headrace.chaos.command import run_chaos, show_schedule
    from headrace.chaos.run import Options, own_servers
    from headrace.chaos.schedule import fault_kinds, seconds_of

    output = Output(as_json=as_json)
    options = Options(
        seed=secrets.randbits(32) if seed is None else seed,
        seconds=seconds_of(duration),
        kinds=fault_kinds(faults),
        load=load,
        allow_servers=allow_servers,
    )
    with deployment_of(file) as deployment:
        if dry_run:
            return show_schedule(output, deployment.spec, options)
        others = ", ".join(own_servers(deployment.spec)) if allow_servers else ""
        if (
            others
            and sys.stdin.isatty()
            and not typer.confirm(f"Break replication between your servers ({others}) repeatedly?", err=True)
        ):
            output.say("nothing was done")
            return FINDING
        return run_chaos(output, deployment, options)


def demo(
    as_json: Json = False,
    topology: Annotated[
        str,
        typer.Option("--topology", help="oneway; or twoway, nway, hub, where clients write at every site; or fanout."),
    ] = "oneway",
    two_way: Annotated[bool, typer.Option("--two-way", help="The same as --topology twoway.")] = False,
    tagged: Annotated[
        bool,
        typer.Option(
            "--tagged", help="Two-way with rules that also take tagged changes: shows the cycles.", hidden=True
        ),
    ] = False,
    transactions: Annotated[int, typer.Option("--transactions", min=100, help="Number at each writing site.")] = 8000,
    clients: Annotated[int, typer.Option("--clients", min=1, help="Concurrent clients at each writing site.")] = 4,
    kill: Annotated[
        str,
        typer.Option("--kill", help="What to kill: capture, queue, propagation, apply, driver, site, controller."),
    ] = "capture",
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Folder for everything; removed at the end.")
    ] = None,
) -> int:
    """Replicate between embedded servers while clients write, kill a component, compare. Leaves nothing running."""
    from headrace.demo.run import DemoOptions, run_demo

    output = Output(as_json=as_json)
    summary = run_demo(
        DemoOptions(
            topology="twoway" if two_way or tagged else topology,
            tagged=tagged,
            transactions=transactions,
            clients=clients,
            kill=kill,
            state_dir=state_dir,
        ),
        output,
    )
    output.json(summary)
    return DONE if summary["identical"] else FINDING
