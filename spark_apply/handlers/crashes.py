"""Handlers that end their process (`os._exit`, a fault in a compiled module) or their session.

This module limits how often one may, and defines what is durable about it.

A single death proves nothing, so nothing is recorded until an apply server has died while it wrote. From then on, the
affected groups are written carefully (`GroupAssignment.is_careful`): one transaction at a time. Before a function is
called for a transaction, a separate transaction records the call at the destination. A process that dies in the call
leaves the record. A process that survives deletes it when the transaction is committed or in the error queue.

    dies in call 1 (not recorded) -> recorded, dies -> recorded, dies -> recorded, dies -> three are recorded: not
    called again; the transaction goes into the error queue, which names the function

A session that ends (`pg_terminate_backend(pg_backend_pid())`, `exit_on_error`) proves as little: an administrator or
the network can end it too. Its process lives and counts, so nothing is recorded. From the first such end on,
transactions with handled rows are written one at a time. A function may be the last one called before its session
ended, in the same transaction, at most `CRASHES_MAX` times; after that it is not called for that transaction again. A
server restart ends the epoch, and with it the process that counts.

Another version of a function counts as another function: the operator corrects it, runs `headrace up`, and executes the
error transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.lcr.scn import Scn
from headrace.rules.user_code.last_call import CRASHES_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.databases.ports import ApplyRecords
    from headrace.rules.user_code.source import UserFunction

__all__ = ["CRASHES_MAX", "Calls", "CrashGuard", "NoCalls", "RecordedCalls"]


class Calls(Protocol):
    """Record of calls: at a destination, for one apply process (`DestinationDatabase.begin_handler_call`)."""

    def begin(self, scn: Scn, function: str) -> int:
        """Record a call; return how many earlier processes began it and did not survive it.

        Args:
            scn: SCN of the transaction at its source.
            function: name and version.
        """
        ...

    def end(self, scns: Collection[Scn]) -> None:
        """Forget the calls for these transactions."""
        ...


class RecordedCalls:
    """Records calls at a destination."""

    def __init__(self, destination: ApplyRecords, topology: str, apply: str) -> None:
        self._destination, self._topology, self._apply = destination, topology, apply

    def begin(self, scn: Scn, function: str) -> int:
        """Record a call; return how many earlier processes began it and did not survive it.

        Args:
            scn: SCN of the transaction at its source.
            function: name and version.
        """
        return self._destination.begin_handler_call(self._topology, self._apply, scn, function)

    def end(self, scns: Collection[Scn]) -> None:
        """Forget the calls for these transactions."""
        self._destination.end_handler_calls(self._topology, self._apply, scns)


class NoCalls:
    """Records nothing, for uses where nothing would read the records."""

    def begin(self, scn: Scn, function: str) -> int:  # noqa: ARG002 - part of the interface
        """Return 0: no earlier process began the call. See `Calls.begin`."""
        return 0

    def end(self, scns: Collection[Scn]) -> None:
        """Do nothing."""


class CrashGuard:
    """Counts crashes of handlers, and refuses calls that crashed too often. One per process.

    Args:
        calls: where calls are recorded.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._begun: dict[tuple[Scn, str], int] = {}
        self._called: tuple[Scn, str] | None = None  # the last call in the open transaction
        self._lost: dict[tuple[Scn, str], int] = {}  # number of sessions that ended after the call
        self.is_careful = False
        """Whether a server died while it wrote the current group or one that it was formed from."""

    def begin(self) -> None:
        """Note that a transaction begins, in which nothing was called yet."""
        self._called = None

    def session_lost(self) -> None:
        """Count a session that ended in the middle of a transaction for the last call."""
        if self._called is not None:
            self._lost[self._called] = self._lost.get(self._called, 0) + 1
            self._called = None

    @property
    def has_lost(self) -> bool:
        """Whether sessions ended after calls for transactions that are not done."""
        return bool(self._lost)

    def settle(self, through: Scn | None = None) -> None:
        """Drop the counts of transactions that are done.

        Args:
            through: their last SCN at the source; None: all called transactions are done.
        """
        self._called = None
        if self._lost:
            self._lost = {key: count for key, count in self._lost.items() if through is not None and key[0] > through}

    def problem(self, function: UserFunction, scn: Scn) -> str:
        """Return why a function must not be called for a transaction; empty: it may, and the call is recorded if due.

        Args:
            function: the function.
            scn: SCN of the transaction at its source.

        Raises:
            DatabaseError: the call cannot be recorded.
        """
        key = (scn, str(function))
        self._called = key
        if (lost := self._lost.get(key, 0)) > CRASHES_MAX:
            return (
                f"{function} is not called again: its session at the destination ended {lost} times while it ran"
                " for this transaction"
            )
        if not self.is_careful:
            return ""
        if key not in self._begun:  # this process has survived the calls that it began
            self._begun[key] = self._calls.begin(*key)
        if self._begun[key] < CRASHES_MAX:
            return ""
        return f"{function} is not called again: {self._begun[key]} processes ended while it ran for this transaction"

    def ended(self) -> None:
        """Note that the called transactions are committed or in the error queue."""
        if self._begun:
            self._calls.end({scn for scn, _ in self._begun})
            self._begun.clear()
