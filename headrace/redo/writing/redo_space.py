"""The disk space of a source's redo log: its bound, what may be purged, and why nothing may.

A segment is purged when no capture process will mine it and every redo receiver has it.
"""

from __future__ import annotations

from headrace.base.clock import Clock
from headrace.lcr.scn import Scn, scn_text
from headrace.redo.checkpoints import PurgeBounds, RequiredCheckpoints
from headrace.redo.segments import LogState
from headrace.redo.standby.kept_segments import KeptSegments
from headrace.redo.standby.shipping import RedoShipping

__all__ = ["RedoSpace"]


class RedoSpace:
    """The space of one log writer.

    Args:
        kept: the segments of the redo log.
        checkpoints: redo that the capture processes at the site need.
        shipping: the redo receivers at other sites.
        redo_bytes_max: bound of the redo log.
        clock: clock for the interval of saving the bounds of a purge.

    Attributes:
        redo_bytes_max: as given.
        purged_bytes: bytes of redo removed.
    """

    def __init__(
        self,
        kept: KeptSegments,
        checkpoints: RequiredCheckpoints,
        shipping: RedoShipping,
        redo_bytes_max: int,
        clock: Clock,
    ) -> None:
        self._kept, self._checkpoints, self._shipping = kept, checkpoints, shipping
        self._bounds = PurgeBounds(checkpoints.save, shipping.save, clock=clock)
        self.redo_bytes_max = redo_bytes_max
        self.purged_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the redo log has reached its bound."""
        return self._kept.redo_bytes >= self.redo_bytes_max

    def purge(self, needed_scn: Scn | None, kept_scn: Scn | None) -> int:
        """Remove archived segments that no capture process and no redo receiver needs; return the freed bytes.

        Args:
            needed_scn: as for `LogWriter.purge`.
            kept_scn: as for `LogWriter.purge`.
        """
        with self._shipping.unmoved() as keep_from:
            freed = self._kept.purge(self._first_kept(needed_scn, kept_scn, keep_from))
        self.purged_bytes += freed
        return freed

    def save_and_purge(self) -> None:
        """Save the bounds of a purge, if that is due, and purge what is not needed."""
        # Read once: another thread may record more between the save and the purge.
        kept, needed = self._checkpoints.keep_from(self._kept.oldest_scn), self._checkpoints.needed_scn
        may_purge = self._kept.count > 1 and self._kept.has_below(
            self._first_kept(needed, kept, self._shipping.keep_from)
        )
        self._bounds.save(purges=may_purge)
        if may_purge:
            self.purge(needed, kept)

    def _first_kept(self, needed_scn: Scn | None, kept_scn: Scn | None, keep_from: int | None) -> int:
        """Return the first segment that stays for a capture process or a redo receiver; 0: nothing may be purged.

        Args:
            needed_scn: as for `LogWriter.purge`.
            kept_scn: as for `LogWriter.purge`.
            keep_from: lowest segment for the redo receivers; None: there is none.
        """
        bounds = [keep_from]
        if needed_scn is not None:
            kept = needed_scn if kept_scn is None else min(kept_scn, needed_scn)
            bounds.append(self._kept.first_kept(needed_scn, kept, self.redo_bytes_max))
        return min((bound for bound in bounds if bound is not None), default=0)

    def disk_problem(self, end: LogState, restart_segment: int) -> str:
        """Return the operator's message when the disk is full.

        Args:
            end: the state at the end of the log.
            restart_segment: as in `OnlineLog`.
        """
        if end.is_open and 2 * self._kept.bytes_from(restart_segment) > self._kept.redo_bytes:
            # None of it is purged before all of it is written.
            return (
                "the redo log's disk is full, most of it of one transaction, which began after SCN"
                f" {scn_text(end.commit_scn)} and must fit whole; WAL grows at the"
                " source: enlarge the disk, and writing goes on by itself; or `headrace down FILE`, move the state"
                " folder to a larger disk, name it as state_dir, then `headrace up FILE`"
            )
        return "the redo log's disk is full, WAL grows at the source: free space, writing goes on by itself"

    def bound_problem(self, end: LogState, restart_segment: int) -> str:
        """Return the operator's message when the redo log has reached its bound.

        Args:
            end: the state at the end of the log.
            restart_segment: as in `OnlineLog`.
        """
        bound = f"redo_bytes_max ({self.redo_bytes_max} bytes)"
        if end.is_open and self._kept.bytes_from(restart_segment) >= self.redo_bytes_max:
            return (
                f"one transaction, which began after SCN {scn_text(end.commit_scn)}, fills {bound}, WAL grows"
                " at the source: raise redo_bytes_max in the topology file above the size of that transaction, then"
                " `headrace up`"
            )
        behind = self._shipping.holding_back(restart_segment)
        if behind:
            return (
                f"the redo log has reached {bound}, WAL grows at the source: it goes on by itself when"
                f" {', '.join(behind)} has received "
                "it; start what is away, raise redo_bytes_max, or take that capture process out of the topology file"
                " and `headrace up`"
            )
        return (
            f"the redo log has reached {bound}, WAL grows at the source: it goes on by itself when the captures need"
            " less of it (see the slowest apply process); raise redo_bytes_max and `headrace up` to keep more"
        )
