"""The record of an apply process that a call of `up --keep-existing` has had its effect.

Ray restarts an apply process with the arguments of its creation, for years. A destination may have lost the record of
its tables by then (restored from a backup taken before the first apply). It then holds other rows than those that the
call kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.records.files import component_file
from headrace.base.durable_file import replace_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KeptRows"]


class KeptRows:
    """The file of one apply process.

    Args:
        name: name of the component, e.g. "apply:apply_from_dbs1".
        call: identifies the call of `up`.
    """

    def __init__(self, state_dir: Path, name: str, call: str) -> None:
        self._file = component_file(state_dir, name, "~kept")
        self._call = call

    def is_done(self) -> bool:
        """Return whether every table of the call is recorded at the destination: no more rows are to be kept."""
        return self._file.exists() and self._file.read_text(encoding="utf-8").strip() == self._call

    def save(self) -> None:
        """Record that every table is recorded; durable when this returns."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, self._call + "\n")
