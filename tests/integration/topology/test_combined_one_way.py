"""Combined capture and apply on real PostgreSQL, in one process and under load.

Capture and apply are combined, separated and combined again; the capture process is replaced; the apply process falls
behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.lcr.scn import Scn
from headrace.status.captures import CaptureStatus
from tests.support.actors.statuses import status_of
from tests.support.apply.apply_driver import end_of_log, wait_for
from tests.support.databases.statements import digest, execute
from tests.support.session.matrices import values
from tests.support.ways.one_way import CAPTURE, WAIT_S, OneWay, create_tables, load

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def combined(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OneWay]:
    create_tables(source_database, destination_database)
    made = OneWay(tmp_path, source_database, destination_database, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("times", values([1, 3], 1))
def test_combining_and_separating_under_load_neither_loses_nor_reorders(combined: OneWay, times: int) -> None:
    def wait_arrived(number: int) -> None:
        there = "SELECT 1 FROM log WHERE number = %s"

        def arrived() -> bool:
            combined.driver.outcome()
            return execute(combined.destination_dsn, there, number) != []

        wait_for(f"row {number} to arrive", arrived, WAIT_S)

    with load(combined.source_dsn) as last:
        wait_for("them to be combined", combined.is_combined, WAIT_S)
        assert set(combined.hosts) == {CAPTURE}
        wait_arrived(last[0] + 1)
        for _ in range(times):
            combined.take("combined: never\n")
            wait_for(
                "them to be parted", lambda: not status_of(combined.hosts[CAPTURE], CaptureStatus).subscribers, WAIT_S
            )
            wait_arrived(last[0] + 50)
            combined.take()
            wait_for("them to be combined", combined.is_combined, WAIT_S)
            wait_arrived(last[0] + 50)
        combined.replace_capture()
        wait_for("them to be combined", combined.is_combined, WAIT_S)
        wait_arrived(last[0] + 50)

        # Block the destination: the backlog grows only in redo.
        with psycopg.connect(combined.destination_dsn) as other:
            other.execute("LOCK TABLE first IN ACCESS EXCLUSIVE MODE")
            with psycopg.connect(combined.source_dsn, autocommit=True) as big:
                for number in range(12):
                    rows = f"generate_series({number * 1000}, {number * 1000 + 999}) i"
                    big.execute(f"INSERT INTO first SELECT 1000000 + i, repeat(md5(i::text), 30) FROM {rows}")
            capture = combined.hosts[CAPTURE]
            wait_for("no credit to be left", lambda: capture.status().state == "PAUSED FOR FLOW CONTROL", WAIT_S)
            waiting = status_of(capture, CaptureStatus).subscribers[0].waiting_bytes
            assert waiting is not None
            assert waiting < 4 << 20
        wait_arrived(last[0] + 1)
    end = Scn(end_of_log(combined.source_dsn))
    wait_for("everything", lambda: combined.driver.control.status().low_watermark_scn >= end, WAIT_S)
    for table in ("first", "log"):
        assert digest(combined.source_dsn, table) == digest(combined.destination_dsn, table), table
    assert execute(combined.destination_dsn, "SELECT * FROM headrace.apply_error") == []
    # The site purges behind what is committed, as reported by the apply process directly.
    wait_for("the record", lambda: combined.required_scn >= end, WAIT_S)
