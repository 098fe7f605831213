"""The user's Ray cluster on which a topology was last started, so that later commands find it.

A copy of the state folder does not use it: the topology there is the original's.
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
    """The file of a state folder that names the cluster.

    Its first line is the address, its second the folder where it was written (earlier versions wrote no second line).

    Args:
        state_dir: the topology's state folder.
    """

    state_dir: Path

    def address(self) -> str:
        """Return the address; empty: none is remembered.

        Raises:
            ConfigError: the file is incomplete, because an earlier version did not write it atomically.
        """
        lines = self._lines(self.state_dir)
        if lines is None:
            return ""
        if not lines or not lines[0].strip():
            raise ConfigError(
                f"{self.state_dir / _FILE} is empty, because the disk was full: it must name the Ray cluster on which"
                " the topology runs",
                hint="name it again with --address; if the topology does not run on a cluster of your own, remove the"
                " file",
            )
        if len(lines) > 1 and is_copy(self.state_dir, lines[1], lambda original: self._lines(original) == lines):
            return ""
        return lines[0].strip()

    def remember(self, address: str) -> None:
        """Remember the address; durable when this returns.

        Raises:
            OSError: it could not be written; the previous address is still remembered.
        """
        make_private(self.state_dir)
        replace_file(self.state_dir / _FILE, f"{address}\n{self.state_dir}\n")

    def forget(self) -> None:
        """Forget the address; idempotent."""
        remove_file(self.state_dir / _FILE)

    @staticmethod
    def _lines(folder: Path) -> list[str] | None:
        try:
            return (folder / _FILE).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
