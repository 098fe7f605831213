"""A source's history, a publisher and subscribers for queue tests: they follow the protocol and check it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from actors.staging.queue import QueueCore
from actors.staging.queue_sessions import PublisherSession, SubscriberSession
from headrace.base.errors import PropagationError
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.links.ports import BatchHeader, Delivery, Piece, PublisherProgress, RedoWatch, Resume, header_of
from headrace.links.staging import PublisherAccount
from headrace.rules.rule import RuleSet
from headrace.simulation.network import Unserved
from protos import codec
from tests.support.values.lcr_batches import insert_batch
from topology.spec import (
    ApplySpec,
    CaptureSpec,
    DatabaseSpec,
    PropagationSpec,
    QueueSpec,
    SiteSpec,
    TopologySpec,
)

STEP = 10  # transaction k commits at (k + 1) * STEP


def one_way(
    folder: Path,
    *,
    subscribers: tuple[str, ...] = ("apply_a",),
    memory: int = 1 << 20,
    spill: int = 1 << 22,
    also: tuple[str, ...] = (),
) -> TopologySpec:
    """Return a topology that captures dbs1 into q_dbs1; `to_*` propagate from there to q_dbs2, other names apply.

    The sources `also` come into q_dbs1, too; `apply_far_*` applies each of them from q_dbs2.
    """
    database = DatabaseSpec(kind="none")
    return TopologySpec(
        name="t",
        file=folder / "t.yaml",
        state_dir=folder,
        sites=tuple(SiteSpec(name=name, database=database) for name in ("dbs1", "dbs2", *also)),
        queues=(
            QueueSpec(name="q_dbs1", site="dbs1", memory_bytes_max=memory, spill_bytes_max=spill),
            QueueSpec(name="q_dbs2", site="dbs2", memory_bytes_max=memory, spill_bytes_max=spill),
        ),
        captures=tuple(
            CaptureSpec(name=f"capture_{source}", site="dbs1", source=source, queue="q_dbs1", rules=RuleSet())
            for source in ("dbs1", *also)
        ),
        propagations=tuple(
            PropagationSpec(name=name, from_queue="q_dbs1", to_queue="q_dbs2", sources=("dbs1", *also))
            for name in subscribers
            if name.startswith("to_")
        ),
        applies=(
            *(
                ApplySpec(name=name, site="dbs1", source="dbs1", queue="q_dbs1")
                for name in subscribers
                if not name.startswith("to_")
            ),
            ApplySpec(name="apply_far", site="dbs2", source="dbs1", queue="q_dbs2"),
            *(ApplySpec(name=f"apply_far_{source}", site="dbs2", source=source, queue="q_dbs2") for source in also),
        ),
    )


@dataclass
class History:
    """Commits of a source: transaction k has `rows[k]` rows; a transaction with one row shares its batch with others."""

    rows: list[int] = field(default_factory=list)
    value: bytes = bytes(100)

    def commit(self, rows: int = 1) -> int:
        """Commit a transaction; return its commit SCN."""
        self.rows.append(rows)
        return len(self.rows) * STEP

    @property
    def end(self) -> int:
        return len(self.rows) * STEP

    def batches_after(self, scn: int, cuts: random.Random) -> list[LcrBatch]:
        """Return everything after `scn` as a capture process would send it, cut at random; may include progress marks."""
        batches: list[LcrBatch] = []
        previous, k = scn, 0
        while k < len(self.rows):
            commit = (k + 1) * STEP
            if commit - 1 < scn:
                k += 1
                continue
            if cuts.random() < 0.2 and previous < commit - 1:
                mark = cuts.randint(previous, commit - 1)
                batches.append(insert_batch([], previous=previous, through=mark))
                previous = mark
            if self.rows[k] > 1:
                batches += self._large(k, previous, cuts)
                previous, k = commit, k + 1
                continue
            run = [commit]
            while len(run) < cuts.randint(1, 4) and k + len(run) < len(self.rows) and self.rows[k + len(run)] == 1:
                run.append(run[-1] + STEP)
            k += len(run)
            through = run[-1] + cuts.choice([0, 0, 3])
            batches.append(insert_batch(run, previous=previous, through=through, value=self.value))
            previous = through
        return batches

    def _large(self, k: int, previous: int, cuts: random.Random) -> list[LcrBatch]:
        commit, left, parts, position = (k + 1) * STEP, self.rows[k], [], 0
        while left:
            size = min(left, cuts.choice([1, 1, 2, 3]))
            left -= size
            parts.append(
                insert_batch(
                    [commit],
                    previous=previous,
                    is_open=left > 0,
                    continues=position > 0,
                    first_position=position,
                    rows_each=size,
                    value=self.value,
                )
            )
            position += size
        return parts


class Subscriber:
    """Takes batches as an apply process would, checks the chain, and records its commits."""

    def __init__(self) -> None:
        self.durable = 0  # committed at the destination: survives a crash
        self.position = 0
        self.begin = 0  # the start that the queue reported
        self.applied: list[int] = []  # commit SCNs
        self._open: tuple[int, int] | None = None  # order SCN and rows of the open transaction
        self.rows_of: dict[int, int] = {}  # of each transaction, by commit SCN

    def take(self, header: BatchHeader, data: bytes) -> None:
        batch = codec.decode(data)
        assert header_of(batch) == header
        assert header.previous_scn == self.position, "a batch is missing or came twice"
        if header.is_progress_mark and self.position == 0:
            self.begin = header.through_scn
        before = 0
        if batch.continues:
            assert self._open is not None, "a part came without its beginning"
            assert self._open[0] == int(batch.transactions.order_scn[0]), "a part of another transaction"
            before = self._open[1]
            assert before == batch.first_position, "a part is missing or came twice"
        self._open = None
        if batch.is_open:
            self._open = (int(batch.transactions.order_scn[0]), before + batch.row_count)
            assert batch.through_scn == self.position
            return
        for number, commit in enumerate(batch.transactions.commit_scn):
            rows = batch.transactions.first_row[number + 1] - batch.transactions.first_row[number]
            self.rows_of[int(commit)] = int(rows) + (before if number == 0 else 0)
            self.applied.append(int(commit))
        self.position = batch.through_scn

    def commit(self) -> None:
        """Make everything taken durable."""
        self.durable = self.position

    def crash(self) -> int:
        """Lose what is not durable; return the position to request."""
        self.applied = [scn for scn in self.applied if scn <= self.durable]
        self.position, self._open = self.durable, None
        return self.durable

    def restore(self, scn: int) -> None:
        """Return to a backup taken at `scn`."""
        self.durable = min(self.durable, scn)
        self.crash()


class DirectLinks:
    """`headrace.links.serving.Links` to queues in the same process, without a wire.

    Args:
        component: name of the propagation or apply process that connects.
        queues: finds a queue by its name; None: it does not answer.
        incarnation: of every stream; empty: each later stream gets a greater one.
    """

    def __init__(self, component: str, queues: Callable[[str], QueueCore | None], incarnation: str = "") -> None:
        self._component, self._queues, self._always, self._streams = component, queues, incarnation, 0
        self.opens = 0  # of streams into queues

    def publisher(self, queue: str, source: str, compressor: object = None) -> DirectEnqueue:
        self.opens += 1
        return DirectEnqueue(lambda: self._queues(queue), self._component, self._incarnation(), source)

    def subscriber(self, queue: str) -> DirectDequeue:
        return DirectDequeue(lambda: self._queues(queue), self._component, self._incarnation())

    def redo(self, keeper: str, source: str) -> RedoWatch:
        raise PropagationError(f"{keeper} does not answer")

    def serve(self, core: QueueCore) -> Unserved:
        return Unserved(core)

    def _incarnation(self) -> str:
        self._streams += 1
        return self._always or f"{self._streams:06d}"


class _DirectStream:
    """One end of a stream of a queue in the same process, without a wire.

    Args:
        core: returns the running queue.
    """

    _session: PublisherSession | SubscriberSession

    def __init__(self, core: Callable[[], QueueCore | None]) -> None:
        self._find = core
        self._core: QueueCore | None = None

    @property
    def is_open(self) -> bool:
        return self._core is not None

    def _connected(self) -> QueueCore:
        core = self._find()
        if core is None:
            raise PropagationError("the queue does not answer")
        return core

    def _check(self) -> QueueCore:
        if self._core is None or self._core is not self._find():
            raise PropagationError("the stream has ended")
        if self._session.ended is not None:
            raise self._session.ended
        return self._core


class DirectEnqueue(_DirectStream):
    """A `Publisher` of a queue in the same process, without a wire.

    Args:
        core: returns the queue; None: it does not answer.
    """

    _session: PublisherSession

    def __init__(self, core: Callable[[], QueueCore | None], component: str, incarnation: str, source: str) -> None:
        super().__init__(core)
        self._names = component, incarnation, source
        self._account = PublisherAccount()

    def connect(self, timeout_s: float = 0.0) -> Resume:
        core = self._connected()
        self._session, self._core = core.open_publisher(*self._names), core
        needed, credit = core.resume(self._session)
        self._account.opened(needed, credit)
        return Resume(needed_scn=needed, credit_bytes=credit)

    def send_nowait(self, header: BatchHeader, data: bytes) -> None:
        core = self._check()
        self._account.sent(len(data))
        core.enqueue(self._session, header, data)

    def begin_nowait(self, header: BatchHeader, data: bytes, piece_bytes: int) -> Iterator[Piece]:
        core = self._check()
        self._account.sent(len(data))
        return self._pieces(core, header, data, piece_bytes)

    def _pieces(self, core: QueueCore, header: BatchHeader, data: bytes, piece_bytes: int) -> Iterator[Piece]:
        for start in range(0, len(data), piece_bytes):
            is_last = start + piece_bytes >= len(data)
            if is_last:  # the queue gets it when it is complete
                core.enqueue(self._session, header, data)
            yield Piece(size=min(piece_bytes, len(data) - start), is_last=is_last)

    def gone(self, first_scn: int) -> None:
        self._check().gone(self._session, first_scn)

    def poll(self) -> PublisherProgress:
        news = self._check().publisher_news(self._session)
        if news is not None:
            self._account.hear(news)
        return self._account.progress()

    def close(self) -> None:
        if self._core is not None and self._core is self._find():
            self._core.close_publisher(self._session)


class DirectDequeue(_DirectStream):
    """A `Subscriber` of a queue in the same process, without a wire."""

    _session: SubscriberSession

    def __init__(self, core: Callable[[], QueueCore | None], component: str, incarnation: str) -> None:
        super().__init__(core)
        self._names = component, incarnation

    def subscribe_nowait(self, needed: Mapping[str, Scn], credit_bytes: int) -> None:
        self.subscribe(needed, credit_bytes)

    def subscribe(self, needed: Mapping[str, Scn], credit_bytes: int, timeout_s: float = 0.0) -> None:
        core = self._connected()
        self._session = core.open_subscriber(*self._names, needed, credit_bytes)
        self._core = core

    def poll(self, timeout_s: float = 0.0) -> Delivery | None:
        return self._check().dequeue(self._session)

    def grant(self, credit_bytes: int) -> None:
        self._check().grant(self._session, credit_bytes)

    def acknowledge(self, source: str, scn: int) -> None:
        self._check().acknowledge(self._session, source, scn)

    def feed(self, model: Subscriber, count: int, *, commits: bool) -> None:
        """Let an apply process work.

        Args:
            model: the apply process.
            count: most batches that it takes.
            commits: it commits them, and reports it.
        """
        for _ in range(count):
            delivery = self.poll()
            if delivery is None:
                break
            self.grant(len(delivery.data))
            model.take(delivery.header, delivery.data)
        if commits:
            model.commit()
            self.acknowledge("dbs1", model.durable)

    def close(self) -> None:
        if self._core is not None and self._core is self._find():
            self._core.close_subscriber(self._session)
