"""Whether an operator wants a component to run: a small file per component, on the machine of its site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.records.files import component_file
from headrace.base.durable_file import replace_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Wanted"]


class Wanted:
    """The file of one component; without it the component is enabled.

    Args:
        name: name of the component, e.g. "capture:capture_hr".
    """

    def __init__(self, state_dir: Path, name: str) -> None:
        self._file = component_file(state_dir, name, ".json")

    def is_enabled(self) -> bool:
        """Return whether the component is to run; False: an operator stopped it."""
        try:
            document: Mapping[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return True
        return bool(document.get("enabled", True))

    def save(self, *, enabled: bool) -> None:
        """Save the wanted state; durable when this returns."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, json.dumps({"enabled": enabled}) + "\n")

    def forget(self) -> None:
        """Remove the file: a later component of the same name is enabled. Idempotent; durable when this returns."""
        if self._file.exists():
            self._file.unlink(missing_ok=True)
            sync_folder(self._file.parent)
