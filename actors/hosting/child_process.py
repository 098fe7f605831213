"""A process that one actor owns: at most one at a time, and never outliving its owner.

Job
    Start the process, read its first line, report why it ended, and end the earlier process before the next start.

States
    Not started; started, with the pipe to its standard input open; ended.

Durable when
    The file names the process (`actors.cluster.known_process`) before the process receives its configuration, so that a
    restarted actor can wait for it, or end it. The process ends by itself when its standard input closes. The file also
    names its folder: in a copied folder it refers to the original's process, which is not ended.

Worked flow
    the actor is killed -> the kernel closes the child's standard input -> the child ends -> Ray restarts the actor ->
    it waits for the old process, ends it if necessary -> starts another
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

from actors.cluster.known_process import KnownProcess, known_process, living
from actors.hosting.log_bound import bound_log
from headrace.base.clock import SystemClock
from headrace.base.durable_file import replace_file
from headrace.base.errors import ApplyError, DatabaseUnavailable, HeadraceError, Retry
from headrace.base.folder_place import is_copy
from spark_apply.application.environment import OWN_MODULES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["END_TIMEOUT_S", "ChildEnded", "ChildProcess", "ChildRefused"]

END_TIMEOUT_S = 10.0  # for a process whose standard input is closed
_LAST_WORDS_TIMEOUT_S = 1.0  # a line that was written before the end is read within milliseconds


class ChildEnded(ApplyError):  # noqa: N818 - the name states the event
    """The process ended by itself or was killed; it is started again."""

    code = "HDR-5020"
    fix = "Nothing: the process is started again. The log says why it ended."
    retry = Retry.TIMED


class ChildRefused(ApplyError):  # noqa: N818 - says what happened
    """The process ended with an error that needs an operator; its message is the error's message."""

    code = "HDR-5021"
    fix = "Do what the message says, then start the component again: `headrace start FILE KIND:NAME`."


class ChildProcess:
    """Starts and ends the process, and reads its output.

    Args:
        name: name of the owner, for messages.
        what: the process in messages, for example "the Spark application".
        module: module to run with `python -m`.
        file: names the process for a restarted owner.
        log: file to which standard error is appended.
    """

    def __init__(self, name: str, what: str, *, module: str, file: Path, log: Path) -> None:
        self._name, self._what, self._module, self._file, self._log = name, what, module, file, log
        self._clock = SystemClock()
        self._process: subprocess.Popen[str] | None = None
        # One queue per process: a late line of an older process must not count as this one's.
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    @property
    def pid(self) -> int:
        """The process id; 0: no process runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def start(self, configuration: str) -> None:
        """End the earlier process, and start a new one.

        Args:
            configuration: one line for its standard input.

        Raises:
            ChildEnded: it did not read its configuration.
            DatabaseUnavailable: an earlier process cannot be ended.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._end_predecessor()
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
                env=os.environ | OWN_MODULES,
            )
        self._process, self._answers = process, queue.SimpleQueue()
        self._remember(process.pid)
        assert process.stdin is not None
        try:
            process.stdin.write(configuration + "\n")
            process.stdin.flush()
        except OSError as error:
            raise ChildEnded(f"{self._name}: {self._what} did not read its configuration") from error
        threading.Thread(
            target=_read_lines, args=(process.stdout, self._answers), name=f"{self._name}-output", daemon=True
        ).start()

    def bound_log(self) -> None:
        """Keep the log below a bound, even while the process runs; call this every few seconds."""
        bound_log(self._log)

    def first_answer(self, timeout_s: float, is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """Wait for the line that names its endpoint.

        Args:
            timeout_s: longest wait in seconds.
            is_wanted: called between waits; False ends the waiting.

        Raises:
            HeadraceError: the process ended, or the line did not arrive in time.
        """
        deadline = self._clock.monotonic() + timeout_s
        last_words: dict[str, Any] = {}
        while is_wanted() and self._clock.monotonic() < deadline:
            try:
                line = self._answers.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                self._answers.put(None)  # `ended` must also see that nothing more follows
                break
            with contextlib.suppress(json.JSONDecodeError):
                answer = json.loads(line)
                if isinstance(answer, dict) and "endpoint" in answer:
                    return answer
                last_words = _words_of(answer) or last_words
        if not is_wanted():
            raise ChildEnded(f"{self._name}: stopped while {self._what} was starting")
        if self.pid and self._clock.monotonic() >= deadline:
            raise ChildEnded(f"{self._name}: {self._what} was not up within {timeout_s:g} s")
        raise self.ended(last_words)

    def ended(self, heard: Mapping[str, Any] | None = None) -> HeadraceError:
        """Return the error that says why the process ended: its own last line, or else its exit code or signal.

        Args:
            heard: a last line that was already read; None: none was.
        """
        process = self._process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
        last_words = dict(heard or {})
        with contextlib.suppress(queue.Empty):
            # The pipe ends with the process: its reader adds None after the last line.
            while (line := self._answers.get(timeout=_LAST_WORDS_TIMEOUT_S)) is not None:
                with contextlib.suppress(json.JSONDecodeError, TypeError):
                    last_words = _words_of(json.loads(line)) or last_words
        if last_words:
            kind = ChildEnded if last_words.get("retry") == Retry.TIMED.value else ChildRefused
            message = f"{self._name}: {last_words['error']}: {last_words.get('message', '')}"
            return kind(message, hint=str(last_words.get("hint", "")))
        code = process.poll()
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with code {code}"
        )
        return ChildEnded(f"{self._name}: {self._what} {how}", hint=f"see {self._log}")

    def end(self) -> None:
        """End the process; return when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT_S)
                return

    # ------------------------------------------------------------------ inside

    def _remember(self, pid: int) -> None:
        known = known_process(psutil.Process(pid))
        replace_file(self._file, json.dumps({**asdict(known), "folder": str(self._file.parent.resolve())}) + "\n")

    def _predecessor(self) -> psutil.Process | None:
        """The process of the owner's earlier life; None if it no longer runs."""
        try:
            text = self._file.read_text(encoding="utf-8")
            document = json.loads(text)
            folder = document.pop("folder", "")  # an earlier version wrote none
            known = KnownProcess(**document)
        except (FileNotFoundError, ValueError, TypeError):
            return None
        if folder and is_copy(
            self._file.parent, folder, lambda original: (original / self._file.name).read_text(encoding="utf-8") == text
        ):
            return None
        return living(known)

    def _end_predecessor(self) -> None:
        """Wait for the end of the process of the owner's earlier life; its standard input closed with that life."""
        process = self._predecessor()
        if process is None:
            return
        for end_it in (lambda: None, process.terminate, process.kill):
            with contextlib.suppress(psutil.Error):
                end_it()
            if not psutil.wait_procs([process], timeout=END_TIMEOUT_S / 2)[1]:
                return
        raise DatabaseUnavailable(f"{self._name}: its earlier process {process.pid} cannot be ended")


def _words_of(answer: object) -> dict[str, Any]:
    """Return the error object in a last line; empty for any other line."""
    return answer if isinstance(answer, dict) and "error" in answer else {}


def _read_lines(stream: IO[str] | None, answers: queue.SimpleQueue[str | None]) -> None:
    """Queue the process's lines; keeps reading, so that the process never blocks on a full pipe."""
    assert stream is not None
    for line in stream:
        answers.put(line)
    answers.put(None)
