"""Waits of a comparison: changes of one side must have reached the other.

To the destination
    A marker is written into the source's log, and has been applied.

Back to the source
    Changes that others make at the destination differ until they are at the source. The apply processes there deliver
    them. Changes of the destination itself: a marker in its log has been applied at the source. Changes of sites that
    send to both: the source has applied what the destination has of such a site. Changes of other sites that neither
    forwards are not waited for. In a topology of one way, no change returns.

Bounds
    `CATCH_UP_S` for each wait; after that the table is not compared. The tables behind it wait `_LATE_S`, while nothing
    catches up: `verify` of many tables must not take a minute for each if a component stands still.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from headrace.base.errors import ApplyError, DatabaseError

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationDatabase, SourceDatabase
    from headrace.databases.ports.copying import TableReader
    from headrace.lcr.scn import Scn

__all__ = ["CATCH_UP_S", "POLL_S", "CatchingUp", "WaysBack"]

POLL_S = 0.1
CATCH_UP_S = 60.0  # the destination has caught up before `verify` compares, so it is only seconds behind
_LATE_S = 5.0
_PROGRESS_POLL_S = 0.5  # a query of the source; without data, progress is recorded every two seconds


class _Way(Enum):
    """Direction of a wait: each has its own bound, which shrinks after it was late."""

    THERE = auto()
    BACK = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaysBack:
    """How the destination's changes reach the source: directly, and through sites that send to both.

    Args:
        topology: name of the topology.
        direct: apply processes at the source whose source is the destination.
        beside: for each site that sends to both, the apply process at the destination and the one at the source.
        here, there: records at the destination, and at the source.
        position: writes a marker into the destination's log (`SourceDatabase.write_marker`).
    """

    topology: str
    direct: Sequence[str]
    beside: Sequence[tuple[str, str]]
    here: DestinationDatabase
    there: DestinationDatabase
    position: Callable[[], Scn]

    def positions(self) -> dict[str, Scn]:
        """Return the SCN that each apply process at the source must reach to have what the destination has, by name."""
        found: dict[str, Scn] = {}
        for here, there in self.beside:
            progress = self.here.progress(self.topology, here)
            if progress is not None:
                applied = [progress.low_watermark, progress.ahead_scn, *(each.through for each in progress.above)]
                found[there] = max(applied)
        if self.direct:
            found |= dict.fromkeys(self.direct, self.position())
        return found

    def behind(self, positions: Mapping[str, Scn]) -> list[str]:
        """Return names of the apply processes that have not reached their position."""
        progress = {name: self.there.progress(self.topology, name) for name in positions}
        return [
            name
            for name, scn in sorted(positions.items())
            if (found := progress[name]) is None or found.low_watermark < scn
        ]


class CatchingUp:
    """The waits of one comparison.

    Args:
        apply: name of the apply process.
        is_active: whether the caller still waits for results.
        source: its log gets markers.
        applied: returns the SCN of the source up to which the destination has everything; None: unknown.
        back: how changes of other sites at the destination reach the source; None: they do not.
    """

    def __init__(
        self,
        apply: str,
        *,
        is_active: Callable[[], bool],
        source: SourceDatabase,
        applied: Callable[[], int] | None,
        back: WaysBack | None,
    ) -> None:
        self._apply, self._is_active = apply, is_active
        self._source, self._applied, self._back = source, applied, back
        self._bounds_s = dict.fromkeys(_Way, CATCH_UP_S)

    def go_on(self) -> None:
        """Check that the comparison continues.

        Raises:
            ApplyError: it was stopped.
        """
        if not self._is_active():
            raise ApplyError(
                f"apply {self._apply} was stopped, or ended, while its tables were compared: they have no result",
                hint=f"headrace status FILE says which; headrace start FILE apply:{self._apply}, then compare again",
            )

    def pause(self, seconds: float) -> None:
        """Wait; raises like `go_on`."""
        ends_by = time.monotonic() + seconds
        self.go_on()
        while (left_s := ends_by - time.monotonic()) > 0:
            time.sleep(min(left_s, POLL_S))
            self.go_on()

    def to_the_destination(self, delay_s: float) -> None:
        """Wait until the destination has what the source has now, at least for a given time.

        Args:
            delay_s: the time, in seconds.

        Raises:
            ApplyError: the comparison was stopped.
            DatabaseError: it takes too long, or the source does not answer.
        """
        applied = self._applied
        assert applied is not None
        marker = self._source.write_marker(b"compared")
        self.pause(delay_s)
        self._until(_Way.THERE, lambda: "the destination is" if applied() < marker else "", POLL_S)

    def back_to_the_source(self) -> None:
        """Wait until the source has what the destination has now and sends there; raises like `to_the_destination`."""
        back = self._back
        if back is None:
            return
        positions = back.positions()
        self._until(
            _Way.BACK,
            lambda: (
                f"the source is, at {' and '.join(behind)}, through which it receives the destination's changes,"
                if (behind := back.behind(positions))
                else ""
            ),
            _PROGRESS_POLL_S,
        )

    def _until(self, way: _Way, late: Callable[[], str], poll_s: float) -> None:
        ends_by = time.monotonic() + self._bounds_s[way]
        while who := late():
            if time.monotonic() > ends_by:
                bound_s, self._bounds_s[way] = self._bounds_s[way], _LATE_S
                raise DatabaseError(
                    f"{who} more than {bound_s:g} s behind: what differs may be in flight; `headrace status FILE` shows"
                    " what holds it up"
                )
            self.pause(poll_s)
        self._bounds_s[way] = CATCH_UP_S

    @contextlib.contextmanager
    def reading(self, readers: Sequence[TableReader]) -> Iterator[None]:
        """Interrupt readers if the comparison is stopped: the scan of a large table takes hours."""
        over = threading.Event()
        watch = threading.Thread(target=self._interrupt, args=(readers, over), name="compare-watch", daemon=True)
        watch.start()
        try:
            yield
        except DatabaseError:
            self.go_on()  # it was interrupted
            raise
        finally:
            over.set()
            watch.join()

    def _interrupt(self, readers: Sequence[TableReader], over: threading.Event) -> None:
        while not over.wait(POLL_S):
            if not self._is_active():
                for each in readers:
                    each.interrupt()
