"""A simulated apply process: host, cores and servers are real; streams, processes and the database are simulated.

As in Spark, a driver has tasks. A task may die and is rerun. A driver may die while its tasks linger. Two drivers may
be alive at once, until the older one finds that it is fenced.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.base.errors import DatabaseUnavailable, DestinationRestarted, FencedError, HeadraceError, Retry
from headrace.databases.connectors import DatabaseAccess, value_types
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.ports import Instantiation
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.table_name import TableName
from headrace.rules.conflict_handlers import ConflictRules
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.virtual_dependencies import VirtualDependencies
from headrace.simulation.network import DequeueStream
from headrace.simulation.observing.violations import Invariant, require
from headrace.simulation.surroundings import Killed
from protos import apply_pb2 as pb
from protos import codec
from spark_apply.apply_config import ApplyConfig
from spark_apply.conversation.groups import OnError
from spark_apply.conversation.messages import coordinator_message_from_wire, server_message_to_wire
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.gate import Gate
from spark_apply.driver.loop.host import CoordinatorHost
from spark_apply.driver.reader import ApplyReader
from spark_apply.driver.settling import DdlSettling
from spark_apply.server.apply_server import ApplyServer
from spark_apply.sets.conflict_settings import ConflictSettings
from spark_apply.tables.arriving import ArrivingTables, TableStart
from spark_apply.tables.fits import TableFits
from topology.routing.ways import rules_at_the_end, ways_to

if TYPE_CHECKING:
    from headrace.databases.memory.source import MemorySnapshot
    from headrace.databases.memory.store import MemoryStore
    from headrace.databases.ports import ApplyProgress
    from headrace.lcr.batch import TableVersion
    from headrace.lcr.tracking import TrackLog
    from headrace.simulation.observing.history import Table
    from headrace.simulation.surroundings import Surroundings
    from topology.spec import ApplySpec

__all__ = ["Beginning", "Driver", "Task"]

_COPYING_SHARE = 0.05  # of a driver's turns: copies are so slow that other components advance beyond the snapshot
_LINGER_STEPS = 30  # of a task whose driver is dead


class TaskStream:
    """The driver's end of a task's stream, with delays in both directions."""

    def __init__(self, hello: pb.ServerHello) -> None:
        self.hello = hello
        self.to_task: deque[bytes] = deque()
        self.to_driver: deque[bytes] = deque()
        self.is_closed = False

    def send(self, message: pb.CoordinatorMessage) -> None:
        self.to_task.append(message.SerializeToString())

    def taken(self) -> None:
        """Do nothing: this stream holds nothing back, and the driver takes everything at its next step."""

    def close(self) -> None:
        self.is_closed = True


class Task:
    """One attempt of an apply server's task, like `spark_apply.server.task`."""

    def __init__(self, sim: Surroundings, spec: ApplySpec, store: MemoryStore, number: int, token: str) -> None:
        self._sim, self._spec, self._store, self._number = sim, spec, store, number
        self.stream = TaskStream(
            pb.ServerHello(
                topology=sim.topology.name,
                apply=spec.name,
                server=number,
                token=token,
                pid=1,
            )
        )
        self._server: ApplyServer | None = None
        self._connected = False
        self.is_dead = False
        self.linger = _LINGER_STEPS

    def step(self, rng: random.Random) -> None:
        """Do a little work; report errors to the driver, but let `Killed` pass."""
        if self.stream.is_closed:
            self.end()
            return
        try:
            if self._server is None:
                self._begin()
            elif not self._connected:
                self._connect(self._server)
            else:
                self._serve(self._server, rng)
        except HeadraceError as error:
            failure = pb.ServerFailure(
                error=type(error).__name__,
                message=error.message,
                fenced=isinstance(error, FencedError),
                final=error.retry is not Retry.TIMED,
                destination_restarted=isinstance(error, DestinationRestarted),
            )
            self._say(pb.ServerMessage(failure=failure))
            self.end()

    def end(self) -> None:
        """End in an orderly way, closing the session."""
        self.is_dead = True
        if self._server is not None:
            self._server.close()

    def _begin(self) -> None:
        if not self.stream.to_task:
            return
        welcome = pb.CoordinatorMessage.FromString(self.stream.to_task.popleft()).welcome
        destination = MemoryDestination(store=self._store, settings=self._spec.tables)
        self._server = ApplyServer(
            apply=self._spec.name,
            source=welcome.source,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=destination.error_batches,
            open_session=lambda: destination.open_session(
                self._sim.topology.name,
                self._spec.name,
                server=self._number,
                epoch=welcome.epoch,
                tag=welcome.tag,
                incarnation=welcome.incarnation,
                is_lazy=welcome.commits_lazily,
            ),
            conflicts=ConflictSettings(
                apply=self._spec.name,
                source=welcome.source,
                site=self._spec.site,
                rules=ConflictRules.from_bytes(welcome.conflicts),
            ),
            dependencies=VirtualDependencies.from_bytes(welcome.dependencies),
            tables=self._spec.tables,
        )

    def _connect(self, server: ApplyServer) -> None:
        try:
            server.connect()
        except DatabaseUnavailable as error:
            self._say_state(server, detail=error.message)
            return
        self._connected = True
        self._say_state(server)

    def _serve(self, server: ApplyServer, rng: random.Random) -> None:
        for report in server.step(self._sim.clock.monotonic()).reports:
            self._say(server_message_to_wire(report))
        while self.stream.to_task and rng.random() < 0.7:
            message = pb.CoordinatorMessage.FromString(self.stream.to_task.popleft())
            server.receive(coordinator_message_from_wire(message))
        if rng.random() < 0.05:
            self._say_state(server)

    def _say_state(self, server: ApplyServer, detail: str = "") -> None:
        self._say(pb.ServerMessage(state=pb.ServerState(state=server.state, detail=detail, has_session=not detail)))

    def _say(self, message: pb.ServerMessage) -> None:
        self.stream.to_driver.append(message.SerializeToString())


class Beginning:
    """What a driver does before it applies, as in `spark_apply.driver.apply_driver`.

    It asks where it begins, then copies the tables that are not copied yet.

    The first destinations begin empty, like their sources; an added destination copies every table that arrives.

    Args:
        sim: the simulation.
        spec: the apply process.
        store: the destination.
        copies: whether the destination was added, or has forgotten the apply process.

    Raises:
        DatabaseUnavailable: the destination cannot be reached.
    """

    def __init__(self, sim: Surroundings, spec: ApplySpec, store: MemoryStore, *, copies: bool) -> None:
        self._sim, self._spec, self._store, self._copies = sim, spec, store, copies
        self._destination = MemoryDestination(store=store)
        self.progress = self._destination.raise_epoch(sim.topology.name, spec.name)
        self._client: DequeueStream | None = None
        self._snapshot: MemorySnapshot | None = None
        self._copied: Table | None = None

    def step(self) -> dict[tuple[str, str], Scn] | None:
        """Do the next step; return the instantiation SCNs when all is done."""
        if self.progress.low_watermark == FIRST_SCN:
            self._ask()
            return None
        if self._copies and self._sim.rng.random() > _COPYING_SHARE:
            return None
        found = self._destination.instantiations(self._sim.topology.name, self._spec.name)
        done = {(each.owner, each.name): each.scn for each in found if each.state != "COPYING"}
        pending = [each for each in self._sim.arriving(self._spec) if each[1] not in done]
        if not pending or not self._copies:
            return done
        self._copy(*pending[0])
        return None

    def close(self) -> None:
        """Close the stream."""
        if self._client is not None:
            self._client.close()

    def _ask(self) -> None:
        if self._client is None:
            self._client = self._sim.links(self._spec.name).subscriber(self._spec.queue)
            self._client.subscribe({self._spec.source: FIRST_SCN}, 1)
        elif (delivery := self._client.poll()) is not None:
            require(
                delivery.header.is_progress_mark,
                Invariant.PROMISES,
                self._spec.name,
                "its first batch does not say where it begins",
            )
            scn = delivery.header.through_scn
            self._destination.record_low_watermark(self._sim.topology.name, self._spec.name, self.progress.epoch, scn)
            self.progress = replace(self.progress, low_watermark=scn)
            self.close()

    def _copy(self, table: Table, arriving_as: TableName) -> None:
        """Begin or finish the copy of a table; an unfinished copy is repeated with a new snapshot."""
        database = self._sim.databases[self._spec.source]
        if database.is_down:
            raise DatabaseUnavailable("the source does not answer")
        if self._snapshot is None:
            self._snapshot = database.source.open_snapshot(self._sim.topology.name)
        if self._copied is table:
            self._record(table, arriving_as, "DONE", self._snapshot)
            return
        self._record(table, arriving_as, "COPYING", self._snapshot)
        self._sim.alter_destination(self._spec.site)
        stored = self._store.tables[arriving_as]
        for number in list(stored.rows):
            stored.put(number, None)
        rows = self._snapshot.rows[table.qualified_name]
        expected = self._sim.workload.expected
        if expected.find(self._spec.source, table.owner, table.name) is not None:
            rows = tuple(row for _, row in expected.copied(self._spec.name, table, rows))
        width = len(stored.table.columns)
        self._store.insert(*arriving_as, [row + (None,) * (width - len(row)) for row in rows])
        self._copied = table

    def _record(self, table: Table, arriving_as: TableName, state: str, snapshot: MemorySnapshot) -> None:
        self._destination.record_instantiation(
            self._sim.topology.name,
            self._spec.name,
            self.progress.epoch,
            Instantiation(
                source=self._spec.source,
                identity=table.qualified_name,
                owner=arriving_as.owner,
                name=arriving_as.name,
                scn=snapshot.scn,
                state=state,
            ),
        )


class Driver:
    """One incarnation of the apply process's driver while it applies, as in `spark_apply.driver.apply_driver`.

    Raises:
        DatabaseUnavailable: the destination cannot be reached.
    """

    def __init__(
        self,
        sim: Surroundings,
        spec: ApplySpec,
        store: MemoryStore,
        progress: ApplyProgress,
        scns: dict[tuple[str, str], Scn],
        tracks: TrackLog,
    ) -> None:
        self._sim, self._spec, self._store = sim, spec, store
        self._destination = destination = MemoryDestination(store=store, settings=spec.tables)
        self.epoch = progress.epoch
        config = ApplyConfig(
            topology=sim.topology.name,
            apply=spec.name,
            source=DatabaseAccess(site=spec.source, kind="memory", dsn=""),
            destination=DatabaseAccess(site=spec.site, kind="memory", dsn="", tables=spec.tables),
            queue=spec.queue,
            parallelism=spec.parallelism,
            tag=spec.tag or b"",
            group_transactions=spec.group_transactions,
            group_rows=spec.group_rows,
            rules=rules_at_the_end(ways_to(sim.topology, spec)),
            returned_from=tuple(
                other.name for other in sim.topology.applies if (other.site, other.source) == (spec.source, spec.site)
            ),
            conflicts=spec.conflicts,
            commits_in_order=spec.commits_in_order,
            dependencies=spec.dependencies,
            on_error=OnError[spec.on_error.upper()],
            commits_lazily=spec.commits_lazily,
        )
        fits = TableFits.of(config, destination.describe, self._missing_alter)
        self.reader = ApplyReader(
            source=spec.source,
            progress=progress,
            rules=RuleEvaluation(*config.rules, types=value_types()),
            fits=fits,
            tables=ArrivingTables({key: TableStart(scn=scn) for key, scn in scns.items()}, topology=sim.topology.name),
            returned_from=config.returned_from,
            tracks=tracks,
            settling=DdlSettling(config, destination, lambda _: None),
        )
        self.coordinator = ApplyCoordinator(
            progress=progress,
            errors=destination.error_key_hashes(sim.topology.name, spec.name),
            encode=codec.encode,
            group_transactions=spec.group_transactions,
            group_rows=spec.group_rows,
            source=spec.source,
            tracks=tracks,
            commits_in_order=spec.commits_in_order,
            on_error=config.on_error,
        )
        self.host = CoordinatorHost(
            config,
            epoch=self.epoch,
            destination=destination,
            reader=self.reader,
            coordinator=self.coordinator,
            fits=fits,
            make_links=lambda _: sim.links(spec.name),
            clock=sim.clock,
        )
        self._gate = Gate(config)
        self.token = self._gate.tokens.admit()
        self._gate.inbox = self.host.inbox
        self.host.begin()
        self.tasks: dict[int, Task] = {}
        self._gone: list[Task] = []  # dead tasks whose end the driver has not noticed
        self._low_watermark = self.coordinator.watermarks.low

    def end(self) -> None:
        """End the driver's stream; its tasks linger."""
        self.host.dequeuing.end()

    def _missing_alter(self, version: TableVersion) -> str:
        return "".join(found.fix for found in self._destination.preflight_tables([version]) if found.is_error)

    def step(self, rng: random.Random) -> None:
        """Do a little work; an error that ends the driver passes."""
        self.host.turn(0.0)
        scn = self.coordinator.watermarks.low
        require(
            scn >= self._low_watermark,
            Invariant.WATERMARKS,
            self._spec.name,
            f"its low watermark went back from {self._low_watermark} to {scn}",
        )
        if scn > self._low_watermark:
            self._sim.trace.note(
                f"apply:{self._spec.name}", "low watermark", self._spec.source, self._low_watermark, scn
            )
        self._low_watermark = scn
        self._hear(rng)
        number = rng.randrange(self._spec.parallelism)
        task = self.tasks.get(number)
        if task is None:
            if rng.random() < 0.2:
                task = self.tasks[number] = Task(self._sim, self._spec, self._store, number, self.token)
                self._gate.accept(task.stream)  # type: ignore[arg-type]
        else:
            try:
                task.step(rng)
            except Killed:
                task.is_dead = True
            if task.is_dead:
                self.lose_task(number, rng)

    def _hear(self, rng: random.Random) -> None:
        for task in [*self.tasks.values(), *self._gone]:
            while task.stream.to_driver and rng.random() < 0.7:
                message = pb.ServerMessage.FromString(task.stream.to_driver.popleft())
                self._gate.receive(task.stream, message)  # type: ignore[arg-type]
        for task in [each for each in self._gone if not each.stream.to_driver and rng.random() < 0.3]:
            self._gone.remove(task)
            self._gate.lost(task.stream, "killed")  # type: ignore[arg-type]

    def lose_task(self, number: int, rng: random.Random) -> None:
        """Lose a task's process; its last messages may still arrive.

        Args:
            number: number of the apply server.
            rng: decides which messages arrive.
        """
        task = self.tasks.pop(number)
        task.is_dead = True
        for _ in range(rng.randrange(3)):
            if task.stream.to_driver:
                task.stream.to_driver.pop()
        self._gone.append(task)
