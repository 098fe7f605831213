"""Rates: the messages and calls that a server accepts from one connection, and from one site over all its connections.

Job
    Bound the cost of an admitted client. Batches are bounded by credit; acknowledgements, checkpoints and new streams
    only by these rates.

Main path
    a call begins -> Rates.begin -> Meter -> Meter.pass_one before each message that the handler reads

Over its rate
    A message waits before it is read: HTTP/2 then holds the sender back, and unsent data stays in the sender's memory. A
    stream that is held back for `HELD_BACK_S_MAX` without a pause ends with `RateExceeded` (RESOURCE_EXHAUSTED).
    A new call of a connection waits in the same way: a connection has at most four of them, so it holds four threads.
    If a site's connections together begin too many calls, or have too many open, a call is refused at once with the same
    error.

Bounds
    One bucket per connection and method, and one per principal and method; the `TABLE_MAX` most recently used are
    remembered. A principal is the name in the certificate or, without TLS, the address. A connection that was dropped
    from the table restarts with a full bucket, its principal does not.

Threads
    Streams of a connection share a bucket without a lock. Two threads that meet may pay once for two messages. That does
    not circumvent the rate, and a message costs only two comparisons.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.base.errors import RateExceeded, printable

__all__ = ["DEFAULT_LIMIT", "LIMITS", "Bucket", "Limit", "Meter", "RateListener", "Rates"]

# Messages a second of one stream that carries batches. Credit bounds their bytes, so this bounds batches without rows and
# duplicates. A propagation that sends a backlog of the smallest batches is limited by Python: 7,000 a second were measured
# on a slow core.
BATCH_MESSAGES_PER_S = 20_000
# Messages a second of a stream that carries acknowledgements, credit or reports. Our subscribers acknowledge at most 500
# times a second (`queue_link.ACKNOWLEDGE_INTERVAL_S`) and grant credit once for a large part of their window. A redo
# receiver sends two messages for an fsync, which the log writer's pauses keep below 300 a second; an apply server sends
# one for a commit. Reading a message costs some 200 µs of a slow core.
CONTROL_MESSAGES_PER_S = 2_000
# New streams a second of one connection. Our clients open one, and close the connection with it.
STREAMS_PER_S = 20
# Requests a second of one connection that only report or ask. A capture process reports its checkpoint once a second, a
# task asks for access once, and the Spark application's health is checked every five seconds.
ASKS_PER_S = 20
# Requests a second of a copying task: one for each piece of a table, which takes the databases milliseconds even if it is
# empty. All tasks of a site together have four times as many, which is more than Python can answer: a refused task would
# end.
PIECES_PER_S = 1_000

# A connection's burst, in seconds of its rate: the backlog of a process that was suspended arrives at once.
BURST_S = 2.0
# The burst of a site's new calls: all its components reconnect at once, each several times within the first seconds.
SITE_BURST_S = 10.0
# A site's messages, in connections at their full rate: several of its components use one server, but none of them at its
# full rate.
SITE_MESSAGES = 2
# A site's new calls, likewise in connections. The twenty components that one site may have at a queue can begin 4 a second
# each before they are refused.
SITE_CALLS = 4

# A sender over its rate waits at least this long, and some messages then pass without a pause: waking for each of them
# costs more than reading it.
WAIT_S_MIN = 0.02
HELD_BACK_S_MAX = 30.0  # of a stream that is held back all the time: none of our loads lasts so long at such a rate
# Longest wait of a new call. The four calls of a connection together wait a fifth of a second; a longer wait comes from a
# caller that begins calls and cancels them.
CALL_WAIT_S_MAX = 1.0
PAUSE_S = 1.0  # a stream that was not held back for this long starts anew
TABLE_MAX = 4096  # buckets of each kind: four methods of more connections than a server accepts, some 200 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limits of one connection at one method.

    Args:
        messages_per_s: messages read from all its streams together, per second.
        calls_per_s: calls begun, per second.
    """

    messages_per_s: float = CONTROL_MESSAGES_PER_S
    calls_per_s: float = STREAMS_PER_S


DEFAULT_LIMIT = Limit()

LIMITS: Mapping[str, Limit] = {
    "headrace.v1.Queue/Enqueue": Limit(messages_per_s=BATCH_MESSAGES_PER_S),
    "headrace.v1.Queue/Dequeue": Limit(),
    "headrace.v1.Redo/Watch": Limit(),
    "headrace.v1.Redo/Checkpoint": Limit(calls_per_s=ASKS_PER_S),
    "headrace.v1.RedoTransport/Ship": Limit(),
    "headrace.v1.Coordinator/Serve": Limit(),
    "headrace.v1.Coordinator/Access": Limit(calls_per_s=ASKS_PER_S),
    "headrace.v1.Coordinator/NextCopy": Limit(calls_per_s=PIECES_PER_S),
    "headrace.v1.SparkTasks/Run": Limit(),
    "headrace.v1.SparkTasks/Health": Limit(calls_per_s=ASKS_PER_S),
}
"""Limits by service and method."""


class Bucket:
    """A token bucket, stored as the time at which it is full again.

    Args:
        per_s: tokens per second.
        burst_s: its size, in seconds of `per_s`.
    """

    __slots__ = ("_burst_s", "_each_s", "_full_at")

    def __init__(self, per_s: float, burst_s: float) -> None:
        self._each_s = 1.0 / per_s
        self._burst_s = max(burst_s, self._each_s)
        self._full_at = 0.0

    def take(self, now: float) -> float:
        """Take a token; return the seconds until it is available; 0 or less: now.

        Args:
            now: time of a monotonic clock.
        """
        full_at = self._full_at
        full_at = max(full_at, now)
        self._full_at = full_at = full_at + self._each_s
        return full_at - now - self._burst_s

    def take_within(self, now: float, wait_s_max: float) -> float | None:
        """Take a token as `take` does, unless the wait would be too long; None: it was not taken.

        Args:
            now: time of a monotonic clock.
            wait_s_max: longest acceptable wait, in seconds.
        """
        if max(self._full_at, now) + self._each_s - now - self._burst_s > wait_s_max:
            return None
        return self.take(now)


class RateListener(Protocol):
    """Callbacks that count and log exceeded rates (`protos.wire.admission.Admission`)."""

    def held_back(self, peer: str, problem: str) -> None:
        """Note that a stream or a call waits; called each time.

        Args:
            peer: the connection.
            problem: the exceeded limit.
        """
        ...

    def refused(self, peer: str, problem: str) -> None:
        """Note that a stream ends, or a call is refused.

        Args:
            peer: the connection.
            problem: the exceeded limit.
        """
        ...


class _Buckets:
    """The buckets of one connection or principal, at one method."""

    __slots__ = ("calls", "messages")

    def __init__(self, messages: Bucket, calls: Bucket) -> None:
        self.messages, self.calls = messages, calls


class Meter:
    """Counts one stream's messages (made by `Rates.begin`)."""

    __slots__ = (
        "_clock",
        "_held_at",
        "_held_since",
        "_listener",
        "_messages",
        "_method",
        "_peer",
        "_site_messages",
        "_sleep",
    )

    def __init__(self, rates: Rates, peer: str, method: str, messages: Bucket, site_messages: Bucket) -> None:
        self._clock, self._sleep, self._listener = rates.clock, rates.sleep, rates.listener
        self._peer, self._method = peer, method
        self._messages, self._site_messages = messages, site_messages
        self._held_at = self._held_since = float("-inf")

    def pass_one(self) -> None:
        """Let one message pass; wait while the connection or its site is over its rate.

        Raises:
            RateExceeded: the stream was held back for too long.
        """
        now = self._clock()
        wait_s, site_wait_s = self._messages.take(now), self._site_messages.take(now)
        if wait_s > 0.0 or site_wait_s > 0.0:
            self._hold_back(now, wait_s, max(wait_s, site_wait_s))

    def _hold_back(self, now: float, own_s: float, wait_s: float) -> None:
        problem = f"it exceeds the message rate of {self._method}"
        if own_s > 0.0:  # not for messages of other connections of its site
            if now - self._held_at > PAUSE_S:
                self._held_since = now
            self._held_at = now
            if now - self._held_since > HELD_BACK_S_MAX:
                problem = f"{self._peer} exceeded the message rate of {self._method} for {HELD_BACK_S_MAX:g} s"
                self._listener.refused(self._peer, problem)
                raise RateExceeded(problem, hint="no component of Headrace does this; the stream may be opened again")
        self._listener.held_back(self._peer, problem)
        self._sleep(max(wait_s, WAIT_S_MIN))


class Rates:
    """The rates of one server. Callable from any thread.

    Args:
        listener: counts and logs.
        limits: limits by method.
        clock: monotonic clock.
        sleep: waits the given seconds.
    """

    def __init__(
        self,
        listener: RateListener,
        limits: Mapping[str, Limit] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.listener, self.clock, self.sleep = listener, clock, sleep
        self._limits = LIMITS if limits is None else limits
        self._lock = threading.Lock()
        self._connections: OrderedDict[tuple[str, str], _Buckets] = OrderedDict()
        self._sites: OrderedDict[tuple[str, str], _Buckets] = OrderedDict()
        self._open: dict[str, int] = {}

    def begin(self, peer: str, principal: str, method: str, calls_max: int) -> Meter:
        """Count a call; wait while its connection begins too many.

        The caller calls `ended` when the call has ended, unless this raises.

        Args:
            peer: the connection.
            principal: owner of the connection.
            method: service and method, as in `LIMITS`.
            calls_max: number of calls that a principal may have open at this server.

        Raises:
            RateExceeded: its principal begins too many calls, or has too many open.
        """
        limit = self._limits.get(method, DEFAULT_LIMIT)
        with self._lock:
            count = self._open.get(principal, 0)
            if count < calls_max:
                self._open[principal] = count + 1
            own = _found(self._connections, (peer, method), limit, 1, 1, BURST_S)
            site = _found(self._sites, (principal, method), limit, SITE_MESSAGES, SITE_CALLS, SITE_BURST_S)
            wait_s = own.calls.take_within(self.clock(), CALL_WAIT_S_MAX)
        if count >= calls_max:
            raise self._refusal(peer, f"{printable(principal)} has {count} open calls here, which is the maximum")
        try:
            self._wait_for_call(peer, method, wait_s)
            with self._lock:
                is_taken = site.calls.take_within(self.clock(), 0.0) is not None
            if not is_taken:
                raise self._refusal(peer, f"{printable(principal)} exceeds the call rate of {method}")
        except BaseException:
            self.ended(principal)
            raise
        return Meter(self, peer, method, own.messages, site.messages)

    def _wait_for_call(self, peer: str, method: str, wait_s: float | None) -> None:
        problem = f"it exceeds the call rate of {method}"
        if wait_s is None:
            raise self._refusal(peer, f"{peer}: {problem}")
        if wait_s > 0.0:
            self.listener.held_back(peer, problem)
            self.sleep(wait_s)

    def ended(self, principal: str) -> None:
        """Note that a call has ended.

        Args:
            principal: as given to `begin`.
        """
        with self._lock:
            left = self._open[principal] - 1
            if left:
                self._open[principal] = left
            else:
                del self._open[principal]

    def _refusal(self, peer: str, problem: str) -> RateExceeded:
        self.listener.refused(peer, problem)
        return RateExceeded(problem, hint="retry later; the limit is above what Headrace's own components ever need")


def _found(
    table: OrderedDict[tuple[str, str], _Buckets],
    key: tuple[str, str],
    limit: Limit,
    messages: int,
    calls: int,
    calls_burst_s: float,
) -> _Buckets:
    """Return the buckets of a key; new ones are full, and push out the least recently used."""
    found = table.get(key)
    if found is None:
        found = table[key] = _Buckets(
            Bucket(limit.messages_per_s * messages, BURST_S), Bucket(limit.calls_per_s * calls, calls_burst_s)
        )
        if len(table) > TABLE_MAX:
            table.popitem(last=False)
    else:
        table.move_to_end(key)
    return found
