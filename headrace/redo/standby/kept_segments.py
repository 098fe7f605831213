"""The segments of one redo folder: their heads, their sizes, and which of them can be purged.

Used by the writer of the folder: the log writer at the source, the standby redo log at a downstream site.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from headrace.base.durable_file import sync_folder
from headrace.base.errors import RedoError
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.redo.records import SegmentHead
from headrace.redo.segments import (
    RESTORE_SEGMENT,
    SegmentFile,
    archive_segment,
    check_number,
    list_segments,
    online_segment,
    read_head,
)

__all__ = ["SEGMENTS_MIN", "KeptSegments", "read_oldest_scn"]

SEGMENTS_MIN = 4  # segments in a full redo log: purging works by segments, so one must not be all of it


class KeptSegments:
    """The segments of one folder. Only the owner changes them; any thread may read `redo_bytes` and `count`.

    Args:
        folder: the segments' folder; created when missing.
        source: source site of the log.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._source = folder, source
        self.heads: dict[int, SegmentHead] = {}
        self.sizes: dict[int, int] = {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def redo_bytes(self) -> int:
        """Bytes on disk."""
        return sum(list(self.sizes.values()))

    @property
    def count(self) -> int:
        """Segments on disk."""
        return len(self.sizes)

    @property
    def newest(self) -> SegmentHead | None:
        """Head of the newest segment; None without redo."""
        return self.heads[max(self.heads)] if self.heads else None

    def bytes_from(self, number: int) -> int:
        """Return the bytes of that segment and all after it."""
        return sum(size for each, size in list(self.sizes.items()) if each >= number)

    def read(self) -> SegmentFile | None:
        """Read the heads of the segments on disk, and archive those that an interrupted log switch left.

        Returns:
            The newest segment; None: there is none.

        Raises:
            RedoError: a segment is missing or of another site, or its head is damaged.
        """
        for leftover in self._folder.glob("*.tmp"):
            leftover.unlink()
        files = list_segments(self._folder)
        for before, file in pairwise(files):
            if file.number != before.number + 1:
                raise _missing(before, file)
        for file in files:
            head = read_head(file.path)
            check_number(head, file.number)
            if head.source != self._source:
                raise RedoError(
                    f"{file.path.name} is redo of site {head.source}, not of {self._source}",
                    hint="give every site a folder of its own",
                    segment=file.path.name,
                )
            self.heads[file.number] = head
            self.sizes[file.number] = file.size_bytes
        for file in files[:-1]:
            if not file.is_archived:
                archive_segment(file.path)
        return files[-1] if files else None

    def restart_segment_for(self, scn: Scn) -> int:
        """Return the first segment that mining from `scn` reads; 0: it was purged."""
        # Newest first: the wanted SCN is usually near the end.
        number = next((each for each in sorted(self.heads, reverse=True) if self.heads[each].last_commit_scn <= scn), 0)
        return self.heads[number].restart_segment if number else 0

    @property
    def oldest_scn(self) -> Scn:
        """The SCN from which redo can be mined.

        It belongs to the first segment without an open transaction from a purged one; FIRST_SCN: no such segment.
        """
        return _oldest_scn(dict(self.heads))  # another thread may call this

    def first_kept(self, needed_scn: Scn, kept_scn: Scn, redo_bytes_max: int) -> int:
        """Return the first segment that stays: that of `kept_scn`, or a later one if new redo would have no room.

        0: nothing may be purged.

        Args:
            needed_scn: redo from here on stays in any case.
            kept_scn: position at `needed_scn` or below.
            redo_bytes_max: bound of the redo log.
        """
        needed, oldest = self.restart_segment_for(needed_scn), min(self.heads, default=0)
        if needed <= oldest:
            return needed
        kept = max(self.restart_segment_for(kept_scn), oldest)
        while kept < needed and self.bytes_from(kept) >= redo_bytes_max - redo_bytes_max // SEGMENTS_MIN:
            kept += 1
        return min(kept, needed)

    def has_below(self, number: int) -> bool:
        """Return whether `purge` from that number may remove anything."""
        return bool(self.heads) and number > min(self.heads)

    def purge(self, keep_from: int) -> int:
        """Remove archived segments below a number.

        Returns:
            Bytes freed.
        """
        if not self.has_below(keep_from):
            return 0
        freed = 0
        for file in list_segments(self._folder):
            if file.number >= keep_from or not file.is_archived:
                break
            file.path.unlink()
            online_segment(self._folder, file.number).unlink(missing_ok=True)  # an older copy, from a backup
            freed += file.size_bytes
            self.sizes.pop(file.number, None)
            self.heads.pop(file.number, None)
        if freed:
            sync_folder(self._folder)
        return freed


def read_oldest_scn(folder: Path) -> Scn | None:
    """Return the SCN from which the redo in a folder can be mined, for processes that do not own the folder.

    None: there is no redo, or it cannot be read.

    Args:
        folder: the segments' folder; its owner may be purging.
    """
    heads: dict[int, SegmentHead] = {}
    try:
        for file in list_segments(folder):
            heads[file.number] = read_head(file.path)
            if heads[file.number].restart_segment >= min(heads):
                break
    except (OSError, RedoError):
        return None
    return _oldest_scn(heads) if heads else None


def _oldest_scn(heads: Mapping[int, SegmentHead]) -> Scn:
    oldest = min(heads, default=0)
    return next(
        (heads[number].last_commit_scn for number in sorted(heads) if heads[number].restart_segment >= oldest),
        FIRST_SCN,
    )


def _missing(before: SegmentFile, after: SegmentFile) -> RedoError:
    from_scn, to_scn = read_head(before.path).first_scn, read_head(after.path).first_scn
    return RedoError(
        f"redo segment {before.number + 1} is missing; transactions between SCN {scn_text(from_scn)} and SCN"
        f" {scn_text(to_scn)} are missing",
        hint=RESTORE_SEGMENT,
        segment=before.number + 1,
        offset=0,
        after_scn=from_scn,
        through_scn=to_scn,
    )
