"""A masked column that the source renames, between two real servers: nothing of it leaves the source unmasked."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headrace.databases.postgres.source.database import PostgresSource
from headrace.status.captures import CaptureStatus
from tests.support.actors.statuses import status_of
from tests.support.apply.apply_driver import wait_for
from tests.support.databases.statements import execute
from tests.support.ways.ddl_way import await_copies
from tests.support.ways.one_way import CAPTURE, ONE_WAY, WAIT_S, OneWay, create_tables
from topology.edits.known_columns import named_columns, with_known_columns
from topology.spec import TopologySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

MASKED = (
    ONE_WAY
    + """
code: ./masks
captures:
  capture_dbs1:
    site: dbs1
    source: dbs1
    queue: q_dbs1
    rules:
      include:
        - {table: public.log}
        - {table: public.first, transform: [{function: "masks:mask", columns: [v]}]}
"""
)
MASK = """
def mask(lcr):
    for image in ("old", "new"):
        for column, value in lcr.get_values(image, use_old=False).items():
            if column in ("v", "w") and not value.is_null and not lcr.is_unchanged(column):
                lcr.set_value(image, column, "masked")
    return lcr
"""


class Masked(OneWay):
    """Its transformations know the columns of the moment, as those of a topology that `up` has prepared."""

    def read(self, more: str = "") -> TopologySpec:
        spec = super().read(more)
        with closing(PostgresSource(self.source_dsn, site="dbs1")) as source:
            versions = source.table_versions(source.tables(spec.capture_rules("dbs1")))
        return with_known_columns(spec, {"dbs1": named_columns(spec, "dbs1", versions)})


def test_renamed_column_stops_capture_until_the_file_names_it(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(source_database, destination_database)
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "masks.py").write_text(MASK)
    way = Masked(tmp_path, source_database, destination_database, monkeypatch, text=MASKED)

    def there(column: str, number: int) -> str | None:
        ((value,),) = execute(destination_database, f"SELECT {column} FROM first WHERE id = {number}")
        return str(value)

    try:
        await_copies(way)
        execute(source_database, "UPDATE first SET v = 'secret 1' WHERE id = 1")
        execute(source_database, "ALTER TABLE first RENAME v TO w")
        execute(source_database, "UPDATE first SET w = 'secret 2' WHERE id = 2")

        def says_why() -> bool:
            error = status_of(way.hosts[CAPTURE], CaptureStatus).last_error
            return error is not None and "public.first has no column v any more" in error.message

        wait_for("capture stops", says_why, WAIT_S)
        wait_for("what is before the rename", lambda: there("v", 1) == "masked", WAIT_S)
        assert there("v", 2) == "v"
        error = status_of(way.hosts[CAPTURE], CaptureStatus).last_error
        assert error is not None
        assert "captures.capture_dbs1.rules.include[1]" in error.message
        assert "name it there as the source calls it now" in error.hint
        execute(destination_database, "ALTER TABLE first RENAME v TO w")
        way._text = MASKED.replace("columns: [v]", "columns: [w]")
        way.take()
        wait_for("what is behind it", lambda: there("w", 2) == "masked", WAIT_S)
        assert there("w", 1) == "masked"
    finally:
        way.close()


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
