"""`headrace split` and `headrace merge`: ask the controller, and wait briefly for the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.controller import CONTROLLER
from headrace.base.plain_data import as_json
from headrace.console.output import seconds_text
from headrace.console.status_view import split_waits_for
from headrace.status.overview import SplitStream

if TYPE_CHECKING:
    from headrace.deployment.deployment import Deployment

__all__ = ["Answer", "merge", "split_off"]

POLL_S = 0.5  # the controller looks once a second
SPLIT_TIMEOUT_S = 60.0  # two edits, which a few components adopt within seconds each on a busy machine
# A stream that is close is merged within this time; another may take hours, so the command does not wait for it.
MERGE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of a request.

    Args:
        text: the result as text.
        document: for `--json`: the stream's state; "phase" is "together" when it is not split off.
        is_done: whether it is split off, or merged.
    """

    text: str
    document: Mapping[str, Any]
    is_done: bool


def split_off(deployment: Deployment, propagation: str) -> Answer:
    """Split a propagation off.

    Args:
        deployment: the running topology's deployment.
        propagation: its name.

    Raises:
        ConfigError: no propagation has this name, or it cannot be split off.
        HeadraceError: the controller does not answer.
    """
    deployment.connect().call(CONTROLLER, "split", propagation)
    found = _await(deployment, propagation, lambda each: each.phase == "split", SPLIT_TIMEOUT_S)
    if found.phase == "split":
        return Answer(
            text=f"{propagation} is split off: it reads queue {found.split_queue}, and {found.queue} holds"
            " nothing for it",
            document=as_json(found),
            is_done=True,
        )
    return Answer(
        text=f"{propagation} is not split off yet ({found.phase}): {split_waits_for(found)}; headrace status FILE"
        " shows it",
        document=as_json(found),
        is_done=False,
    )


def merge(deployment: Deployment, propagation: str) -> Answer:
    """Have a propagation merged when it is close enough.

    Args:
        deployment: the running topology's deployment.
        propagation: its name.

    Raises:
        ConfigError: no propagation has this name, or it is not split off.
        HeadraceError: the controller does not answer.
    """
    deployment.connect().call(CONTROLLER, "merge", propagation)
    found = _await(deployment, propagation, lambda each: each.phase == "together", MERGE_TIMEOUT_S)
    if found.phase == "together":
        return Answer(text=f"{propagation} is merged", document=as_json(found), is_done=True)
    if stopped := ", ".join(found.stopped):
        return Answer(
            text=f"{propagation} will be merged once {stopped} is started (headrace start FILE NAME): the stop would"
            " end with the merge",
            document=as_json(found),
            is_done=False,
        )
    behind = "it is unknown how far behind" if found.behind_s is None else f"{seconds_text(found.behind_s)} behind"
    return Answer(
        text=f"{propagation} will be merged once it is connected and at most {seconds_text(found.merge_threshold_s)}"
        f" behind the others; now it is {'connected' if found.connected else 'not connected'}, and {behind}",
        document=as_json(found),
        is_done=False,
    )


def _await(
    deployment: Deployment, propagation: str, is_done: Callable[[SplitStream], bool], timeout_s: float
) -> SplitStream:
    """Return the state of a stream when it is as wanted, or when the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = next(
            (each for each in deployment.overview().splits if each.propagation == propagation),
            SplitStream(propagation=propagation, queue="", phase="together"),
        )
        if is_done(found) or time.monotonic() > deadline:
            return found
        time.sleep(POLL_S)
