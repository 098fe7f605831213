"""Reads the dictionary builds that the redo log awaits, with a growing retry interval.

The catalog shows a transaction later than the log does, usually within a millisecond (`headrace.redo.dictionary`). So
an awaited build is retried soon, and then half as often each time: a COMMIT that waits for another standby may take
hours.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from headrace.base.clock import Clock
from headrace.databases.ports import DictionaryBuild

__all__ = ["BUILD_LATE_S", "AwaitedBuilds", "ReadDictionary"]

BUILD_RETRY_MIN_S, BUILD_RETRY_MAX_S = 0.001, 0.1
BUILD_LATE_S = 10.0  # after this an awaited build is a problem: commits become visible in milliseconds


class ReadDictionary(Protocol):
    """`SourceDatabase.dictionary_build` of one topology."""

    def __call__(self, *, seeing: Collection[int] = ()) -> DictionaryBuild | None:
        """Read the build."""
        ...


class AwaitedBuilds:
    """The awaited builds of one log writer, which passes what its dictionary awaits with every call.

    Args:
        read: reads the source's catalog.
        clock: clock for the retries.

    Attributes:
        read: as given.
        pending: a build that was read and not written.
    """

    def __init__(self, read: ReadDictionary, clock: Clock) -> None:
        self.read, self._clock = read, clock
        self.pending: DictionaryBuild | None = None
        self._try_at = 0.0
        self._retry_s = BUILD_RETRY_MIN_S
        self._since = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the awaited build takes longer than commits need to become visible."""
        return self._clock.monotonic() - self._since >= BUILD_LATE_S

    def problem(self, awaited: Collection[int] | None) -> str:
        """Return the operator's message about a late build; empty: there is no late build.

        Args:
            awaited: numbers of the transactions that it must reflect; None: none is awaited.
        """
        if awaited is None or not self.is_late:
            return ""
        shown = ", ".join(map(str, list(awaited)[:3])) + (", ..." if len(awaited) > 3 else "")
        return (
            f"capture waits until transaction {shown}, which is in the database's log, is visible in the database: see"
            " SELECT * FROM pg_stat_activity WHERE wait_event = 'SyncRep'; is a synchronous standby away?"
        )

    def begin(self) -> None:
        """Note that a stream begins, or that a build is awaited from here on."""
        self._since = self._clock.monotonic()

    def try_at_once(self) -> None:
        """Retry at once on a new stream: the obstacle of the last try may be gone."""
        self._try_at, self._retry_s = 0.0, BUILD_RETRY_MIN_S
        self.begin()

    def find(self, awaited: Collection[int]) -> DictionaryBuild | None:
        """Return the awaited build, now `pending`; None: it cannot be read yet, or its retry is not due.

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
        # Leave half of the time to the log: a catalog of many partitions takes a second to read, and each partition may
        # have its own description.
        self._try_at, self._retry_s = now + (now - began), BUILD_RETRY_MIN_S
        self.pending = build
        return build

    def until_next_s(self, seconds: float) -> float:
        """Cap a wait in seconds at the next try of the awaited build."""
        return min(seconds, max(0.0, self._try_at - self._clock.monotonic()))
