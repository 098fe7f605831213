"""Reader, coordinator and apply servers in one process, stepped in a random order that a seed decides.

Messages between coordinator and servers wait in queues, so anything can happen between sending and receiving: another
step, a server's death, the driver's death. Only the destination database is faked.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.errors import DatabaseUnavailable, DestinationRestarted
from headrace.databases.connectors import python_values
from headrace.databases.ports import Instantiation
from headrace.lcr.batch import LcrBatch
from headrace.lcr.cutting import resume_after
from headrace.lcr.table_name import TableName
from headrace.lcr.tracking import TrackLog
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES, ConflictRules
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from headrace.rules.user_code.handlers import NO_HANDLERS, HandlerRules
from headrace.rules.virtual_dependencies import NO_VIRTUAL_DEPENDENCIES, VirtualDependencies
from headrace.simulation.surroundings import Killed
from protos import codec
from spark_apply.apply_config import TableToInstantiate
from spark_apply.conversation.groups import CoordinatorMessage, OnError, ServerMessage
from spark_apply.copy.records.standing import standings, table_starts
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.groups.executions import ExecutionRequest
from spark_apply.driver.loop.flushes import FlushGate
from spark_apply.driver.loop.joining import TableJoins
from spark_apply.driver.reader import ApplyReader
from spark_apply.driver.reading.pieces import Piece
from spark_apply.handlers.loaded import loaded_handlers
from spark_apply.server import error_execution as work_execute
from spark_apply.server import group_work as work
from spark_apply.server import large_transactions as work_large
from spark_apply.server import set_groups as work_sets
from spark_apply.server.apply_server import ApplyServer
from spark_apply.sets import resolution as work_conflicts
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.tables.arriving import ArrivingTables, TableStart
from spark_apply.tables.fits import TableFits

TOPOLOGY, APPLY, SOURCE = "topology", "apply_from_dbs1", "dbs1"


def table_of(record: Instantiation) -> TableToInstantiate:
    """Return the recorded table for `standings`, which does not use numbers."""
    return TableToInstantiate(
        identity=record.identity,
        source=TableName.of(record),
        destination=TableName.of(record),
        object_numbers=(),
    )


# Steps without a new low watermark after which deaths pause. A streamed transaction that goes into the error queue needs
# hundreds of steps in which nothing dies: with a death every sixty, four of 24 histories took more than 10,000 steps,
# and one had not ended after 60,000. Seventeen of the 24 never stood still for this long.
STARVED_AFTER = 4_000
# More than a history needs: at most ten streamed transactions, each of which ends within `STARVED_AFTER` and some 1,000
# steps. So whatever takes longer hangs.
STEPS_MAX = 60_000


class Engine:
    """One apply process over batches that can be dequeued from any position.

    Args:
        seed: determines everything.
        batches: contents of the queue.
        destination: anything like `headrace.databases.ports.DestinationDatabase`.
        parallelism: apply servers.
        group_transactions, group_rows: bounds of a group.
        crash: probability per step that something dies; nothing dies while `may_die` is false.
        topology, apply, source, tag: of the apply process.
        conflicts, site: its conflict handlers, and where it applies.
        commits_in_order: its transactions commit in the order of the source.
        on_error: effect of a failed transaction on others.
        handlers: users' handlers.
        dependencies: its virtual dependency definitions.
        commits_lazily: its servers' commits of rows do not wait for the destination's disk; None: in every second
            history.
    """

    def __init__(
        self,
        *,
        seed: int,
        batches: Sequence[LcrBatch],
        destination: Any,
        parallelism: int = 2,
        group_transactions: int = 4,
        group_rows: int = 30,
        crash: float = 0.0,
        rules: RuleSet | None = None,
        instantiation: dict[tuple[str, str], TableStart] | None = None,
        returned_from: Sequence[str] = (),
        on_commit_lost: Callable[[random.Random], None] | None = None,
        topology: str = TOPOLOGY,
        apply: str = APPLY,
        source: str = SOURCE,
        tag: bytes = b"\x00",
        conflicts: ConflictRules = NO_CONFLICT_RULES,
        site: str = "",
        commits_in_order: bool = False,
        on_error: OnError = OnError.HOLD_DEPENDENTS,
        handlers: HandlerRules = NO_HANDLERS,
        tables: TableSettings = NO_TABLE_SETTINGS,
        dependencies: VirtualDependencies = NO_VIRTUAL_DEPENDENCIES,
        commits_lazily: bool | None = None,
    ) -> None:
        self.commits_lazily = seed % 2 == 0 if commits_lazily is None else commits_lazily
        self.tables, self.dependencies = tables, dependencies
        self.tracks = TrackLog()
        self.topology, self.apply, self.source, self.tag = topology, apply, source, tag
        self.conflicts = ConflictSettings(apply=apply, source=source, site=site, rules=conflicts)
        self.handlers = loaded_handlers(handlers, *python_values())
        self.rng, self.on_error = random.Random(seed), on_error
        self.batches, self.destination, self.parallelism = list(batches), destination, parallelism
        self.bounds = {
            "group_transactions": group_transactions,
            "group_rows": group_rows,
            "commits_in_order": commits_in_order,
        }
        self.crash, self.rules, self.instantiation = crash, rules or RuleSet(), instantiation or {}
        self.returned_from, self._lose_commit = returned_from, on_commit_lost
        self.now = 0.0
        self.crashes: dict[str, int] = {}
        self.bury: Callable[[ApplyServer], None] = lambda server: None
        self.beside: Callable[[Engine], None] = lambda engine: None  # copies tables meanwhile
        self.told = 0  # SCN reported to the queue as durable: it has forgotten everything below
        self.is_mined_again = False  # set by a test that restores a backup: redo brings what the queue has forgotten
        self.steps = 0
        self._highest, self._moved_at = 0, 0  # the highest low watermark, and the step since which it stands
        self.start_driver()

    # ------------------------------------------------------------------ life and death

    def start_driver(self) -> None:
        progress = self.destination.raise_epoch(self.topology, self.apply)
        self.epoch = progress.epoch
        recorded = self.destination.instantiations(self.topology, self.apply)
        starts = self.instantiation | table_starts(standings([table_of(each) for each in recorded], recorded))
        self.fits = TableFits(
            self.destination.describe,
            self._missing_alter,
            dependencies=self.dependencies,
            handlers=self.handlers.rules,
            settings=self.tables,
        )
        self.reader = ApplyReader(
            source=self.source,
            progress=progress,
            rules=RuleEvaluation(self.rules),
            fits=self.fits,
            tables=ArrivingTables(starts),
            returned_from=self.returned_from,
            tracks=self.tracks,
        )
        self.coordinator = ApplyCoordinator(
            progress=progress,
            errors=self.destination.error_key_hashes(self.topology, self.apply),
            encode=codec.encode,
            source=self.source,
            tracks=self.tracks,
            on_error=self.on_error,
            **self.bounds,
        )
        copied = [each.scn for each in recorded if each.state == "COPIED"]
        self.joins = TableJoins(
            self.topology,
            self.apply,
            epoch=self.epoch,
            destination=self.destination,
            reader=self.reader,
            coordinator=self.coordinator,
        )
        self.flushes = FlushGate(
            self.destination,
            self.topology,
            self.apply,
            epoch=self.epoch,
            scn=progress.low_watermark,
            is_needed=self.commits_lazily,
        )
        self.joins.hold(min(copied, default=None))
        self.piece: Piece | None = None
        self.servers: dict[int, ApplyServer] = {}
        self.to_server: dict[int, deque[CoordinatorMessage]] = {}
        self.from_server: dict[int, deque[ServerMessage]] = {}
        self.subscribe()
        for number in range(self.parallelism):
            self.start_server(number)

    def _missing_alter(self, version: Any) -> str:
        return "".join(found.fix for found in self.destination.preflight_tables([version]) if found.is_error)

    def subscribe(self) -> None:
        needed = self.reader.needed_scn
        if self.is_mined_again:
            self.told = min(self.told, needed)
        assert needed >= self.told, "the queue has forgotten what is needed"
        self.place = 0
        while self.place < len(self.batches) and resume_after(self.batches[self.place], needed) is None:
            self.place += 1

    def start_server(self, number: int) -> None:
        server = ApplyServer(
            apply=self.apply,
            source=self.source,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=self.destination.error_batches,
            open_session=lambda: self.destination.open_session(
                self.topology,
                self.apply,
                server=number,
                epoch=self.epoch,
                tag=self.tag,
                is_lazy=self.commits_lazily,
            ),
            conflicts=self.conflicts,
            dependencies=self.dependencies,
            handlers=self.handlers,
            tables=self.tables,
        )
        server.connect()
        errors = list(self.destination.error_key_hashes(self.topology, self.apply))
        self.coordinator.server_joined(number, self.destination.progress(self.topology, self.apply), errors)
        self.servers[number] = server
        self.to_server[number], self.from_server[number] = deque(), deque()

    def kill_server(self, number: int) -> None:
        """Kill a server's process. Its session lingers until another one ends it, unless `bury` is set."""
        self.bury(self.servers.pop(number))
        del self.to_server[number], self.from_server[number]
        if self.rng.random() < 0.5:
            self.coordinator.server_lost(number)

    # ------------------------------------------------------------------ steps

    @property
    def is_paused(self) -> bool:
        """Everything before a table that does not fit is applied, so the operator must run the ALTER."""
        passed_on = self.piece is None and self.reader.has_passed_on
        return self.reader.unfit is not None and passed_on and self.coordinator.is_idle

    @property
    def may_die(self) -> bool:
        """Whether something may die now: false after deaths have kept the low watermark where it is for too long.

        Otherwise a history that does not end would prove nothing about the product.
        """
        return self.steps - self._moved_at < STARVED_AFTER

    @property
    def through_scn(self) -> int:
        """The end of the queue."""
        return self.batches[-1].through_scn if self.batches else 0

    def run(self, steps_max: int = STEPS_MAX) -> None:
        """Run until everything is applied and durable."""
        end = self.steps + steps_max
        while (
            self.coordinator.watermarks.low < self.through_scn
            or self.coordinator.state == "APPLYING"
            or self.flushes.due_at(self.coordinator.watermarks.durable) is not None
        ):
            assert self.steps < end, f"no end: {self.coordinator.status()} {self.state()}"
            self.step()

    def state(self) -> dict[str, object]:
        return {
            "reader": (self.reader.state, str(self.reader.unfit)),
            "servers": {n: (s.state, s.group, s.last_error) for n, s in self.servers.items()},
            "groups": self.coordinator._groups,
        }

    def step(self) -> None:
        self.now += 0.01
        self.steps += 1
        low = self.coordinator.watermarks.low
        if low > self._highest or low >= self.through_scn:
            self._highest, self._moved_at = low, self.steps
        if self.crash and self.may_die and self.rng.random() < self.crash:
            self._die()
        self.beside(self)
        actions: list[Callable[..., object]] = [self._settle] if self.joins.is_due else [self._read, self._pass_on]
        actions.append(self._hand_out)
        for number in range(self.parallelism):
            if number not in self.servers:
                actions.append(lambda number=number: self.start_server(number))
            else:
                actions += [
                    lambda number=number: self._receive(number),
                    lambda number=number: self._work(number),
                    lambda number=number: self._report(number),
                ]
        try:
            self.rng.choice(actions)()
        except DestinationRestarted:
            # As the apply actor does: a new driver begins with the destination's progress.
            self.crashes["destination"] = self.crashes.get("destination", 0) + 1
            with contextlib.suppress(DatabaseUnavailable):
                self.destination.progress(self.topology, self.apply)  # fails on the old connection; the next one is new
            self.start_driver()
        except DatabaseUnavailable:
            self.crashes["unavailable"] = self.crashes.get("unavailable", 0) + 1

    def _die(self) -> None:
        kind = self.rng.choice(["server", "server", "driver", "lost commit"])
        self.crashes[kind] = self.crashes.get(kind, 0) + 1
        if kind == "driver":
            self.start_driver()
        elif kind == "server" and self.servers:
            self.kill_server(self.rng.choice(sorted(self.servers)))
        elif kind == "lost commit" and self._lose_commit is not None:
            self._lose_commit(self.rng)

    def _read(self) -> None:
        if self.reader.must_resubscribe:
            self.subscribe()
            self.reader.resubscribed()
        if self.is_paused or (self.reader.must_settle and self.piece is None and self.coordinator.is_idle):
            self.reader.retry_unfit()
        if self.reader.wants and self.place < len(self.batches):
            batch = self.batches[self.place]
            if batch.previous_scn != self.reader.needed_scn:
                resumed = resume_after(batch, self.reader.needed_scn)
                assert resumed is not None
                batch = resumed
            self.place += 1
            self.reader.offer(batch, codec.encode(batch) if self.rng.random() < 0.8 else None)

    def _settle(self) -> None:
        try:
            is_done = self.joins.advance()
        except DatabaseUnavailable:
            return
        if is_done:
            self.piece = None
            self.subscribe()

    def _pass_on(self) -> None:
        self.piece = self.piece or self.reader.take()
        if self.piece is not None and self.coordinator.wants:
            self.coordinator.accept(self.piece)
            self.piece = None

    def _hand_out(self) -> None:
        if self.coordinator.must_replay:
            progress = self.coordinator.watermarks.progress
            self.coordinator.replayed()
            self.fits.forget()
            self.reader.restart(progress)
            self.piece = None
            self.subscribe()
        for number, message in self.coordinator.messages():
            if number in self.to_server:
                self.to_server[number].append(message)
        recorded = self.coordinator.watermarks.durable
        self.flushes.step(recorded, self.now)
        self.told = max(self.told, self.joins.bounded(self.flushes.durable_scn(recorded)))
        scn = self.coordinator.unrecorded_scn
        if scn is not None and self.rng.random() < 0.2 and not self.joins.is_uncertain:
            self.destination.record_low_watermark(self.topology, self.apply, self.epoch, scn)
            self.coordinator.watermarks.recorded(scn)
            self.flushes.flushed(scn)

    def _receive(self, number: int) -> None:
        while self.to_server[number] and self.rng.random() < 0.8:
            self.servers[number].receive(self.to_server[number].popleft())

    def _work(self, number: int) -> None:
        try:
            done = self.servers[number].step(self.now)
        except Killed:
            self.crashes["inside"] = self.crashes.get("inside", 0) + 1
            self.kill_server(number)
            return
        self.from_server[number].extend(done.reports)
        if done.wake_at is not None and self.rng.random() < 0.5:
            self.now = max(self.now, done.wake_at)

    def _report(self, number: int) -> None:
        while self.from_server[number] and self.rng.random() < 0.8:
            self.coordinator.report(number, self.from_server[number].popleft())

    def execute_errors(self, numbers: Sequence[int], role: str = "") -> dict[int, str]:
        """Execute error transactions; return the problem of each; empty: it was applied."""
        self.coordinator.errors.executions.add(numbers, ExecutionRequest(role=role))
        outcomes: dict[int, str] = {}
        for _ in range(STEPS_MAX):
            self.step()
            for outcome in self.coordinator.errors.executions.take_outcomes():
                outcomes[outcome.number] = outcome.failure.message if outcome.failure else ""
            if len(outcomes) == len(numbers):
                return outcomes
        raise AssertionError(f"no end: {self.state()}")


def replace_failpoints(monkeypatch: Any, failpoint: Callable[[str], None]) -> None:
    """Replace the action at the failpoints of apply servers."""
    for module in (work, work_execute, work_large, work_sets, work_conflicts):
        monkeypatch.setattr(module, "failpoint", failpoint)


def arm(monkeypatch: Any, rng: random.Random, probability: float) -> None:
    """Make servers die inside a step: before and after commits, and while they write the error queue."""

    def failpoint(name: str) -> None:
        if rng.random() < probability:
            raise Killed(name)

    replace_failpoints(monkeypatch, failpoint)
