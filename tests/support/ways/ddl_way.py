"""One way with DDL, combined or queued: what became of each change, and what apply pauses on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from headrace.databases.postgres.connection import connect
from headrace.databases.postgres.ddl.structure_query import read_structure
from headrace.lcr.scn import Scn
from headrace.lcr.structure import Structure
from headrace.lcr.table_name import TableName
from tests.support.apply.apply_driver import end_of_log, wait_for
from tests.support.databases.statements import digest, execute
from tests.support.session.matrices import values
from tests.support.ways.one_way import ONE_WAY, WAIT_S, OneWay, create_tables

__all__ = [
    "OF_SCHEMA_WITH_DDL",
    "OF_TABLES_WITH_DDL",
    "WAYS",
    "DdlWay",
    "await_copies",
    "opened",
    "structure",
    "way_fixture",
]

WAYS = values(["combined", "queued"], "combined")
OF_TABLES_WITH_DDL = ONE_WAY.replace("to: [dbs2]}", "to: [dbs2], ddl: true}")
OF_SCHEMA_WITH_DDL = ONE_WAY.replace(
    "- {tables: [public.first, public.log], from: dbs1, to: [dbs2]}",
    "- {schemas: [public], from: dbs1, to: [dbs2], ddl: true}",
)

W = TypeVar("W", bound="DdlWay")


class DdlWay(OneWay):
    """The topology, and what tests ask of its DDL."""

    settled_states: ClassVar[frozenset[str] | None] = None
    """States that all tables have when everything is applied; None: any."""

    def settle(self) -> None:
        """Wait until everything is applied; restart the driver after failures that time heals."""
        end, said = Scn(end_of_log(self.source_dsn)), [""]

        def is_settled() -> bool:
            self.tend()
            status = self.driver.control.status()
            states = {each.state for each in status.instantiation}
            said[0] = f"{status.state} {status.detail} {status.hint} {status.low_watermark_scn} of {end} {states}"
            return status.low_watermark_scn >= end and (self.settled_states is None or states <= self.settled_states)

        try:
            wait_for("everything", is_settled, WAIT_S)
        except AssertionError as error:
            raise AssertionError(said[0]) from error

    def assert_same(self) -> None:
        """Compare both tables behind everything that was written."""
        self.settle()
        for table in ("first", "log"):
            assert digest(self.source_dsn, table) == digest(self.destination_dsn, table), table
            there, here = structure(self.source_dsn, table), structure(self.destination_dsn, table)
            assert (here.columns, here.constraints, here.indexes) == (there.columns, there.constraints, there.indexes)
        assert execute(self.destination_dsn, "SELECT * FROM headrace.apply_error") == []

    def kill_driver(self) -> None:
        """Let the driver and its tasks end at once, and begin another one."""
        self.driver.stop(0.0)
        assert self.driver.join(WAIT_S)
        self.driver = self._driver()
        self.driver.start()

    def outcomes(self) -> list[str]:
        return [
            outcome
            for (outcome,) in execute(
                self.destination_dsn, "SELECT outcome FROM headrace.dba_apply_ddl ORDER BY ddl_number"
            )
        ]

    def paused_on(self, words: str) -> str:
        """Wait for a pause that says these words; return everything that it says."""
        said = [""]

        def is_shown() -> bool:
            self.driver.outcome()
            status = self.driver.control.status()
            said[0] = f"{status.detail} {status.hint}"
            return words in said[0]

        try:
            wait_for(f"a pause that says {words}", is_shown, WAIT_S)
        except AssertionError as error:
            raise AssertionError(said[0]) from error
        return said[0]


def structure(dsn: str, table: str) -> Structure:
    """Return the structure of a table of schema public."""
    with closing(connect(dsn, application_name="test")) as connection:
        found = read_structure(connection, TableName("public", table))
    assert found is not None
    return found


def await_copies(way: DdlWay) -> None:
    """Wait until both tables are copied."""

    def are_done() -> bool:
        return [each.state for each in way.driver.control.status().instantiation] == ["DONE"] * 2

    wait_for("the copies", are_done, WAIT_S)


@contextmanager
def opened(
    kind: type[W], how: str, folder: Path, source: str, destination: str, monkeypatch: pytest.MonkeyPatch, text: str
) -> Iterator[W]:
    """Yield the topology with its tables, which are copied.

    Args:
        kind: its class.
        how: one of `WAYS`.
        folder, source, destination, monkeypatch, text: as for `OneWay`.
    """
    create_tables(source, destination)
    more = "combined: never\n" if how == "queued" else ""
    way = kind(folder, source, destination, monkeypatch, text=text, more=more)
    try:
        await_copies(way)
        yield way
    finally:
        way.close()


def way_fixture(kind: type[DdlWay], text: str, ways: Sequence[Any] = WAYS) -> Any:
    """Return a fixture that opens the topology in each of some ways.

    Args:
        kind: its class.
        text: as for `OneWay`.
        ways: of `WAYS`.
    """

    @pytest.fixture(params=ways)
    def way(
        request: pytest.FixtureRequest,
        source_database: str,
        destination_database: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[DdlWay]:
        with opened(kind, request.param, tmp_path, source_database, destination_database, monkeypatch, text) as made:
            yield made

    return way
