"""Whether a call of `up --keep-existing` has had its effect at an apply process.

Ray restarts an apply process with the arguments of its creation, for years. A destination that lost the record of its
tables by then (it was restored from a backup of before the first apply) holds other rows than those that the call kept.
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
        state_dir: of the topology.
        name: of the component, e.g. "apply:apply_from_dbs1".
        call: identifies the call of `up`.
    """

    def __init__(self, state_dir: Path, name: str, call: str) -> None:
        self._file = component_file(state_dir, name, "~kept")
        self._call = call

    def is_done(self) -> bool:
        """Whether every table of the call is recorded at the destination: nothing is to be kept any more."""
        return self._file.exists() and self._file.read_text(encoding="utf-8").strip() == self._call

    def save(self) -> None:
        """Record that; durable when this returns."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, self._call + "\n")
