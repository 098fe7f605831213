"""A source's history, a publisher and subscribers for queue tests: they keep the protocol and check it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from protos import codec
from protos.codec import BatchHeader
from rules.rule import RuleSet
from streams.lcr_batch import LcrBatch
from tests.support.lcr_batches import insert_batch
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
    folder: Path, *, subscribers: tuple[str, ...] = ("apply_a",), memory: int = 1 << 20, spill: int = 1 << 22,
) -> TopologySpec:
    """dbs1 captured into q_dbs1; `to_*` propagate to q_dbs2 and other names apply, all from q_dbs1."""
    database = DatabaseSpec(kind="none")
    return TopologySpec(
        name="t", file=folder / "t.yaml", state_dir=folder,
        sites=(SiteSpec(name="dbs1", database=database), SiteSpec(name="dbs2", database=database)),
        queues=(
            QueueSpec(name="q_dbs1", site="dbs1", memory_bytes_max=memory, spill_bytes_max=spill),
            QueueSpec(name="q_dbs2", site="dbs2", memory_bytes_max=memory, spill_bytes_max=spill),
        ),
        captures=(CaptureSpec(name="capture_dbs1", site="dbs1", source="dbs1", queue="q_dbs1", rules=RuleSet()),),
        propagations=tuple(
            PropagationSpec(name=name, from_queue="q_dbs1", to_queue="q_dbs2", sources=("dbs1",))
            for name in subscribers if name.startswith("to_")
        ),
        applies=(
            *(
                ApplySpec(name=name, site="dbs1", source="dbs1", queue="q_dbs1")
                for name in subscribers if not name.startswith("to_")
            ),
            ApplySpec(name="apply_far", site="dbs2", source="dbs1", queue="q_dbs2"),
        ),
    )


@dataclass
class History:
    """What a source committed: transaction k has `sizes[k]` parts; 1 part travels in a batch with others."""

    parts: list[int] = field(default_factory=list)
    value: bytes = bytes(100)

    def commit(self, parts: int = 1) -> int:
        """Commit a transaction; its commit SCN."""
        self.parts.append(parts)
        return len(self.parts) * STEP

    @property
    def end(self) -> int:
        return len(self.parts) * STEP

    def batches_after(self, scn: int, cuts: random.Random) -> list[LcrBatch]:
        """Everything after `scn` as a capture would send it, cut at random; may include progress marks."""
        batches: list[LcrBatch] = []
        previous, k = scn, 0
        while k < len(self.parts):
            commit = (k + 1) * STEP
            if commit - 1 < scn:
                k += 1
                continue
            if cuts.random() < 0.2 and previous < commit - 1:
                mark = cuts.randint(previous, commit - 1)
                batches.append(insert_batch([], previous=previous, through=mark))
                previous = mark
            if self.parts[k] > 1:
                batches += self._large(k, previous)
                previous, k = commit, k + 1
                continue
            run = [commit]
            while len(run) < cuts.randint(1, 4) and k + len(run) < len(self.parts) and self.parts[k + len(run)] == 1:
                run.append(run[-1] + STEP)
            k += len(run)
            through = run[-1] + cuts.choice([0, 0, 3])
            batches.append(insert_batch(run, previous=previous, through=through, value=self.value))
            previous = through
        return batches

    def _large(self, k: int, previous: int) -> list[LcrBatch]:
        commit, parts = (k + 1) * STEP, self.parts[k]
        return [
            insert_batch(
                [commit], previous=previous, is_open=part < parts - 1, continues=part > 0, first_position=part,
                value=self.value,
            )
            for part in range(parts)
        ]


class Subscriber:
    """Takes batches as an apply process would, insisting on the chain, and keeps what it has committed."""

    def __init__(self) -> None:
        self.durable = 0  # committed at the destination: survives a crash
        self.position = 0
        self.applied: list[int] = []  # commit SCNs
        self._open: tuple[int, int] | None = None  # order SCN and parts of the open transaction
        self.parts_of: dict[int, int] = {}

    def take(self, header: BatchHeader, data: bytes) -> None:
        batch = codec.decode(data)
        assert codec.header_of(batch) == header
        assert header.previous_scn == self.position, "a batch is missing or came twice"
        if batch.continues:
            assert self._open is not None, "a part came without its beginning"
            assert self._open[0] == int(batch.transactions.order_scn[0]), "a part of another transaction"
            assert self._open[1] == batch.first_position, "a part is missing or came twice"
        else:
            self._open = None
        if batch.is_open:
            order = int(batch.transactions.order_scn[0])
            self._open = (order, (self._open[1] if self._open else 0) + 1)
            assert batch.through_scn == self.position
            return
        if batch.continues and self._open is not None:
            self.parts_of[int(batch.transactions.commit_scn[0])] = self._open[1] + 1
        self._open = None
        self.applied += [int(scn) for scn in batch.transactions.commit_scn]
        self.position = batch.through_scn

    def commit(self) -> None:
        """Make what was taken durable."""
        self.durable = self.position

    def crash(self) -> int:
        """Lose what is not durable; the position to ask for."""
        self.applied = [scn for scn in self.applied if scn <= self.durable]
        self.position, self._open = self.durable, None
        return self.durable

    def restore(self, scn: int) -> None:
        """Come back from a backup taken at `scn`."""
        self.durable = min(self.durable, scn)
        self.crash()
