"""Additions of `headrace status --json` for apply processes: the rows of their destinations' views.

They are queried only for a reader, because rules and handlers do not change between two looks of the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError
from headrace.databases.destination_views import ERRORS_MAX, error_rows
from headrace.status.applies import apply_status
from headrace.status.overview import Overview
from headrace.status.plain import plain_overview

if TYPE_CHECKING:
    from actors.hosting.runtime import ActorSystem

__all__ = ["with_descriptions"]

ASK_TIMEOUT_S = 3.0  # per question, for all apply processes together; those that do not answer are shown without it


def with_descriptions(overview: Overview, connect: Callable[[], ActorSystem]) -> dict[str, Any]:
    """Return the overview as plain data, with each apply process's `configuration`, `error_transactions` and `views`.

    What does not answer is missing.

    Args:
        overview: the topology's overview.
        connect: connects to its components; called only if there is an apply process to ask.
    """
    # Apply processes that did not answer the controller just now are not asked again: each question would take its
    # whole time-out.
    applies = {each.name: each for each in overview.components if each.kind == "apply" and each.state != "UNREACHABLE"}
    plain = plain_overview(overview)
    if not applies:
        return plain
    try:
        actors = connect()
        configurations, views = _asked(actors, applies, "configuration"), _asked(actors, applies, "views")
        # An apply process that is stopped or starting does not know its error queue, but its host reads it.
        errors = _asked(
            actors, [name for name, each in applies.items() if apply_status(each).errors != 0], "first_errors"
        )
    except HeadraceError:
        return plain
    for component in plain["components"]:
        name = component["name"]
        if name in applies:
            found = _found(configurations, errors, name, apply_status(applies[name]).errors)
            component.update(_with_views(overview.topology, name, found, views.get(name)))
    return plain


def _asked(actors: ActorSystem, names: Iterable[str], method: str) -> dict[str, Any]:
    answers = actors.call_all(list(names), method, timeout_s=ASK_TIMEOUT_S)
    return {name: answer for name, answer in answers.items() if not isinstance(answer, HeadraceError)}


def _with_views(topology: str, name: str, found: dict[str, Any], views: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what was found, with the views' rows by view name and column.

    The views of the error queue are included only where the queue answered.
    """
    if not views:
        return found
    errors = found.get("error_transactions")
    queue = {} if errors is None else error_rows(topology, name.removeprefix("apply:"), errors)
    return {**found, "views": {**views, **queue}}


def _found(
    configurations: Mapping[str, Any], errors: Mapping[str, Any], name: str, errors_count: int | None
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if configurations.get(name):
        found["configuration"] = configurations[name]
    if errors_count == 0:
        found["error_transactions"] = []
    elif name in errors:
        shown = errors[name][:ERRORS_MAX]
        found["error_transactions"] = [
            {key: value for key, value in error.items() if key != "readable"} for error in shown
        ]
    return found
