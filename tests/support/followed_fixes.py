"""What is printed is followed as it is printed, while a whole driver of one apply process runs: its tasks are threads in place of Spark.

    site.create("CREATE TABLE p (id int PRIMARY KEY, v text)")
    site.start("p")
    ...                       # something breaks
    site.follow(site.checked("p"))   # what `check` prints of it

`check` is the real one, on the topology's file. Commands are read out of what is printed, and the driver's control is asked what their verbs ask it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from databases.connectors import DatabaseAccess
from databases.ports import Finding
from headrace.commands.verification import table_name
from headrace.inspection import check_topology
from protos import apply_pb2 as pb
from spark_apply.driver import apply_driver
from spark_apply.driver.config import ApplyConfig
from tests.support.apply_driver import ApplyDrivers, MinedQueue, digest, end_of_log, execute, wait_for
from tests.support.driver_on_threads import WAIT_S, Runner

__all__ = ["FollowedFixes"]

TOPOLOGY = "followed_test"
_COMMAND = re.compile(r"headrace (copy|verify|errors execute|errors delete) FILE ((?:--all|[\w.\"]+)(?: (?:\d+))*)")


class FollowedFixes:
    """See the module.

    Args:
        source: dsn.
        destination: dsn; has the schema headrace.
        folder: for redo and the queue.
        patch: for the driver's tasks, and the topology file's variables.
    """

    def __init__(self, source: str, destination: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(apply_driver, "TaskRunner", Runner)
        patch.setenv("SOURCE", source)
        patch.setenv("DESTINATION", destination)
        self.dsn = {"src": source, "dst": destination}
        self._folder = folder
        self._names: tuple[str, ...] = ()
        self.queue: MinedQueue | None = None
        self.driver: Any = None

    # ------------------------------------------------------------------ databases

    def run(self, site: str, *statements: str) -> list[tuple[Any, ...]]:
        """Statements at `src`, `dst` or `both`, each in a transaction of its own; the rows of the last."""
        rows: list[tuple[Any, ...]] = []
        for each in ("src", "dst") if site == "both" else (site,):
            for statement in statements:
                rows = execute(self.dsn[each], statement)
        return rows

    def assert_same(self) -> None:
        for name in self._names:
            assert digest(self.dsn["src"], name) == digest(self.dsn["dst"], name), (
                name, *(execute(self.dsn[site], f"SELECT * FROM {name} t ORDER BY t::text LIMIT 30") for site in ("src", "dst")),
            )

    # ------------------------------------------------------------------ the apply process

    def start(self, *tables: str) -> None:
        """Capture and copy tables of schema public; returns when they are copied."""
        self._names = tables
        self.queue = MinedQueue(self._folder, self.dsn["src"], self.dsn["dst"], topology=TOPOLOGY)
        self._start_driver()
        wait_for("the first copy", lambda: set(self.tables()) == set(tables) and {each.state for each in self.tables().values()} == {"DONE"}, WAIT_S)

    def _start_driver(self) -> None:
        assert self.queue is not None
        access = partial(DatabaseAccess, kind="postgres")
        named: Any = type("Queue", (), {"queue": self.queue})()
        config = ApplyConfig(
            topology=TOPOLOGY, apply=self.queue.apply.name, source=access(site="dbs1", dsn=self.dsn["src"]),
            destination=access(site="dbs2", dsn=self.dsn["dst"]), queue=self.queue.apply.queue, parallelism=2,
            tables=ApplyDrivers.to_instantiate(named, self._names),
        )
        endpoint = self.queue.server.endpoint
        self.driver = apply_driver.ApplyDriver(config, queue=lambda: endpoint, application=lambda: None)  # type: ignore[arg-type,return-value]
        self.driver.start()

    def restart(self) -> None:
        self._stop_driver()
        self._start_driver()
        wait_for("it to apply", lambda: self.driver.outcome() or self.driver.control.cores is not None, WAIT_S)

    def _stop_driver(self) -> None:
        self.driver.stop(5.0)
        assert self.driver.join(60.0)

    def close(self) -> None:
        if self.driver is not None:
            self._stop_driver()
        if self.queue is not None:
            self.queue.close()

    def tables(self) -> dict[str, Any]:
        """What is shown of each table, as `status` shows it."""
        self.driver.outcome()
        return {each.name: each for each in self.driver.control.status().instantiation}

    def shown(self, table: str) -> str:
        """What `status` says of a table, once it says something."""
        def problem() -> str:
            self.driver.control.look_at_tables()
            return str(self.tables()[table].problem)

        return str(wait_for(f"something to be said of {table}", problem, WAIT_S))

    def wait_applied(self) -> None:
        """Everything is applied or in the error queue."""
        end = end_of_log(self.dsn["src"])
        wait_for("everything", lambda: self.driver.outcome() or self.driver.control.status().low_watermark_scn >= end, WAIT_S)

    def errors(self) -> list[int]:
        return [number for (number,) in execute(self.dsn["dst"], "SELECT number FROM headrace.apply_error ORDER BY number")]

    @contextmanager
    def users(self, *statements: str) -> Iterator[list[int]]:
        """A user who executes statements at the source again and again, with a growing number for `{n}`; the last one that is committed."""
        stop, last = threading.Event(), [0]

        def work() -> None:
            with psycopg.connect(self.dsn["src"], autocommit=True) as connection:
                while not stop.wait(0.01):
                    with connection.transaction():
                        for statement in statements:
                            connection.execute(statement.format(n=last[0] + 1).encode())
                    last[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield last
        finally:
            stop.set()
            thread.join()

    # ------------------------------------------------------------------ what is printed

    def check(self) -> Sequence[Finding]:
        """What `headrace check` finds."""
        assert self.queue is not None
        return check_topology(self.queue.spec.file, ask_databases=True).findings

    def follow(self, printed: str) -> list[str]:
        """Execute the `headrace` commands of what is printed, in order, each to its end; the commands."""
        found = [(verb, arguments) for verb, arguments in _COMMAND.findall(printed)]
        assert found, f"no command is printed: {printed}"
        for verb, arguments in found:
            getattr(self, f"_{verb.replace(' ', '_')}")(arguments)
        return [f"{verb} {arguments}" for verb, arguments in found]

    def _copy(self, table: str) -> None:
        owner, name = table_name(table)
        (scn,), = execute(self.dsn["dst"], "SELECT scn FROM headrace.instantiation WHERE source = 'dbs1' AND name = %s", name)
        self.driver.control.copy_again(pb.CopyAgainRequest(tables=[pb.TableName(owner=owner, name=name)]))
        done = "SELECT 1 FROM headrace.instantiation WHERE name = %s AND scn > %s AND state = 'DONE'"
        wait_for(f"the copy of {table} to join", lambda: self.driver.outcome() or execute(self.dsn["dst"], done, name, scn), WAIT_S)

    def _errors_execute(self, arguments: str) -> None:
        request = pb.ErrorsRequest(all=True) if arguments == "--all" else pb.ErrorsRequest(numbers=[int(each) for each in arguments.split()])
        before = self.errors()
        self.driver.control.begin_execution(f"execution {before}", request)
        wait_for("the execution", lambda: self.driver.outcome() or self.driver.control.execution_outcomes(f"execution {before}", 5.0).is_over, WAIT_S)

    def _errors_delete(self, arguments: str) -> None:
        list(self.driver.control.delete_errors(pb.ErrorsRequest(numbers=[int(each) for each in arguments.split()])))

    def _verify(self, table: str) -> None:
        owner, name = table_name(table)
        list(self.driver.control.compare(pb.CompareRequest(tables=[pb.TableName(owner=owner, name=name)])))
