"""Sends alerts: one thread and one bounded queue per target, so that the controller never waits for a target.

An alert is tried a few times and then given up, which `status` shows. Alerts beyond the hourly limit are skipped and
counted; the next alert that is sent contains the count. Nothing is stored on disk: after a restart of the controller,
every condition that holds is reported again.

Secrets (the address of a webhook, its token) appear in no message, status or log: a target is named by its host.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from actors.alerts.watch import Alert, AlertWatch
from headrace.status.overview import Overview, SentAlerts

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from topology.alerts import AlertTarget
    from topology.spec import TopologySpec

__all__ = ["Alerts", "Sender", "deliver"]

log = logging.getLogger("headrace")

WAITING_MAX = 100  # alerts pending for one target: five hours of the default limit
TIMEOUT_S = 10.0  # of one attempt: a service that takes longer counts as unavailable
KILLED_S = 1.0  # in which a killed command ends
PAUSES_S = (1.0, 5.0, 25.0)  # between attempts: a service that restarts is back after that
HOUR_S = 3600.0


class _NotSent(Exception):  # noqa: N818 - an outcome
    """Why a target did not take an alert, without secrets."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - of the base class
        """Follow no redirect: a token goes only where the file says."""
        return


def deliver(target: AlertTarget, document: Mapping[str, Any]) -> None:
    """Send one alert.

    Args:
        target: destination of the alert.
        document: the alert, JSON-able.

    Raises:
        _NotSent: the target did not take it.
    """
    body = json.dumps(document).encode()
    if target.command:
        _run(target, body)
    else:
        _post(target, body)


def _run(target: AlertTarget, body: bytes) -> None:
    try:
        # Without its output: a process that the command leaves behind would hold that open, and the alert would count
        # as not sent. In a separate session, so that everything a script has started ends with it.
        command = subprocess.Popen(
            target.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise _NotSent(os.strerror(error.errno) if error.errno else "it cannot be run") from None
    try:
        command.communicate(body, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise _NotSent(
            f"it did not end within {TIMEOUT_S:g} s{'' if _killed(command) else ', and cannot be ended'}"
        ) from None
    except BaseException:
        _killed(command)
        raise
    if command.returncode:
        raise _NotSent(f"it ended with {command.returncode}")


def _killed(command: subprocess.Popen[bytes]) -> bool:
    """Kill a command with everything it has started; False: it still runs.

    A command with another user's rights (`sudo`) may be protected from it, and one that waits for a disk does not end.
    The next alert does not wait for either.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command.pid, signal.SIGKILL)
    if command.stdin is not None:
        command.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(KILLED_S)
    return command.returncode is not None


class _Kept(urllib.request.AbstractHTTPHandler):
    """Holds its connection, so that another thread can cut it."""

    connection: http.client.HTTPConnection | None = None
    is_cut = False

    def do_open(self, http_class: Any, req: Any, **arguments: Any) -> Any:  # noqa: ANN401 - of the base class
        """Open a connection that `cut` can end."""

        def connection(*args: Any, **more: Any) -> Any:  # noqa: ANN401 - of the base class
            made = http_class(*args, **more)
            self.connection, connect = made, made.connect

            def connected() -> None:
                connect()
                if self.is_cut:  # during the connection attempt
                    made.close()
                    raise TimeoutError

            made.connect = connected
            return made

        return super().do_open(connection, req, **arguments)

    def cut(self) -> None:
        """End what its thread waits for, now or after it has connected."""
        self.is_cut = True
        if self.connection is not None and self.connection.sock is not None:
            with contextlib.suppress(OSError):
                self.connection.sock.shutdown(socket.SHUT_RDWR)


class _KeptHttp(_Kept, urllib.request.HTTPHandler):
    """A connection without TLS."""


class _KeptHttps(_Kept, urllib.request.HTTPSHandler):
    """A connection with TLS."""


def _post(target: AlertTarget, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "headrace"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    kept = (_KeptHttp(), _KeptHttps())
    answered: Future[None] = Future()

    def ask() -> None:
        try:
            request = urllib.request.Request(target.url, data=body, headers=headers, method="POST")  # noqa: S310 - http or https, see `topology.file.alerts`
            # the content of the answer does not matter, only its status
            urllib.request.build_opener(_NoRedirect, *kept).open(request, timeout=TIMEOUT_S).close()
        except BaseException as error:  # noqa: BLE001 - raised in the sender's thread
            answered.set_exception(error)
        else:
            answered.set_result(None)

    # The time-out of a socket applies to each call: a name server, several addresses, or an answer that arrives byte by
    # byte can take much longer.
    threading.Thread(target=ask, name=f"{threading.current_thread().name}: an attempt", daemon=True).start()
    if not wait((answered,), TIMEOUT_S).done:
        for each in kept:
            each.cut()
        raise _NotSent(f"it did not answer within {TIMEOUT_S:g} s")
    try:
        answered.result()
    except urllib.error.HTTPError as error:
        error.close()
        raise _NotSent(
            f"it answered {error.code}{', and redirects are not followed' if 300 <= error.code < 400 else ''}"
        ) from None
    except http.client.RemoteDisconnected as error:  # matches both clauses that follow
        raise _NotSent(_unreachable(error)) from None
    except http.client.HTTPException:
        raise _NotSent("what it answered is not HTTP") from None
    except (OSError, ValueError) as error:
        raise _NotSent(_unreachable(error)) from None


def _unreachable(error: Exception) -> str:
    """Return why an attempt failed, without the text of the error, which may contain the address."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"it did not answer within {TIMEOUT_S:g} s"
    known = (
        (ConnectionRefusedError, "nothing listens there"),
        (socket.gaierror, "its name is not known"),
        (ssl.SSLCertVerificationError, "its certificate is not accepted"),
        (ssl.SSLError, "it does not speak TLS as it should"),
        (ConnectionError, "it ended the connection"),
    )
    return (
        f"it cannot be reached: {next((why for kind, why in known if isinstance(reason, kind)), type(reason).__name__)}"
    )


@dataclass(slots=True)
class Sender:
    """The queue and the thread of one target.

    Args:
        target: destination of the alerts.
        per_hour_max: largest number of alerts within an hour.
        send: sends one alert; raises `_NotSent`.
    """

    target: AlertTarget
    per_hour_max: int
    clock: Clock
    send: Callable[[AlertTarget, Mapping[str, Any]], None] = deliver
    sent: int = 0
    left_out: int = 0
    given_up: int = 0
    problem: str = ""
    _left_out_since: int = 0
    _waiting: deque[dict[str, Any]] = field(default_factory=deque)
    _times: deque[float] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def put(self, document: Mapping[str, Any]) -> None:
        """Queue an alert, if the hourly limit and the queue have room; return at once."""
        now = self.clock.monotonic()
        with self._lock:
            while self._times and self._times[0] <= now - HOUR_S:
                self._times.popleft()
            if len(self._times) >= self.per_hour_max or len(self._waiting) >= WAITING_MAX:
                self.left_out += 1
                self._left_out_since += 1
                return
            self._times.append(now)
            self._waiting.append({**document, "left_out_before": self._left_out_since})
            self._left_out_since = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"alerts to {self.target.name}", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Stop sending."""
        self._stopped.set()
        self._wake.set()

    def described(self) -> SentAlerts:
        """Return the counters for the overview, without secrets."""
        return SentAlerts(
            to=self.target.name,
            sent=self.sent,
            waiting=len(self._waiting),
            left_out=self.left_out,
            left_out_before_next=self._left_out_since,
            given_up=self.given_up,
            problem=self.problem,
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._stopped.is_set():
                self._attempt(self._waiting[0])
                with self._lock:
                    self._waiting.popleft()

    def _attempt(self, document: dict[str, Any]) -> None:
        """Try one alert until it is sent or given up."""
        for pause_s in (*PAUSES_S, None):
            try:
                self.send(self.target, document)
            except _NotSent as error:
                self.problem = str(error)
            except Exception as error:  # noqa: BLE001 - a defect must not end the thread: the next alert may be the one that matters
                # Its text and its traceback may show the address, which may be a secret.
                log.error("alerts to %s: unexpected %s", self.target.name, type(error).__name__)  # noqa: TRY400
                self.problem = type(error).__name__
            else:
                self.sent, self.problem = self.sent + 1, ""
                return
            if pause_s is None:
                self.given_up += 1
                log.warning("an alert was not sent to %s: %s", self.target.name, self.problem)
            elif self._stopped.wait(pause_s):
                return


class Alerts:
    """The alerts of the file's topology.

    Args:
        clock: clock of limits and times.
    """

    def __init__(self, spec: TopologySpec, clock: Clock) -> None:
        self._topology, self._clock = spec.name, clock
        wanted = spec.alerts
        self._watch = None if wanted is None else AlertWatch(wanted, str(spec.file))
        self._senders = (
            () if wanted is None else tuple(Sender(target, wanted.per_hour_max, clock) for target in wanted.to)
        )

    def look(self, overview: Callable[[], Overview]) -> None:
        """Send new alerts; return at once.

        Args:
            overview: `Controller.seen`; not called if no alerts are wanted.
        """
        if self._watch is None:
            return
        for alert in self._watch.look(overview(), self._clock.monotonic()):
            log.warning(
                "alert: %s %s: %s%s", alert.kind, alert.subject, alert.message, " (over)" if alert.is_over else ""
            )
            for sender in self._senders:
                sender.put(self._document(alert))

    def stop(self) -> None:
        """Stop sending."""
        for sender in self._senders:
            sender.stop()

    def described(self) -> tuple[SentAlerts, ...]:
        """Return the counters of each target for the overview."""
        return tuple(sender.described() for sender in self._senders)

    def _document(self, alert: Alert) -> dict[str, Any]:
        return {"topology": self._topology, **asdict(alert)}
