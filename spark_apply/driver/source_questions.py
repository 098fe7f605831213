"""Questions to the source, asked on a background thread: an unresponsive source does not block the driver's loop.

`SourceQuestions`: which table a partition belongs to. Apply waits for the answer. Only batches of earlier versions of
Headrace need it (`spark_apply.tables.arriving`). `TablesOfNow`: the source's current version of a table that does not
fit. That answer improves the hint when it arrives.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.base.backoff import Backoff
from headrace.base.errors import DatabaseError, DatabaseUnavailable
from headrace.lcr.table_name import TableName

if TYPE_CHECKING:
    from headrace.lcr.batch import TableVersion

__all__ = ["SourceQuestions", "TablesOfNow"]


class SourceQuestions:
    """Answers which table an object number belongs to. One thread asks it.

    Args:
        ask: returns the identity of every captured table, by the object numbers of the table and its partitions.
        ended: set when answers are no longer needed.
    """

    def __init__(self, ask: Callable[[], Mapping[int, str]], ended: threading.Event) -> None:
        self._ask, self._ended = ask, ended
        self._lock = threading.Lock()
        self._answers: dict[int, str] = {}
        self._open: set[int] = set()
        self._error: DatabaseError | None = None

    def identity_of(self, number: int) -> str | None:
        """Return the identity of an object number's captured table; empty: it has none; None: ask again later.

        Raises:
            DatabaseError: the source answered with a permanent error.
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


class TablesOfNow:
    """Answers with a table's current version at the source. One thread asks it repeatedly while a table does not fit.

    Args:
        ask: returns the source's table of this name; empty: it has none.
    """

    def __init__(self, ask: Callable[[TableName], tuple[TableVersion, ...]]) -> None:
        self._ask = ask
        self._asking: threading.Thread | None = None
        # the last answer: only one table at a time does not fit
        self._answer: tuple[TableName, tuple[TableVersion, ...]] | None = None

    def of(self, version: TableVersion) -> tuple[TableVersion, ...]:
        """Return the table as the source last described it, and ask again; empty: no answer yet, or no such table."""
        name = TableName.of(version)
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._run, args=(name,), name="tables-of-now", daemon=True)
            self._asking.start()
        answer = self._answer
        return answer[1] if answer is not None and answer[0] == name else ()

    def _run(self, name: TableName) -> None:
        with contextlib.suppress(DatabaseError):  # `of` asks again soon
            self._answer = name, self._ask(name)
