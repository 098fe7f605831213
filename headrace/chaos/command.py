"""`headrace chaos` as a command: progress while it runs, the report at its end, also of a run that was interrupted."""

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
        output: of the command.
        deployment: of the topology.
        options: of the run.

    Returns:
        The exit code: DONE when something broke, all of it healed, every invariant held and the contents are identical.

    Raises:
        HeadraceError: why it could not begin, or go on.
        KeyboardInterrupt: after what is in force was undone, and what was found until then is shown.
    """
    # before anything: whatever ends the run, its seed is known
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
            f"again: headrace chaos FILE --seed {options.seed}; the logs are in {deployment.spec.state_dir / 'logs'}"
        )
    return DONE if report.is_fine else FINDING


def show_schedule(output: Output, spec: TopologySpec, options: Options) -> int:
    """Show what a seed breaks first, without a look at what runs.

    Args:
        output: of the command.
        spec: the topology.
        options: of the run.

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
