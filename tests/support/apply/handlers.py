"""An apply server with users' handlers at a memory destination.

It has tables `c` (handled), `d` (not handled) and `log` (written by handlers).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.databases.connectors import python_values
from headrace.databases.memory.destination import MemoryDestination, MemorySession
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.databases.ports import ConflictRecord, ErrorTransaction
from headrace.lcr.batch import LcrBatch
from headrace.rules.conflict_handlers import ConflictHandler, ConflictRules
from headrace.rules.user_code.handlers import DmlHandler, ErrorHandler, ExecutionHandler, HandlerRules
from headrace.rules.user_code.source import CodeFile, UserCode, UserFunction
from protos import codec
from spark_apply.conversation.groups import (
    Failure,
    GroupGo,
    GroupPart,
    GroupResult,
    GroupRetry,
    ServerMessage,
)
from spark_apply.handlers.crashes import RecordedCalls
from spark_apply.handlers.loaded import Handlers
from spark_apply.server.apply_server import ApplyServer
from spark_apply.sets.conflict_settings import ConflictSettings
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.groups import error_group, streamed_group, whole_group
from tests.support.histories.conflicts import COLUMNS, Lcr, Shown, batch_of, raw, shown
from tests.support.values.lcr_batches import transactions
from tests.support.values.writes import version_of

LOG = "INSERT INTO public.log (id, a) VALUES ($1, $2)"
READ = "SELECT id, a FROM public.c WHERE id = $1"


def code_of(text: str) -> UserCode:
    return UserCode(folder="handlers", files=(CodeFile(path="own.py", text=text),))


def rules_of(
    text: str = "",
    *,
    dml: Sequence[str | DmlHandler] = (),
    errors: Sequence[str | ErrorHandler] = (),
    precommit: str = "",
    timeout_s: float = 5.0,
    tables: Sequence[tuple[str, str]] = (),
) -> HandlerRules:
    """Return handlers of table `c`; a text names a function of `own.py`."""
    code = code_of(text)

    def function(name: str) -> UserFunction:
        return UserFunction(name=f"own:{name}", version=code.version_of(f"own:{name}"))

    return HandlerRules(
        code=code,
        timeout_s=timeout_s,
        precommit=function(precommit) if precommit else None,
        dml=tuple(
            each
            if isinstance(each, DmlHandler)
            else DmlHandler(owner="public", name="c", function=function(each), tables=tuple(tables))
            for each in dml
        ),
        errors=tuple(
            each if isinstance(each, ErrorHandler) else ErrorHandler(owner="public", name="c", function=function(each))
            for each in errors
        ),
    )


def insert_log(session: MemorySession, values: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
    """Execute `LOG` in memory."""
    session.put_row("public", "log", raw((*values, None, None, None, None)))
    return ()


class Handled:
    """The server, and groups for it."""

    def __init__(
        self,
        rules: HandlerRules,
        *,
        rows: Sequence[Shown] = (),
        others: Sequence[Shown] = (),
        conflicts: Sequence[ConflictHandler] = (),
    ) -> None:
        self.store = MemoryStore()
        columns = [destination_column(name, f"pg_catalog.{kind}", equality="bytes") for name, kind in COLUMNS]
        columns = [replace(column, type_number={"id": 23, "t": 23, "n": 23}.get(column.name, 25)) for column in columns]
        for name in ("c", "d", "log"):
            self.store.create_table("public", name, columns, key=["id"])
        self.store.insert("public", "c", [raw(row) for row in rows])
        self.store.insert("public", "d", [raw(row) for row in others])
        self.store.sql[LOG] = insert_log
        self.store.sql[READ] = lambda session, values: [row[:2] for row in self.rows("c") if row[0] == values[0]]
        self.database = MemoryDestination(store=self.store)
        self.epoch = self.database.raise_epoch(TOPOLOGY, APPLY).epoch
        self.rules = rules
        self.settings = ConflictSettings(
            apply=APPLY, source=SOURCE, site="b", rules=ConflictRules(handlers=tuple(conflicts))
        )
        self.incarnation = 1
        self.server = self.new_server()
        self.versions = {}
        for number, name in enumerate(("c", "d")):
            table = self.database.describe("public", name)
            assert table is not None
            self.versions[name] = replace(version_of(table), object_number=100 + number)
        self.scn = 100
        self.now = 0.0

    def new_server(self) -> ApplyServer:
        """Return a new server, as after its process died."""
        incarnation, self.incarnation = self.incarnation, self.incarnation + 1
        decode, encode = python_values()
        server = ApplyServer(
            apply=APPLY,
            source=SOURCE,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=self.database.error_batches,
            open_session=lambda: self.database.open_session(
                TOPOLOGY, APPLY, server=0, epoch=self.epoch, tag=b"\0", incarnation=incarnation
            ),
            conflicts=self.settings,
            handlers=Handlers(self.rules, decode=decode, encode=encode),
            calls=RecordedCalls(self.database, TOPOLOGY, APPLY),
        )
        server.connect()
        return server

    # ------------------------------------------------------------------ batches

    def transactions_of(self, *found: Sequence[tuple[str, Lcr]]) -> LcrBatch:
        """Return a batch with one transaction per argument, of rows of `c` and `d` in this order."""
        flat = [each for transaction in found for each in transaction]
        groups, tables = [], [self.versions[name] for name in ("c", "d")]
        for place, name in enumerate(("c", "d")):
            numbers = [number for number, (table, _) in enumerate(flat) if table == name]
            if numbers:
                made = batch_of(tables[place], [flat[number][1] for number in numbers])
                groups += [
                    replace(
                        group,
                        table=place,
                        row_numbers=np.array([numbers[own] for own in group.row_numbers.tolist()], np.int32),
                    )
                    for group in made.groups
                ]
        commits = [self.scn + 10 * number for number in range(len(found))]
        return LcrBatch(
            source=SOURCE,
            previous_scn=self.scn - 10,
            through_scn=commits[-1],
            tables=tuple(tables),
            groups=tuple(groups),
            transactions=transactions(commits, [len(each) for each in found]),
        )

    def apply(
        self,
        *found: Sequence[tuple[str, Lcr]],
        below_applied: bool = True,
        is_careful: bool = False,
    ) -> GroupResult | GroupRetry:
        """Apply one group of these transactions."""
        batch = self.transactions_of(*found)
        group = self.scn
        self.server.receive(
            whole_group(
                codec.encode(batch),
                group=group,
                after_scn=self.scn - 10,
                through_scn=batch.through_scn,
                is_careful=is_careful,
            )
        )
        self.server.receive(GroupGo(group=group, attempt=0, low_watermark=self.scn - 10, below_applied=below_applied))
        self.scn = int(batch.through_scn) + 10
        return self.run()

    def run(self) -> GroupResult | GroupRetry:
        """Step to the end of the group."""
        for _ in range(2000):
            for report in self.step():
                assert isinstance(report, GroupResult | GroupRetry)
                return report
        raise AssertionError("no end")

    def step(self) -> tuple[ServerMessage, ...]:
        done = self.server.step(self.now)
        self.now = done.wake_at or self.now
        return done.reports

    def apply_large(self, *lcrs: tuple[str, Lcr], is_careful: bool = False) -> GroupResult | GroupRetry:
        """Apply one streamed transaction, each LCR a part; as in the log, only the last part has the commit SCN."""
        group, whole = self.scn, self.transactions_of(lcrs)
        self.server.receive(streamed_group(group=group, after_scn=group - 10, is_careful=is_careful))
        self.server.receive(GroupGo(group=group, attempt=0, low_watermark=group - 10, below_applied=True))
        for part in range(len(lcrs)):
            is_last = part == len(lcrs) - 1
            batch = replace(self.transactions_of(lcrs[part : part + 1]), continues=part > 0, first_position=part)
            if not is_last:
                still = replace(batch.transactions, commit_scn=np.zeros(1, np.int64))
                batch = replace(batch, through_scn=batch.previous_scn, transactions=still)
            self.server.receive(
                GroupPart(
                    group=group,
                    attempt=0,
                    part=part,
                    batch=codec.encode(batch),
                    is_last=is_last,
                    through_scn=int(whole.through_scn) if is_last else 0,
                )
            )
        self.scn += 10
        for _ in range(100):
            for report in self.step():
                if isinstance(report, GroupResult | GroupRetry):
                    return report
        raise AssertionError("no end")

    def execute_error(
        self, number: int, through: ExecutionHandler | None = None, *, is_careful: bool = False
    ) -> GroupResult:
        """Execute an error transaction again, its row LCRs through a function or normally."""
        error = next((each for each in self.errors() if each.number == number), None)
        failure = (
            None
            if through is None or error is None
            else Failure(
                position=error.failed_position,
                conflict_type=error.conflict_type,
                sqlstate=error.sqlstate,
                message=error.message,
            )
        )
        self.server.receive(
            error_group(
                number,
                group=9000,
                scn=0,
                handler=b"" if through is None else through.to_bytes(),
                failure=failure,
                is_careful=is_careful,
            )
        )
        self.server.receive(GroupGo(group=9000, attempt=0, low_watermark=0, below_applied=True))
        result = self.run()
        assert isinstance(result, GroupResult)
        return result

    # ------------------------------------------------------------------ results

    def rows(self, name: str = "c") -> list[Shown]:
        return [shown(row) for row in self.store.rows("public", name)]

    def values(self, name: str = "c") -> dict[Any, Any]:
        """Return column `a` by key."""
        return {row[0]: row[1] for row in self.rows(name)}

    def errors(self) -> tuple[ErrorTransaction, ...]:
        return self.database.errors(TOPOLOGY, APPLY)

    def refusal(self, transaction: Sequence[tuple[str, Lcr]], *, large: bool) -> str:
        """Return why a transaction fails; `large`: it comes in parts and is returned for the error queue."""
        if not large:
            self.apply(transaction)
            (error,) = self.errors()
            return error.message
        again = self.apply_large(*transaction)
        assert isinstance(again, GroupRetry)
        assert again.failure is not None
        return again.failure.message

    def history(self) -> tuple[ConflictRecord, ...]:
        return self.database.conflicts(TOPOLOGY, last=1000)


def row(key: int, value: str = "a", time: int = 10) -> Shown:
    return (key, value, "b", time, 100, "u")


def inserts(key: int, value: str = "a", table: str = "c") -> list[tuple[str, Lcr]]:
    """Return a transaction that inserts one row."""
    return [(table, Lcr(new=row(key, value)))]


def updates(
    key: int, before: str, after: str, table: str = "c", *, times: tuple[int, int] = (10, 10)
) -> list[tuple[str, Lcr]]:
    """Return a transaction that updates one row."""
    return [(table, Lcr(old=row(key, before, times[0]), new=row(key, after, times[1])))]


def deletes(key: int, before: str = "a", table: str = "c") -> list[tuple[str, Lcr]]:
    """Return a transaction that deletes one row."""
    return [(table, Lcr(old=row(key, before)))]


def through(text: str) -> ExecutionHandler:
    code = code_of(text)
    return ExecutionHandler(
        function=UserFunction(name="own:mend", version=code.version_of("own:mend")), code=code, timeout_s=5.0
    )


def only(at: Handled) -> str:
    (error,) = at.errors()
    return error.message
