"""A database that records DDL, and what it has recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.lcr.ddl import ddl_of
from headrace.rules.rule import Rule, RuleSet
from tests.support.databases.postgres_site import Site

__all__ = [
    "DDL",
    "PATIENCE_S",
    "TABLE",
    "USER",
    "Recording",
    "columns",
    "is_waiting",
    "names",
    "site_of_version",
    "wait_until_waiting",
]

DDL = (RuleSet(include=(Rule(owner="public", ddl=True),)),)
TABLE = "CREATE TABLE t (id int PRIMARY KEY, a text, b int)"
USER = "headrace_test_ddl_user"
PATIENCE_S = 30.0  # for another session to begin to wait, on a busy machine


class Recording:
    """A database that records DDL, and the records since the last look at them."""

    def __init__(self, site: Site) -> None:
        self.site, self.seen = site, 0

    def run(self, *statements: str) -> list[dict[str, Any]]:
        """Run statements as their user; return what was recorded."""
        for statement in statements:
            self.site.run(statement)
        return self.records()

    def records(self) -> list[dict[str, Any]]:
        """Return the records since the last call."""
        rows = self.site.run(
            "SELECT number, content FROM headrace_ddl.log WHERE number > %s ORDER BY number", self.seen
        ).fetchall()
        self.seen = max([self.seen, *(int(str(number)) for number, _ in rows)])
        return [json.loads(str(content)) for _, content in rows]

    def one(self, *statements: str) -> dict[str, Any]:
        """Run statements that make one record, and return it."""
        (record,) = self.run(*statements)
        assert ddl_of(json.dumps(record).encode()) is not None
        return record


def site_of_version(request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site], version: str) -> Site:
    return make_site(request.getfixturevalue("pg_source" if version == "18" else f"pg_{version}"))


def columns(structure: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["type"] for each in structure["columns"]}


def names(structure: dict[str, Any], kind: str) -> list[str]:
    return [each["name"] for each in structure[kind]]


def is_waiting(site: Site, pid: int) -> bool:
    row = site.run("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid).fetchone()
    return row == ("Lock",)


def wait_until_waiting(site: Site, pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_waiting(site, pid):
        assert time.monotonic() < deadline, "it does not wait for a lock"
        time.sleep(0.002)
