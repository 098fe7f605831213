"""The location of a component's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LAST_CALL", "component_file"]

LAST_CALL = "~call"
"""Ending of the file of `headrace.rules.user_code.last_call.LastCall`."""


def component_file(state_dir: Path, name: str, ending: str) -> Path:
    """Return the path of a component's file.

    Args:
        state_dir: state folder of the topology.
        name: name of the component, e.g. "capture:capture_hr".
        ending: ending of the file; begins with "." or "~": no name has a "~", a split stream's has a dot.
    """
    return state_dir / "components" / f"{name.replace(':', '.')}{ending}"
