"""Hosting: runs a synchronous core as a component, in any kind of process.

Job
    Run one component's `step` in its own thread, apply the error policy, and report the status at any time.

Main path
    Host.start -> Host._run -> open -> step, step, ... -> close.

States
    INITIALIZING  while `open` runs. Memory only.
    ENABLED       while it steps; the status then shows the component's own, finer state (`detail_state`). Memory only.
    PAUSED: WAITING FOR FUNCTION  while a user function has overrun its time (`late_call`). Memory only.
    RETRYING      after a transient error: it is opened again after a pause. Memory only.
    ABORTED       after any other error; recorded with its hint. Memory only: a restarted process tries once more,
                  which shows the operator whether the cause persists.
    DISABLED      stopped by an operator. Persisted: a restarted process stays stopped.

Durable when
    `stop_component` and `start_component` return after the wanted state is on disk.

Worked flow
    step raises DatabaseUnavailable -> close -> RETRYING, 0.1 s -> open raises it again -> 0.2 s -> ... 5 s ->
    open and step succeed -> ENABLED; the next pause is 0.1 s again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from actors.hosting.life import Life
from actors.records.wanted import Wanted
from headrace.base.backoff import Backoff
from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import BugError, HeadraceError, RedoError, Retry
from headrace.lcr.tracking import TrackLog
from headrace.status.component import ComponentStatus

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["Host"]

# A component that ran this long without an error has recovered: its next error starts with the shortest pause.
_HEALTHY_AFTER_S = 5.0
_JOIN_TIMEOUT_S = 45.0  # a step is bounded; closing may wait for the orderly end of a Spark driver
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})

WAITS_FOR_FUNCTION = "PAUSED: WAITING FOR FUNCTION"
_LATE_HINT = (
    "a call that waits in the kernel (a socket, a lock, time.sleep) is ended when it returns to Python: give"
    " the call its own time limit, and run `headrace up`"
)

log = logging.getLogger("headrace")


def is_timed(error: HeadraceError) -> bool:
    """Return whether the error is transient. A full disk counts: space returns without notice."""
    cause = error.__cause__
    return error.retry is Retry.TIMED or (isinstance(cause, OSError) and cause.errno in _FULL)


class Host:
    """Runs one component. Subclasses define `open`, `step` and `close`.

    More than 25 methods: ten that a kind of component defines and ten that its owner and operators call meet in one
    thread.

    Args:
        name: name of the component, e.g. "capture:capture_hr".
        state_dir: state folder of the topology; the wanted state is kept below it.

    Attributes:
        life: its state, and its last error.
        tracks: its records of labelled transactions.
    """

    kind: ClassVar[str] = ""
    # Stays open while it adopts a changed topology; other components close first and open again in the same process.
    adopts_open: ClassVar[bool] = False

    def __init__(self, name: str, state_dir: Path, *, clock: Clock | None = None) -> None:
        self.name = name
        self._wanted_file = Wanted(state_dir, name)
        self._clock = clock or SystemClock()
        self.tracks = TrackLog(self._clock)  # lives as long as the process, however often the component is opened
        self._wake = threading.Event()
        # Set when the wanted state of the component changes. Only this ends the pause between two attempts: `wake` is
        # also called when something breaks, and would cause a retry without a pause.
        self._wanted_changed = threading.Event()
        self._wanted = self._wanted_file.is_enabled()
        self._ending = False
        self._restart = False
        self._reopen = False
        self._changed: tuple[TopologySpec, str] | None = None  # a topology to adopt
        self._unadopted: HeadraceError | None = None  # why the adoption failed
        self._thread: threading.Thread | None = None
        self._backoff = Backoff()
        self.life = Life(self._clock)

    # ------------------------------------------------------------------ what a component is

    def open(self) -> None:
        """Build everything from durable state. Runs in the component's thread; may raise any `HeadraceError`."""

    def step(self) -> float:
        """Do bounded work; return the seconds until the next step is worthwhile (0: at once; `wake` ends the pause)."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `open` built, even if it did not complete; must not raise."""

    def detail_state(self) -> str:
        """Return the component's own state while it is ENABLED."""
        return "ENABLED"

    def details(self) -> ComponentStatus:
        """Return the status of this kind of component; called from other threads at any time, even when not open.

        `status` adds what every host knows: its state, and its last error.
        """
        return ComponentStatus(name=self.name)

    def failed(self) -> None:
        """React to an error that has become the state, before the pause; the component is closed. Must not raise."""

    def late_call(self) -> str:
        """Return a message about a user function that has overrun its time and not returned; empty: there is none.

        Called from other threads at any time, like `details`.
        """
        return ""

    def adopt(self, spec: TopologySpec, fingerprint: str) -> None:  # noqa: ARG002 - for subclasses that can
        """Adopt a changed topology; called in the component's thread.

        Args:
            spec: the topology; it differs only in parts that this kind of component can adopt
                (`topology.edits.changes`).
            fingerprint: fingerprint of the component in that topology, shown in its status from now on.
        """
        raise BugError(f"{self.name} cannot adopt a changed topology")

    def answering(self, method: str) -> object:  # noqa: ARG002 - for subclasses that have parts
        """Return the object that answers calls of a method: the host, or the part of it that is responsible."""
        return self

    def endpoint(self) -> str:
        """Return the component's gRPC endpoint; raise a `HeadraceError` when it does not serve (yet)."""
        raise BugError(f"{self.name} serves nothing")

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the component's thread; called once, by the owner of the process."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def end(self) -> bool:
        """End the thread for good, whatever state is wanted. Return whether it ended in time."""
        self._ending = True
        self._wanted_changed.set()
        self._wake.set()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(_JOIN_TIMEOUT_S)
        return not self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether its thread has ended for any reason: nothing runs the component any longer."""
        return self._thread is not None and not self._thread.is_alive()

    def wake(self) -> None:
        """End the pause between two steps; callable from any thread."""
        self._wake.set()

    def stop_component(self) -> None:
        """Stop after the current step, and stay stopped across restarts; idempotent."""
        self._write_wanted(enabled=False)
        self._wanted_changed.set()
        self._wake.set()

    def start_component(self) -> None:
        """Run (again), even after an error; idempotent."""
        self._write_wanted(enabled=True)
        self._try_again()

    def reopen(self) -> None:
        """Close and open again after the current step, with new connections; idempotent."""
        self._reopen = True
        self._wake.set()

    def reconfigure(self, spec: TopologySpec, fingerprint: str) -> None:
        """Adopt a changed topology soon, in any state; the status shows when that is done. Idempotent.

        Args:
            spec: the changed topology.
            fingerprint: fingerprint of the component in it.
        """
        self._changed = spec, fingerprint
        self._wanted_changed.set()
        self._wake.set()

    def tracked(self, label: str) -> dict[str, Any]:
        """Return what the component did with the transactions of a label (`headrace.lcr.tracking.TrackLog.answer`).

        Returns at once.
        """
        return self.tracks.answer(label)

    def status(self) -> ComponentStatus:
        """Return the status, always at once."""
        state = self.life.state
        details = self.details()
        status = replace(
            self.life.shown(details),
            name=self.name,
            kind=self.kind or self.name.partition(":")[0],
            state=(details.state or self.detail_state()) if state == "ENABLED" else state,
            enabled=self._wanted,
        )
        if state == "DISABLED" and (unadopted := self._unadopted) is not None:  # a stopped component shows no error
            problem = f"cannot adopt the changed topology: {unadopted.message.removeprefix(f'{self.name}: ')}"
            return replace(status, problem=problem, fix=unadopted.hint)
        if state == "ENABLED" and (late := self.late_call()):
            return replace(status, state=WAITS_FOR_FUNCTION, detail=late, hint=_LATE_HINT)
        return status

    # ------------------------------------------------------------------ inside

    def _run(self) -> None:
        while not self._ending:
            self._wanted_changed.clear()
            if not self._attempt(self._adopt_change):
                # It must not continue with the earlier topology, whose rules the other components may have dropped.
                self._pause_after_refusal()
            elif not self._wanted:
                self.life.enter("DISABLED")
                self._pause(None)
            elif self.life.state == "ABORTED" and not self._restart:
                self._pause(None)
            else:
                self._restart = False
                self._attempt(self._run_once)
        self.life.enter("DISABLED")

    def _run_once(self) -> None:
        """Open and step until the component is stopped or an error ends it."""
        self.life.enter("INITIALIZING")
        self._reopen = False
        self.life.note_open()
        try:
            self.open()
            self.life.enter("ENABLED")
            self._step_until_stopped()
        finally:
            self._close_quietly()

    def _attempt(self, call: Callable[[], None]) -> bool:
        """Make the call; an error becomes the component's state. Return whether there was none."""
        try:
            call()
        except HeadraceError as error:
            self._failed(error)
        except OSError as error:
            self._failed(_wrap(self.name, error))
        except Exception as error:
            # Any other exception is a bug: show it with its traceback, and do not continue.
            log.exception("%s: unexpected error", self.name)
            bug = BugError(
                f"{self.name}: {type(error).__name__}: {error}", hint="see the log of its process; report it"
            )
            bug.__cause__ = error
            self._failed(bug)
        else:
            return True
        return False

    def _pause_after_refusal(self) -> None:
        """Pause after a changed topology could not be adopted, unless `_failed` has paused already."""
        if not self._wanted:
            self._wanted_changed.wait(self._backoff.next_s())
        elif self.life.state == "ABORTED":
            self._pause(None)

    def _step_until_stopped(self) -> None:
        began = self._clock.monotonic()
        while self._wanted and not self._ending:
            self._wake.clear()
            pause_s = self.step()
            self._restart = False  # an error from now on is a new one
            self.life.note_alive()
            if self._clock.monotonic() - began > _HEALTHY_AFTER_S:
                self._backoff.reset()
            if self._changed is not None and self.adopts_open:
                self._adopt_change()
            elif self._changed is not None or self._reopen:
                return
            elif pause_s > 0:
                self._wake.wait(pause_s)

    def _adopt_change(self) -> None:
        changed = self._changed
        if changed is None:
            return
        try:
            self.adopt(*changed)
        except HeadraceError as error:
            self._unadopted = error
            raise
        except OSError as error:
            self._unadopted = _wrap(self.name, error)
            raise
        self._unadopted = None
        log.info("%s: adopted a changed topology", self.name)
        self._restart = True  # the cause of an abort may be gone now
        if self._changed is changed:  # else a newer one has arrived
            self._changed = None

    def _close_quietly(self) -> None:
        # An error while closing must not hide the first one; the end of the process closes the rest.
        with contextlib.suppress(Exception):
            self.close()

    def _failed(self, error: HeadraceError) -> None:
        if self._ending or not self._wanted:
            return  # the component is being stopped: errors no longer matter
        self.life.note_error(error)
        if is_timed(error):
            log.warning("%s: %s: %s", self.name, type(error).__name__, error.message)
            self.life.enter("RETRYING")
            self.failed()
            self._wanted_changed.wait(self._backoff.next_s())
        else:
            log.error("%s: ABORTED: %s: %s; %s", self.name, type(error).__name__, error.message, error.hint)
            self.life.enter("ABORTED")
            self.failed()

    def _try_again(self) -> None:
        """Run again after an error, even one that is not shown yet."""
        self._restart = True
        self._wanted_changed.set()
        self._wake.set()

    def _pause(self, timeout_s: float | None) -> None:
        self._wake.wait(timeout_s)
        self._wake.clear()

    def _write_wanted(self, *, enabled: bool) -> None:
        self._wanted_file.save(enabled=enabled)
        self._wanted = enabled


def _wrap(name: str, error: OSError) -> HeadraceError:
    """Wrap an error of the operating system: a full disk is transient, anything else needs an operator."""
    wrapped = RedoError(
        f"{name}: {error.strerror or error}",
        hint="fix what the message names; the component resumes automatically when the cause is a full disk, else with"
        f" `headrace start FILE {name}`",
    )
    wrapped.__cause__ = error
    return wrapped
