"""`prepared.json` in a site's folder: that the site's database was prepared, and whether as a source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.base.durable_file import replace_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PreparedNote"]


class PreparedNote:
    """The note in a site's folder.

    Args:
        folder: the site's folder.
    """

    def __init__(self, folder: Path, topology: str) -> None:
        self._file, self._topology = folder / "prepared.json", topology

    @property
    def is_source(self) -> bool | None:
        """Whether the site was prepared as a source; None: no note exists."""
        try:
            return bool(json.loads(self._file.read_text(encoding="utf-8")).get("is_source"))
        except FileNotFoundError:
            return None

    def save(self, *, is_source: bool) -> None:
        """Write the note; durable when this returns."""
        replace_file(self._file, json.dumps({"topology": self._topology, "is_source": is_source}) + "\n")
