"""Reports on tables whose rows changed without events, over database outages and driver restarts.

`tests/integration/spark_apply/copy/test_row_marks.py` tests detection with real catalogs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.ports import MarkedColumn, MarkedPart, RowMark
from spark_apply.copy.marks.marked_columns import replaced_columns
from spark_apply.copy.marks.table_marks import TableMarks
from tests.support.copies.table_copies import APPLY, TOPOLOGY, World


class Marked:
    """A copied table whose mark the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World("a")
        self.mark, self.is_down, self.asked = mark(stamp="x1", file=1), False, 0
        (self.table,) = self.world.source.captured(TOPOLOGY)
        monkeypatch.setattr(self.world.source, "row_marks", self._row_marks)
        self.start()

    def _row_marks(self, topology: str, *, snapshot: str = "") -> dict[str, RowMark]:
        self.asked += 1
        if self.is_down:
            raise DatabaseUnavailable("it does not answer")
        return {self.table.identity: self.mark}

    def start(self) -> None:
        """Start the next driver."""
        copying: Any = self.world.copying()
        copying.run_first()
        self.records, self.marks = copying._records, TableMarks(records=copying._records, source=self.world.source)

    def look(self, *, is_asked: bool = True) -> str:
        self.marks.look(self.records.standings(), is_asked=is_asked)
        (shown,) = self.records.progress.values()
        assert shown.state == "DONE"
        return str(shown.problem)

    def recorded(self) -> RowMark:
        (found,) = MemoryDestination(store=self.world.store).row_marks(TOPOLOGY, APPLY, "dbs1").values()
        return found


def mark(*, stamp: str, file: int) -> RowMark:
    return RowMark(
        columns={"v": MarkedColumn(number=2, stamp=stamp)}, parts={"1": MarkedPart(owner="public", name="a", file=file)}
    )


def test_finding_persists_over_source_outages_and_driver_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Marked(monkeypatch)
    assert made.look() == ""
    made.mark = mark(stamp="x2", file=2)
    assert "column v was rewritten" in made.look()
    made.is_down = True
    assert "column v was rewritten" in made.look()
    made.is_down = False
    made.start()
    assert "column v was rewritten" in made.look()
    assert made.recorded() == mark(stamp="x1", file=1)


def test_mark_changes_without_row_changes_never_add_up_to_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Marked(monkeypatch)
    for stamp, file in (("x2", 1), ("x2", 2), ("x3", 2), ("x3", 3)):
        made.mark = mark(stamp=stamp, file=file)
        assert made.look() == ""
        assert made.recorded() == made.mark


def test_table_that_ddl_made_gets_its_mark_with_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no copy, which would have brought the mark."""
    made = Marked(monkeypatch)
    made.world.store.row_marks.clear()
    made.mark = mark(stamp="x7", file=7)
    assert made.look() == ""
    assert made.recorded() == made.mark
    made.mark = mark(stamp="x8", file=8)
    assert "column v was rewritten" in made.look()


def test_column_with_the_sources_value_here_is_no_finding() -> None:
    """`ADD COLUMN ... DEFAULT now()` as replicated DDL: older rows have the moment of the source."""
    was = RowMark(columns={"v": MarkedColumn(number=2, here=2)}, width_here=2)
    added = MarkedColumn(number=3, has_passing_default=True, keeps_older=True, older="'2026-11-30'")
    now = RowMark(columns={**was.columns, "at": added})
    said = ["column at was added with a default that is not constant"]
    here = {"v": MarkedColumn(number=2)}
    assert list(replaced_columns(was, now, here)) == said
    assert list(replaced_columns(was, now, {**here, "at": replace(added, older="'2026-12-01'")})) == said
    assert list(replaced_columns(was, now, {**here, "at": added})) == []
    assert list(replaced_columns(replace(was, width_here=0), now, {**here, "at": added})) == said
    (own,) = replaced_columns(replace(was, width_here=3), now, {**here, "at": added})
    assert "already had one of that name" in own


def test_source_is_queried_at_intervals_and_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Marked(monkeypatch)
    before = made.asked
    made.look(is_asked=False)
    made.look(is_asked=False)
    assert made.asked == before + 1
    made.look()
    assert made.asked == before + 2
