"""The error queue of the command line: list, show, edit, execute, delete.

Listing and showing read the destination's database, so they work while the topology is down. The apply process edits,
executes and deletes, because it knows which transactions wait behind another.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError, counted
from headrace.commands.error_deletion import delete_together
from headrace.commands.error_execution import Execution
from headrace.console.exit_codes import DONE
from headrace.console.output import Output, scn_text
from topology.file.handlers import execution_handler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from actors.hosting.runtime import RayActors
    from headrace.commands.error_edits import WantedEdit
    from headrace.databases.connectors import DatabaseAccess
    from headrace.databases.ports import ConflictRecord
    from headrace.databases.ports.operator import RowReader
    from headrace.lcr.ddl import DdlChange
    from headrace.lcr.lcr_value import LcrValue
    from headrace.lcr.row_lcr import RowLcr
    from topology.spec import TopologySpec

__all__ = ["ErrorQueue"]

EDIT_TIMEOUT_S = 60.0  # reads and writes one part of a transaction, or deletes a group of transactions
SHOWN_ROWS_MAX = 1000  # of one transaction, besides the row that failed: more would not be read
SHOWN_CHARACTERS_MAX = 60  # of one value
_DETAIL = "DETAIL: "  # prefix of the database's DETAIL among the texts stored with an error


class ErrorQueue:
    """The error queues of a topology's apply processes.

    Args:
        spec: the topology.
        connect: connects to its actors; called only when they are needed.
    """

    def __init__(self, spec: TopologySpec, connect: Callable[[], RayActors]) -> None:
        self._spec = spec
        self._connect = connect

    def list_all(self, output: Output, apply: str) -> int:
        """List the error transactions, by apply process and number.

        Args:
            output: prints them.
            apply: name of an apply process; empty: all of the topology.

        Returns:
            The exit code.
        """
        errors = self._all(apply)
        output.json({"errors": errors})
        for error in errors:
            output.result(_line(error, is_short=True))
        output.result(counted(len(errors), "error transaction"))
        if errors and not output.as_json:
            output.say(
                "`headrace errors show FILE N` shows the rows of one; correct what it names, then "
                "`headrace errors execute FILE N` (or --all)"
            )
        return DONE

    def show(self, output: Output, number: int, apply: str, *, original: bool = False) -> int:
        """Show one error transaction: its row LCRs, changed columns, the destination's current row, and its edits.

        Args:
            output: prints its first `SHOWN_ROWS_MAX` row LCRs, and the one that failed.
            number: number of the error transaction.
            apply: name of its apply process; empty: the only one with this number.
            original: show it as it failed, without edits.

        Returns:
            The exit code.

        Raises:
            ConfigError: no error transaction, or several, have this number.
        """
        error = _found(self._all(apply), number)
        access = self._access_of(error["apply"])
        lcrs, edits = list(self._lcrs(error, access, original=original)), self._edits(number, access)
        output.json({"error": error, "lcrs": lcrs, "edits": edits})
        output.result(_line(error))
        for edit in edits:
            output.result(
                f"  edited by {edit['edited_by']} at {_time(edit['edited_us'])}, row {edit['position']}:"
                f" {', '.join(edit['changes'])}"
            )
        for place, lcr in enumerate(lcrs):
            if lcr["position"] > place:
                output.result(f"  ... {lcr['position'] - place} more")
            for line in _lines(lcr, error):
                output.result(line)
        if lcrs and (more := error["row_count"] - 1 - lcrs[-1]["position"]) > 0:
            output.result(f"  ... {more} more")
        return DONE

    def edit(self, output: Output, number: int, apply: str, wanted: WantedEdit) -> int:
        """Change values of one row LCR of an error transaction; its apply process must run.

        Args:
            output: prints the edit.
            number: number of the error transaction.
            apply: name of its apply process; empty: the only one with this number.
            wanted: the row and its values; without values, an editor is opened.

        Returns:
            The exit code: a finding when nothing was changed.

        Raises:
            ConfigError: the row or column does not exist, or a value does not fit the column.
        """
        from headrace.audit.operator import operator
        from headrace.commands.error_edits import edit_values, edited, not_edited, one_row
        from headrace.databases.connectors import open_row_reader

        error = _found(self._all(apply), number)
        access = self._access_of(error["apply"])
        with closing(open_row_reader(access)) as reader:
            lcr = one_row(self._rows(error, access, wanted.row), error, wanted)
            values = edit_values(output, error, lcr, reader, wanted)
        if not values:
            return not_edited(output)
        recorded = self._connect().call(
            f"apply:{error['apply']}",
            "edit_error",
            number,
            error["edits"] + 1,
            lcr.position,
            values,
            operator(),
            timeout_s=EDIT_TIMEOUT_S,
        )
        return edited(output, recorded)

    def execute(
        self, output: Output, numbers: list[int], apply: str, *, role: str = "", handler: str = "", stops: bool = False
    ) -> int:
        """Execute error transactions again, in queue order; each apply process must run.

        Args:
            output: prints outcomes when they are known.
            numbers: numbers of the error transactions; empty: all, including those that enter the queue meanwhile.
            apply: name of an apply process; empty: all that have one of the numbers.
            role: role of the destinations whose rights are checked; empty: the apply processes' own.
            handler: `module:function` that receives their row LCRs, from the file's code folder or installed; empty:
                they are applied as usual.
            stops: stop after the first that fails again; False: continue with those that do not wait behind it.

        Returns:
            The exit code: a finding when any is left.

        Raises:
            ConfigError: the function does not exist, or cannot be called with an LCR, an error and a session.
        """
        through = _through(self._spec.file, handler) if handler else b""
        execution = Execution(output=output, connect=self._connect, role=role, handler=through, stops=stops)
        chosen = self._chosen(numbers, apply) if numbers else []
        for name in self._applies(apply):
            if mine := [error["number"] for error in chosen if error["apply"] == name]:
                execution.execute(name, mine)
            elif not numbers and self._has_errors(name):
                execution.execute_all(name)
        return execution.tell(all_of_it=not numbers)

    def delete(self, output: Output, numbers: list[int], apply: str) -> int:
        """Delete error transactions: their changes are lost at the destination. Their apply processes must run.

        Args:
            output: prints the outcomes.
            numbers: numbers of the error transactions; empty: all.
            apply: name of an apply process; empty: all that have one of the numbers.

        Returns:
            The exit code: a finding when any is left.
        """

        def delete(name: str, chosen: list[int]) -> list[dict[str, Any]]:
            return list(self._connect().call(f"apply:{name}", "delete_errors", chosen, timeout_s=EDIT_TIMEOUT_S))

        return delete_together(output, self._chosen(numbers, apply), delete)

    def losses(self, numbers: list[int], apply: str) -> tuple[str, ...]:
        """Describe what deleting error transactions loses, one line each.

        Args:
            numbers: numbers of the error transactions; empty: all.
            apply: name of an apply process; empty: all that have one of the numbers.
        """
        return tuple(_line(error) for error in self._chosen(numbers, apply))

    def conflicts(self, apply: str, last: int) -> list[ConflictRecord]:
        """Return the history of conflicts at the destinations, by apply process and number.

        Args:
            apply: name of an apply process; empty: all of the topology.
            last: number of newest conflicts at each.
        """
        from headrace.databases.connectors import open_destination

        found: list[ConflictRecord] = []
        for name in self._applies(apply):
            with closing(open_destination(self._access(self._spec.apply(name).site))) as destination:
                found += destination.conflicts(self._spec.name, name, last=last)
        return found

    # ------------------------------------------------------------------ inside

    def _applies(self, apply: str) -> tuple[str, ...]:
        names = tuple(each.name for each in self._spec.applies)
        if apply and apply not in names:
            raise ConfigError(f"no apply process {apply!r}", hint=f"known: {', '.join(names)}")
        return (apply,) if apply else names

    def _access_of(self, apply: str) -> DatabaseAccess:
        """Return `_access` of a destination, with the keys by which an apply process finds rows there."""
        found = self._spec.apply(apply)
        return replace(self._access(found.site), tables=found.tables)

    def _access(self, site: str) -> DatabaseAccess:
        """Return access to a destination's database, even while the topology is down."""
        from actors.site.connection import access_to, running_access

        found = self._spec.site(site)
        try:
            return running_access(self._spec, found)
        except ConfigError:
            # It may run on another node; if nothing runs, this error says how to start it.
            return access_to(found, str(self._connect().call(f"site:{site}", "database_dsn")))

    def _all(self, apply: str) -> list[dict[str, Any]]:
        from headrace.databases.connectors import open_destination

        errors: list[dict[str, Any]] = []
        for name in self._applies(apply):
            with closing(open_destination(self._access(self._spec.apply(name).site))) as destination:
                found = [asdict(error) for error in destination.errors(self._spec.name, name)]
            there = {error["number"] for error in found}
            errors += [
                {**error, "waits_behind": error["depends_on"] if error["depends_on"] in there else 0} for error in found
            ]
        return sorted(errors, key=lambda error: (error["apply"], error["number"]))

    def _has_errors(self, apply: str) -> bool:
        """Return whether an apply process has error transactions: one without any need not run."""
        from headrace.databases.connectors import open_destination

        with closing(open_destination(self._access(self._spec.apply(apply).site))) as destination:
            return bool(destination.errors(self._spec.name, apply, first=1))

    def _edits(self, number: int, access: DatabaseAccess) -> list[dict[str, Any]]:
        from headrace.databases.connectors import open_destination

        with closing(open_destination(access)) as destination:
            return [asdict(edit) for edit in destination.error_edits(self._spec.name, number)]

    def _rows(self, error: Mapping[str, Any], access: DatabaseAccess, row: int | None) -> list[RowLcr]:
        """Return the row LCRs of the part of an error transaction that contains a row; None: the row that failed."""
        from headrace.databases.connectors import open_destination
        from headrace.lcr.row_lcr import RowLcr
        from protos.codec import decode

        position = error["failed_position"] if row is None else row
        with closing(open_destination(access)) as destination:
            for data in destination.error_batches(error["number"]):
                batch = decode(data)
                if batch.ddl is not None and position == batch.first_position:
                    raise ConfigError(
                        f"row {position} is a DDL LCR of {batch.ddl.base_table}: it has no values",
                        hint="errors execute makes it with the rows; errors delete discards all of them",
                    )
                if 0 <= position - batch.first_position < batch.row_count:
                    return [RowLcr(batch, position - batch.first_position)]
        return []

    def _lcrs(self, error: Mapping[str, Any], access: DatabaseAccess, *, original: bool) -> Iterator[dict[str, Any]]:
        from headrace.databases.connectors import open_destination, open_row_reader
        from headrace.lcr.row_lcr import RowLcr
        from protos.codec import decode

        left, failed = SHOWN_ROWS_MAX, error["failed_position"]
        with closing(open_destination(access)) as destination, closing(open_row_reader(access)) as reader:
            for data in destination.error_batches(error["number"], original=original):
                batch = decode(data)
                behind = batch.first_position + batch.row_count
                shown = range(min(batch.row_count, left))
                # The operator looks for the row that failed, so it is shown wherever it is.
                beyond = [failed - batch.first_position] if batch.first_position + len(shown) <= failed < behind else []
                for row in (*shown, *beyond):
                    if batch.ddl is not None:
                        yield _shown_ddl(batch.ddl, batch.first_position)
                        continue
                    lcr = RowLcr(batch, row)
                    yield _shown(lcr, reader, with_destination=lcr.position == failed)
                left -= len(shown)
                if left <= 0 and failed < behind:
                    return

    def _chosen(self, numbers: list[int], apply: str) -> list[dict[str, Any]]:
        """Return error transactions by number (none: all), per apply process in SCN order."""
        there = self._all(apply)
        chosen = [_found(there, number) for number in sorted(set(numbers))] if numbers else there
        return sorted(chosen, key=lambda error: (error["apply"], error["commit_scn"], error["number"]))


def _found(errors: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Return the error transaction with a number.

    Args:
        errors: those to choose from.
        number: its number.

    Raises:
        ConfigError: no apply process, or several, have it.
    """
    found = [error for error in errors if error["number"] == number]
    if not found:
        raise ConfigError(f"no error transaction {number}", hint="headrace errors list FILE shows the numbers")
    if len(found) > 1:
        names = ", ".join(error["apply"] for error in found)
        raise ConfigError(f"several apply processes have an error transaction {number}", hint=f"--apply one of {names}")
    return found[0]


def _time(time_us: int) -> str:
    return dt.datetime.fromtimestamp(time_us / 1e6, tz=dt.UTC).isoformat(timespec="seconds")


def _line(error: Mapping[str, Any], *, is_short: bool = False) -> str:
    """Return a line about an error transaction; `is_short` joins a message of several lines."""
    when, edited = _time(error["created_us"]), f", edited {counted(error['edits'], 'time')}" if error["edits"] else ""
    why = error["message"]
    if error["waits_behind"]:
        why = f"waits behind {error['waits_behind']}"
    elif error["depends_on"]:
        why = (
            f"waited behind {error['depends_on']}, which is gone: execute it now, after those of lower numbers that"
            " it depends on"
        )
    why = " ".join(why.splitlines()) if is_short else why
    kind = error["conflict_type"] or error["sqlstate"]
    return (
        f"{error['number']} {error['apply']} from {error['source']}: transaction {error['transaction_id']} at "
        f"{scn_text(error['commit_scn'])}, {counted(error['row_count'], 'row')}, {when}{edited}:"
        f" {kind + ': ' if kind else ''}{why}"
    )


def _lines(lcr: Mapping[str, Any], error: Mapping[str, Any]) -> Iterator[str]:
    """Yield one LCR as lines of text; the one that failed also with the database's error and its current row."""
    is_failed = lcr["position"] == error["failed_position"]
    yield f"{'> ' if is_failed else '  '}{lcr['position']}: {lcr['command']} {lcr['table']}"
    if "ddl_text" in lcr:
        yield from (f"      {line}" for line in lcr["ddl_text"].splitlines())
        return
    if lcr["command"] == "UPDATE":
        yield f"      row: {_row(lcr['old'] or lcr['new'])}"
        sets = {name: lcr["new"][name] for name in lcr["changed"]} if lcr["changed"] is not None else lcr["new"]
        yield f"      {'changes' if lcr['changed'] is not None else 'sets'}: {_row(sets)}"
    else:
        yield f"      row: {_row(lcr['new'] or lcr['old'])}"
    if is_failed:
        for text in error["readable"]:
            if text.startswith(_DETAIL):
                yield f"      the database: {text.removeprefix(_DETAIL)}"
        for row in lcr["destination_rows"] or ():
            yield f"      destination: {_row(row)}"
        if not lcr["destination_rows"]:
            yield "      destination: no row has this key" + (
                " (the row in the way is in `headrace conflicts`)" if error["conflict_type"].endswith("_exists") else ""
            )


def _row(values: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name}={'NULL' if value is None else value!r}" for name, value in values.items())


def _shown(lcr: RowLcr, reader: RowReader, *, with_destination: bool) -> dict[str, Any]:
    values = {kind: lcr.get_values(kind, use_old=False) for kind in ("old", "new")}
    old, new = values["old"], values["new"]
    shown: dict[str, Any] = {
        "position": lcr.position,
        "command": lcr.command_type,
        "table": f"{lcr.object_owner}.{lcr.object_name}",
        **{kind: _texts(found, reader) for kind, found in values.items()},
        # Only if the log has the complete old row: a key alone does not show the old values.
        "changed": [name for name in new if new[name].raw != old[name].raw]
        if old and new.keys() <= old.keys()
        else None,
    }
    if with_destination:
        # The old values find the row itself; the new values find rows in their way.
        keys = [{name: (value.column, value.raw) for name, value in each.items()} for each in (old, new) if each]
        rows = list(
            {str(row): row for key in keys for row in reader.beside(lcr.object_owner, lcr.object_name, key)}.values()
        )
        shown["destination_rows"] = [{name: _cut(text) for name, text in row.items()} for row in rows]
    return shown


def _shown_ddl(change: DdlChange, position: int) -> dict[str, Any]:
    """Return a DDL LCR for people: it has no values, and no row at the destination."""
    return {
        "position": position,
        "command": change.command_type,
        "table": f"{change.base_table_owner}.{change.base_table_name}",
        "ddl_text": change.ddl_text,
    }


def _texts(values: Mapping[str, LcrValue], reader: RowReader) -> dict[str, str | None]:
    if not values:
        return {}
    texts = reader.texts([value.column for value in values.values()], [value.raw for value in values.values()])
    return {name: _cut(text) for name, text in zip(values, texts, strict=True)}


def _cut(text: str | None) -> str | None:
    """Truncate a long value."""
    return text if text is None or len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "..."


def _through(file: Path, name: str) -> bytes:
    """Load a function for row LCRs and return it serialized; its problems are raised before anything is executed."""
    from headrace.rules.user_code.loading import load
    from spark_apply.handlers.loaded import ERROR_PARAMETERS

    wanted = execution_handler(file, name)
    load(wanted.function, wanted.code, ERROR_PARAMETERS)
    return wanted.to_bytes()
