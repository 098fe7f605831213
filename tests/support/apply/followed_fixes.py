"""Follows printed fixes exactly as printed, while a driver of one apply process runs on threads in place of Spark.

    site.create("CREATE TABLE p (id int PRIMARY KEY, v text)")
    site.start("p")
    ...                       # something breaks
    site.follow(site.checked("p"))   # the findings that `check` prints

`check` is the real one, on the topology's file. Commands are extracted from the printed text, and the driver's control
gets the calls of their verbs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from actors.apply import ApplyHost
from headrace.commands.error_execution import Execution
from headrace.commands.verification import table_name
from headrace.console.output import Output
from headrace.databases.ports import Finding
from headrace.deployment.inspection import check_topology
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from protos import apply_pb2 as pb
from tests.support.apply.apply_driver import MinedQueue, end_of_log, wait_for
from tests.support.apply.driver_on_threads import WAIT_S, run_on_threads
from tests.support.databases.statements import digest, execute

__all__ = ["FollowedFixes"]

TOPOLOGY = "followed_test"
_PAUSE_S = 0.1  # between the users' rounds: transactions in an error queue are executed one by one
_COMMAND = re.compile(
    r"headrace (copy|verify|stop|start|errors execute|errors delete) FILE ((?:--all|apply:\w+|[\w.\"]+)(?: (?:\d+))*)"
)


class Users(threading.Thread):
    """Users of `FollowedFixes.users`.

    Args:
        dsn: of their database.
        transactions: with a growing number for `{n}`.
    """

    def __init__(self, dsn: str, transactions: Sequence[str]) -> None:
        super().__init__()
        self._dsn, self._transactions = dsn, transactions
        self.stopped, self.count = threading.Event(), 0

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self.stopped.wait(_PAUSE_S):
                for each in self._transactions:
                    connection.execute(f"BEGIN; {each.format(n=self.count + 1)}; COMMIT".encode())
                self.count += 1

    def more(self) -> None:
        """Return when each of the transactions ran a few more times."""
        wanted = self.count + 5
        wait_for("users to write", lambda: self.count >= wanted or not self.is_alive(), WAIT_S)
        assert self.is_alive(), "a user's transaction failed"


class FollowedFixes:
    """One apply process whose printed fixes are followed.

    Args:
        source: dsn.
        destination: dsn; has the schema headrace.
        folder: for redo and the queue.
        patch: for the driver's tasks, and the topology file's variables.
    """

    def __init__(self, source: str, destination: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        run_on_threads(patch)
        patch.setenv("SOURCE", source)
        patch.setenv("DESTINATION", destination)
        self.dsn = {"src": source, "dst": destination}
        self._folder = folder
        self._names: tuple[str, ...] = ()
        self._settings = NO_TABLE_SETTINGS
        self.queue: MinedQueue | None = None
        self.driver: Any = None

    # ------------------------------------------------------------------ databases

    def run(self, site: str, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements at `src`, `dst` or `both`, each in its own transaction; return the rows of the last."""
        rows: list[tuple[Any, ...]] = []
        for each in ("src", "dst") if site == "both" else (site,):
            for statement in statements:
                rows = execute(self.dsn[each], statement)
        return rows

    def assert_same(self) -> None:
        for name in self._names:
            assert digest(self.dsn["src"], name) == digest(self.dsn["dst"], name), (
                name,
                *(
                    execute(self.dsn[site], f"SELECT * FROM {name} t ORDER BY t::text LIMIT 30")
                    for site in ("src", "dst")
                ),
            )

    # ------------------------------------------------------------------ the apply process

    def start(self, *tables: str, settings: TableSettings = NO_TABLE_SETTINGS) -> None:
        """Capture and copy tables of schema public; returns when they are copied.

        Args:
            tables: their names.
            settings: table settings of the apply process.
        """
        self._names, self._settings = tables, settings
        self.queue = MinedQueue(self._folder, self.dsn["src"], self.dsn["dst"], topology=TOPOLOGY)
        self._start()
        wait_for(
            "the first copy",
            lambda: set(self.tables()) == set(tables) and {each.state for each in self.tables().values()} == {"DONE"},
            WAIT_S,
        )

    def _start(self, _: str = "") -> None:
        assert self.queue is not None
        config = self.queue.config(self.queue.tables(self._names), settings=self._settings)
        self.driver = self.queue.start_driver(config)

    def _stop(self, _: str = "") -> None:
        self.driver.stop(5.0)
        assert self.driver.join(60.0)

    def close(self) -> None:
        if self.driver is not None:
            self._stop()
        if self.queue is not None:
            self.queue.close()

    @property
    def apply(self) -> str:
        """Return the name of the apply process."""
        assert self.queue is not None
        return self.queue.apply.name

    def tables(self) -> dict[str, Any]:
        """Return what `status` shows of each table."""
        self.driver.outcome()
        return {each.name: each for each in self.driver.control.status().instantiation}

    def shown(self, table: str) -> str:
        """Wait until `status` reports something about a table, and return it."""

        def problem() -> str:
            self.driver.control.look_at_tables()
            return str(self.tables()[table].problem)

        return str(wait_for(f"something to be said of {table}", problem, WAIT_S))

    def wait_applied(self) -> None:
        """Wait until everything is copied, and applied or in the error queue."""
        end = end_of_log(self.dsn["src"])
        wait_for("the copies", lambda: {each.state for each in self.tables().values()} == {"DONE"}, WAIT_S)
        wait_for(
            "everything", lambda: self.driver.outcome() or self.driver.control.status().low_watermark_scn >= end, WAIT_S
        )

    def errors(self) -> list[int]:
        return [
            number for (number,) in execute(self.dsn["dst"], "SELECT number FROM headrace.apply_error ORDER BY number")
        ]

    def messages(self) -> list[str]:
        """Return the messages of the error transactions, as `errors list` shows them."""
        return [
            message
            for (message,) in execute(self.dsn["dst"], "SELECT message FROM headrace.apply_error ORDER BY number")
        ]

    @contextmanager
    def users(self, *transactions: str) -> Iterator[Users]:
        """Run users of the source who execute these transactions in turn, again and again."""
        users = Users(self.dsn["src"], transactions)
        users.start()
        try:
            yield users
        finally:
            users.stopped.set()
            users.join()

    # ------------------------------------------------------------------ what is printed

    def check(self) -> Sequence[Finding]:
        """Return the findings of `headrace check`."""
        assert self.queue is not None
        return check_topology(self.queue.spec.file, ask_databases=True).findings

    def follow(self, *printed: str) -> list[str]:
        """Execute the `headrace` commands in the printed text in order, copies concurrently; return the commands."""
        found = [command for text in printed for command in _COMMAND.findall(text)]
        assert found, f"no command is printed: {printed}"
        begun: dict[str, int] = {}
        for verb, arguments in found:
            if verb == "copy":
                begun[arguments] = self.ask_to_copy(arguments)
                continue
            self._wait_copied(begun)
            getattr(self, f"_{verb.replace(' ', '_')}")(arguments)
        self._wait_copied(begun)
        return [f"{verb} {arguments}" for verb, arguments in found]

    def ask_to_copy(self, table: str) -> int:
        """Start a copy without waiting for its end; return the SCN of the table's previous rows."""
        owner, name = table_name(table)
        ((scn,),) = execute(
            self.dsn["dst"], "SELECT scn FROM headrace.instantiation WHERE source = 'dbs1' AND name = %s", name
        )
        self.driver.control.copy_again(pb.CopyAgainRequest(tables=[pb.TableName(owner=owner, name=name)]))
        return int(scn)

    def _wait_copied(self, begun: dict[str, int]) -> None:
        def is_copied(table: str, scn: int) -> bool:
            self.driver.outcome()
            done = "SELECT 1 FROM headrace.instantiation WHERE name = %s AND scn > %s AND state = 'DONE'"
            return bool(execute(self.dsn["dst"], done, table_name(table)[1], scn))

        wait_for("the copies to join", lambda: all(is_copied(table, scn) for table, scn in begun.items()), WAIT_S)
        begun.clear()

    def _errors_execute(self, arguments: str) -> None:
        execution = Execution(output=Output(), connect=lambda: self)  # type: ignore[return-value]  # it stands in for a session
        if arguments == "--all":
            execution.execute_all(self.apply)
        else:
            execution.execute(self.apply, [int(each) for each in arguments.split()])
        assert not execution.has_failed, execution.outcomes

    def _errors_delete(self, arguments: str) -> None:
        list(self.driver.control.delete_errors(pb.ErrorsRequest(numbers=[int(each) for each in arguments.split()])))

    def _verify(self, table: str) -> None:
        self.differences(table)

    def differences(self, table: str) -> list[str]:
        """Return the differing rows of a table as `verify` names them; a problem of the comparison is an error."""
        owner, name = table_name(table)
        (found,) = self.driver.control.compare(pb.CompareRequest(tables=[pb.TableName(owner=owner, name=name)]))
        assert not found.problem, found.problem
        return [] if found.equal else [str(each) for each in found.differences] or ["it differs"]

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Return the answer of the apply process's actor, which calls its driver's control."""
        actor = object.__new__(ApplyHost)  # without Ray, and with this driver
        actor._driver = self.driver
        return getattr(actor, method)(*arguments)
