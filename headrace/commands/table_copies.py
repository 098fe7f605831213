"""One table copied again: asked of the apply processes that replicate it, and followed until it has joined the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.commands.verification import KNOWN_TABLES
from headrace.status_view import copying_line
from streams.errors import NOT_REPLICATED, ApplyError, ConfigError

if TYPE_CHECKING:
    from actors.runtime import RayActors
    from headrace.waiting import Look
    from topology.spec import TopologySpec

__all__ = ["copy_again", "wait_copied"]

POLL_S = 0.5
# The overview is a second old, and an apply process looks twice a second at what it is asked: a table that FAILED before still
# looks so for a moment.
FAILED_AFTER_S = 5.0
# As long as a piece may take without a word (`spark_apply.copy.rounds`): a copy that moves is waited for, however long it takes.
STALLED_S = 1800.0
_CALL_TIMEOUT_S = 15.0
_ENDED = frozenset({"ABORTED", "DISABLED"})  # states of an apply process in which nothing is copied before an operator acts


def copy_again(spec: TopologySpec, actors: RayActors, table: tuple[str, str], apply: str = "") -> list[dict[str, Any]]:
    """Have a table emptied and copied again at every destination, or by one apply process.

    Args:
        spec: the topology.
        actors: its actors.
        table: schema and name at the source.
        apply: only this apply process; empty: each that replicates the table.

    Returns:
        One entry per apply process: the table as it was before.

    Raises:
        ConfigError: there is no such apply process, or none replicates the table.
        ApplyError: the table must not be emptied at a destination; the message names those where the copy was begun.
    """
    names = [each for each in spec.applies if apply in {"", each.name}]
    if not names:
        raise ConfigError(f"no apply process {apply!r}", hint=", ".join(each.name for each in spec.applies))
    begun: list[dict[str, Any]] = []
    refused: list[ApplyError] = []
    for each in names:
        try:
            before = actors.call(f"apply:{each.name}", "copy_again", (table,), timeout_s=_CALL_TIMEOUT_S)
        except ApplyError as error:
            if NOT_REPLICATED not in error.message:
                refused.append(error)
        else:
            begun += [{"apply": each.name, "destination": each.site, **found} for found in before]
    if refused:
        elsewhere = f" (begun at {', '.join(str(each['destination']) for each in begun)})" if begun else ""
        raise ApplyError("; ".join(error.message for error in refused) + elsewhere, hint=refused[0].hint)
    if not begun:
        raise ConfigError(f"no apply process replicates {'.'.join(table)}", hint=KNOWN_TABLES)
    return begun


def wait_copied(
    overview: Look, begun: Sequence[Mapping[str, Any]], *, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Wait until tables are copied again and have joined the others.

    Args:
        overview: gives the overview of the topology.
        begun: what `copy_again` gave.
        progress: told how far it is.

    Returns:
        One entry per apply process: the table as it is now.

    Raises:
        ApplyError: one cannot be copied, or nothing has moved for `STALLED_S`; the copy goes on when it can.
    """
    began = moved_at = time.monotonic()
    last: list[dict[str, Any]] = []
    while True:
        components = {str(c["name"]): c for c in overview()["components"]}
        now = [
            {**before, **found} for before in begun
            for found in components.get(f"apply:{before['apply']}", {}).get("instantiation", ())
            if (found["owner"], found["name"]) == (before["owner"], before["name"])
        ]
        if now != last:
            last, moved_at = now, time.monotonic()
        for found in now:
            if found["state"] == "FAILED" and time.monotonic() - began > FAILED_AFTER_S:
                raise ApplyError(
                    f"{found['apply']}: table {found['owner']}.{found['name']}: {found['problem']}",
                    hint="correct it: the table is looked at again every few seconds",
                )
        old = {before["apply"]: before["instantiation_scn"] for before in begun}
        if len(now) == len(begun) and all(
            found["state"] in {"DONE", "KEPT"} and found["instantiation_scn"] > old[found["apply"]] for found in now
        ):
            return now
        if time.monotonic() - began > FAILED_AFTER_S:
            _check_runs([components.get(f"apply:{before['apply']}", {}) for before in begun])
        if time.monotonic() - moved_at > STALLED_S:
            raise ApplyError(
                f"{copying_line(now) or 'the copy'}: nothing has moved for {STALLED_S / 60:.0f} minutes",
                hint="headrace status FILE says what it waits for; the copy goes on by itself",
            )
        progress(copying_line(now) or "to be copied")
        time.sleep(POLL_S)


def _check_runs(applies: Sequence[Mapping[str, Any]]) -> None:
    """See that no apply process waits for an operator: then nothing is copied.

    Raises:
        ApplyError: one does.
    """
    for component in applies:
        if component.get("state") in _ENDED:
            error = component.get("last_error") or {}
            why = f": {error['message']}" if component["state"] == "ABORTED" and error else ""
            raise ApplyError(
                f"{component['name']} is {component['state']}{why}: the copy waits",
                hint=f"headrace start FILE {component['name']}; the copy then goes on by itself",
            )
