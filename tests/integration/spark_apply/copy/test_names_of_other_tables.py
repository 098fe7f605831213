"""A complete driver with its tasks as threads: a table that takes the name of a destination-only table does not write
that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.errors import UnfitTableError
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.ports import Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.lcr.batch import Column, OldImage, TableVersion
from headrace.lcr.scn import ObjectNumber, Scn
from headrace.lcr.table_name import TableName
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.driver import apply_driver
from spark_apply.driver.source_questions import TablesOfNow
from spark_apply.tables.fits import TableFits
from tests.support.apply.apply_driver import MinedQueue, wait_for
from tests.support.apply.driver_on_threads import run_on_threads
from tests.support.databases.statements import digest, execute

WAIT_S = 50.0
SECRET = [(1, "of the destination alone")]

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class Sites:
    """Source, destination, and consecutive drivers."""

    def __init__(self, folder: Path, source: str, destination: str) -> None:
        self.source, self.destination = source, destination
        for dsn in (source, destination):
            execute(dsn, "CREATE TABLE staff (id int PRIMARY KEY, v text)")
        execute(source, "INSERT INTO staff VALUES (7, 'copied')")
        execute(
            destination,
            "CREATE TABLE salaries (id int PRIMARY KEY, v text); INSERT INTO salaries VALUES (1, 'of the destination"
            " alone')",
        )
        self.queue = MinedQueue(folder, source, destination, topology="names_test")
        self.start("staff")

    def start(self, table: str) -> None:
        self.driver = self.queue.start_driver(self.queue.config(self.queue.tables((table,))))

    def stop(self) -> None:
        self.driver.stop(5.0)
        assert self.driver.join(60.0)

    def shown(self) -> tuple[str, str]:
        """Return state and problem of the table; empty: the driver has not reported yet."""
        self.driver.outcome()
        found = self.driver.control.status().instantiation
        return (found[0].state, found[0].problem) if found else ("", "")

    def reason(self) -> str:
        """Return why nothing is applied; empty: changes are applied."""
        return self.driver.control.status().detail


@pytest.fixture
def sites(
    tmp_path: Path, source_database: str, destination_database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sites]:
    run_on_threads(monkeypatch)
    found = Sites(tmp_path, source_database, destination_database)
    try:
        wait_for("the copy", lambda: found.shown()[0] == "DONE", WAIT_S)
        yield found
    finally:
        found.stop()
        found.queue.close()


def test_table_renamed_to_a_destination_only_name_waits_with_a_remedy(sites):
    # The owner of the captured table can do this, and could otherwise choose the written values.
    execute(
        sites.source,
        "ALTER TABLE staff RENAME TO salaries; INSERT INTO salaries VALUES (2, 'forged'); DELETE FROM salaries WHERE id"
        " = 7",
    )

    def kept() -> bool:
        return execute(sites.destination, "SELECT * FROM salaries ORDER BY 1") == SECRET

    wait_for("changes to wait", lambda: not kept() or "another table of that name" in sites.reason(), WAIT_S)
    assert kept()
    sites.stop()
    sites.start("salaries")
    wait_for("the next driver to say why", lambda: not kept() or sites.shown()[0] == "FAILED", WAIT_S)
    assert kept()
    sites.stop()
    # The destination's owner of both can rename them so that no table has the old name.
    execute(sites.destination, "ALTER TABLE staff RENAME TO aside")
    sites.start("salaries")
    wait_for("the next driver to look where the rows are", lambda: not kept() or "aside" in sites.shown()[1], WAIT_S)
    assert kept()
    problem = sites.shown()[1]
    statement = re.search(r"ALTER TABLE [^;]*", problem)
    assert statement is not None, problem
    execute(sites.destination, "ALTER TABLE salaries RENAME TO paid")
    execute(sites.destination, statement[0])
    sites.stop()
    sites.start("salaries")
    wait_for(
        "its changes",
        lambda: (
            sites.shown()[0] == "DONE" and digest(sites.source, "salaries") == digest(sites.destination, "salaries")
        ),
        WAIT_S,
    )
    assert execute(sites.destination, "SELECT * FROM paid") == SECRET
    assert execute(sites.destination, "SELECT * FROM salaries") == [(2, "forged")]


FORGED = (
    "payroll.salaries",
    "headrace.instantiation",
    "headrace.kept",
    "pg_catalog.pg_class",
    "information_schema.sql_parts",
)


def test_rows_under_a_destination_only_tables_name_do_not_fit(destination_database):
    """A holder of a source's certificate can send rows of a known number under any name."""
    execute(
        destination_database,
        "CREATE SCHEMA payroll; CREATE TABLE payroll.salaries (id int PRIMARY KEY, v text); CREATE TABLE staff (id int"
        " PRIMARY KEY, v text)",
    )
    with closing(PostgresDestination(destination_database, site="dbs2")) as destination:
        destination.prepare("names_test")
        execute(destination_database, "CREATE TABLE headrace.kept (id int PRIMARY KEY, v text)")
        epoch = destination.raise_epoch("names_test", "a").epoch
        name = TableName("public", "staff")
        destination.record_instantiation(
            "names_test",
            "a",
            epoch,
            Instantiation(source="dbs1", identity="then", owner="public", name="staff", scn=Scn(9), state="DONE"),
        )
        table = TableToInstantiate(identity="then", source=name, destination=name, object_numbers=(16384,))
        access = DatabaseAccess(site="dbs2", kind="postgres", dsn=destination_database)
        config = ApplyConfig(
            topology="names_test", apply="a", source=access, destination=access, queue="q", tables=(table,)
        )
        columns = (
            Column(name="id", type_name="pg_catalog.int4", type_number=23, is_key=True),
            Column(name="v", type_name="pg_catalog.text", type_number=25),
        )
        version = TableVersion(
            owner="public",
            name="staff",
            object_number=ObjectNumber(16384),
            version=1,
            columns=columns,
            old_image=OldImage.KEY,
        )
        of_now = TablesOfNow(lambda _: ())
        fits = TableFits(
            destination.describe, lambda version: apply_driver._missing_alter(destination, version, config, of_now)
        )
        assert fits.fit(version).table.name == "staff"
        said = {}
        for owner, _, forged in (each.partition(".") for each in FORGED):
            with pytest.raises(UnfitTableError) as refused:
                fits.fit(replace(version, owner=owner, name=forged))
            said[f"{owner}.{forged}"] = refused.value.message
        assert "another table of that name" in said.pop("payroll.salaries")
        assert all("leave the table out of the rules" in each for each in said.values()), said
        # The sessions that write check last.
        with closing(destination.open_session("names_test", "a", server=0, epoch=epoch, tag=b"\x00")) as session:
            assert [each for each in said if session.describe(*each.split(".")) is not None] == []


def test_table_renamed_at_both_sites_continues(sites):
    execute(sites.destination, "ALTER TABLE salaries RENAME TO paid; ALTER TABLE staff RENAME TO salaries")
    execute(sites.source, "ALTER TABLE staff RENAME TO salaries; INSERT INTO salaries VALUES (3, 'after')")
    wait_for("its changes", lambda: digest(sites.source, "salaries") == digest(sites.destination, "salaries"), WAIT_S)
    assert execute(sites.destination, "SELECT * FROM paid") == SECRET


def test_remedy_for_a_missing_table_works(sites):
    execute(sites.destination, "DROP TABLE staff")
    execute(sites.source, "ALTER TABLE staff RENAME TO salaries; INSERT INTO salaries VALUES (3, 'after')")
    sites.stop()
    sites.start("salaries")
    wait_for("the driver to say why", lambda: "which is gone" in sites.shown()[1], WAIT_S)
    assert execute(sites.destination, "SELECT * FROM salaries") == SECRET
    # As the remedy says, and as `check` says of a missing table.
    execute(sites.source, "ALTER TABLE salaries RENAME TO crew")
    sites.stop()
    sites.start("crew")
    wait_for("the driver to miss the table", lambda: "no such table" in sites.shown()[1], WAIT_S)
    execute(sites.destination, "CREATE TABLE crew (id int PRIMARY KEY, v text)")
    execute(sites.source, "INSERT INTO crew VALUES (4, 'later')")
    wait_for(
        "the copy",
        lambda: sites.shown()[0] == "DONE" and digest(sites.source, "crew") == digest(sites.destination, "crew"),
        WAIT_S,
    )
    assert execute(sites.destination, "SELECT * FROM salaries") == SECRET
