"""Checks of the tables that rules look into.

Each row goes through the states that follow from the source's history, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.databases.memory.store import Row, StoredChange
from headrace.lcr.scn import Scn
from headrace.simulation.observing.violations import Invariant, Violation

if TYPE_CHECKING:
    from headrace.simulation.database import SiteDatabase
    from headrace.simulation.observing.expected import Key, SiteTable
    from headrace.simulation.surroundings import Surroundings
    from topology.spec import ApplySpec

__all__ = ["ShapedObserver"]


class ShapedObserver:
    """Checks these tables at one site, commit by commit.

    Args:
        sim: the simulation.
        database: the site's database.
    """

    def __init__(self, sim: Surroundings, database: SiteDatabase) -> None:
        self._sim, self._database, self._site = sim, database, database.site
        self._reached: dict[tuple[Key, bytes], int] = {}  # the first state that a row can be in, given its past

    def committed(self, apply: str, changes: Sequence[StoredChange], *, is_checked: bool) -> list[StoredChange]:
        """Check what a commit changed.

        Args:
            apply: the apply process that committed; empty: a user.
            changes: the commit's changes.
            is_checked: False while tables are copied.

        Returns:
            The changes of other tables.
        """
        expected = self._sim.workload.expected
        if not expected.tables:
            return list(changes)
        touched: dict[tuple[Key, bytes], SiteTable] = {}
        others = []
        for change in changes:
            table = expected.find(self._site, change.owner, change.name)
            if table is None:
                others.append(change)
                continue
            for row in (change.old, change.new):
                if row is not None and row[0] is not None:
                    touched[(self._site, change.owner, change.name), row[0]] = table
        for (place, key), table in touched.items() if is_checked else ():
            self._check_state(apply, place, key, table)
        return others

    def _check_state(self, apply: str, place: Key, key: bytes, table: SiteTable) -> None:
        states = table.states.get(key)
        who, where = apply or "a user", f"{place[1]}.{place[2]}"
        if states is None:
            raise Violation(
                Invariant.RIGHT_PLACE,
                self._site,
                f"{who} changed row {key.decode()} of {where}, which rules, tags and conditions exclude there",
            )
        row = table.row_at(self._database.store.tables[place[1:]], key)
        reached = self._reached.get((place, key), 0)
        try:
            self._reached[place, key] = states.index(row, reached)
        except ValueError:
            wrong = Invariant.ORDER if row in states else Invariant.CONVERGENCE
            raise Violation(
                wrong,
                self._site,
                f"{who} left row {key.decode()} of {where} as {_shown(table, row)}:"
                f" {'an earlier state' if row in states else 'no change of the source leads to it'}; last:"
                f" {_shown(table, states[-1])}",
            ) from None

    def check_lost(self, apply: ApplySpec, low_watermark: Scn, checked: int) -> int:
        """Check that everything below a low watermark is at the site.

        Args:
            apply: the apply process.
            low_watermark: its low watermark.
            checked: number of its source's transactions that were checked before.

        Returns:
            The number checked now.
        """
        log = self._sim.workload.expected.log.get(apply.source, ())
        while checked < len(log) and log[checked][0] <= low_watermark:
            for arrival in log[checked][1]:
                table = self._sim.workload.expected.tables.get(arrival.place)
                if arrival.apply != apply.name or table is None:
                    continue
                row = table.row_at(self._database.store.tables[arrival.place[1:]], arrival.key)
                if row not in table.states[arrival.key][arrival.state :]:
                    raise Violation(
                        Invariant.NOTHING_LOST,
                        self._site,
                        f"transaction {arrival.transaction} of {self._sim.workload.stream(arrival.stream)} is below the low"
                        f" watermark {low_watermark} of {apply.name},"
                        f" but row {arrival.key.decode()} of {arrival.place[1]}.{arrival.place[2]} is"
                        f" {_shown(table, row)}, not {_shown(table, table.states[arrival.key][arrival.state])} or"
                        " later",
                        self._sim.logs.scns(arrival.stream, arrival.transaction),
                    )
            checked += 1
        return checked

    def rescan(self) -> None:
        """Accept the current content."""
        self._reached.clear()

    def check_content(self) -> None:
        """Check at the end that the site has the expected rows, and nothing else."""
        for (_, owner, name), table in self._sim.workload.expected.at(self._site):
            found = {
                row[0] or b"": table.comparable(row) for row in self._database.store.tables[owner, name].rows.values()
            }
            wanted = {key: table.comparable(row) for key, row in table.rows.items()}
            wrong = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
            if wrong:
                raise Violation(
                    Invariant.CONVERGENCE,
                    self._site,
                    f"{owner}.{name}: {len(wrong)} rows differ from the source's history; the first is"
                    f" {_shown(table, found.get(wrong[0]))}, but must be {_shown(table, wanted.get(wrong[0]))}",
                )


def _shown(table: SiteTable, row: Row | None) -> str:
    if row is None:
        return "not there"
    return ", ".join(
        f"{name} {'NULL' if value is None else value.decode()}"
        for name, value in zip(table.table.columns, row, strict=True)
    )
