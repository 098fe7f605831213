"""The refusal of a source that was set back, kept beside its redo log until the operator decides.

A database that was restored to an older state is found once: its log ends before the redo log does, or it lacks redo's last transaction. Later its
new log has passed that place and its new transactions have taken the old numbers; nothing tells it from the old one then. So the first
refusal is durable: a restart must not take the other history for the old one's continuation.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from streams.durable_file import replace_file
from streams.errors import DatabaseSetBack

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SetBack"]


class SetBack:
    """The file of one redo log.

    Args:
        folder: of the redo log.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "set_back.json"

    def check(self) -> None:
        """Refuse the source if it was refused before.

        Raises:
            DatabaseSetBack: it was.
        """
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        raise DatabaseSetBack(
            f"the source was refused before: {found['message']}",
            hint=f"{found['hint']}; if the database is again the very one that the redo log comes from (its own disk is back), remove {self._file.name} "
            "in the folder of the redo log and start the site",
        )

    def record(self, refused: DatabaseSetBack) -> None:
        """Keep a refusal; what `check` raises from now on."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, json.dumps({"message": refused.message, "hint": refused.hint}) + "\n")
