"""`headrace simulate`: run seeds of a simulation and show the results."""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from headrace.base.errors import ConfigError
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.fault_names import named_faults
from headrace.console.progress import live_lines

if TYPE_CHECKING:
    from headrace.console.output import Output
    from headrace.simulation.run import Outcome

__all__ = ["run_seeds", "seeds_of"]


class _AnyValue(dict[str, str]):
    """An environment in which every variable has a value: connection strings are parsed, but never used."""

    def get(self, key: str, _default: object = None) -> str:
        return str(self[key])

    def __missing__(self, key: str) -> str:
        # A file or a program usually provides the whole connection string.
        return f"host={quote(key.lower(), safe='')}.invalid" if "DSN" in key or ":" in key else key.lower()


_SEED_BITS = 32  # short enough to be typed
_SEEDS_MAX = 100_000  # of one call: hours


def seeds_of(text: str, count: int) -> range:
    """Return the seeds that `--seed` and `--seeds` ask for.

    Args:
        text: a number, or two as FIRST-LAST; empty: a random one.
        count: how many, from the first one on.

    Raises:
        ConfigError: the text is neither, or there are too many seeds.
    """
    if not text:
        text = str(secrets.randbits(_SEED_BITS))
    first, dash, last = text.partition("-")
    try:
        found = range(int(first), int(last) + 1) if dash else range(int(first), int(first) + count)
    except ValueError:
        raise ConfigError(
            f"--seed {text!r} is not a number, nor FIRST-LAST", hint="for example --seed 7, or --seed 7-20"
        ) from None
    if dash and count != 1:
        raise ConfigError("--seed FIRST-LAST and --seeds exclude each other", hint="name the seeds in one way")
    if not 0 < len(found) <= _SEEDS_MAX:
        raise ConfigError(f"--seed {text}: {len(found)} seeds", hint=f"from 1 to {_SEEDS_MAX} seeds in one call")
    return found


def run_seeds(output: Output, file: Path, seeds: range, *, seconds: float, faults: str, edits: bool, jobs: int) -> int:
    """Run the seeds, and stop at the first violation.

    Args:
        output: output of the command.
        file: the topology file; no database is asked.
        seeds: seeds to run.
        seconds: virtual seconds in which users write and faults happen.
        faults: names from `headrace.simulation.faults`, "all" or "none".
        edits: whether the operator edits, stops and restores.
        jobs: number of processes; 0: one per core.

    Returns:
        The exit code.

    Raises:
        TopologyError: the file has problems.
        ConfigError: it cannot be simulated, or an option is wrong.
    """
    from headrace.simulation.faults import EVERY_FAULT
    from headrace.simulation.run import Settings, simulate_all
    from topology.file.reading import read_topology

    if seconds <= 0:
        raise ConfigError(f"--seconds {seconds:g}: nothing would happen", hint="a number above 0; 30 is usual")
    kinds = named_faults(faults, EVERY_FAULT, words=("all", "none"))
    settings = Settings(faults=kinds, seconds=seconds, edits=edits)
    spec = read_topology(file, _AnyValue())
    done: list[Outcome] = []
    # Print the seed first, so that it is known whatever ends the run.
    output.say(f"simulating {spec.name}: {_numbers(seeds)}")
    with live_lines(output, f"simulating {spec.name}") as show:

        def progress(share: float) -> None:
            show(f"{len(done)} of {len(seeds)} seeds, {share:.0%}")

        for outcome in simulate_all(spec, seeds, settings, jobs=jobs or os.cpu_count() or 1, progress=progress):
            done.append(outcome)
            if not outcome.is_fine:
                break
    last = done[-1]
    output.json({"topology": spec.name, "outcomes": [{**asdict(each), "is_fine": each.is_fine} for each in done]})
    if last.is_fine:
        output.result(_summary(done))
        return DONE
    output.result(_told(last, seconds, faults, edits=edits))
    return FINDING


def _numbers(seeds: range) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}-{seeds[-1]}"


def _summary(done: list[Outcome]) -> str:
    faults = sum(sum(each.fired.values()) for each in done)
    transactions, virtual_s = sum(each.transactions for each in done), sum(each.virtual_s for each in done)
    seeds = range(done[0].seed, done[-1].seed + 1)
    lines = [
        f"{_numbers(seeds)}: every invariant holds; {transactions} transactions, {faults} faults and actions of the"
        f" operator, {virtual_s:.0f} virtual seconds"
    ]
    if len(done) == 1:
        lines.append(f"trace digest {done[0].digest}")
    return "\n".join(lines)


def _told(outcome: Outcome, seconds: float, faults: str, *, edits: bool) -> str:
    options = f"--seed {outcome.seed} --seconds {seconds:g} --faults {faults}{'' if edits else ' --no-edits'}"
    return "\n".join(
        [
            f"seed {outcome.seed}: does not hold: {outcome.invariant}",
            f"{outcome.place}: {outcome.problem}",
            "",
            "events of the change, and of everything around it:",
            *outcome.trace,
            "",
            f"trace digest {outcome.digest}",
            f"to repeat: headrace simulate FILE {options}",
        ]
    )
