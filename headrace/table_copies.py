"""One table copied again: asked of the apply processes that replicate it, and followed until it has joined the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.status_view import copying_line
from streams.errors import ApplyError, ConfigError, StreamsError

if TYPE_CHECKING:
    from actors.runtime import RayActors
    from headrace.waiting import Look
    from topology.spec import TopologySpec

__all__ = ["copy_again", "wait_copied"]

POLL_S = 0.5
_CALL_TIMEOUT_S = 15.0


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
        ApplyError: the table must not be emptied there.
    """
    names = [each for each in spec.applies if apply in {"", each.name}]
    if not names:
        raise ConfigError(f"no apply process {apply!r}", hint=", ".join(each.name for each in spec.applies))
    begun: list[dict[str, Any]] = []
    refused: list[StreamsError] = []
    for each in names:
        try:
            before = actors.call(f"apply:{each.name}", "copy_again", (table,), timeout_s=_CALL_TIMEOUT_S)
        except ApplyError as error:
            refused.append(error)
        else:
            begun += [{"apply": each.name, "destination": each.site, **found} for found in before]
    if not begun:
        raise refused[0] if refused else ConfigError(f"no apply process replicates {'.'.join(table)}")
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
        ApplyError: one cannot be copied.
    """
    while True:
        instantiations = {str(c["name"]): c.get("instantiation", ()) for c in overview()["components"]}
        now = [
            {**before, **found} for before in begun for found in instantiations.get(f"apply:{before['apply']}", ())
            if (found["owner"], found["name"]) == (before["owner"], before["name"])
        ]
        for found in now:
            if found["state"] == "FAILED":
                raise ApplyError(
                    f"{found['apply']}: table {found['owner']}.{found['name']}: {found['problem']}",
                    hint="correct it: the table is looked at again every few seconds",
                )
        old = {before["apply"]: before["instantiation_scn"] for before in begun}
        if len(now) == len(begun) and all(
            found["state"] in {"DONE", "KEPT"} and found["instantiation_scn"] > old[found["apply"]] for found in now
        ):
            return now
        progress(copying_line(now) or "to be copied")
        time.sleep(POLL_S)
