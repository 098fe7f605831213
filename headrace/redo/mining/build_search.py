"""The search for an awaited dictionary build, which follows the rows to which it applies.

The log writer makes rows durable before the catalog shows their transaction, and writes the build when it does
(`headrace.redo.dictionary`). So a capture process looks ahead in the headers, and mines no further until it finds the
build.
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
    """Finds the first build behind a place in redo, and remembers its progress until it has found one.

    Args:
        folder: the segments' folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ahead: RedoReader | None = None

    def find(self, reader: RedoReader, durable: RedoPosition) -> DictionarySnapshot | UnchangedBuild | None:
        """Return the first build behind the reader's place; None: it is not written yet.

        Args:
            reader: reader of the same folder; it does not move.
            durable: position up to which redo may be read.

        Raises:
            RedoError: redo is damaged.
            LogGone: redo was purged.
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
