"""Masked values under a name that the table had before, between two real servers: none leaves the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.status.captures import CaptureStatus
from tests.integration.topology.test_renamed_masks import MASK, MASKED, Masked
from tests.support.actors.statuses import status_of
from tests.support.apply.apply_driver import wait_for
from tests.support.databases.statements import execute
from tests.support.ways.ddl_way import await_copies
from tests.support.ways.one_way import CAPTURE, WAIT_S, create_tables

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE first DROP COLUMN note", "ALTER TABLE first RENAME v TO note"),
        (
            "BEGIN; ALTER TABLE first RENAME v TO x; ALTER TABLE first RENAME note TO v;"
            " ALTER TABLE first RENAME x TO note; COMMIT",
        ),
    ],
    ids=["name of a dropped column", "exchanged"],
)
def test_masked_values_do_not_leave_under_a_known_name(
    source_database: str,
    destination_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    statements: tuple[str, ...],
) -> None:
    create_tables(source_database, destination_database)
    for each in (source_database, destination_database):
        execute(each, "ALTER TABLE first ADD note text")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "masks.py").write_text(MASK)
    way = Masked(tmp_path, source_database, destination_database, monkeypatch, text=MASKED)
    try:
        await_copies(way)
        execute(source_database, "UPDATE first SET v = 'secret 1' WHERE id = 1")
        for each in statements:
            execute(source_database, each)
        execute(source_database, "UPDATE first SET note = 'secret 2' WHERE id = 2")

        def ended() -> bool:
            error = status_of(way.hosts[CAPTURE], CaptureStatus).last_error
            rows = execute(destination_database, "SELECT note FROM first WHERE id = 2")
            return error is not None or rows != [(None,)]

        wait_for("an end", ended, WAIT_S)
        assert execute(destination_database, "SELECT note FROM first WHERE id = 2") == [(None,)], "a secret has left"
    finally:
        way.close()
