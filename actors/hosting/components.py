"""The components that share one process: each starts, fails, restarts and ends independently.

Job
    Hold the hosts of one process, and bring them in line with the cluster's records. Start components that are recorded
    for this process, and end components that no longer are.

Main path
    Components.settle_all (the process starts) or settle (a component is created or ended) -> Records.get -> the factory
    -> Host.start; Components.call -> a method of the host.

States
    None: each component has the states of its `Host`, which runs in its own thread.

Durable when
    The cluster's control service keeps the records as long as the actor itself. A restarted process starts all of them,
    each when no other process of its machine runs it any longer (`actors.records.running`).

Worked flow
    queue:a and propagation:p run -> queue:b is recorded, settle(queue:b) -> its host starts; a and p are unaffected ->
    the record of p is removed, settle(p) -> its thread ends, the end is recorded -> the process is killed -> it starts
    again with a and b
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from actors.records.running import Running
from actors.records.taken_over import TakenOver
from headrace.base.errors import ConfigError, PropagationError
from headrace.status.plain import plain_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from actors.hosting.host import Host

__all__ = ["Components", "Record", "Records"]

# Concurrent calls of one component's `status`: the controller's and an operator's. Further calls are refused, so that a
# hanging component does not occupy all threads that the process has for calls.
_STATUS_CALLS_MAX = 2
_WAIT_FOR_A_STEP = frozenset({"reconfigure", "stop_component"})  # they take effect when the component's step ends
_SAVED = _WAIT_FOR_A_STEP | {"start_component"}  # a restarted component must follow them, too

log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The data from which a component is built.

    Args:
        creation: differs each time the component is created, and stays the same when its process is restarted.
        factory: "module:callable" that builds its host.
        arguments: keyword arguments of the callable.
        state_dir: state folder of the topology.
    """

    creation: str
    factory: str
    arguments: Mapping[str, Any]
    state_dir: str


class Records(Protocol):
    """The cluster's records of the components of one process."""

    def names(self) -> Iterable[str]:
        """Return the components that are to run in the process, and those that are to end."""
        ...

    def get(self, component: str) -> Record | None:
        """Return the component's record; None: it is to end."""
        ...

    def ended(self, component: str) -> None:
        """Record that the component has ended, as requested; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class _Running:
    creation: str
    host: Host
    taken_over: TakenOver
    lock: Running


class Components:
    """The hosts of one process, by component.

    Args:
        records: records of this process.
        end_process: called when a component's thread hangs and does not end. Only the end of the process ends it; the
            other components start again with the next process.
    """

    def __init__(self, records: Records, end_process: Callable[[], object] = lambda: os._exit(1)) -> None:
        self._records = records
        self._end_process = end_process
        self._running: dict[str, _Running] = {}
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        # held while a change is saved and applied, so that the saved change is the one in force
        self._changing: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._to_settle: set[str] = set()
        self._status_calls: dict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(_STATUS_CALLS_MAX))

    def settle_all(self) -> None:
        """Start all components recorded for this process; one that cannot be built does not prevent the others."""
        for name in self._records.names():
            try:
                self.settle(name)
            except PropagationError:
                continue  # it is in the log; the next call tries again

    def settle(self, name: str) -> None:
        """Start, end or restart a component, as the records require; idempotent.

        Returns at once while another thread does this: that thread reads the records again.

        Raises:
            PropagationError: it cannot be built (the log says why), or another process of this machine still runs it.
        """
        self._to_settle.add(name)
        self._settle_now(name)

    def _settle_now(self, name: str) -> bool:
        """Settle a component until no request is left; False: another thread does it."""
        while name in self._to_settle:  # read after the lock is free: a thread that did not get it asked before
            if not self._locks[name].acquire(blocking=False):
                return False
            try:
                self._to_settle.discard(name)
                self._settle(name)
            finally:
                self._locks[name].release()
        return True

    def call(self, name: str, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - the component's own answer
        """Call a public method of a component's host, or of a part of it (`Host.answering`).

        Args:
            name: full name of a component of this process; started first if it is recorded and does not run.
            method: public method of its host. "status" is refused while too many calls of it wait. A method that takes
                effect at the end of a step ends the process if a user function has overrun its time: that step may
                never end. The change is recorded by then.
            arguments: arguments of the method.

        Raises:
            PropagationError: the component does not run here, or not now.
            HeadraceError: whatever the method raises.
        """
        if method.startswith("_"):
            raise ConfigError(f"not a public method: {method}")
        running = self._running.get(name)
        if running is None or running.host.has_ended:
            running = self._begin_now(name)
        if method in _SAVED:
            return self._change(name, running, method, arguments)
        if method != "status":
            return getattr(running.host.answering(method), method)(*arguments)
        calls = self._status_calls[name]
        if not calls.acquire(blocking=False):
            raise PropagationError(
                f"{name} does not answer: {_STATUS_CALLS_MAX} calls of its status wait",
                hint="see the log of its process, and the site's disk",
            )
        try:
            return plain_status(running.host.status())
        finally:
            calls.release()

    def _change(self, name: str, running: _Running, method: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - the component's own answer
        """Save a change and apply it; changes are serialised, and refused for a component that has left."""
        with self._changing[name]:
            if self._running.get(name) is not running:
                raise PropagationError(f"{name} is about to begin or to end")
            if method == "reconfigure":
                # Before it is applied: a restarted process would otherwise start with the arguments of the component's
                # creation.
                running.taken_over.save(*arguments)
            answer = getattr(running.host, method)(*arguments)
        if method in _WAIT_FOR_A_STEP and (late := running.host.late_call()):
            log.error("%s: %s: this process ends, and its other components start again", name, late)
            self._end_process()
        return answer

    def _begin_now(self, name: str) -> _Running:
        """Start a component that is recorded and does not run.

        Its creator died before requesting that, it could not be built, or its thread died.
        """
        # Return at once: a component may take long to end, and a caller of `status` must not wait for that.
        self._to_settle.add(name)
        if not self._settle_now(name):
            raise PropagationError(f"{name} is about to begin or to end")
        running = self._running.get(name)
        if running is None:
            raise PropagationError(f"{name} does not run", hint="`headrace up` starts what is missing")
        return running

    def _settle(self, name: str) -> None:
        record, running = self._records.get(name), self._running.get(name)
        if running is not None and (record is None or record.creation != running.creation or running.host.has_ended):
            with self._changing[name]:
                del self._running[name]
            if not running.host.end():
                log.error("%s does not end: this process ends, and its other components start again", name)
                self._end_process()
            running.lock.release()
            log.info("%s: ended", name)
            running = None
        if record is None:
            self._records.ended(name)
        elif running is None:
            self._running[name] = self._build(name, record)

    @staticmethod
    def _build(name: str, record: Record) -> _Running:
        state_dir = Path(record.state_dir)
        lock, taken_over = Running(state_dir, name), TakenOver(state_dir, name, record.creation)
        log.info("%s: begins in process %d", name, os.getpid())
        module, _, attribute = record.factory.partition(":")
        try:
            host: Host = getattr(importlib.import_module(module), attribute)(**taken_over.arguments(record.arguments))
        except Exception as error:  # any error affects this component alone
            lock.release()
            log.exception("%s: cannot be built", name)
            raise PropagationError(
                f"{name} cannot be built: {error}", hint="see the log of its process; report it"
            ) from error
        host.start()
        return _Running(record.creation, host, taken_over, lock)
