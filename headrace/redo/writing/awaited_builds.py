"""Reads the dictionary builds that the redo log awaits, as often as it is worth.

The catalog shows a transaction a while after the log does, as a rule within a millisecond (`headrace.redo.dictionary`). So an
awaited build is tried soon again, and then half as often each time: a COMMIT that waits for another standby may take
hours.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from headrace.base.clock import Clock
from headrace.databases.ports import DictionaryBuild

__all__ = ["BUILD_LATE_S", "AwaitedBuilds", "ReadDictionary"]

BUILD_RETRY_MIN_S, BUILD_RETRY_MAX_S = 0.001, 0.1
BUILD_LATE_S = 10.0  # an awaited build that took longer is a problem to tell: commits become visible in milliseconds


class ReadDictionary(Protocol):
    """`SourceDatabase.dictionary_build` of one topology."""

    def __call__(self, *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        """See there."""
        ...


class AwaitedBuilds:
    """See the module. Owned by one log writer, which gives what its dictionary awaits with every call.

    Args:
        read: the catalog of the source.
        clock: for the retries.

    Attributes:
        read: as given.
        pending: a build that is read and not written.
    """

    def __init__(self, read: ReadDictionary, clock: Clock) -> None:
        self.read, self._clock = read, clock
        self.pending: DictionaryBuild | None = None
        self._try_at = 0.0
        self._retry_s = BUILD_RETRY_MIN_S
        self._since = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the build that is awaited takes longer than commits need to become visible."""
        return self._clock.monotonic() - self._since >= BUILD_LATE_S

    def problem(self, awaited: Collection[int] | None) -> str:
        """What the operator is told of an awaited build that is late; empty: nothing.

        Args:
            awaited: numbers of the transactions that it must reflect; None: none is awaited.
        """
        if awaited is None or not self.is_late:
            return ""
        shown = ", ".join(map(str, list(awaited)[:3])) + (", ..." if len(awaited) > 3 else "")
        return (
            f"capture waits until transaction {shown} is visible in the database, which is in its log: see SELECT *"
            " FROM pg_stat_activity WHERE wait_event = 'SyncRep'; is a synchronous standby away?"
        )

    def begin(self) -> None:
        """A stream begins, or a build is awaited from here on."""
        self._since = self._clock.monotonic()

    def try_at_once(self) -> None:
        """A new stream: what was in the way of the last try may be gone."""
        self._try_at, self._retry_s = 0.0, BUILD_RETRY_MIN_S
        self.begin()

    def find(self, awaited: Collection[int]) -> DictionaryBuild | None:
        """The awaited build, which is `pending` from now on; None: it cannot be read yet, or is not to be tried yet.

        Args:
            awaited: numbers of the transactions that it must reflect.

        Raises:
            DatabaseUnavailable: the catalog cannot be read.
        """
        began = self._clock.monotonic()
        if began < self._try_at:
            return None
        build = self.pending or self.read(seeing=awaited)
        now = self._clock.monotonic()
        if build is None:
            self._try_at = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, BUILD_RETRY_MAX_S)
            return None
        # Half of the time is for the log: a catalog of many partitions takes a second to read, and each may be
        # described by itself.
        self._try_at, self._retry_s = now + (now - began), BUILD_RETRY_MIN_S
        self.pending = build
        return build

    def until_next_s(self, seconds: float) -> float:
        """As long as given, seconds, but not beyond the moment when the awaited build is to be tried."""
        return min(seconds, max(0.0, self._try_at - self._clock.monotonic()))
