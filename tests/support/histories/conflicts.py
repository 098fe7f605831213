"""Row LCRs that meet conflicts at a destination of the contract suites, and their outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.databases.ports import ConflictRecord, DestinationDatabase, DestinationSession, DestinationTable
from headrace.lcr.batch import Command, LcrBatch, OldImage, RowGroup, TableVersion
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from headrace.rules.conflict_handlers import (
    TIMED_KINDS,
    ConflictHandler,
    ConflictRules,
    HistoryBounds,
    RowTimes,
    UncomparedColumns,
)
from spark_apply.conversation.groups import Failure
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.sets.conflicts import apply_rows
from spark_apply.sets.resolution import Resolution, failed_conflict
from spark_apply.tables.fits import TableFits
from tests.support.databases.destination_contract import APPLY, TOPOLOGY, Harness
from tests.support.values.lcr_batches import column_values, transactions
from tests.support.values.writes import int4, version_of

COLUMNS = (("id", "int4"), ("a", "text"), ("b", "text"), ("t", "int4"), ("n", "int4"), ("u", "text"))
Shown = tuple[int | str | None, ...]


def raw(row: Sequence[int | str | None]) -> tuple[bytes | None, ...]:
    """Return a row of `COLUMNS` in binary form."""
    return tuple(
        int4(value) if isinstance(value, int) else value.encode() if isinstance(value, str) else None for value in row
    )


def shown(row: Sequence[bytes | None]) -> Shown:
    """Return a row of `COLUMNS` in readable form."""
    return tuple(
        None if value is None else int.from_bytes(value, "big", signed=True) if kind == "int4" else value.decode()
        for value, (_, kind) in zip(row, COLUMNS, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Lcr:
    """A row LCR of `COLUMNS`; `carried`: positions whose new values it has, None: all."""

    old: Shown | None = None
    new: Shown | None = None
    unchanged: tuple[int, ...] = ()
    carried: tuple[int, ...] | None = None

    @property
    def command(self) -> Command:
        return Command.INSERT if self.old is None else Command.DELETE if self.new is None else Command.UPDATE


def batch_of(
    version: TableVersion,
    lcrs: Sequence[Lcr],
    *,
    each: bool = False,
    first_scn: int = 100,
    source: str = "a",
    times_us: Sequence[int] = (),
) -> LcrBatch:
    """Return the LCRs as one transaction, or with `each` as one transaction each, committed at these times."""

    def image(found: Sequence[Lcr], *, is_new: bool):
        rows: list[list[bytes | int]] = []
        for lcr in found:
            row = lcr.new if is_new else lcr.old
            assert row is not None
            values: list[bytes | int] = [NULL if value is None else value for value in raw(row)]
            if is_new:
                values = [
                    UNCHANGED
                    if p in lcr.unchanged
                    else ABSENT
                    if lcr.carried is not None and p not in lcr.carried
                    else v
                    for p, v in enumerate(values)
                ]
            elif version.old_image is OldImage.KEY:
                kept = lcr.new is not None and lcr.new[0] == row[0]
                values = [v if version.columns[p].is_key and not kept else ABSENT for p, v in enumerate(values)]
            rows.append(values)
        return column_values([[row[p] for row in rows] for p in range(len(version.columns))])

    kinds = {
        command: [n for n, lcr in enumerate(lcrs) if lcr.command is command]
        for command in (Command.INSERT, Command.UPDATE, Command.DELETE)
    }
    groups = tuple(
        RowGroup(
            table=0,
            command=command,
            row_numbers=np.array(numbers, np.int32),
            old=None if command is Command.INSERT else image([lcrs[n] for n in numbers], is_new=False),
            new=None if command is Command.DELETE else image([lcrs[n] for n in numbers], is_new=True),
        )
        for command, numbers in kinds.items()
        if numbers
    )
    commits = [first_scn + 10 * n for n in range(len(lcrs))] if each else [first_scn]
    found = transactions(commits, [1] * len(lcrs) if each else [len(lcrs)])
    return LcrBatch(
        source=source,
        previous_scn=first_scn - 10,
        through_scn=commits[-1],
        tables=(version,),
        groups=groups,
        transactions=replace(found, commit_time_us=np.array(times_us, np.int64)) if times_us else found,
    )


class Conflicts:
    """A destination's table `c`, and LCRs applied to it row by row, one transaction each.

    Args:
        harness: of the database.
        session: of an apply server.
        handlers: of the table.
        unique: a second unique key, u.
        old_image: the old values in the log.
    """

    def __init__(
        self,
        harness: Harness,
        session: DestinationSession,
        *handlers: ConflictHandler,
        rows: Sequence[Shown] = (),
        unique: bool = False,
        old_image: OldImage = OldImage.FULL,
        key: Sequence[str] = ("id",),
        uncompared: Sequence[UncomparedColumns] = (),
        compare_key_only: bool = False,
        history: HistoryBounds | None = None,
        times: RowTimes | None = None,
    ) -> None:
        self.harness, self.session = harness, session
        harness.create_table("c", COLUMNS, key=key, unique=[["u"]] if unique else [])
        harness.insert("c", [_as_inserted(harness, row) for row in rows])
        table = session.describe("public", "c", fresh=True)
        assert isinstance(table, DestinationTable)
        self.table = table
        self.version = replace(version_of(table), old_image=old_image)
        self.rules = ConflictRules(
            handlers=handlers,
            uncompared=tuple(uncompared),
            compare_key_only=compare_key_only,
            history=history or HistoryBounds(),
            times=None if times is None else replace(times, site="b"),
        )
        self.settings = ConflictSettings(apply=APPLY, source="a", site="b", rules=self.rules)
        self.fits = TableFits(session.describe, session.missing_alter, self.rules)
        self.scn = 100

    def apply(self, *lcrs: Lcr, source: str = "a", at: int = 0) -> Failure | None:
        """Apply a transaction that was committed `at` microseconds since the epoch.

        If it fails, it is rolled back, its failure is returned, and its conflict is in the history.
        """
        batch = batch_of(self.version, lcrs, first_scn=self.scn, source=source, times_us=[at] if at else ())
        self.scn += 10
        resolution = Resolution(self.settings)
        self.session.begin()
        failure = apply_rows(self.session, batch, self.fits.fit, resolution)
        if failure is not None:
            self.session.rollback()
            self.session.begin()
            record = failed_conflict(self.settings, failure, batch, 1)
            resolution = Resolution(self.settings, [] if record is None else [record])
        resolution.write(self.session)
        self.session.commit((), 0)
        return failure

    def rows(self) -> list[Shown]:
        return [shown(row) for row in self.harness.rows("c")]

    def history(self, destination: DestinationDatabase, last: int = 100) -> tuple[ConflictRecord, ...]:
        return destination.conflicts(TOPOLOGY, last=last)


def _as_inserted(harness: Harness, row: Shown) -> tuple[bytes | None, ...]:
    """Return the row as inserted: the memory database keeps its input, PostgreSQL reads text."""
    if type(harness).__name__ == "MemoryHarness":
        return raw(row)
    return tuple(None if value is None else str(value).encode() for value in row)


def by_time(*sites: str, tombstones: bool = True) -> tuple[tuple[ConflictHandler, ...], RowTimes]:
    """Return the latest_timestamp handlers of table `c` that a file's entry makes, and row times without a site."""
    handlers = tuple(
        ConflictHandler(owner="public", name="c", method="latest_timestamp", kind=kind, priority=sites)
        for kind in TIMED_KINDS
    )
    return handlers, RowTimes(site="", sites=sites, has_tombstones=tombstones)


def handler(
    method: str, *columns: str, by: str = "", on: str = "update_differs", priority: Sequence[str] = ()
) -> ConflictHandler:
    """Return a handler of table `c`."""
    return ConflictHandler(
        owner="public",
        name="c",
        method=method,
        kind=on,
        columns=tuple(columns),
        resolution_column=by,
        priority=tuple(priority),
    )
