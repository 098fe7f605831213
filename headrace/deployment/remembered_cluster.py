"""The Ray cluster of the user's on which a topology was started last: later commands go there without being told.

A copy of the state folder does not go there: what runs there is the original's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.state_folder import make_private
from headrace.base.durable_file import remove_file, replace_file
from headrace.base.errors import ConfigError
from headrace.base.folder_place import is_copy

__all__ = ["RememberedCluster"]

_FILE = "ray_address"


@dataclass(frozen=True, slots=True)
class RememberedCluster:
    """The file of one state folder.

    The address, and the folder that it was written in (not by earlier versions), a line each.

    Args:
        state_dir: of the topology.
    """

    state_dir: Path

    def address(self) -> str:
        """The address; empty: none is remembered.

        Raises:
            ConfigError: the file was not written whole, by an earlier version.
        """
        lines = self._lines(self.state_dir)
        if lines is None:
            return ""
        if not lines or not lines[0].strip():
            raise ConfigError(
                f"{self.state_dir / _FILE} is empty: it was to name the Ray cluster on which the topology runs, and the"
                " disk was full",
                hint="name it again with --address; if the topology runs on no cluster of your own, remove the file",
            )
        if len(lines) > 1 and is_copy(self.state_dir, lines[1], lambda original: self._lines(original) == lines):
            return ""
        return lines[0].strip()

    def remember(self, address: str) -> None:
        """Go there from now on; durable when this returns.

        Raises:
            OSError: it could not be written; what was remembered before still is.
        """
        make_private(self.state_dir)
        replace_file(self.state_dir / _FILE, f"{address}\n{self.state_dir}\n")

    def forget(self) -> None:
        """Go nowhere from now on; idempotent."""
        remove_file(self.state_dir / _FILE)

    @staticmethod
    def _lines(folder: Path) -> list[str] | None:
        try:
            return (folder / _FILE).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
