"""`headrace chaos` as a command: progress while it runs, and a report at its end, even if it is interrupted."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

from headrace.chaos.report import rendered
from headrace.chaos.run import chaotic
from headrace.chaos.schedule import schedule_of
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.progress import live_lines

if TYPE_CHECKING:
    from headrace.chaos.run import Options
    from headrace.console.output import Output
    from headrace.deployment.deployment import Deployment
    from topology.spec import TopologySpec

__all__ = ["run_chaos", "show_schedule"]

SHOWN = 30  # faults of a schedule: about half an hour, and every kind of fault once


def run_chaos(output: Output, deployment: Deployment, options: Options) -> int:
    """Break a running topology and report.

    Args:
        output: output of the command.
        deployment: the topology's deployment.
        options: options of the run.

    Returns:
        The exit code: DONE if a fault fired, everything healed, every invariant held and the contents are identical.

    Raises:
        HeadraceError: why it could not begin or continue.
        KeyboardInterrupt: after the faults in force are undone and the results so far are shown.
    """
    # Print the seed first, so that it is known whatever ends the run.
    output.say(f"breaking topology {deployment.spec.name}: seed {options.seed}")
    with live_lines(output, "chaos") as show, chaotic(deployment, options, show) as chaos:
        try:
            report = chaos.run()
        except KeyboardInterrupt:
            chaos.close()
            output.result(rendered(chaos.report))
            raise
    output.json(report.as_dict())
    output.result(rendered(report))
    if not report.is_fine:
        output.say(
            f"to repeat: headrace chaos FILE --seed {options.seed}; the logs are in"
            f" {deployment.spec.state_dir / 'logs'}"
        )
    return DONE if report.is_fine else FINDING


def show_schedule(output: Output, spec: TopologySpec, options: Options) -> int:
    """Show the first faults of a seed, without looking at the running topology.

    Args:
        output: output of the command.
        spec: the topology.
        options: options of the run.

    Returns:
        The exit code.
    """
    planned = list(islice(schedule_of(spec, options.seed, options.kinds), SHOWN))
    output.json({"topology": spec.name, "seed": options.seed, "faults": [asdict(each) for each in planned]})
    for each in planned:
        output.result(
            f"{each.number}: {each.action} {each.target}" + (f" for {each.seconds:g} s" if each.seconds else "")
        )
    output.result(f"seed {options.seed}: the first {len(planned)}; nothing was broken")
    return DONE
