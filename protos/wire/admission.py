"""Admission: decides who is served on a port, and records refusals.

Job
    Compare the site of a caller's certificate with the site of the component that it claims to be. Bound the cost of a
    caller before it is known, and count and log refusals.

Main path
    a call -> Admission.begin: its rates -> a service's handler -> Admission.opening -> first messages are read ->
    Admission.check -> served, or `NotAdmitted`.

Where callers are refused
    Without a certificate, with one of another authority, or without TLS where the server has it: in the handshake, by
    gRPC. No handler learns of it, so these are counted as connections that began and made no call (`status`).
    With a certificate of another site than the component's, or as a component without a purpose here: by `check`.
    With a certificate that the operator has revoked: by `begin`, and while its calls are open by `end_revoked`, every
    `REVOKED_LOOK_S`. A caller that sends far more than our components would: by `begin`, and on an open stream by its
    `Meter` (`protos.wire.rates`).

Bounds
    `HELLO_TIMEOUT_S` for the first messages of a stream. `FAILURES_MAX` refusals per connection; then its streams are
    refused unread. Records of connections are bounded by `PEERS_MAX`; the oldest are dropped. Rates of messages and
    calls: `protos.wire.rates`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import NotAdmitted, ProtocolError, printable
from headrace.status.component import WireStatus
from protos.wire.identity import Identity, principal_of
from protos.wire.rates import Meter, Rates
from protos.wire.revoked import Revoked, fingerprints_of, printed_fingerprint

__all__ = [
    "HANDSHAKE_TIMEOUT_S",
    "HELLO_TIMEOUT_S",
    "PUBLISH",
    "READ_REDO",
    "RECEIVE_REDO",
    "REVOKED_LOOK_S",
    "SUBSCRIBE",
    "Admission",
    "Callers",
]

# Purposes for which a component may connect.
PUBLISH, SUBSCRIBE, READ_REDO, RECEIVE_REDO = "publish", "subscribe", "read redo", "receive redo"

Callers = Mapping[str, Mapping[str, str]]
"""Admitted callers: PUBLISH, SUBSCRIBE, READ_REDO or RECEIVE_REDO -> component -> the site it runs at."""

# A client sends its first messages with the call; a node under full load has needed seconds to do so.
HELLO_TIMEOUT_S = 10.0
HANDSHAKE_TIMEOUT_S = 10.0  # for the same reason; until then a connection costs a descriptor
# Our clients close their connection after a refusal, and open at most a few streams on one.
FAILURES_MAX = 8
PEERS_MAX = 1024  # connections remembered: more than one server takes at a time
NOTED_CHARACTERS_MAX = 1500  # of a refusal: a sentence with three names of a hello, each truncated
LOG_INTERVAL_S = 60.0  # refusals may come many times a second: the first one is logged, then one line a minute

# A revoked certificate's open streams live this long: a person has just written a line, and a check is one `stat`.
REVOKED_LOOK_S = 2.0

_SAN, _CERTIFICATE = "x509_subject_alternative_name", "x509_pem_cert"

log = logging.getLogger("headrace")


@dataclass(slots=True)
class _Tally:
    """Count of an event, its last occurrence, and the time of the last log line.

    Not shared between threads without a lock.
    """

    count: int = 0
    last: str = ""
    last_us: int = 0
    logged_at: float = -LOG_INTERVAL_S

    def note(self, peer: str, problem: str) -> bool:
        """Count an event of a connection; return whether to log it."""
        self.count += 1
        self.last, self.last_us = f"{problem} ({peer})", time.time_ns() // 1000
        now = time.monotonic()
        is_to_log = now - self.logged_at >= LOG_INTERVAL_S
        if is_to_log:
            self.logged_at = now
        return is_to_log


class Admission:
    """Admission of one server. Callable from any thread.

    Args:
        name: name of what is served, for messages: "queue q_dbs1".
        identity: identity of the serving site; None: without TLS, callers prove nothing, and only the bounds apply.
        callers: the admitted callers.
    """

    def __init__(
        self, name: str = "this server", identity: Identity | None = None, callers: Callers | None = None
    ) -> None:
        self.name, self.identity = name, identity
        self._callers: Callers = callers or {}
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._pending: deque[float] = deque()  # start times of connections that may still be in their handshake
        self._began = self._made_calls = 0
        self._told_connections = self._last_connection_us = 0
        self._refused, self._held_back = _Tally(), _Tally()
        self.rates = Rates(self)
        self._revoked = (
            Revoked(identity.revoked, must_exist=identity.must_list)
            if identity is not None and identity.revoked
            else None
        )
        # open calls and the fingerprints of their callers, if there is a list
        self._open: dict[object, tuple[Any, tuple[str, ...]]] = {}

    def change(self, callers: Callers) -> None:
        """Admit other callers from now on; open streams continue.

        Args:
            callers: the admitted callers.
        """
        self._callers = callers

    # ------------------------------------------------------------------ connections

    def connection_began(self) -> None:
        """Count a new connection; its handshake begins."""
        with self._lock:
            self._began += 1
            self._pending.append(time.monotonic())
            while len(self._pending) > PEERS_MAX:
                self._pending.popleft()

    # ------------------------------------------------------------------ calls

    def begin(self, context: Any, method: str, calls_max: int) -> Meter:  # noqa: ANN401 - a grpc.ServicerContext
        """Count a call against the rates of its connection and its site; return the meter of its messages.

        Args:
            context: context of the call.
            method: service and method.
            calls_max: number of calls that a site may have open at this server.

        Raises:
            NotAdmitted: the caller's certificate is revoked.
            RateExceeded: the call is refused.
        """
        peer = context.peer()
        self._begin_unrevoked(context)
        principal = ", ".join(self._names(context)) if self.identity is not None else peer.rpartition(":")[0]
        meter = self.rates.begin(peer, principal, method, calls_max)
        if not context.add_callback(lambda: self.rates.ended(principal)):
            self.rates.ended(principal)  # the caller has already disconnected
        return meter

    @property
    def has_list(self) -> bool:
        """Whether there is a list of revoked certificates for `end_revoked`."""
        return self._revoked is not None

    def end_revoked(self) -> None:
        """End the open calls of certificates that have been revoked since they began."""
        if self._revoked is None:
            return
        self._revoked.look()
        for call, (context, fingerprints) in self._open.copy().items():
            # A handler may take a moment to end: it is cancelled, and counted, once.
            if (listed := self._revoked.listed(fingerprints)) and self._open.pop(call, None) is not None:
                self.refused(context.peer(), self._revocation(context, listed))
                context.cancel()

    @contextmanager
    def opening(self, context: Any, *, is_stream: bool = True) -> Iterator[None]:  # noqa: ANN401 - a grpc.ServicerContext
        """Guard the beginning of a call.

        Its first messages must arrive in time, and an error is counted against the connection.

        Args:
            context: context of the call.
            is_stream: whether its first messages are read inside; False: gRPC has read the only one.

        Raises:
            NotAdmitted: too many calls of this connection were refused.
        """
        peer = context.peer()
        is_late = threading.Event()
        timer = threading.Timer(HELLO_TIMEOUT_S, self._give_up, (context, peer, is_late))
        timer.daemon = True
        if is_stream:
            timer.start()
        try:
            self._note_call(peer)
            yield
        except ProtocolError as error:
            if not is_late.is_set():  # else `_give_up` ended the call and counted it
                self.refused(peer, error.message)
            raise
        finally:
            timer.cancel()

    def check(self, context: Any, role: str, component: str) -> None:  # noqa: ANN401 - a grpc.ServicerContext
        """Refuse a caller whose certificate is not that of the component's site, or which has no purpose here.

        Args:
            context: context of the call.
            role: purpose of the call.
            component: the component that the caller claims to be.

        Raises:
            NotAdmitted: the caller is refused.
        """
        if self.identity is None:
            return
        site = self._callers.get(role, {}).get(component)
        if site is None:
            raise NotAdmitted(
                f"{printable(component)} may not {role} at {self.name}",
                hint="the topology does not allow it, or one of the two still runs an older topology file",
                component=printable(component),
            )
        self._check_site(context, site, component)

    def check_own_site(self, context: Any) -> None:  # noqa: ANN401 - a grpc.ServicerContext
        """Refuse a caller of another site: only this site's own processes are served here.

        Args:
            context: context of the call.

        Raises:
            NotAdmitted: the caller is refused.
        """
        if self.identity is not None:
            self._check_site(context, self.identity.site, "a process of this site")

    def status(self) -> WireStatus:
        """Return statistics of refusals."""
        with self._lock:
            connections = self._refused_connections()
            if connections > self._told_connections:
                self._told_connections, self._last_connection_us = connections, time.time_ns() // 1000
            return WireStatus(
                tls=self.identity is not None,
                refused_calls=self._refused.count,
                refused_connections=connections,
                last_refused_connection_us=self._last_connection_us,
                last_refusal=self._refused.last,
                last_refusal_us=self._refused.last_us,
                revoked_problem="" if self._revoked is None else self._revoked.problem,
                held_back=self._held_back.count,
                last_held_back=self._held_back.last,
                last_held_back_us=self._held_back.last_us,
            )

    # ------------------------------------------------------------------ notes; implements `protos.wire.rates.RateListener`

    def held_back(self, peer: str, problem: str) -> None:
        """Count, and occasionally log, that a stream or call is held back.

        Args:
            peer: the connection.
            problem: the exceeded limit.
        """
        with self._lock:
            is_to_log = self._held_back.note(peer, problem)
        if is_to_log:
            log.warning("%s: holds back %s: %s", self.name, peer, problem)

    def refused(self, peer: str, problem: str) -> None:
        """Count, and occasionally log, a refused call or an ended stream; record it against the connection.

        Args:
            peer: the connection.
            problem: the reason.
        """
        problem = printable(problem, NOTED_CHARACTERS_MAX)
        with self._lock:
            self._failures[peer] = self._failures.pop(peer, 0) + 1
            _bound(self._failures)
            is_to_log = self._refused.note(peer, problem)
        if is_to_log:
            log.warning("%s: refused %s: %s", self.name, peer, problem)

    # ------------------------------------------------------------------ inside

    def _begin_unrevoked(self, context: Any) -> None:  # noqa: ANN401
        """Refuse a call with a revoked certificate; remember any other call until it ends."""
        if self._revoked is None:
            return
        # For a session that was resumed without its certificate, it is unknown whether it is revoked.
        shown = context.auth_context().get(_CERTIFICATE, ())
        fingerprints = fingerprints_of(shown[0].decode(errors="replace")) if shown else ()
        call = object()
        # Remembered first: the next check sees a line that is written between the two steps.
        self._open[call] = context, fingerprints
        if not context.add_callback(lambda: self._open.pop(call, None)):
            self._open.pop(call, None)  # the caller has already disconnected
        self._revoked.look()
        listed = self._revoked.listed(fingerprints)
        if fingerprints and not listed:
            return
        self._open.pop(call, None)
        problem = self._revocation(context, listed)
        self.refused(context.peer(), problem)
        raise NotAdmitted(
            problem,
            hint="a site whose certificate was stolen needs a new one: replace the old file, or, for certificates that"
            " `up` makes, run `headrace up FILE`",
        )

    def _revocation(self, context: Any, fingerprint: str) -> str:  # noqa: ANN401
        assert self._revoked is not None
        shown = (
            f"with the certificate {printed_fingerprint(fingerprint)}, which {self._revoked.path} lists"
            if fingerprint
            else "without a certificate"
        )
        return f"{printable(', '.join(self._names(context))) or 'nobody'} connects to {self.name} {shown}"

    def _check_site(self, context: Any, site: str, component: str) -> None:  # noqa: ANN401
        assert self.identity is not None
        wanted = principal_of(self.identity.topology, site)
        names = self._names(context)
        # Exactly: a certificate for every site at once (a wildcard) identifies none.
        if wanted not in names:
            raise NotAdmitted(
                f"{component} connects to {self.name} with a certificate of {printable(', '.join(names)) or 'nobody'}, not"
                f" of {wanted}",
                hint=f"site {site} needs its own certificate: `headrace certs` makes one, `headrace check` examines it",
                component=component,
            )

    @staticmethod
    def _names(context: Any) -> list[str]:  # noqa: ANN401
        """Return the names in a caller's certificate."""
        return sorted(name.decode(errors="replace") for name in context.auth_context().get(_SAN, ()))

    def _give_up(self, context: Any, peer: str, is_late: threading.Event) -> None:  # noqa: ANN401
        is_late.set()
        self.refused(peer, f"a stream of {peer} did not begin within {HELLO_TIMEOUT_S:g} s")
        context.cancel()

    def _note_call(self, peer: str) -> None:
        with self._lock:
            if peer not in self._seen:
                self._made_calls += 1
                self._seen[peer] = None
                _bound(self._seen)
            else:
                self._seen.move_to_end(peer)
            failures = self._failures.get(peer, 0)
        if failures >= FAILURES_MAX:
            raise NotAdmitted(
                f"{self.name} refused {failures} calls of this connection", hint="open another connection"
            )

    def _refused_connections(self) -> int:
        """Return the number of connections that began and made no call within the handshake time-out."""
        while self._pending and time.monotonic() - self._pending[0] > HANDSHAKE_TIMEOUT_S:
            self._pending.popleft()
        return max(0, self._began - len(self._pending) - self._made_calls)


def _bound(peers: OrderedDict[str, Any]) -> None:
    while len(peers) > PEERS_MAX:
        peers.popitem(last=False)
