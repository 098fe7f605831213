"""Required checkpoints: the redo that each capture process may still have to read, and the retention beyond that.

They are exact in memory and a lower bound on disk: a lagging file only keeps redo longer. A capture process that is not
registered keeps no redo, so those of the topology are registered before anything is purged.

The SCNs of a capture process, lowest first; all are of its source's log:

    first SCN                 it will never mine below: an operator raised it, or redo begins there. Never lowered.
    start SCN                 where it began to capture, or was last told to begin again. At the first SCN or above.
    required checkpoint SCN   everything committed up to here is durable at every destination: it does not mine below
                              unless asked.

Redo below the required checkpoint is kept for `checkpoint_retention_time`: for a destination that is restored from a
backup and then requests what it lost, and for an operator who sets the start SCN back. This is best effort: where the
redo log is about to reach its bound, the oldest part of it is purged first. A capture process that mines again from
below its required checkpoint holds redo from there on.

Source: Oracle Streams Concepts and Administration 11.2, "First SCN and Start SCN", "Checkpoint Retention Time", "A New
First SCN Value and Purged LogMiner Data Dictionary Information".
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.durable_file import replace_file
from headrace.base.errors import ConfigError, RedoError
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from headrace.redo.segments import RedoFull, write_error

__all__ = ["CHECKPOINT_SAVE_INTERVAL_S", "CaptureScns", "PurgeBounds", "RequiredCheckpoints"]

CHECKPOINT_SAVE_INTERVAL_S = 10.0  # whatever the file lags behind is only mined again
# Remembered past positions of one capture process: redo is kept longer than the retention time by at most this fraction
# of it.
RETENTION_SAMPLES = 64
_FILE = "required_checkpoints.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureScns:
    """The SCNs of one capture process, as the keeper of its redo knows them; defined in the module docstring.

    Args:
        first_scn: the lowest SCN from which it can be mined.
        start_scn: where it began, or was last told to begin again; the first SCN, if the redo there is purged.
        required_checkpoint_scn: it does not mine below this unless asked.
    """

    first_scn: Scn
    start_scn: Scn
    required_checkpoint_scn: Scn


@dataclass(slots=True)
class _Capture:
    """What is known of one capture process; the SCNs are defined in the module docstring.

    Args:
        required: the required checkpoint SCN.
        first: the first SCN that was set; FIRST_SCN: none.
        start: the start SCN.
        passed: required checkpoint SCNs and the times when they were seen (microseconds since the epoch), oldest first;
            redo is kept from the first entry on.
        again: position below `required` from which it mines again; None: it does not. Memory only: a restarted capture
            process requests it again.
        retention_s: how long redo below `required` is kept, seconds.
    """

    required: Scn = FIRST_SCN
    first: Scn = FIRST_SCN
    start: Scn = FIRST_SCN
    passed: tuple[tuple[int, Scn], ...] = ()
    again: Scn | None = None
    retention_s: float = field(default=0.0)

    def age(self, now_us: int) -> None:
        """Drop positions that were passed longer ago than the retention time."""
        if self.retention_s <= 0:
            self.passed = ()
            return
        if not self.passed or now_us - self.passed[-1][0] >= self.retention_s * 1e6 / RETENTION_SAMPLES:
            self.passed = (*self.passed[-RETENTION_SAMPLES:], (now_us, self.required))
        expired = [at for at, (seen_us, _) in enumerate(self.passed) if now_us - seen_us >= self.retention_s * 1e6]
        if expired:
            self.passed = self.passed[expired[-1] :]

    @property
    def needed(self) -> Scn:
        """Redo from here on is kept in any case."""
        return self.required if self.again is None else min(self.required, self.again)

    @property
    def kept(self) -> Scn:
        """Redo from here on is kept while there is room."""
        retained = self.passed[0][1] if self.passed else self.required
        return min(self.needed, max(self.first, retained))

    def document(self) -> dict[str, Any]:
        """Return the state for the file."""
        return {
            "required": self.required,
            "first": self.first,
            "start": self.start,
            "passed": [list(each) for each in self.passed],
        }


class RequiredCheckpoints:
    """The SCNs of all capture processes that mine one redo folder.

    Any thread may call `record`, `mine_again`, `scns`, `set_first_scn`, `set_start_scn` and `save`.

    Args:
        folder: the redo folder; must exist.
        clock: clock of the retention time.

    Raises:
        RedoError: the file is damaged.
    """

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._path, self._clock, self._saving = folder / _FILE, clock or SystemClock(), threading.Lock()
        self._captures: dict[str, _Capture] = {}
        if self._path.exists():
            try:
                self._captures = {name: _read(found) for name, found in json.loads(self._path.read_text()).items()}
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise RedoError(
                    f"{_FILE} is damaged", hint="remove it: the captures report their needs again", segment=_FILE
                ) from error
        self._saved = self._document()

    @property
    def lowest(self) -> Scn | None:
        """Lowest required checkpoint SCN of all capture processes; None: none is registered."""
        return min((each.required for each in list(self._captures.values())), default=None)

    @property
    def needed_scn(self) -> Scn | None:
        """Redo from here on is needed; None: no capture process is registered."""
        return min((each.needed for each in list(self._captures.values())), default=None)

    def keep_from(self, oldest_scn: Scn) -> Scn | None:
        """Return the SCN from which redo is kept while there is room, at `needed_scn` or below.

        None: no capture process is registered.

        Args:
            oldest_scn: redo can be mined from here on.
        """
        now_us = self._clock.time_us()
        captures = list(self._captures.values())
        for each in captures:
            each.age(now_us)
            if each.start == FIRST_SCN:
                # It begins with the oldest redo, and nothing was purged before it began.
                each.start = oldest_scn
        return min((each.kept for each in captures), default=None)

    def register(
        self, capture: str, *, first_scn: Scn = FIRST_SCN, start_scn: Scn = FIRST_SCN, retention_s: float = 0.0
    ) -> Scn:
        """Keep redo for a capture process from now on; idempotent. Return its required checkpoint SCN.

        Args:
            capture: name of the capture process.
            first_scn: first SCN, if it is new here.
            start_scn: start SCN, if it is new here; FIRST_SCN: the first SCN.
            retention_s: how long redo is kept beyond the need, seconds.
        """
        if capture not in self._captures:
            start = max(first_scn, start_scn)
            self._captures[capture] = _Capture(required=start, first=first_scn, start=start, retention_s=retention_s)
            self.save()
        self._captures[capture].retention_s = retention_s
        return self._captures[capture].required

    def forget(self, capture: str) -> None:
        """Keep no redo for a dropped capture process; idempotent."""
        if self._captures.pop(capture, None) is not None:
            self.save()

    def forget_others(self, captures: Collection[str]) -> None:
        """Keep redo for these capture processes only: those of an older topology would keep all of it for ever."""
        for capture in [name for name in self._captures if name not in captures]:
            self.forget(capture)

    def record(self, capture: str, scn: Scn) -> Scn:
        """Record that a capture process will never again mine below `scn`; never moves back, not yet on disk.

        At the recorded position or above, this ends a `mine_again`. A capture process that is not registered is
        ignored: it was dropped, and does not know yet.

        Args:
            capture: name of the capture process.
            scn: its required checkpoint SCN; FIRST_SCN only queries.

        Returns:
            The recorded position; `scn` if it is not registered.
        """
        found = self._captures.get(capture)
        if found is None:
            return scn
        found.required = max(found.required, scn)
        if found.again is not None and scn >= found.required:
            found.again = None
        return found.required

    def mine_again(self, capture: str, scn: Scn) -> Scn:
        """Keep existing redo from `scn` on, until the capture process reports its recorded position or a higher one.

        Used when a destination lost commits and durable changes are sent again. Without it, redo would be purged while
        it is mined again.

        Args:
            capture: name of the capture process.
            scn: position from which it mines.

        Returns:
            As `record`.
        """
        found = self._captures.get(capture)
        if found is None:
            return scn
        if scn < found.required:
            # A restarted capture process requests what its queue lacks; what follows an earlier request is only in the
            # queue's memory.
            found.again = scn if found.again is None else min(scn, found.again)
        return found.required

    def scns(self, oldest_scn: Scn) -> dict[str, CaptureScns]:
        """Return the SCNs of every capture process, by name.

        Args:
            oldest_scn: redo can be mined from here on.
        """
        return {
            name: CaptureScns(
                first_scn=(first := max(each.first, oldest_scn)),
                start_scn=max(each.start, first),
                required_checkpoint_scn=each.required,
            )
            for name, each in list(self._captures.items())
        }

    def set_first_scn(self, capture: str, scn: Scn, *, oldest_scn: Scn) -> None:
        """Raise a first SCN; durable when this returns. A start SCN below it becomes equal to it.

        The next purge removes the redo before it.

        Args:
            capture: name of the capture process.
            scn: the new first SCN.
            oldest_scn: redo can be mined from here on.

        Raises:
            ConfigError: it breaks a rule of first SCNs; nothing is changed.
            RedoFull: no space; the change lasts until the next start only.
        """
        found = self._known(capture)
        present = max(found.first, oldest_scn)
        if scn <= present:
            raise ConfigError(
                f"first SCN {scn_text(scn)} of capture process {capture} is not above its present one,"
                f" {scn_text(present)}: a first SCN is only raised, because the redo before it may be purged",
                hint=f"give an SCN above {scn_text(present)}",
            )
        if scn > found.needed:
            raise ConfigError(
                f"first SCN {scn_text(scn)} of capture process {capture} is above its required checkpoint SCN"
                f" {scn_text(found.needed)}: redo from there on is still needed",
                hint=f"give at most {scn_text(found.needed)}, or wait until every destination has applied more"
                " (`headrace status`)",
            )
        found.first, found.start = scn, max(found.start, scn)
        self.save()

    def set_start_scn(self, capture: str, scn: Scn, *, oldest_scn: Scn) -> None:
        """Record where a capture process begins to capture again; durable when this returns.

        Args:
            capture: name of the capture process.
            scn: the new start SCN.
            oldest_scn: redo can be mined from here on.

        Raises:
            ConfigError: it breaks a rule of start SCNs; nothing is changed.
            RedoFull: no space; the change lasts until the next start only.
        """
        found = self._known(capture)
        first = max(found.first, oldest_scn)
        if scn < first:
            raise ConfigError(
                f"start SCN {scn_text(scn)} of capture process {capture} is below its first SCN {scn_text(first)}: redo"
                " before that is not kept",
                hint=f"give an SCN from {scn_text(first)} on; checkpoint_retention_time in the topology file keeps redo"
                " longer from now on",
            )
        if scn > found.needed:
            raise ConfigError(
                f"start SCN {scn_text(scn)} of capture process {capture} is above what every destination has applied,"
                f" {scn_text(found.needed)}: the changes in between would never arrive",
                hint=f"give at most {scn_text(found.needed)}",
            )
        found.start = scn
        self.save()

    def save(self) -> None:
        """Make the current state durable.

        Raises:
            RedoFull: no space.
        """
        with self._saving:  # an operator's call may coincide with the owner's
            document = self._document()
            if document == self._saved:
                return
            try:
                replace_file(self._path, json.dumps(document))
            except OSError as error:
                raise write_error(self._path, error) from error
            self._saved = document

    def _known(self, capture: str) -> _Capture:
        if capture not in self._captures:
            raise ConfigError(
                f"no redo is kept here for capture process {capture}",
                hint="`headrace up` registers it; see `headrace status`",
            )
        return self._captures[capture]

    def _document(self) -> dict[str, Any]:
        return {name: each.document() for name, each in list(self._captures.items())}


def _read(found: Any) -> _Capture:  # noqa: ANN401 - of the file
    if isinstance(found, int):  # format with the required checkpoint SCN only
        return _Capture(required=Scn(found))
    return _Capture(
        required=Scn(int(found["required"])),
        first=Scn(int(found["first"])),
        start=Scn(int(found["start"])),
        passed=tuple((int(seen_us), Scn(int(scn))) for seen_us, scn in found["passed"]),
    )


class PurgeBounds:
    """Saves the bounds of a purge: periodically, and before every purge.

    A capture process whose position was lost counts as new, and waits for redo that is gone. So the reason for a purge
    is on disk before the redo is removed.

    Args:
        saves: functions that make the bounds durable; each may raise `RedoFull`.
        clock: clock of the interval.
    """

    def __init__(self, *saves: Callable[[], None], clock: Clock) -> None:
        self._saves, self._clock = saves, clock
        self._saved_at = clock.monotonic()

    def save(self, *, purges: bool) -> None:
        """Save when that is due.

        A full disk does not prevent a purge: the state on disk is a lower bound, whatever its age.

        Args:
            purges: redo is about to be removed.
        """
        now = self._clock.monotonic()
        if not purges and now - self._saved_at < CHECKPOINT_SAVE_INTERVAL_S:
            return
        self._saved_at = now
        with contextlib.suppress(RedoFull):
            for save in self._saves:
                save()
