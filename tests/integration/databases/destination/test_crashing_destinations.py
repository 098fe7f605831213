"""The destination's server stops at once, repeatedly, while row commits are in memory only. All lost commits are
replayed.

The real hosts and one complete driver run on threads, combined and through queues, without Ray and Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.base.errors import HeadraceError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.scn import Scn
from headrace.status.captures import CaptureStatus
from headrace.status.queues import QueueStatus, QueueSubscriber
from protos import apply_pb2 as pb
from spark_apply.driver.loop.flushes import FlushGate
from tests.support.apply.apply_driver import end_of_log, executed, wait_for
from tests.support.databases.lazy_server import lazy_server, unflushed_bytes
from tests.support.databases.statements import digest, execute
from tests.support.session.matrices import cases
from tests.support.session.noted import noted
from tests.support.session.seeds import scaled
from tests.support.ways.one_way import CAPTURE, DOWNSTREAM, ONE_WAY, WAIT_S, OneWay, create_tables, load

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

IN_THE_WAY = 2_000_000  # ids of rows that only the destination has
LARGE_ROWS = 20_000  # in a transaction that is applied in parts: a group has 10,000
QUEUED = "combined: never\n"


class Crashing:
    """One way whose destination's server is stopped at once and started again.

    Args:
        way: everything else.
        server: the destination's.
    """

    def __init__(self, way: OneWay, server: EmbeddedServer) -> None:
        self.way, self._server = way, server
        self.crashes = self.lost = 0

    def wait(self, what: str, holds: Callable[[], Any]) -> None:
        def look() -> Any:
            self.way.tend()
            return holds()

        wait_for(what, look, WAIT_S)

    def count(self, where: str = "true") -> int:
        (row,) = execute(self.way.destination_dsn, f"SELECT count(*) FROM log WHERE {where}")
        return int(row[0])

    def wait_arrived(self, number: int) -> None:
        self.wait(f"row {number} to arrive", lambda: self.count(f"number = {number}"))

    def crash(self) -> None:
        """Stop the server while commits are in its memory only.

        All changes acknowledged upstream exist when it starts again.
        """
        rows, acknowledged = self._stop(), self._acknowledged()
        self._server.start()
        assert self._recorded() >= acknowledged, "changes reported as durable are gone"
        self.crashes += 1
        self.lost += rows - self.count()

    def _stop(self) -> int:
        """Return how many rows of the log were committed last, on disk or not."""
        with psycopg.connect(self.way.destination_dsn, autocommit=True) as connection:

            def committed() -> int:
                row = connection.execute("SELECT count(*) FROM log").fetchone()
                assert row is not None
                return int(row[0]) if unflushed_bytes(connection) else 0

            def committed_more() -> int:
                rows = committed()
                return rows if rows > before else 0

            before = committed()
            rows: list[int] = []
            self.wait("a commit that is not on disk", lambda: (found := committed_more()) and noted(rows, found))
        self._server.stop(immediate=True)
        return rows[-1]

    def _acknowledged(self) -> int:
        """Return the position up to which the queue, or the capture process in its place, may forget changes."""
        return max((each.acknowledged_scn for each in self._subscribers()), default=0)

    def _subscribers(self) -> list[QueueSubscriber]:
        (apply,) = self.way.spec.applies
        host = self.way.hosts.get(f"queue:{apply.queue}", self.way.hosts[CAPTURE])
        status = host.status()
        subscribers = status.subscribers if isinstance(status, QueueStatus | CaptureStatus) else ()
        return [each for each in subscribers if each.subscriber == apply.name]

    def _recorded(self) -> int:
        with closing(PostgresDestination(self.way.destination_dsn)) as destination:
            progress = destination.progress(self.way.spec.name, self.way.spec.applies[0].name)
        return 0 if progress is None else int(progress.low_watermark)

    def check(self) -> None:
        """Check that each row is there once and that no component believes the destination lost acknowledged changes."""
        end = Scn(end_of_log(self.way.source_dsn))
        self.wait("everything", lambda: self.way.driver.control.status().caught_up_scn >= end)
        self.execute_errors()
        for table in ("first", "log"):
            assert digest(self.way.source_dsn, table) == digest(self.way.destination_dsn, table), table
        assert [each.lost for each in self._subscribers()] == [None]
        self.wait("the redo to be given up", lambda: self.way.required_scn >= end)
        assert self.way.restarts >= self.crashes

    def execute_errors(self) -> None:
        """Remove the rows in the way and execute the errors; each error transaction is there once."""
        found = execute(self.way.destination_dsn, "SELECT commit_scn FROM headrace.apply_error")
        assert len(set(found)) == len(found)
        if not found:
            return
        execute(self.way.destination_dsn, f"DELETE FROM first WHERE id >= {IN_THE_WAY} AND v = 'in the way'")
        control = self.way.driver.control

        def ask(method: str, *arguments: Any) -> Any:
            return getattr(control, method)(*arguments)

        outcomes: list[pb.ErrorOutcome] = []

        def is_tried() -> bool:
            # the driver learns of error transactions a moment after they are committed
            outcomes.extend(executed(ask, pb.ErrorsRequest(all=True)))
            return len(outcomes) >= len(found)

        self.wait("the executions", is_tried)
        assert len(outcomes) == len(found)


@pytest.fixture(
    params=cases(
        {"combined": [ONE_WAY, ""], "queued": [ONE_WAY, QUEUED], "downstream": [DOWNSTREAM, ""]},
        core=["combined"],
    )
)
def crashing(
    request: pytest.FixtureRequest,
    source_database: str,
    postgres_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Crashing]:
    with lazy_server(postgres_folder) as server:
        create_tables(source_database, server.dsn())
        execute(server.dsn(), f"INSERT INTO first SELECT {IN_THE_WAY} + i, 'in the way' FROM generate_series(1, 100) i")
        # These rows are not part of the copy.
        execute(server.dsn(), "CREATE TABLE aside AS SELECT * FROM first")
        execute(server.dsn(), "TRUNCATE first")
        way = OneWay(tmp_path, source_database, server.dsn(), monkeypatch, text=request.param[0], more=request.param[1])
        made = Crashing(way, server)
        yield made
        if way.driver.join(0.0):
            way.tend()
        way.close()


@pytest.mark.soak  # a shorter one: test_lazy_commits; one on Ray: tests/faults/test_database_server_stops.py
@pytest.mark.seeded
def test_destination_crashing_under_load_gets_unacknowledged_changes_again(crashing: Crashing) -> None:
    way = crashing.way
    with load(way.source_dsn) as last:
        crashing.wait(
            "the copies", lambda: [each.state for each in way.driver.control.status().instantiation] == ["DONE"] * 2
        )
        crashing.wait_arrived(last[0] + 1)
        for _ in range(scaled(1, 4)):
            crashing.crash()
            crashing.wait_arrived(last[0] + 1)

        # A large transaction is in flight, then error transactions, then a table that is copied beside the others.
        with psycopg.connect(way.source_dsn, autocommit=True) as user:
            user.execute("INSERT INTO first SELECT 1000000 + i, 'large' FROM generate_series(1, %s) i", (LARGE_ROWS,))
        crashing.crash()
        crashing.wait_arrived(last[0] + 1)
        execute(way.destination_dsn, "INSERT INTO first SELECT * FROM aside")
        with psycopg.connect(way.source_dsn, autocommit=True) as user:
            for number in range(1, 21):
                user.execute("INSERT INTO first VALUES (%s, 'of the source')", (IN_THE_WAY + number,))
        crashing.crash()
        crashing.wait_arrived(last[0] + 1)
        crashing.wait(
            "the error transactions",
            lambda: len(execute(way.destination_dsn, "SELECT * FROM headrace.apply_error")) == 20,
        )
        crashing.execute_errors()
        _copy_again(crashing)
        crashing.crash()
        crashing.wait_arrived(last[0] + 1)
        crashing.wait(
            "the copy",
            lambda: {each.state for each in way.driver.control.status().instantiation} <= {"DONE", "JOINING"},
        )
        crashing.crash()
        crashing.wait_arrived(last[0] + 1)
    crashing.check()
    assert crashing.lost, "no crash lost a commit: this proves nothing"


def _copy_again(crashing: Crashing) -> None:
    def asked() -> bool:
        try:
            crashing.way.driver.control.copy_again(
                pb.CopyAgainRequest(tables=[pb.TableName(owner="public", name="first")])
            )
        except HeadraceError:
            return False
        return True

    crashing.wait("the copy to begin", asked)


@pytest.mark.soak  # without a server: tests/unit/spark_apply/driver/loop/test_flushes.py
@pytest.mark.parametrize("crashing", [(ONE_WAY, "")], ids=["combined"], indirect=True)
def test_acknowledging_a_commit_before_it_is_durable_is_detected(
    crashing: Crashing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted defect: the commits that the crash loses were acknowledged upstream."""
    monkeypatch.setattr(FlushGate, "durable_scn", lambda self, recorded: recorded)

    def crash() -> None:
        for _ in range(10):
            crashing.crash()
            crashing.wait_arrived(last[0] + 1)

    with load(crashing.way.source_dsn) as last:
        crashing.wait_arrived(last[0] + 1)
        with pytest.raises(AssertionError, match="changes reported as durable are gone"):
            crash()
