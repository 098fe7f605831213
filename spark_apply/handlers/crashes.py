"""Handlers that end their process (`os._exit`, a fault in a compiled module) or their session.

How often one may, and what is durable of it.

A death says nothing by itself, so nothing is recorded until an apply server has died while it wrote. From then on what
it wrote is written carefully (`GroupAssignment.is_careful`): one transaction at a time, and before a function is called
for a transaction, that is recorded at the destination, in a transaction of its own. A process that dies there leaves
the record. One that lives forgets it, once what it called the function for is committed or in the error queue.

    dies in call 1 (not recorded) -> recorded, dies -> recorded, dies -> recorded, dies -> three are recorded: not
    called again; the transaction goes into the error queue, which names the function

A session that ends (`pg_terminate_backend(pg_backend_pid())`, `exit_on_error`) says as little by itself: an
administrator, or a network, can end it too. Its process lives and counts, so nothing is recorded. From the first such
end on, what has handled rows is written one transaction at a time; a function that was the last one called before its
session ended, in the same transaction more than `CRASHES_MAX` times, is not called for it again. A server that restarts
ends the epoch, and with it the process that counts.

Another version of the function is another function: an operator corrects it, runs `headrace up`, and executes the error
transaction.
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
    """Where calls are recorded: a destination, for one apply process (`DestinationDatabase.begin_handler_call`)."""

    def begin(self, scn: Scn, function: str) -> int:
        """Record a call; how many processes began it before and did not live through it.

        Args:
            scn: of the transaction, at its source.
            function: name and version.
        """
        ...

    def end(self, scns: Collection[Scn]) -> None:
        """Forget the calls for these transactions."""
        ...


class RecordedCalls:
    """At a destination; see `Calls`.

    Args:
        destination: the database.
        topology: name of the topology.
        apply: name of the apply process.
    """

    def __init__(self, destination: ApplyRecords, topology: str, apply: str) -> None:
        self._destination, self._topology, self._apply = destination, topology, apply

    def begin(self, scn: Scn, function: str) -> int:
        """See `Calls`.

        Args:
            scn: see there.
            function: see there.
        """
        return self._destination.begin_handler_call(self._topology, self._apply, scn, function)

    def end(self, scns: Collection[Scn]) -> None:
        """See `Calls`."""
        self._destination.end_handler_calls(self._topology, self._apply, scns)


class NoCalls:
    """Records nothing: where nobody else would read it."""

    def begin(self, scn: Scn, function: str) -> int:  # noqa: ARG002 - part of the interface
        """None began it before.

        Args:
            scn: not used.
            function: not used.
        """
        return 0

    def end(self, scns: Collection[Scn]) -> None:
        """Nothing is recorded."""


class CrashGuard:
    """See the module. One per process.

    Args:
        calls: where they are recorded.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._begun: dict[tuple[Scn, str], int] = {}
        self._called: tuple[Scn, str] | None = None  # the last call in the open transaction
        self._lost: dict[tuple[Scn, str], int] = {}  # how many sessions ended behind it
        self.is_careful = False
        """A server died while it wrote what is written now."""

    def begin(self) -> None:
        """Nothing was called yet in the transaction that begins."""
        self._called = None

    def session_lost(self) -> None:
        """The session ended in the middle of a transaction: count it for what was called last."""
        if self._called is not None:
            self._lost[self._called] = self._lost.get(self._called, 0) + 1
            self._called = None

    @property
    def has_lost(self) -> bool:
        """Whether sessions ended behind calls for transactions that are not done."""
        return bool(self._lost)

    def settle(self, through: Scn | None = None) -> None:
        """Transactions are done: their calls no longer count.

        Args:
            through: their last SCN at the source; None: whatever was called is done.
        """
        self._called = None
        if self._lost:
            self._lost = {key: count for key, count in self._lost.items() if through is not None and key[0] > through}

    def problem(self, function: UserFunction, scn: Scn) -> str:
        """Why a function must not be called for a transaction; empty: it may, and that is recorded if need be.

        Args:
            function: which one.
            scn: of the transaction, at its source.

        Raises:
            DatabaseError: it cannot be recorded.
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
        if key not in self._begun:  # what this process began it has lived through
            self._begun[key] = self._calls.begin(*key)
        if self._begun[key] < CRASHES_MAX:
            return ""
        return f"{function} is not called again: {self._begun[key]} processes ended while it ran for this transaction"

    def ended(self) -> None:
        """What was called is committed or in the error queue."""
        if self._begun:
            self._calls.end({scn for scn, _ in self._begun})
            self._begun.clear()
