"""Questions to the source whose answers apply can wait for: asked on a thread of their own, so that the driver's loop waits for none.

Only batches of earlier versions need them; see `spark_apply.arriving`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from streams.backoff import Backoff
from streams.errors import DatabaseError, DatabaseUnavailable

__all__ = ["SourceQuestions"]


class SourceQuestions:
    """See the module. Asked by one thread.

    Args:
        ask: returns the identity of every captured table, by the object numbers of the table and its partitions.
        ended: set when nobody waits for answers any more.
    """

    def __init__(self, ask: Callable[[], Mapping[int, str]], ended: threading.Event) -> None:
        self._ask, self._ended = ask, ended
        self._lock = threading.Lock()
        self._answers: dict[int, str] = {}
        self._open: set[int] = set()
        self._error: DatabaseError | None = None

    def identity_of(self, number: int) -> str | None:
        """The identity of the captured table that an object number belongs to; empty: of none. None: ask again later.

        Raises:
            DatabaseError: the source answered with an error that time does not heal.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if number not in self._answers:
                if not self._open:
                    threading.Thread(target=self._run, name="source-questions", daemon=True).start()
                self._open.add(number)
            return self._answers.get(number)

    def _run(self) -> None:
        backoff = Backoff()
        while not self._ended.is_set():
            try:
                found = self._ask()
            except DatabaseUnavailable:
                self._ended.wait(backoff.next_s())
            except DatabaseError as error:
                with self._lock:
                    self._error = error
                return
            else:
                with self._lock:
                    self._answers.update({number: found.get(number, "") for number in self._open})
                    self._open.clear()
                return
