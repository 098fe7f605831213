"""`headrace capture`: show the SCNs of a capture process, and set its first SCN or its start SCN.

Source: Oracle Streams Concepts and Administration 11.2, "Setting the First SCN for an Existing Capture Process",
"Setting the Start SCN ...".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError, PropagationError
from headrace.console.output import scn_text
from headrace.lcr.scn import Scn, parse_scn
from headrace.status.captures import CaptureStatus
from topology.routing.downstream import keeper_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.deployment.deployment import Deployment

__all__ = ["SHOWN", "scn_given", "scns_of", "set_scns", "text_of"]

SET_TIMEOUT_S = 60.0  # the site writes a small file, and the capture process asks its queue
SHOWN: Mapping[str, str] = {
    "first_scn": "first SCN",
    "start_scn": "start SCN",
    "required_checkpoint_scn": "required checkpoint SCN",
    "applied_scn": "applied SCN",
    "max_checkpoint_scn": "maximum checkpoint SCN",
    "captured_scn": "captured SCN",
}
"""Keys of a capture process's status, with the manuals' names."""


def scn_given(text: str, option: str) -> Scn | None:
    """Parse the SCN of an option; None: the option is empty.

    Args:
        text: the option's value; empty: not given.
        option: the option's name, for the message.

    Raises:
        ConfigError: the text is no SCN.
    """
    if not text:
        return None
    try:
        return parse_scn(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} is no SCN",
            hint="write it as `headrace status` shows it, such as 0/016B3748, or as a number",
        ) from error


def set_scns(deployment: Deployment, name: str, *, first_scn: Scn | None, start_scn: Scn | None) -> None:
    """Set a first SCN, then a start SCN.

    Args:
        deployment: the running topology's deployment.
        name: name of a capture process.
        first_scn: the new first SCN; None: unchanged.
        start_scn: the new start SCN, after which everything is captured again; None: unchanged.

    Raises:
        ConfigError: no capture process has this name, or the SCN breaks a rule.
        HeadraceError: the keeper of the redo, or the capture process, does not answer.
    """
    capture = {each.name: each for each in deployment.running.captures}[_name(deployment, name)]
    actors = deployment.connect()
    if first_scn is not None:
        actors.call(
            keeper_of(capture.source, capture.site),
            "set_first_scn",
            capture.name,
            int(first_scn),
            timeout_s=SET_TIMEOUT_S,
        )
    if start_scn is not None:
        actors.call(f"capture:{capture.name}", "capture_again", int(start_scn), timeout_s=SET_TIMEOUT_S)


def scns_of(deployment: Deployment, name: str) -> dict[str, Any]:
    """Return the SCNs in a capture process's status; None: unknown.

    Args:
        deployment: the running topology's deployment.
        name: name of a capture process.

    Raises:
        ConfigError: no capture process has this name.
        PropagationError: it does not answer.
    """
    full = f"capture:{_name(deployment, name)}"
    found = next((each for each in deployment.overview().components if each.name == full), None)
    if found is None:
        raise PropagationError(f"{full} does not answer", hint="see `headrace status`")
    said = found if isinstance(found, CaptureStatus) else CaptureStatus(name=full)
    scns = {
        "first_scn": said.first_scn,
        "start_scn": said.start_scn,
        "required_checkpoint_scn": said.required_checkpoint_scn,
        "applied_scn": said.applied_scn,
        "max_checkpoint_scn": said.max_checkpoint_scn,
        "captured_scn": said.captured_scn,
    }
    return {"name": found.name, "state": found.state, **{key: scn or None for key, scn in scns.items()}}


def text_of(scns: Mapping[str, Any]) -> str:
    """Return the SCNs as text, one line each, usually lowest first."""
    return "\n".join(
        [f"{scns['name']}: {scns['state']}", *(f"  {words}: {scn_text(scns[key])}" for key, words in SHOWN.items())]
    )


def _name(deployment: Deployment, name: str) -> str:
    """Return the short name of a capture process given by full or short name."""
    full = deployment.component(name if name.startswith("capture:") else f"capture:{name}")
    return full.partition(":")[2]
