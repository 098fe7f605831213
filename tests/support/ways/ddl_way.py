"""One way with DDL, combined or queued: what became of each change, and what apply pauses on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.apply.apply_driver import wait_for
from tests.support.databases.statements import execute
from tests.support.session.matrices import values
from tests.support.ways.one_way import WAIT_S, OneWay, create_tables

__all__ = ["WAYS", "DdlWay", "await_copies", "opened"]

WAYS = values(["combined", "queued"], "combined")

W = TypeVar("W", bound="DdlWay")


class DdlWay(OneWay):
    """The topology, and what tests ask of its DDL."""

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
