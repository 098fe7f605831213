"""The error queue, from the command line: list, show, execute, delete."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from headrace.console import DONE, FINDING, Output, scn_text
from streams.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.runtime import RayActors
    from streams.lcr import LcrValue, RowLcr
    from streams.lcr_batch import Column
    from topology.spec import TopologySpec

    ValueReader = Callable[[Column, bytes], str]

__all__ = ["ErrorQueue"]

CALL_TIMEOUT_S = 60.0
EXECUTE_TIMEOUT_S = 3600.0  # a transaction may have millions of rows
SHOWN_ROWS_MAX = 1000  # of one transaction: more is nothing a person reads
SHOWN_CHARACTERS_MAX = 60  # of one value


class ErrorQueue:
    """The error queues of a topology's apply processes."""

    def __init__(self, spec: TopologySpec, actors: RayActors) -> None:
        self._spec = spec
        self._actors = actors

    def list_all(self, output: Output, apply: str) -> int:
        """List the error transactions."""
        errors = self._all(apply)
        output.json({"errors": errors})
        for error in errors:
            output.result(_line(error))
        output.result(f"{len(errors)} error transactions")
        if errors and not output.as_json:
            output.say("`headrace errors show FILE N` shows the rows of one; mend what it names, then `headrace errors execute FILE N` (or --all)")
        return DONE

    def show(self, output: Output, number: int, apply: str) -> int:
        """Show one error transaction with its row LCRs."""
        error = self._find(number, apply)
        lcrs = self._lcrs(error)
        output.json({"error": error, "lcrs": lcrs})
        output.result(_line(error))
        for lcr in lcrs:
            mark = "> " if lcr["position"] == error["failed_position"] else "  "
            output.result(f"{mark}{lcr['position']}: {lcr['command']} {lcr['table']} old {lcr['old']} new {lcr['new']}")
        if error["row_count"] > len(lcrs):
            output.result(f"  ... {error['row_count'] - len(lcrs)} more")
        return DONE

    def execute(self, output: Output, numbers: list[int], apply: str) -> int:
        """Execute error transactions again, in order."""
        return self._change(output, numbers, apply, "execute_errors", "executed")

    def delete(self, output: Output, numbers: list[int], apply: str) -> int:
        """Delete error transactions."""
        return self._change(output, numbers, apply, "delete_errors", "deleted")

    # ------------------------------------------------------------------ inside

    def _applies(self, apply: str) -> tuple[str, ...]:
        names = tuple(each.name for each in self._spec.applies)
        if apply and apply not in names:
            raise ConfigError(f"no apply process {apply!r}", hint=f"known: {', '.join(names)}")
        return (apply,) if apply else names

    def _all(self, apply: str) -> list[dict[str, Any]]:
        errors: list[dict[str, Any]] = []
        for name in self._applies(apply):
            errors += self._actors.call(f"apply:{name}", "errors", timeout_s=CALL_TIMEOUT_S)
        return sorted(errors, key=lambda error: (error["apply"], error["number"]))

    def _find(self, number: int, apply: str) -> dict[str, Any]:
        found = [error for error in self._all(apply) if error["number"] == number]
        if not found:
            raise ConfigError(f"no error transaction {number}", hint="headrace errors list FILE shows what there is")
        if len(found) > 1:
            names = ", ".join(error["apply"] for error in found)
            raise ConfigError(f"several apply processes have an error transaction {number}", hint=f"--apply one of {names}")
        return found[0]

    def _lcrs(self, error: dict[str, Any]) -> list[dict[str, Any]]:
        from databases.connectors import value_reader
        from protos.codec import decode
        from streams.lcr import RowLcr

        batches: list[bytes] = self._actors.call(
            f"apply:{error['apply']}", "error_batches", error["number"], timeout_s=CALL_TIMEOUT_S
        )
        read = value_reader(self._spec.site(error["source"]).database.kind)
        lcrs: list[dict[str, Any]] = []
        for data in batches:
            batch = decode(data)
            rows = range(min(batch.row_count, SHOWN_ROWS_MAX - len(lcrs)))
            lcrs.extend(_shown(RowLcr(batch, row), read) for row in rows)
        return lcrs

    def _change(self, output: Output, numbers: list[int], apply: str, method: str, word: str) -> int:
        outcomes: list[dict[str, Any]] = []
        for name, theirs in self._by_apply(numbers, apply).items():
            answers = self._actors.call(f"apply:{name}", method, theirs, timeout_s=EXECUTE_TIMEOUT_S)
            outcomes += [{"apply": name, **answer} for answer in answers]
        output.json({"outcomes": outcomes})
        if not outcomes:
            output.result("no error transactions")
        for outcome in outcomes:
            words = word if outcome["done"] else f"not {word}: {outcome['problem']}"
            output.result(f"{outcome['apply']} {outcome['number']}: {words}")
        return DONE if all(outcome["done"] for outcome in outcomes) else FINDING

    def _by_apply(self, numbers: list[int], apply: str) -> dict[str, list[int]]:
        if not numbers:
            return {name: [] for name in self._applies(apply)}
        chosen: dict[str, list[int]] = {}
        for number in sorted(set(numbers)):
            chosen.setdefault(self._find(number, apply)["apply"], []).append(number)
        return chosen


def _line(error: dict[str, Any]) -> str:
    when = dt.datetime.fromtimestamp(error["created_us"] / 1e6, tz=dt.UTC).isoformat(timespec="seconds")
    why = f"waits behind {error['depends_on']}" if error["depends_on"] else error["message"]
    kind = error["conflict_type"] or error["sqlstate"]
    return (
        f"{error['number']} {error['apply']} from {error['source']}: transaction {error['transaction_id']} at "
        f"{scn_text(error['commit_scn'])}, {error['row_count']} rows, {when}: {kind + ': ' if kind else ''}{why}"
    )


def _shown(lcr: RowLcr, read: ValueReader) -> dict[str, Any]:
    values = {
        kind: {name: _text(value, read) for name, value in lcr.get_values(kind, use_old=False).items()}
        for kind in ("old", "new")
    }
    return {
        "position": lcr.position, "command": lcr.command_type, "table": f"{lcr.object_owner}.{lcr.object_name}", **values,
    }


def _text(value: LcrValue, read: ValueReader) -> str | None:
    """A value as text, cut where nobody reads on."""
    if value.raw is None:
        return None
    text = read(value.column, value.raw)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "..."
