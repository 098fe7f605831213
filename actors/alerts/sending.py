"""Sends alerts: one thread and one bounded queue per target, so that nothing the controller does waits for a target.

An alert is tried a few times and then given up, which `status` shows. Beyond the hour's limit alerts are left out and counted;
the next one that is sent says how many. Nothing is kept on disk: after a restart of the controller, what holds is told again.

Secrets (the address of a webhook, its token) are in no message, status or log: a target is called by its host.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from actors.alerts.watch import Alert, AlertWatch

if TYPE_CHECKING:
    from streams.clock import Clock
    from topology.alerts import AlertTarget
    from topology.spec import TopologySpec

__all__ = ["Alerts", "Sender", "deliver"]

log = logging.getLogger("headrace")

WAITING_MAX = 100  # of one target: five hours of the default limit
TIMEOUT_S = 10.0  # of one attempt: a service that takes longer is as good as away
PAUSES_S = (1.0, 5.0, 25.0)  # between attempts: a service that restarts is back after that
HOUR_S = 3600.0


class _NotSent(Exception):  # noqa: N818 - an outcome
    """A target did not take an alert, and why; without secrets."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - of the base class
        """None: a token goes where the file says, and nowhere else."""
        return


def deliver(target: AlertTarget, document: Mapping[str, Any]) -> None:
    """Send one alert.

    Args:
        target: where to.
        document: the alert, JSON-able.

    Raises:
        _NotSent: it did not take it.
    """
    body = json.dumps(document).encode()
    if target.command:
        _run(target, body)
    else:
        _post(target, body)


def _run(target: AlertTarget, body: bytes) -> None:
    try:
        # Without its output: a process that it leaves would hold that open, and the alert would count as not sent.
        done = subprocess.run(
            target.command, input=body, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False,
        )
    except subprocess.TimeoutExpired:
        raise _NotSent(f"it did not end within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise _NotSent(os.strerror(error.errno) if error.errno else "it cannot be run") from None
    if done.returncode:
        raise _NotSent(f"it ended with {done.returncode}")


def _post(target: AlertTarget, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "headrace"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    request = urllib.request.Request(target.url, data=body, headers=headers, method="POST")  # noqa: S310 - http or https, see `topology.file.alerts`
    try:
        urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S).close()  # what it says besides its status is of no interest
    except urllib.error.HTTPError as error:
        error.close()
        raise _NotSent(f"it answered {error.code}") from None
    except (OSError, ValueError) as error:
        # The text of the error may name the address.
        reason = getattr(error, "reason", error)
        why = "no answer in time" if isinstance(reason, TimeoutError) else type(reason).__name__
        raise _NotSent(f"it cannot be reached ({why})") from None


@dataclass(slots=True)
class Sender:
    """The queue and the thread of one target.

    Args:
        target: where to.
        per_hour_max: alerts within an hour.
        clock: of the limit.
        send: sends one; raises `_NotSent`.
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
        """Have an alert sent, if the hour's limit and the queue leave room; returns at once."""
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
        """Send nothing more."""
        self._stopped.set()
        self._wake.set()

    def described(self) -> dict[str, Any]:
        """For `status --json`, without secrets."""
        return {
            "to": self.target.name, "sent": self.sent, "waiting": len(self._waiting), "left_out": self.left_out, "given_up": self.given_up,
            "problem": self.problem,
        }

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
    """The alerts of one topology.

    Args:
        spec: the topology of the file.
        clock: of limits and times.
    """

    def __init__(self, spec: TopologySpec, clock: Clock) -> None:
        self._topology, self._clock = spec.name, clock
        wanted = spec.alerts
        self._watch = None if wanted is None else AlertWatch(wanted, str(spec.file))
        self._senders = () if wanted is None else tuple(Sender(target, wanted.per_hour_max, clock) for target in wanted.to)

    def look(self, overview: Callable[[], Mapping[str, Any]]) -> None:
        """Send what is new; returns at once.

        Args:
            overview: `Controller.overview`; not called where no alerts are wanted.
        """
        if self._watch is None:
            return
        for alert in self._watch.look(overview(), self._clock.monotonic()):
            log.warning("alert: %s %s: %s%s", alert.kind, alert.subject, alert.message, " (over)" if alert.is_over else "")
            for sender in self._senders:
                sender.put(self._document(alert))

    def stop(self) -> None:
        """Send nothing more."""
        for sender in self._senders:
            sender.stop()

    def described(self) -> list[dict[str, Any]]:
        """What was sent where, for `status --json`."""
        return [sender.described() for sender in self._senders]

    def _document(self, alert: Alert) -> dict[str, Any]:
        return {"topology": self._topology, **asdict(alert)}
