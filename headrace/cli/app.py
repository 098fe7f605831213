"""The command line `headrace VERB FILE`, whose verbs are registered here.

A verb is a function in a module of its group. It declares its options and calls the module that does the work, mostly
one of `headrace.commands`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Annotated

import typer

from headrace.base.errors import HeadraceError
from headrace.cli import administration, changes, components, errors, rehearsals, tables, topology
from headrace.cli.verbs import ErrorVerbs, Verbs
from headrace.console.exit_codes import DONE, INTERRUPTED
from headrace.console.output import Output, ReaderLeft, exit_code_of
from headrace.console.process_end import (
    code_of_exit,
    defect,
    of_the_machine,
    reader_left,
    terminal_is_gone,
    terminated,
    unread,
    wrong_use,
)

__all__ = ["app", "main"]

# In the order in which `headrace --help` lists them.
_VERBS: tuple[Callable[..., int], ...] = (
    topology.check,
    topology.plan,
    rehearsals.simulate,
    administration.doctor,
    administration.certs,
    topology.up,
    topology.down,
    components.start,
    components.stop,
    components.split,
    components.merge,
    components.capture,
    topology.status,
    topology.wait,
    changes.track,
    changes.explain,
    tables.verify,
    tables.copy,
    tables.sequences,
    rehearsals.chaos,
    errors.conflicts,
    administration.audit,
    rehearsals.demo,
)
_ERROR_VERBS: Mapping[str, Callable[..., int]] = {
    "list": errors.errors_list,
    "show": errors.errors_show,
    "edit": errors.errors_edit,
    "execute": errors.errors_execute,
    "delete": errors.errors_delete,
}

app = Verbs(
    name="headrace",
    help="Log-based, rule-steered replication.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
errors_app = Verbs(
    name="errors",
    cls=ErrorVerbs,
    help="The error queue of the destinations. FILE alone lists it.",
    no_args_is_help=True,
)
for _verb in _VERBS:
    app.command()(_verb)
for _name, _verb in _ERROR_VERBS.items():
    errors_app.command(_name)(_verb)
app.add_typer(errors_app)


def main() -> None:
    """Entry point: run a verb and exit with its code; show errors without tracebacks."""
    output = Output(as_json="--json" in sys.argv, in_lines="--watch" in sys.argv)
    signal.signal(signal.SIGTERM, terminated)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under `nohup`
        # An editor's file with row values must not stay behind when the terminal is closed.
        signal.signal(signal.SIGHUP, terminated)
    try:
        code = _code_of_verb(output)
    except OSError as error:  # while reporting what had happened
        if not terminal_is_gone(error):
            raise
        code = unread()
    # From here on SIGTERM ends the process silently, as in a program without signal handlers.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(code if isinstance(code, int) else DONE)


def _code_of_verb(output: Output) -> object:
    """Run a verb; return the exit code.

    Raises:
        OSError: the terminal is gone.
    """
    try:
        code = app(standalone_mode=False)
        output.flush()
    except HeadraceError as error:
        output.error(error)
        code = exit_code_of(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except SystemExit as error:
        code = code_of_exit(error)
    except ReaderLeft:
        code = reader_left()
    except Exception as error:  # noqa: BLE001 - the last resort: users never see a traceback
        code = (
            unread()
            if terminal_is_gone(error)
            else wrong_use(error) or of_the_machine(output, error) or defect(output, error)
        )
    if code == INTERRUPTED:  # typer returns it for Ctrl-C too
        output.say("interrupted")
    return code


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        Output().result(f"headrace {metadata.version('headrace')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Log-based, rule-steered replication."""


if __name__ == "__main__":
    main()
