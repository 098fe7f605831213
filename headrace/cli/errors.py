"""Verbs for errors and conflicts of apply processes: `errors` with its own verbs, and `conflicts`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.errors import ConfigError, counted
from headrace.cli.deployments import deployment_of
from headrace.cli.options import Address, Apply, File, Json, Number, Numbers
from headrace.console.exit_codes import FINDING
from headrace.console.output import Output

if TYPE_CHECKING:
    from headrace.commands.error_queue import ErrorQueue

__all__ = ["errors_list", "errors_show", "errors_edit", "errors_execute", "errors_delete", "conflicts"]

_LOSSES_SHOWN = 20  # lines that fit on a terminal


def errors_list(file: File, address: Address = "", as_json: Json = False, apply: Apply = "") -> int:
    """List error transactions in the order they failed."""
    return _errors(file, address, as_json, lambda queue, output: queue.list_all(output, apply))


def errors_show(
    file: File,
    number: Number,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    original: Annotated[bool, typer.Option("--original", help="Show it as it failed, without edits.")] = False,
) -> int:
    """Show one error transaction with its row LCRs."""
    return _errors(file, address, as_json, lambda queue, output: queue.show(output, number, apply, original=original))


def errors_edit(
    file: File,
    number: Number,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    row: Annotated[
        int | None,
        typer.Option("--row", min=0, help="Number of the row, as in `errors show`. Default: the one that failed."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="column=value; old.column=value is the value before an UPDATE. Can be repeated."),
    ] = None,
    nulls: Annotated[
        list[str] | None, typer.Option("--null", help="A column that becomes NULL. Can be repeated.")
    ] = None,
) -> int:
    """Change values of a row of an error transaction: with --set and --null, or in an editor. The original is kept."""
    from headrace.commands.error_edits import WantedEdit

    wanted = WantedEdit(row=row, sets=tuple(sets or ()), nulls=tuple(nulls or ()))
    return _errors(file, address, as_json, lambda queue, output: queue.edit(output, number, apply, wanted))


def errors_execute(  # noqa: PLR0913, PLR0917 - one per option
    file: File,
    numbers: Numbers = None,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    everything: Annotated[
        bool, typer.Option("--all", help="All of them, including those that enter the queue meanwhile.")
    ] = False,
    role: Annotated[
        str, typer.Option("--role", help="Role at the destination whose rights are checked, not the apply process's.")
    ] = "",
    handler: Annotated[
        str,
        typer.Option(
            "--handler",
            help="module:function that receives each row LCR instead of applying it as usual, in the file's code folder"
            " or installed.",
        ),
    ] = "",
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop at the first that fails again. Default: continue with the others.")
    ] = False,
) -> int:
    """Execute error transactions again, in queue order."""
    return _errors(
        file,
        address,
        as_json,
        lambda queue, output: queue.execute(
            output, _chosen(numbers, everything), apply, role=role, handler=handler, stops=stop
        ),
    )


def errors_delete(
    file: File,
    numbers: Numbers = None,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Delete error transactions: their changes are lost at the destination."""

    def delete(queue: ErrorQueue, output: Output) -> int:
        chosen = _chosen(numbers, everything)
        if not yes and not _may_delete(output, queue.losses(chosen, apply)):
            output.say("nothing was deleted")
            return FINDING
        return queue.delete(output, chosen, apply)

    return _errors(file, address, as_json, delete)


def _may_delete(output: Output, losses: tuple[str, ...]) -> bool:
    """Ask before error transactions are deleted; without any, return True without asking.

    Raises:
        ConfigError: there is no terminal at which to ask.
    """
    if not losses:
        return True
    if output.as_json or not sys.stdin.isatty():
        raise ConfigError(
            f"`errors delete` loses the changes of {counted(len(losses), 'error transaction')} for good",
            hint="confirm with --yes",
        )
    for line in losses[:_LOSSES_SHOWN]:
        output.say(line)
    if len(losses) > _LOSSES_SHOWN:
        output.say(f"... {len(losses) - _LOSSES_SHOWN} more")
    return typer.confirm(
        f"Lose the changes of {counted(len(losses), 'error transaction')} at the destination?", err=True
    )


def _errors(file: Path, address: str, as_json: bool, run: Callable[[Any, Output], int]) -> int:  # noqa: FBT001
    from headrace.commands.error_queue import ErrorQueue

    with deployment_of(file, address) as deployment:
        return run(ErrorQueue(deployment.spec, deployment.connect), Output(as_json=as_json))


def _chosen(numbers: list[int] | None, everything: bool) -> list[int]:  # noqa: FBT001
    """Return the given numbers; empty for all."""
    if bool(numbers) == everything:
        raise ConfigError("name error transactions, or use --all", hint="headrace errors list FILE shows their numbers")
    return numbers or []


def conflicts(
    file: File,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    last: Annotated[int, typer.Option("--last", min=1, max=100_000, help="Number of newest conflicts.")] = 100,
) -> int:
    """List the conflicts that apply processes met: who won, with old, new and current values."""
    from headrace.commands.conflicts import list_conflicts

    return _errors(file, address, as_json, lambda queue, output: list_conflicts(queue, output, apply, last))
