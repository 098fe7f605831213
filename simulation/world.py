"""A whole topology in one thread: real cores, databases in memory, a network and a clock that a seed decides.

    dbs1 -> log writer -> redo -> capture -> q_dbs1 -> to_dbs2 -> q_dbs2 -> apply_dbs2 (3 servers)
                                               `----> to_relay -> q_relay -> to_dbs3 -> q_dbs3 -> apply_dbs3 (1 server)

Once redo was purged, dbs4 may join, from q_dbs1 or from q_relay: the others go on with the topology without it for a while.
Every step lets one component do a little, moves the clock, or does harm: kills, cut streams, outages, full disks, a lost
answer to COMMIT, power loss at the source site, two drivers at once. After every commit at a destination, and at the end,
what must hold is checked: see `Observer`.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from databases.memory_source import MemorySource, MemoryTransaction
from databases.memory_store import MemoryStore, destination_column
from redo.segments import list_segments
from rules.rule import ANY_TAG, Rule, RuleSet
from simulation.components import (
    ApplyProcess,
    BufferedQueue,
    CaptureProcess,
    Component,
    PropagationProcess,
    SourceSite,
)
from simulation.faults import Killed
from simulation.history import TABLES, Change, Source
from simulation.network import Network
from simulation.observer import (
    COUNTER,
    COUNTERS,
    HIDDEN_FROM_DBS3,
    JOURNAL,
    PRIVATE,
    RETURNED,
    WIDE,
    Observer,
)
from streams import failpoints
from streams.clock import VirtualClock
from streams.lcr_batch import Command
from streams.scn import FIRST_SCN, Scn
from streams.tags import Tag
from topology.changes import components_of
from topology.spec import (
    ApplySpec,
    CaptureSpec,
    DatabaseSpec,
    PropagationSpec,
    QueueSpec,
    SiteSpec,
    TopologySpec,
)

__all__ = ["Simulation"]

BOUNDS: dict[str, Any] = {"group_transactions": 3, "group_rows": 20}
SMALL = {"memory_bytes_max": 12_000, "spill_bytes_max": 24_000}

HARM_STEPS_MAX = 6000  # of harm: a topology that is hit all the time may never catch up

TAG = Tag(value=b"\x07", topology="topology", apply="apply_from_somewhere")


def _topology(folder: Path) -> TopologySpec:
    sites = ("dbs1", "dbs2", "dbs3", "relay")
    return TopologySpec(
        name="topology", file=folder / "topology.yaml", state_dir=folder,
        sites=tuple(SiteSpec(name=site, database=DatabaseSpec(kind="none")) for site in sites),
        queues=tuple(QueueSpec(name=f"q_{site}", site=site, **SMALL) for site in sites),
        captures=(CaptureSpec(
            name="capture_dbs1", site="dbs1", source="dbs1", queue="q_dbs1",
            rules=RuleSet(include=(Rule(owner="public"),), exclude=(Rule(name=PRIVATE.name, tags=ANY_TAG),)),
        ),),
        propagations=(
            PropagationSpec(name="to_dbs2", from_queue="q_dbs1", to_queue="q_dbs2", sources=("dbs1",)),
            PropagationSpec(name="to_relay", from_queue="q_dbs1", to_queue="q_relay", sources=("dbs1",)),
            PropagationSpec(
                name="to_dbs3", from_queue="q_relay", to_queue="q_dbs3", sources=("dbs1",),
                rules=RuleSet(exclude=(Rule(name=HIDDEN_FROM_DBS3, tags=ANY_TAG),)),
            ),
        ),
        applies=(
            ApplySpec(name="apply_dbs2", site="dbs2", source="dbs1", queue="q_dbs2", parallelism=3, **BOUNDS),
            ApplySpec(name="apply_dbs3", site="dbs3", source="dbs1", queue="q_dbs3", parallelism=1, **BOUNDS),
        ),
        redo_bytes_max=24_000, segment_bytes=4_000,
    )


def _with_dbs4(topology: TopologySpec, from_queue: str) -> TopologySpec:
    return replace(
        topology,
        sites=(*topology.sites, SiteSpec(name="dbs4", database=DatabaseSpec(kind="none"))),
        queues=(*topology.queues, QueueSpec(name="q_dbs4", site="dbs4", **SMALL)),
        propagations=(
            *topology.propagations,
            PropagationSpec(name="to_dbs4", from_queue=from_queue, to_queue="q_dbs4", sources=("dbs1",)),
        ),
        applies=(
            *topology.applies,
            ApplySpec(name="apply_dbs4", site="dbs4", source="dbs1", queue="q_dbs4", parallelism=2, **BOUNDS),
        ),
    )


class Simulation:
    """See the module.

    Args:
        seed: decides everything.
        folder: of redo, spill files and positions.
        transactions: that the source commits.
        harm: probability per step that something is broken.
        inside: probability per failpoint that the process dies, or its disk is full, just there.
    """

    def __init__(
        self, seed: int, folder: Path, *, transactions: int = 60, harm: float = 0.03, inside: float = 0.02
    ) -> None:
        self.seed, self.folder = seed, folder
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.fired: Counter[str] = Counter()  # harm that was done
        self.seen: Counter[str] = Counter()  # steps in which something rare was so
        self.steps = 0
        self._harm, self._inside, self._left = harm, inside, transactions
        self._joins = self.rng.random() < 0.5  # dbs4, later
        self.topology = self._first_topology()
        self.source = MemorySource(gulp_bytes=lambda: self.rng.choice([1, 200, 1000, 65536]))
        self.source_is_down = False
        self.stores = {apply.site: MemoryStore(clock=self.clock) for apply in self.topology.applies}
        self._wide = WIDE
        self._altered: set[str] = set()  # sites whose table lacks a column
        self._create_tables()
        self.source.confirmed_scn = self.source.current_scn()  # as a slot that is made now
        self._history = Source(self.rng)
        self._number = 0
        self.published: dict[int, int] = {}  # number of a transaction -> its commit SCN
        self.counter_of: dict[int, int] = {}
        self._healing: list[tuple[float, Callable[[], None]]] = []

        running = {component.name for component in components_of(self.topology)}
        self.queues = {each.name: BufferedQueue(self, each.name) for each in self.topology.queues if f"queue:{each.name}" in running}
        self.network = Network(self.rng, self._serving)
        self.site = SourceSite(self)
        self.capture = CaptureProcess(self)
        self.propagations = [
            PropagationProcess(self, spec) for spec in self.topology.propagations if f"propagation:{spec.name}" in running
        ]
        self.applies = [ApplyProcess(self, spec, self.stores[spec.site]) for spec in self.topology.applies]
        self.observers = [Observer(self, spec, self.stores[spec.site]) for spec in self.topology.applies]
        self.components: list[Component] = [
            self.site, self.capture, *self.queues.values(), *self.propagations, *self.applies
        ]
        self._turns = self._list_turns()

    def _list_turns(self) -> list[Callable[[], None]]:
        """The apply processes consist of several processes each: they get more turns."""
        return [
            *[component.tick for component in self.components], *[apply.tick for apply in self.applies] * 3,
            self.network.deliver, self.network.deliver, self._operate,
        ]

    def _first_topology(self) -> TopologySpec:
        return _topology(self.folder)

    def _serving(self, name: str) -> Any:
        """The live core that serves subscribers and publishers under a name: a queue's, or a combined capture process's."""
        if name == self.capture.host._capture.name:
            return self.capture.core
        return self.queues[name].core if name in self.queues else None

    def dequeues_from(self, apply: str) -> str:
        """The name under which an apply process finds what it dequeues from."""
        return self.topology.apply(apply).queue

    # ------------------------------------------------------------------ running

    def run(self) -> None:
        """Commit everything at the source while faults happen; then let the system recover, and check the result."""
        with self._armed():
            self._commit_first()
            while self._left or (self.steps < HARM_STEPS_MAX and (self._is_behind() or self._is_calm())):
                if self._left and self.rng.random() < 0.06:
                    self._commit_next()
                    self._left -= 1
                self.step()
                if self._is_calm():
                    self._join()
                    continue
                if self.rng.random() < self._harm:
                    self._do_harm()
                self._kill_in_a_gap()
        self._heal_everything()
        last = self.source.current_scn()
        for _ in range(60_000):
            if self._is_settled(last):
                break
            self.step()
        assert self._is_settled(last), self.report()
        for site in sorted(self._altered):  # nothing needed the column
            self.alter_destination(site)
        for observer in self.observers:
            observer.check_now()
            observer.assert_identical()

    def step(self) -> None:
        self.steps += 1
        self.clock.advance(self.rng.choice([0.001, 0.005, 0.02]) if self.rng.random() < 0.99 else 0.6)
        now = self.clock.monotonic()
        for due in [each for each in self._healing if each[0] <= now]:
            self._healing.remove(due)
            due[1]()
        self.rng.choice(self._turns)()
        for observer in self.observers:
            observer.check()
        self._check_told()

    def report(self) -> dict[str, Any]:
        """The state of everything, for the message of a failure."""
        return {
            "seed": self.seed, "steps": self.steps, "fired": dict(self.fired), "source_scn": self.source.current_scn(),
            "redo_scn": self.site.durable_scn,
            "capture": self.capture.host.details() if self.capture.is_open else "down",
            "queues": {name: queue.core and queue.core.status() for name, queue in self.queues.items()},
            "applies": {a.name: a.driver and (a.driver.coordinator.status(), a.driver.reader.state) for a in self.applies},
        }

    @property
    def mined(self) -> Any:
        """What keeps the redo that is mined: the log writer, or a copy's owner; None: it does not run."""
        return self.site.writer

    @property
    def mined_folder(self) -> Path:
        """Where that redo is."""
        return self.site.folder

    def _check_told(self) -> None:
        """Everything that captures may forget is at every destination."""
        writer = self.mined
        if writer is None:
            return
        for observer in self.observers:
            required = writer.required_checkpoints.lowest or FIRST_SCN
            if observer.is_new and observer.low_watermark == FIRST_SCN:
                continue  # it does not know yet where it begins, and nothing below is kept for it
            if required > observer.low_watermark and observer.check_now():
                assert required <= observer.low_watermark, "redo is given up before it is applied"

    def _is_behind(self) -> bool:
        """Whether most commits of the source are not applied everywhere yet, so that faults still hit every stage."""
        numbers = sorted(self.published)
        most = self.published[numbers[len(numbers) * 4 // 5]]
        return any(observer.low_watermark < most for observer in self.observers)

    def _is_settled(self, last: Scn) -> bool:
        """Everything is applied, every component knows it, and nothing is kept any more."""
        writer = self.mined
        if writer is None or (writer.required_checkpoints.lowest or 0) < last:
            return False
        cores = [queue.core for queue in self.queues.values()]
        return all(core is not None and core.status()["batches"] == 0 for core in cores)

    # ------------------------------------------------------------------ the source's users

    def _create_tables(self) -> None:
        for table in (*TABLES, JOURNAL, COUNTER, RETURNED, PRIVATE, WIDE):
            columns = table.version.columns
            key = tuple(column.name for column in columns if column.is_key)
            self.source.create_table(f"public.{table.name}", columns, key=key, old_image=table.old_image)
            for store in self.stores.values():
                if table is not PRIVATE:
                    table.create(store)

    def _commit_first(self) -> None:
        self._number = 1
        with self.source.transaction() as transaction:
            for key in range(COUNTERS):
                transaction.insert("public.counter", id=_key(key), version=b"0")
            self._mark(transaction)
        self._published()

    def _commit_next(self) -> None:
        rng, self._number = self.rng, self._number + 1
        kind = rng.random()
        if kind < 0.05:
            self.source.other_activity()
        elif kind < 0.08:
            self.source.write_marker(b"marker")
        elif kind < 0.15:
            with self.source.transaction(TAG) as transaction:
                transaction.insert("public.returned", id=_key(self._number), note=b"from elsewhere")
        elif kind < 0.20:
            with self.source.transaction() as transaction:
                transaction.insert("public.private", id=_key(self._number), note=b"nobody's business")
        else:
            if kind < 0.24 and not self._altered:
                self._alter_source()
            self._commit_published()

    def _commit_published(self) -> None:
        rng = self.rng
        kind = rng.random()
        # Half of them depend on nothing but their counter, so that groups run in parallel.
        size = 0 if kind < 0.5 else rng.randrange(1, 5) if kind < 0.9 else rng.randrange(12, 30)
        with self.source.transaction() as transaction:
            for change in self._history.transaction(self._number, size).changes:
                _make(transaction, change)
            if rng.random() < 0.3:
                values = {name: _key(self._number) if name == "id" else b"w" for name in self._wide.columns}
                transaction.insert("public.wide", **values)
            if rng.random() < 0.2:
                transaction.insert("public.private", id=_key(self._number), note=b"in between")
            self._mark(transaction)
        self._published()

    def _mark(self, transaction: MemoryTransaction) -> None:
        key = self.rng.randrange(COUNTERS)
        self.counter_of[self._number] = key
        transaction.insert("public.journal", id=_key(self._number), note=b"n")
        transaction.update("public.counter", {"id": _key(key)}, version=str(self._number).encode())

    def _published(self) -> None:
        self.published[self._number] = self.source.log[-1].commit_scn

    def _alter_source(self) -> None:
        name = f"c{len(self._wide.columns) - 1}"
        self._wide = replace(self._wide, columns=(*self._wide.columns, name))
        self.source.add_column("public.wide", name)
        self._altered = set(self.stores)
        self.fired["table altered"] += 1

    def _operate(self) -> None:
        """The operator alters a destination's table once apply reports that it waits for the ALTER."""
        for apply in self.applies:
            site = apply._spec.site
            if site not in self._altered or apply.driver is None or self.stores[site].locks:
                continue
            if apply.driver.reader.unfit is not None or self.rng.random() < 0.002:
                self.alter_destination(site)

    def alter_destination(self, site: str) -> None:
        self._altered.discard(site)
        self.stores[site].create_table(
            "public", WIDE.name, key=("id",),
            columns=[
                destination_column(column.name, column.type_name, equality="integer" if n == 0 else "bytes")
                for n, column in enumerate(self.source.table("public.wide").version.columns)
            ],
        )

    # ------------------------------------------------------------------ a destination is added

    def _is_calm(self) -> bool:
        """Nothing breaks for a while, so that redo is purged and dbs4 can join before the source is done."""
        return self._joins and self._left < 30 and "dbs4" not in self.stores and self.steps < HARM_STEPS_MAX

    def _join(self) -> None:
        """Add dbs4 when redo was purged; its queue's neighbours take that over in a while, or everybody is replaced."""
        segments = list_segments(self.site.folder)
        if not segments or segments[0].number == 1:
            return
        self.fired["destination added"] += 1
        self._left += 30  # the source continues while it is copied, and redo is purged again
        self.topology = _with_dbs4(self.topology, self.rng.choice(["q_dbs1", "q_relay"]))
        if self.rng.random() < 0.5:
            for component in self.components:
                self._later(component.kill)
        else:
            self.fired["taken over"] += 1
            for queue in self.queues.values():
                self._later(queue.adopt)
        store = self.stores["dbs4"] = MemoryStore(clock=self.clock)
        for table in (*TABLES, JOURNAL, COUNTER, RETURNED, WIDE):
            table.create(store)
        queue = self.queues["q_dbs4"] = BufferedQueue(self, "q_dbs4")
        propagation = PropagationProcess(self, self.topology.propagation("to_dbs4"))
        apply = ApplyProcess(self, self.topology.apply("apply_dbs4"), store)
        self.propagations.append(propagation)
        self.applies.append(apply)
        self.observers.append(Observer(self, apply._spec, store, is_new=True))
        self.components += [queue, propagation, apply]
        self._turns += [queue.tick, propagation.tick, *[apply.tick] * 4]

    # ------------------------------------------------------------------ harm

    def _do_harm(self) -> None:
        name, do = self.rng.choice(self._harms())
        if do() is not False:
            self.fired[name] += 1

    def _harms(self) -> list[tuple[str, Callable[[], object]]]:
        """What can be broken, as often as it is listed."""
        rng = self.rng
        return [
            ("kill", self._kill_one), ("kill", self._kill_one), ("kill", self._kill_one), ("cut", self.network.cut_one),
            ("cut", self.network.cut_one), ("task killed", self._kill_task), ("task killed", self._kill_task),
            ("stream broken", lambda: self.source.break_after(rng.randrange(1, 20))),
            ("source down", self._stop_source), ("destination down", self._stop_destination),
            ("commit answer lost", lambda: rng.choice(list(self.stores.values())).lose_next_commit_answer(
                committed=rng.random() < 0.5)),
            ("second driver", self._second_driver), ("spill damaged", self._damage_spill),
        ]

    def _kill_one(self) -> bool:
        component = self.rng.choice(self.components)
        if not component.is_open:
            return False
        self.fired[f"kill {component.name.partition(':')[0]}"] += 1
        component.kill()
        return True

    def _kill_in_a_gap(self) -> None:
        """The worst moment for a driver to die is rare: wait for it."""
        for apply, observer in zip(self.applies, self.observers, strict=True):
            if observer.has_gap and apply.is_open and self.rng.random() < 0.4 * self._harm:
                self.fired["kill apply in a gap"] += 1
                apply.kill()

    def _kill_task(self) -> bool:
        driver = self.rng.choice(self.applies).driver
        if driver is None or not driver.tasks:
            return False
        driver.lose_task(self.rng.choice(sorted(driver.tasks)), self.rng)
        return True

    def _damage_spill(self) -> bool:
        """The disk gives a queue's spilled batches back as zeros."""
        queues = [component for component in self.components if isinstance(component, BufferedQueue) and component.damage()]
        return bool(queues)

    def _stop_source(self) -> None:
        self.source_is_down = True
        self._later(lambda: setattr(self, "source_is_down", False))

    def _stop_destination(self) -> None:
        store = self.rng.choice(list(self.stores.values()))
        store.end_life()
        store.is_reachable = False
        self._later(lambda: setattr(store, "is_reachable", True))

    def _second_driver(self) -> None:
        apply = self.rng.choice(self.applies)
        apply.start_second()
        self._later(apply.end_older, 20.0)

    def _later(self, heal: Callable[[], None], seconds_max: float = 3.0) -> None:
        self._healing.append((self.clock.monotonic() + self.rng.uniform(0.1, seconds_max), heal))

    def _heal_everything(self) -> None:
        for _, heal in self._healing:
            heal()
        self._healing.clear()
        for apply in self.applies:
            apply.end_older()
        self.source.breaks.clear()
        for store in self.stores.values():
            store.lost_answers.clear()

    @contextlib.contextmanager
    def _armed(self) -> Any:
        """Redirect every module's failpoints to this simulation."""
        places = [
            module for name, module in list(sys.modules.items())
            if getattr(module, "failpoint", None) is failpoints.failpoint and name != failpoints.__name__
        ]
        for module in places:
            module.failpoint = self._failpoint  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in places:
                module.failpoint = failpoints.failpoint  # type: ignore[attr-defined]

    def _failpoint(self, name: str) -> None:
        often = self._inside * (4 if name.startswith("apply.") else 1)  # those are passed less often
        if self._is_calm() or self.rng.random() >= often:
            return
        self.fired[name] += 1
        if name in {"log_writer.write", "redo_receiver.write", "queue.spill"} and self.rng.random() < 0.7:
            raise OSError(28, "no space left on device")
        raise Killed(name)


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _make(transaction: MemoryTransaction, change: Change) -> None:
    """Make one change of the random history at the source."""
    name, columns = f"public.{change.table.name}", change.table.columns
    old = dict(zip(columns, change.old or (), strict=False))
    new = dict(zip(columns, change.new or (), strict=False))
    if change.command is Command.INSERT:
        transaction.insert(name, **new)
    elif change.command is Command.DELETE:
        transaction.delete(name, old)
    elif change.command is Command.TRUNCATE:
        transaction.truncate(name)
    else:
        transaction.update(name, old, unchanged=[columns[c] for c in sorted(change.unchanged)], **new)
