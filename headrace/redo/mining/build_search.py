"""The search for an awaited dictionary build.

What a capture process must know stands behind the rows that it holds for.

The log writer makes rows durable before the catalog shows the transaction that made them, and writes the build when it
does (`headrace.redo.dictionary`). So a capture process looks ahead, by headers, and mines no further until the build is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.links.ports import RedoPosition
from headrace.redo.records import (
    HEAD_RECORDS,
    AwaitedBuild,
    DictionarySnapshot,
    RecordType,
    UnchangedBuild,
    decode_dictionary,
)
from headrace.redo.segments import RedoReader

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BuildSearch"]


class BuildSearch:
    """Finds the first build behind a place in redo. Keeps how far it looked until it has found one.

    Args:
        folder: of the segments.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ahead: RedoReader | None = None

    def find(self, reader: RedoReader, durable: RedoPosition) -> DictionarySnapshot | UnchangedBuild | None:
        """Find the first build behind the reader's place; None: it is not written yet.

        Args:
            reader: of the same folder; it does not move.
            durable: how far redo may be read.

        Raises:
            RedoError: redo is damaged.
            LogGone: it was purged.
        """
        if self._ahead is None:
            self._ahead = RedoReader(self._folder, reader.segment, reader.offset)
        ahead = self._ahead
        while (header := ahead.next_header(durable)) is not None:
            if header.type is RecordType.DICTIONARY and header.number >= HEAD_RECORDS:
                found = decode_dictionary(ahead.payload(header))
                if not isinstance(found, AwaitedBuild):
                    ahead.close()
                    self._ahead = None
                    return found
            ahead.skip(header)
        return None
