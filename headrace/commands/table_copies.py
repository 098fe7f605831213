"""Repeated table copies: requested from apply processes, and followed until the tables have joined the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.base.errors import NOT_REPLICATED, ApplyError, ConfigError, HeadraceError, counted
from headrace.base.plain_data import as_json
from headrace.commands.verification import KNOWN_TABLES
from headrace.console.status_view import copying_line
from headrace.status.applies import apply_status
from headrace.status.component import ComponentStatus

if TYPE_CHECKING:
    from actors.hosting.runtime import RayActors
    from headrace.deployment.waiting import Look
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["copied_line", "copy_again", "different_tables", "wait_copied"]

POLL_S = 0.5
# The overview is up to a second old, and an apply process handles requests twice a second: a table that was FAILED
# before still appears so for a moment.
FAILED_AFTER_S = 5.0
# As long as one piece may take without progress (`spark_apply.copy.pieces.rounds`): a copy that makes progress is waited for,
# however long it takes.
STALLED_S = 1800.0
_CALL_TIMEOUT_S = 15.0
# states of an apply process in which nothing is copied until an operator acts
_ENDED = frozenset({"ABORTED", "DISABLED"})


Table = tuple[str, str]
"""Schema and name at the source."""


def copy_again(spec: TopologySpec, actors: RayActors, tables: Mapping[Table, Collection[str]]) -> list[dict[str, Any]]:
    """Have tables emptied and copied again, each at every destination or by some apply processes.

    Args:
        spec: the topology.
        actors: its actors.
        tables: each with the names of its apply processes; no names: every one that replicates the table.

    Returns:
        One entry per table and apply process: the table before the copy.

    Raises:
        ConfigError: no apply process has such a name, or none replicates a table.
        ApplyError: a table must not be emptied at a destination; the message names the copies that were begun.
    """
    known = {each.name: each for each in spec.applies}
    for name in (name for names in tables.values() for name in names):
        if name not in known:
            raise ConfigError(f"no apply process {name!r}", hint=", ".join(known))
    begun: list[dict[str, Any]] = []
    refused: list[HeadraceError] = []
    for table, names in tables.items():
        found, problems = _begin(actors, table, [known[name] for name in names or known])
        begun += found
        refused += problems
        if not found and not problems:
            refused.append(ConfigError(f"no apply process replicates {'.'.join(table)}", hint=KNOWN_TABLES))
    if refused:
        elsewhere = "; ".join(f"{each['owner']}.{each['name']} at {each['destination']}" for each in begun)
        kind = ConfigError if all(isinstance(error, ConfigError) for error in refused) and not begun else ApplyError
        raise kind(
            "; ".join(error.message for error in refused) + (f" (begun: {elsewhere})" if begun else ""),
            hint=refused[0].hint,
        )
    return begun


def _begin(
    actors: RayActors, table: Table, applies: Sequence[ApplySpec]
) -> tuple[list[dict[str, Any]], list[HeadraceError]]:
    """Ask apply processes to copy a table again; return the tables before the copies, and the refusals."""
    begun: list[dict[str, Any]] = []
    refused: list[HeadraceError] = []
    for each in applies:
        try:
            before = actors.call(f"apply:{each.name}", "copy_again", (table,), timeout_s=_CALL_TIMEOUT_S)
        except ApplyError as error:
            if NOT_REPLICATED not in error.message:
                refused.append(error)
        else:
            begun += [{"apply": each.name, "destination": each.site, **found, "obsolete_errors": 0} for found in before]
    return begun, refused


def different_tables(comparisons: Sequence[Mapping[str, Any]]) -> dict[Table, list[str]]:
    """Return the tables that differ, each with the apply processes at whose destinations they do.

    Tables that could not be compared are not included.

    Args:
        comparisons: from `verify_topology`.
    """
    found: dict[Table, list[str]] = {}
    for each in comparisons:
        if not each["equal"] and not each["problem"]:
            found.setdefault((each["owner"], each["name"]), []).append(each["apply"])
    return found


def wait_copied(
    overview: Look, begun: Sequence[Mapping[str, Any]], *, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Wait until tables are copied again and have joined the others.

    Args:
        overview: returns the topology's overview.
        begun: the result of `copy_again`.
        progress: receives lines of text about the progress.

    Returns:
        One entry per apply process: the table after the copy.

    Raises:
        ApplyError: a table cannot be copied, or no progress was made for `STALLED_S`; the copy continues when it can.
    """
    began = moved_at = time.monotonic()
    last: list[dict[str, Any]] = []
    while True:
        components = {each.name: each for each in overview().components}
        copies = [
            (before, found)
            for before in begun
            for found in apply_status(components.get(f"apply:{before['apply']}")).instantiation
            if (found.owner, found.name) == (before["owner"], before["name"])
        ]
        now = [{**before, **as_json(found)} for before, found in copies]
        line = copying_line([found for _, found in copies])
        if now != last:
            last, moved_at = now, time.monotonic()
        for found in now:
            if found["state"] == "FAILED" and time.monotonic() - began > FAILED_AFTER_S:
                raise ApplyError(
                    f"{found['apply']}: table {found['owner']}.{found['name']}: {found['problem']}",
                    hint="correct it: the table is looked at again every few seconds",
                )
        old = {_key(before): before["instantiation_scn"] for before in begun}
        if len(now) == len(begun) and all(
            found["state"] in {"DONE", "KEPT"} and found["instantiation_scn"] > old[_key(found)] for found in now
        ):
            return now
        if time.monotonic() - began > FAILED_AFTER_S:
            _check_runs(components[name] for before in begun if (name := f"apply:{before['apply']}") in components)
        if time.monotonic() - moved_at > STALLED_S:
            raise ApplyError(
                f"{line or 'the copy'}: nothing has moved for {STALLED_S / 60:.0f} minutes",
                hint="headrace status FILE says what it waits for; the copy goes on by itself",
            )
        progress(line or "to be copied")
        time.sleep(POLL_S)


def copied_line(table: Mapping[str, Any]) -> str:
    """Return a line about a table that was copied again.

    Args:
        table: from `wait_copied`.
    """
    line, made = (
        f"{table['owner']}.{table['name']} at {table['destination']}: {table['state'].lower()}, {table['rows']} rows",
        int(table["obsolete_errors"]),
    )
    if not made:
        return line
    return (
        f"{line}; {counted(made, 'error transaction')} {'was' if made == 1 else 'were'} made obsolete by the copy"
        " and deleted"
    )


def _key(table: Mapping[str, Any]) -> tuple[str, str, str]:
    return table["apply"], table["owner"], table["name"]


def _check_runs(applies: Iterable[ComponentStatus]) -> None:
    """Check that no apply process waits for an operator, because nothing is copied then.

    Raises:
        ApplyError: an apply process does.
    """
    for component in applies:
        if component.state in _ENDED:
            error = component.last_error
            why = f": {error.message}" if component.state == "ABORTED" and error is not None else ""
            raise ApplyError(
                f"{component.name} is {component.state}{why}: the copy waits",
                hint=f"headrace start FILE {component.name}; the copy then goes on by itself",
            )
