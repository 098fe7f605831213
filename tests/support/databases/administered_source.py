"""A source's database and its administrator, in memory: its tables, and those in its log."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.connectors import DatabaseAccess
from headrace.databases.ports import CapturedTable, Finding, PlannedStatement
from topology.edits.stored import PREPARED_FILE, spec_to_json
from topology.spec import TopologySpec

__all__ = ["AdministeredSource", "administer", "record"]


class AdministeredSource:
    """Both `SourceDatabase` and `SourceAdmin`, as far as publishing goes. Every rule selects every table.

    Args:
        tables: its tables.
        published: those of its tables whose changes are in the log.
    """

    def __init__(self, tables: Iterable[str], published: Iterable[str] = ()) -> None:
        self.tables, self.published = list(tables), set(published)
        self.is_away = self.is_admin_away = self.has_ddl = False
        self.refuses: Exception | None = None  # error of an action that the administrator may not do

    def close(self) -> None:
        """Do nothing: no session is kept."""

    def plan(self, topology: str, rules: Sequence[object]) -> tuple[PlannedStatement, ...]:
        """Return one statement, done if every table is in the log."""
        is_done = not self.uncaptured(topology, rules)
        return (PlannedStatement(statement="ALTER PUBLICATION", effect="captures tables", is_done=is_done),)

    def preflight(self, *_: object, **__: object) -> tuple[Finding, ...]:
        """Find nothing wrong with the source itself."""
        self._answer()
        return ()

    def uncaptured(self, _topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        self._answer()
        return tuple(f"public.{table}" for table in self.tables if rules and table not in self.published)

    def captured(self, _topology: str) -> tuple[CapturedTable, ...]:
        self._answer()
        return tuple(
            CapturedTable(identity=f"id of {table}", owner="public", name=table, object_numbers=(1,))
            for table in self.tables
            if table in self.published
        )

    def captures_ddl(self, _topology: str) -> bool:
        self._answer()
        return self.has_ddl

    def prepare(self, _topology: str, _rules: Sequence[object], *, was_source: bool) -> tuple[str, ...]:
        self._answer(as_admin=True)
        if self.refuses is not None:
            raise self.refuses
        added = [table for table in self.tables if table not in self.published]
        self.published |= set(added)
        return tuple(f"ADD TABLE {table}" for table in added)

    def take_out(
        self,
        _topology: str,
        kept: Collection[str],
        *,
        among: Collection[str] | None = None,
        recorded: Callable[[], Collection[str]] = tuple,
        keeps_ddl: bool = True,
    ) -> tuple[str, ...]:
        self._answer(as_admin=True)
        self.has_ddl &= keeps_ddl
        gone = {
            table
            for table in self.published
            if f"id of {table}" not in {*kept, *recorded()} and (among is None or f"id of {table}" in among)
        }
        self.published -= gone
        return tuple(f"DROP TABLE {table}" for table in sorted(gone))

    def _answer(self, *, as_admin: bool = False) -> None:
        if self.is_away:
            raise DatabaseUnavailable("connection refused")
        if as_admin and self.is_admin_away:
            raise DatabaseUnavailable("as the administrator: password authentication failed")


def administer(monkeypatch: pytest.MonkeyPatch, sources: Mapping[str, AdministeredSource]) -> None:
    """Have commands find these databases.

    Args:
        monkeypatch: restores the original.
        sources: by site.
    """

    def opened(access: DatabaseAccess, *_: object) -> AdministeredSource:
        return sources[access.site]

    monkeypatch.setattr("actors.site.admin.open_source", opened)
    monkeypatch.setattr("actors.site.admin.open_source_admin", opened)


def record(spec: TopologySpec, tables: Mapping[str, Iterable[str]]) -> None:
    """Write the controller's record.

    Args:
        spec: the topology.
        tables: tables that it has adopted, by source.
    """
    spec.state_dir.mkdir(parents=True, exist_ok=True)
    receivers = {
        source: {"tables": [{"identity": f"id of {table}"} for table in names]} for source, names in tables.items()
    }
    (spec.state_dir / PREPARED_FILE).write_text(json.dumps({"receivers": receivers, "spec": spec_to_json(spec)}))
