"""The command line: `headrace VERB FILE`. Each verb is a few lines here and calls the module that does the work.

Longer than 500 lines: one short function per command, with its options; what a command does is in `headrace.commands`
and beside it.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.audit.verbs import began, noting
from headrace.base.errors import ConfigError, HeadraceError, counted
from headrace.console.exit_codes import DONE, FAILURE, FINDING, INTERRUPTED
from headrace.console.output import Output, ReaderLeft, exit_code_of
from headrace.console.process_end import (
    code_of_exit,
    defect,
    goes_on,
    of_the_machine,
    reader_left,
    terminal_is_gone,
    terminated,
    unread,
    wrong_use,
)

if TYPE_CHECKING:
    from headrace.commands.error_queue import ErrorQueue
    from headrace.deployment.deployment import Deployment

__all__ = ["app", "main"]

_LOSSES_SHOWN = 20  # lines that fit a terminal


class _Verb(TyperCommand):
    """Every verb of the command line.

    Those that change what runs, or what rows are, are noted with who ran them (`headrace.audit`).
    """

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - of typer's own click
        words: list[str] = []
        above = ctx
        while above.parent is not None:  # the outermost has the program's name
            words, above = [above.info_name, *words], above.parent
        Output.file = ctx.params.get("file") or ""
        with noting(" ".join(words), ctx.params, Output().say) as returned:
            code = super().invoke(ctx)
            returned(code)
            return code


class _Verbs(typer.Typer):
    """A command line whose verbs all are `_Verb`."""

    def command(
        self,
        name: str | None = None,
        *,
        cls: type[TyperCommand] | None = _Verb,
        **settings: Any,  # noqa: ANN401 - typer's
    ) -> Callable[..., Any]:
        return super().command(name, cls=cls, **settings)


app = _Verbs(
    name="headrace",
    help="Log-based, rule-steered replication.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _ErrorVerbs(TyperGroup):
    """`headrace errors FILE` lists, as every other verb takes the file next."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - of typer's own click
        if args and args[0] not in self.commands and args[0].endswith((".yaml", ".yml")):
            args = ["list", *args]
        return super().resolve_command(ctx, args)


errors_app = _Verbs(
    name="errors",
    cls=_ErrorVerbs,
    help="The error queue of the destinations. FILE alone lists it.",
    no_args_is_help=True,
)
app.add_typer(errors_app)

File = Annotated[Path, typer.Argument(help="The topology's YAML file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="List each finding; without it several of one kind are told once.")
]
Address = Annotated[
    str,
    typer.Option(
        "--address",
        help="Ray cluster to run on; without it a private one on this machine.",
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
CAUGHT_UP_S = 600.0  # before tables are compared: a backlog of some minutes
Tables = Annotated[
    list[str] | None, typer.Argument(help="Tables with their schemas, as the source calls them.", show_default=False)
]
Apply = Annotated[str, typer.Option("--apply", help="Only this apply process.")]


def main() -> None:
    """Entry point: run a verb and exit with its code; show errors without tracebacks."""
    output = Output(as_json="--json" in sys.argv, in_lines="--watch" in sys.argv)
    signal.signal(signal.SIGTERM, terminated)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under `nohup`
        # a terminal that is closed must not leave an editor's file with a row's values
        signal.signal(signal.SIGHUP, terminated)
    try:
        code = _code_of_verb(output)
    except OSError as error:  # while it said what had happened
        if not terminal_is_gone(error):
            raise
        code = unread()
    # From here on SIGTERM ends the process silently, as in a program without signal handlers.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(code if isinstance(code, int) else DONE)


def _code_of_verb(output: Output) -> object:
    """Run a verb; the code to exit with.

    Raises:
        OSError: the terminal that it writes to is gone.
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
        bool, typer.Option("--version", help="Show the version and end.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Log-based, rule-steered replication."""


@contextmanager
def _deployment(file: Path, address: str = "", *, to_start: bool = False) -> Iterator[Deployment]:
    from headrace.deployment.deployment import Deployment

    deployment = Deployment.read(file, address, to_start=to_start)
    began(deployment.spec.state_dir)
    try:
        yield deployment
    finally:
        deployment.disconnect()


# --------------------------------------------------------------------------- before anything runs


@app.command()
def check(
    file: File,
    as_json: Json = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the databases.")] = False,
    verbose: Verbose = False,
) -> int:
    """Report every problem of a topology, and of its databases as far as they can be reached."""
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
            "proven from the file: every change arrives once wherever it goes, and none comes home (`headrace plan`"
            " shows who gets what)"
        )
    problems = sum(1 for finding in findings if finding.is_error)
    output.result(f"{file}: {counted(problems, 'problem')}, {counted(len(findings) - problems, 'warning')}")
    return FINDING if problems else DONE


@app.command()
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


@app.command()
def simulate(
    file: File,
    as_json: Json = False,
    seed: Annotated[
        str,
        typer.Option(
            "--seed", help="Decides everything: a number, or FIRST-LAST for several. Default: a random one, printed."
        ),
    ] = "",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Run so many seeds, from --seed on.")] = 1,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Virtual time in which users write and things break.")
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
            "--edits/--no-edits", help="The operator edits the topology, stops components, restores a backup."
        ),
    ] = True,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes for several seeds; 0: one per core.")] = 0,
) -> int:
    """Run the topology on databases in memory, in virtual time, while things break. Reads the file alone."""
    from headrace.commands.simulated import run_seeds, seeds_of

    output = Output(as_json=as_json)
    return run_seeds(output, file, seeds_of(seed, seeds), seconds=seconds, faults=faults, edits=edits, jobs=jobs)


@app.command()
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


@app.command()
def certs(
    topology: Annotated[Path, typer.Option("--topology", help="The topology's YAML file.", show_default=False)],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The folder that gets the files.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Make a private authority and a certificate for every site that has none in DIR. Overwrites nothing.

    Without DIR: print the fingerprints of those in use.
    """
    from headrace.commands.certificates import make, show
    from topology.file.reading import read_topology

    spec = read_topology(topology, to_start=False)
    if folder is None:
        show(spec, Output(as_json=as_json))
    else:
        make(spec, folder, Output(as_json=as_json))
    return DONE


# --------------------------------------------------------------------------- life


@app.command()
def up(
    file: File,
    address: Address = "",
    as_json: Json = False,
    keep_existing: Annotated[
        bool,
        typer.Option(
            "--keep-existing",
            help="Accept destination tables that hold rows, and keep those rows; only for the tables of this call.",
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
    started = goes_on(output, "what was started goes on: `headrace status FILE` shows it, `headrace down FILE` ends it")
    with _deployment(file, address, to_start=True) as deployment, live_lines(output, "up") as show, started:
        show(
            "asking what runs for what differs from the file"
            if deployment.is_cluster_there()
            else "starting Ray and the servers"
        )
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


@app.command()
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
            help="With --purge: embedded servers stay and run on, with their tables; what Headrace created in them is"
            " removed.",
        ),
    ] = False,
) -> int:
    """Stop a topology; its objects in the databases stay unless purged. Idempotent."""
    from headrace.commands.kept import slots_kept, tombstones_kept

    output = Output(as_json=as_json)
    if keep_servers and not purge:
        raise ConfigError("--keep-servers says what --purge leaves", hint="`headrace down` alone removes nothing")
    with _deployment(file, address) as deployment:
        if purge and not yes and not _may_purge(output, deployment, keep_servers=keep_servers):
            output.say("nothing was done")
            return FINDING
        problems = deployment.down(purge=purge, keep_servers=keep_servers, progress=output.say)
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
        output.say("fix: correct it and run the same command again; what is done stays done")
    for slot in kept:
        output.say(f"warning: {slot.text()}; it ends with `headrace up FILE` or `headrace down FILE --purge`")
    for site, tables in noting.items():
        output.say(
            f"the triggers at {site} go on noting deletes of {', '.join(tables)} (tombstones), and nothing forgets old"
            " notes until `headrace up FILE`; `down --purge` drops them"
        )
    return FAILURE if problems else DONE


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


@app.command()
def start(file: File, component: Component, address: Address = "") -> int:
    """Start a component that was stopped or has aborted; it stays started across restarts."""
    return _switch(file, component, address, on=True)


@app.command()
def stop(file: File, component: Component, address: Address = "") -> int:
    """Stop a component; it stays stopped across restarts."""
    return _switch(file, component, address, on=False)


@app.command()
def split(file: File, propagation: Propagation, address: Address = "", as_json: Json = False) -> int:
    """Split a propagation off: it gets a queue and capture processes of its own, and nothing else waits for it any more.

    Split off by hand, it stays so until it is merged by hand.
    """
    from headrace.commands.split_streams import split_off

    output = Output(as_json=as_json)
    with _deployment(file, address) as deployment:
        found = split_off(deployment, propagation)
    output.json(found.document)
    output.result(found.text)
    return DONE if found.is_done else FINDING


@app.command()
def merge(file: File, propagation: Propagation, address: Address = "", as_json: Json = False) -> int:
    """Merge a propagation that is split off, as soon as it is at most its merge_threshold behind the others."""
    from headrace.commands.split_streams import merge as merge_stream

    output = Output(as_json=as_json)
    with _deployment(file, address) as deployment:
        found = merge_stream(deployment, propagation)
    output.json(found.document)
    output.result(found.text)
    return DONE


@app.command()
def capture(
    file: File,
    name: Annotated[str, typer.Argument(help="A capture process of the topology.", show_default=False)],
    address: Address = "",
    as_json: Json = False,
    first_scn: Annotated[
        str,
        typer.Option(
            "--first-scn", help="Raise the first SCN: redo before it is not kept for this capture process any more."
        ),
    ] = "",
    start_scn: Annotated[
        str,
        typer.Option("--start-scn", help="Capture everything after this SCN again; destinations drop what they have."),
    ] = "",
) -> int:
    """Show the SCNs of a capture process, or set its first or start SCN.

    SCNs are written as status shows them, or as numbers.
    """
    from headrace.commands.capture_scns import scn_given, scns_of, set_scns, text_of

    output = Output(as_json=as_json)
    first, start = scn_given(first_scn, "--first-scn"), scn_given(start_scn, "--start-scn")
    with _deployment(file, address) as deployment:
        set_scns(deployment, name, first_scn=first, start_scn=start)
        found = scns_of(deployment, name)
    output.json(found)
    output.result(text_of(found))
    return DONE


def _switch(file: Path, component: str, address: str, *, on: bool) -> int:
    with _deployment(file, address) as deployment:
        Output().say(deployment.switch(component, on=on))
    return DONE


# --------------------------------------------------------------------------- watching


@app.command()
def status(
    file: File,
    address: Address = "",
    as_json: Json = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Refresh every second until Ctrl-C; with --json, print one document per line."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="With SCNs and details of every component.")] = False,
) -> int:
    """Show what needs an operator, then lag and errors of every flow, and the components' states.

    Exits with 1 when something does not work or needs an operator.
    """
    from headrace.commands.described import with_descriptions
    from headrace.console.progress import watch_forever
    from headrace.console.status_view import is_healthy, render

    output = Output(as_json=as_json, in_lines=watch)
    with _deployment(file, address) as deployment:
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


@app.command()
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
    with _deployment(file, address) as deployment, live_lines(output, "wait") as show:
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


@app.command()
def track(
    file: File,
    label: Annotated[
        str,
        typer.Option("--label", help="The transactions' label, as headrace.track('LABEL') set it.", show_default=False),
    ],
    address: Address = "",
    as_json: Json = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Look until they have arrived everywhere; with --json, print one document per line."
        ),
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Longest --watch in seconds; unlimited by default.")
    ] = None,
    sql: Annotated[
        bool,
        typer.Option(
            "--sql",
            help="Print the statement that labels a transaction, also at a source without the schema headrace; nothing"
            " need run.",
        ),
    ] = False,
) -> int:
    """Follow labelled transactions through every component, with times.

    Exits with 1 when one has not arrived everywhere.
    """
    from headrace.tracing.track import checked_label, labelling, look
    from headrace.tracing.track import track as track_label

    output, wanted = Output(as_json=as_json, in_lines=watch), checked_label(label)
    if sql:
        output.json({"statement": labelling(wanted)})
        output.result(labelling(wanted))
        return DONE
    with _deployment(file, address) as deployment:
        actors = deployment.connect()
        return track_label(
            output,
            lambda: look(deployment.running, actors, wanted, deployment.overview()),
            watch=watch,
            timeout_s=timeout,
        )


@app.command()
def explain(
    file: File,
    table: Annotated[str, typer.Argument(help="The table, with its schema, as the source calls it.")],
    key: Annotated[str, typer.Argument(help="The row: 42, or id=42, or order=7,line=1.")],
    address: Address = "",
    as_json: Json = False,
    at: Annotated[str, typer.Option("--at", help="Only at this destination.")] = "",
) -> int:
    """Say why a row is missing or different at its destinations: the first place where its change stopped."""
    from headrace.commands.verification import table_name
    from headrace.console.progress import live_lines
    from headrace.lcr.table_name import TableName
    from headrace.tracing.explain import RowQuestion, explain_row, parsed_key

    output = Output(as_json=as_json)
    question = RowQuestion(table=TableName(*table_name(table)), key=parsed_key(key), at=at)
    with _deployment(file, address) as deployment, live_lines(output, "explain") as show:
        actors = deployment.connect()
        return explain_row(output, deployment.running, actors, question, overview=deployment.overview(), progress=show)


@app.command()
def verify(
    file: File,
    tables: Tables = None,
    address: Address = "",
    as_json: Json = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait until caught up.")] = CAUGHT_UP_S,
) -> int:
    """Compare every replicated table at source and destination, or those named.

    Rows that differ are named by their keys.
    """
    from headrace.commands.table_copies import different_tables
    from headrace.commands.verification import comparison_line, difference_lines, table_name, verify_topology
    from headrace.console.progress import live_lines
    from headrace.lcr.table_name import TableName, quoted_name
    from spark_apply.copy.standing import correct_alone

    output = Output(as_json=as_json)
    with _deployment(file, address) as deployment, live_lines(output, "verify") as show:
        comparisons = verify_topology(
            deployment.spec,
            deployment.connect(),
            timeout_s=timeout,
            progress=show,
            overview=deployment.overview,
            tables=[table_name(table) for table in tables or ()],
        )
    identical = all(comparison["equal"] for comparison in comparisons)
    output.json({"identical": identical, "tables": comparisons})
    for comparison in comparisons:
        output.result("\n".join([comparison_line(comparison), *difference_lines(comparison)]))
    differing, uncompared = different_tables(comparisons), sum(bool(each["problem"]) for each in comparisons)
    words = ["different"] if differing else []
    words += [f"{counted(uncompared, 'table')} not compared"] if uncompared else []
    output.result(", ".join(words) or "identical")
    if differing:
        copied = different_tables([each for each in comparisons if each["can_be_copied"]])
        names = shlex.join(quoted_name(TableName(*table)) for table in copied)
        shared = len(copied) < len(differing) or any(len(copied[table]) < len(differing[table]) for table in copied)
        output.say(
            "fix: transactions that could not be applied are in the error queue (headrace errors list FILE); correct"
            " rows that were changed by hand at the destination"
            + (f", or copy again: headrace copy FILE {names}" if names else "")
            + (
                "; a table that others write too is not copied again: correct its rows at the destination alone:"
                f" {correct_alone()}"
                if shared
                else ""
            )
        )
    return DONE if identical else FINDING


@app.command()
def copy(
    file: File,
    tables: Tables = None,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    different: Annotated[
        bool,
        typer.Option(
            "--different",
            help="Compare first (all tables, or those named), and copy those that differ, where they differ.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the destination tables are emptied.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the tables are copied and have joined the others.")
    ] = True,
) -> int:
    """Empty tables at their destinations and copy them again, while the others are applied."""
    from headrace.commands.table_copies import copied_line, copy_again, different_tables, wait_copied
    from headrace.commands.verification import comparison_line, table_name, verify_topology
    from headrace.console.progress import live_lines

    output, names = Output(as_json=as_json), [table_name(table) for table in tables or ()]
    if not names and not different:
        raise ConfigError(
            "no table is named",
            hint="headrace copy FILE TABLE ..., or those that differ: headrace copy FILE --different",
        )
    with _deployment(file, address) as deployment, live_lines(output, "copy") as show:
        wanted = {name: [apply] if apply else [] for name in names}
        if different:
            compared = verify_topology(
                deployment.spec,
                deployment.connect(),
                timeout_s=CAUGHT_UP_S,
                progress=show,
                overview=deployment.overview,
                tables=names,
            )
            wanted = different_tables([each for each in compared if apply in {"", each["apply"]}])
            for each in compared:
                if each["problem"]:
                    output.say(comparison_line(each))
        if (
            wanted
            and not yes
            and not typer.confirm(
                f"Remove the rows of {_listed(wanted)} at their destinations and copy them again?", err=True
            )
        ):
            output.say("nothing was done")
            return FINDING
        begun = copy_again(deployment.spec, deployment.connect(), wanted)
        with goes_on(output, "the copy goes on: `headrace status FILE` shows it"):
            copied = wait_copied(deployment.overview, begun, progress=show) if wait else begun
    output.json({"tables": copied})
    for each in copied:
        output.result(copied_line(each))
    if not copied:
        output.result("no table differs")
    return DONE


def _listed(tables: Iterable[tuple[str, str]]) -> str:
    return ", ".join(".".join(table) for table in tables)


@app.command()
def sequences(
    file: File,
    as_json: Json = False,
    advance: Annotated[
        bool, typer.Option("--advance", help="Set the destinations' sequences ahead of the sources'.")
    ] = False,
    ahead: Annotated[
        int,
        typer.Option("--ahead", help="Number of values to skip between the source's next one and the destination's."),
    ] = 0,
    at: Annotated[str, typer.Option("--at", help="Only at this destination.")] = "",
) -> int:
    """Compare the sequences of replicated columns before a switch-over; exits with 1 when a destination's is behind."""
    from headrace.commands.sequences import compare_sequences
    from topology.file.reading import read_topology

    output = Output(as_json=as_json)
    spec = read_topology(file, to_start=False)
    began(spec.state_dir)
    found = compare_sequences(spec, advance=advance, ahead=ahead, at=at)
    behind = [line for line in found.lines if line.problem and line.destination_next is not None]
    output.json(
        {
            "sequences": [line.as_dict() for line in found.lines],
            "not_looked_at": [each.as_dict() for each in found.not_looked_at],
        }
    )
    for text in (each.text() for part in (found.lines, found.not_looked_at) for each in part):
        output.result(text)
    output.result(f"{len(found.lines)} sequences, {len(behind)} behind")
    if behind and not advance:
        output.say("fix: stop the writers, wait until everything is applied, then run the same command with --advance")
    return FINDING if behind else DONE


@app.command()
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
        bool, typer.Option("--load", help="Write at every source meanwhile (embedded servers; tables of its own).")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the seed would break first; break nothing.")
    ] = False,
    allow_servers: Annotated[
        bool,
        typer.Option(
            "--allow-servers", help="Also where databases are servers of your own, for tests; they are never stopped."
        ),
    ] = False,
) -> int:
    """Break a running topology on purpose, again and again; report what healed, and compare everything.

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
    with _deployment(file) as deployment:
        if dry_run:
            return show_schedule(output, deployment.spec, options)
        others = ", ".join(own_servers(deployment.spec)) if allow_servers else ""
        if (
            others
            and sys.stdin.isatty()
            and not typer.confirm(f"Break replication between your servers ({others}) again and again?", err=True)
        ):
            output.say("nothing was done")
            return FINDING
        return run_chaos(output, deployment, options)


# --------------------------------------------------------------------------- error queue


@errors_app.command("list")
def errors_list(file: File, address: Address = "", as_json: Json = False, apply: Apply = "") -> int:
    """List error transactions in the order they failed."""
    return _errors(file, address, as_json, lambda queue, output: queue.list_all(output, apply))


@errors_app.command("show")
def errors_show(
    file: File,
    number: Number,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    original: Annotated[bool, typer.Option("--original", help="As it failed, without edits.")] = False,
) -> int:
    """Show one error transaction with its row LCRs."""
    return _errors(file, address, as_json, lambda queue, output: queue.show(output, number, apply, original=original))


@errors_app.command("edit")
def errors_edit(
    file: File,
    number: Number,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    row: Annotated[
        int | None,
        typer.Option("--row", min=0, help="Which row, as `errors show` counts them. Default: the one that failed."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="column=value; old.column=value is the value before an UPDATE. Can be repeated."),
    ] = None,
    nulls: Annotated[
        list[str] | None, typer.Option("--null", help="A column that becomes NULL. Can be repeated.")
    ] = None,
) -> int:
    """Give a row of an error transaction other values: with --set and --null, or in an editor. The original is kept."""
    from headrace.commands.error_edits import WantedEdit

    wanted = WantedEdit(row=row, sets=tuple(sets or ()), nulls=tuple(nulls or ()))
    return _errors(file, address, as_json, lambda queue, output: queue.edit(output, number, apply, wanted))


@errors_app.command("execute")
def errors_execute(  # noqa: PLR0913, PLR0917 - one per option
    file: File,
    numbers: Numbers = None,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    everything: Annotated[
        bool, typer.Option("--all", help="All of them, also those that enter the queue meanwhile.")
    ] = False,
    role: Annotated[
        str, typer.Option("--role", help="A role of the destination: its rights are checked, not the apply process's.")
    ] = "",
    handler: Annotated[
        str,
        typer.Option(
            "--handler",
            help="module:function that gets each row LCR instead of the usual way, in the file's code folder or"
            " installed.",
        ),
    ] = "",
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop at the first that fails again. Default: go on with the others.")
    ] = False,
) -> int:
    """Execute error transactions again, in the order of the queue."""
    return _errors(
        file,
        address,
        as_json,
        lambda queue, output: queue.execute(
            output, _chosen(numbers, everything), apply, role=role, handler=handler, stops=stop
        ),
    )


@errors_app.command("delete")
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
    """Ask before error transactions are deleted; nothing is asked where there are none.

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

    with _deployment(file, address) as deployment:
        return run(ErrorQueue(deployment.spec, deployment.connect), Output(as_json=as_json))


def _chosen(numbers: list[int] | None, everything: bool) -> list[int]:  # noqa: FBT001
    """The numbers given; none for all."""
    if bool(numbers) == everything:
        raise ConfigError("name error transactions, or say --all", hint="headrace errors list FILE shows their numbers")
    return numbers or []


@app.command()
def conflicts(
    file: File,
    address: Address = "",
    as_json: Json = False,
    apply: Apply = "",
    last: Annotated[int, typer.Option("--last", min=1, max=100_000, help="So many of the newest ones.")] = 100,
) -> int:
    """List the conflicts that apply processes met: who won, with old, new and current values."""
    from headrace.commands.conflicts import list_conflicts

    return _errors(file, address, as_json, lambda queue, output: list_conflicts(queue, output, apply, last))


@app.command()
def audit(
    file: File,
    as_json: Json = False,
    last: Annotated[int, typer.Option("--last", min=1, max=100_000, help="So many of the newest ones.")] = 100,
) -> int:
    """List the commands that changed what runs or what rows are: when, who, and how they ended."""
    from headrace.audit.listing import list_commands
    from topology.file.reading import read_topology

    return list_commands(Output(as_json=as_json), read_topology(file, to_start=False).state_dir, last)


# --------------------------------------------------------------------------- demo


@app.command()
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
            "--tagged", help="Two-way with rules that take tagged changes too: shows what cycles then.", hidden=True
        ),
    ] = False,
    transactions: Annotated[int, typer.Option("--transactions", min=100, help="At each writing site.")] = 8000,
    clients: Annotated[int, typer.Option("--clients", min=1, help="Concurrent clients at each writing site.")] = 4,
    kill: Annotated[
        str,
        typer.Option("--kill", help="What is killed: capture, queue, propagation, apply, driver, site, controller."),
    ] = "capture",
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Where everything is kept; removed at the end.")
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


def _failpoints() -> dict[str, str]:
    from headrace.base.failpoints import ENVIRONMENT

    return {ENVIRONMENT: os.environ[ENVIRONMENT]} if os.environ.get(ENVIRONMENT) else {}


if __name__ == "__main__":
    main()
