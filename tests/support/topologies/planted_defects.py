"""Planted defects: each is a small change of one function of the product that would lose, double or block changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from actors.capture import CaptureHost
from actors.combined import MountedQueue
from actors.splitting.phases import Splitting
from actors.staging import queue_log
from actors.staging.positions import PositionsFile
from actors.staging.propagation import PropagationCore
from actors.staging.queue import QueueCore
from actors.staging.spill import SpillFiles
from actors.staging.staged_source import StagedSource
from headrace.databases.memory import rows as memory_rows
from headrace.databases.memory.destination import MemoryDestination, MemorySession
from headrace.databases.memory.store import StoredProcess
from headrace.databases.ports import LastChange
from headrace.lcr.cutting import resume_after
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.scn import Scn
from headrace.lcr.values import NULL
from headrace.links.ports import Delivery
from headrace.redo.checkpoints import RequiredCheckpoints
from headrace.redo.mining.miner import Miner
from headrace.redo.standby import standby_log
from headrace.redo.standby.shipping import RedoShipping
from headrace.redo.writing.online_log import OnlineLog
from headrace.redo.writing.stream_intake import StreamIntake
from headrace.rules import evaluation, row_evaluation
from headrace.rules.clients_before import ClientsBefore
from headrace.rules.conditions import logic
from headrace.rules.conditions.nodes import Image
from headrace.rules.table_settings import TableSettings
from headrace.rules.transformations import reshaping
from headrace.rules.transformations.calling import CustomCalls
from headrace.rules.transformations.transformation import KeepColumns
from headrace.simulation import apply_process
from spark_apply.driver.coordinator import ApplyCoordinator
from spark_apply.driver.groups.replay import Replay
from spark_apply.driver.groups.unfinished_groups import UnfinishedGroups
from spark_apply.driver.loop.flushes import FlushGate
from spark_apply.driver.loop.recorded_progress import RecordedProgress
from spark_apply.driver.reading import pieces
from spark_apply.driver.reading.row_selection import RowSelection
from spark_apply.server.group_work import Work
from spark_apply.sets import collapse, decisions
from topology import split

__all__ = ["PLANTED", "Planted"]

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """A defect.

    Args:
        name: what is wrong.
        plant: plants it.
        example: topology to simulate: an example, or a file next to this one.
        first: seed to try first; it finds the defect unless a change of the product draws other numbers.
        seeds: number of seeds within which it is found. A change of the product draws other numbers. One seed in six
            finds even the rarest defects, so forty seeds miss one in a thousand times. The first that finds it ends the
            search.
        is_slow: found only after a second or more of simulation, as blocked changes are: for `make soak`. Its kind (a
            lost position, a blockage, a doubtful commit, a split stream, a conflict) has a quicker one in `make test`.
    """

    name: str
    plant: Patch
    example: str = "relay"
    first: int = 1
    seeds: int = 40
    is_slow: bool = False


def _set(owner: Any, name: str, value: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> Patch:
    """Replace a function by `wrapper`, which gets the original first."""
    original = getattr(owner, name)
    return lambda monkeypatch: monkeypatch.setattr(
        owner, name, lambda *args, **options: wrapper(original, *args, **options)
    )


# --------------------------------------------------------------------------- redo


def _confirm_before_durable(take: Any, self: StreamIntake, *args: Any) -> None:
    take(self, *args)
    self.stream.confirm(self.progress_scn)


def _publish_unsynced(write: Any, self: OnlineLog, *args: Any) -> Any:
    """Moves the position, whose data is lost when the power fails."""
    found = write(self, *args)
    if self.segment is not None:
        self.segment._durable = (0, *self.segment._durable[1:])
    return found


def _tell_sent(tell: Any, self: Any, redo: Any, durable_scn: int) -> None:
    tell(self, redo, self._miner.sent_scn if self._miner is not None else durable_scn)


def _acknowledge_unsynced(sync: Any, self: Any) -> None:
    durable = self.durable
    sync(self)
    self.durable = durable  # state after a power loss


def _keep_no_redo_for_clones(register: Any, self: RequiredCheckpoints, capture: str, **scns: Any) -> Scn:
    return Scn(0) if "." in capture else Scn(register(self, capture, **scns))


# --------------------------------------------------------------------------- split streams


def _merge_at_once(advanced: Any, self: Splitting, stream: Any, facts: Any) -> Any:
    found = advanced(self, stream, facts)
    return None if found is not None and found.phase == split.MERGING else found


def _held_is_enough(has_all: Any, self: Splitting, stream: Any, facts: Any) -> bool:
    status = facts.queue(stream.queue)
    held = status is not None and any(each.subscriber == stream.propagation for each in status.subscribers)
    return held or bool(has_all(self, stream, facts))


def _hold_on(with_splits: Any, spec: Any, splits: Any) -> Any:
    found = with_splits(spec, splits)
    return replace(found, propagations=tuple(replace(each, held_in=each.split_from) for each in found.propagations))


# --------------------------------------------------------------------------- queues


def _cut_too_late(batch: Any, scn: Scn) -> Any:
    """Drops the transaction at the receiver's position."""
    count = len(batch.transactions)
    first = int(np.searchsorted(batch.transactions.order_scn, scn, side="left"))
    later = Scn(int(batch.transactions.order_scn[first]) + 1) if first < count and not batch.is_open else scn
    found = resume_after(batch, later)
    return None if found is None else replace(found, previous_scn=scn)


def _read_another(read: Any, self: Any, place: Any) -> bytes:
    known = self.__dict__.setdefault("_planted", {})
    known[place.file, place.offset] = read(self, place)
    first: bytes = next(iter(known.values()))
    return first


def _for_one_subscriber(self: StagedSource) -> Scn:
    found = [min(each.saved_scn, each.acknowledged_scn) for each in self.takers if each.is_held]
    return max(found) if found else self.log.position


def _for_known_ones(durable: Any, self: StagedSource) -> Scn:
    found = [min(each.saved_scn, each.acknowledged_scn) for each in self.takers if each.acknowledged_scn]
    return min(found) if found else durable(self)


def _take_one_for_another(load: Any, self: PositionsFile) -> Any:
    return {
        source: dict.fromkeys(positions, max(positions.values()))
        for source, positions in load(self).items()
        if positions
    }


def _dequeue_twice_the_same(dequeue: Any, self: QueueCore, session: Any) -> Any:
    found = dequeue(self, session)
    if found is not None and found.header.row_count and found.header.through_scn % 3 == 0:
        return dequeue(self, session)  # the first one is lost
    return found


# --------------------------------------------------------------------------- propagations


def _acknowledge_accepted(hear: Any, self: PropagationCore) -> None:
    hear(self)
    progress = self._destination.poll()
    if self._origin is not None and progress.rewind_scn is None:
        self._origin.acknowledge(self._source, progress.accepted_scn)


def _keep_credit(hear: Any, self: PropagationCore) -> None:
    self._in_flight.clear()
    hear(self)


def _drop_marks(send: Any, self: PropagationCore, delivery: Delivery, size: int) -> bool:
    if delivery.header.is_progress_mark:
        self._waiting = None
        return True
    return bool(send(self, delivery, size))


# --------------------------------------------------------------------------- apply


def _hash_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # one generator for all batches: equal numbers in two of them would be a dependency
    hashed, rng = vars(pieces)["hash_batch"], np.random.default_rng(1)

    def hash_randomly(*args: Any, **options: Any) -> Any:
        found = hashed(*args, **options)
        return replace(found, hashes=rng.integers(1, 1 << 62, len(found.hashes), np.uint64))

    monkeypatch.setattr(pieces, "hash_batch", hash_randomly)


def _advance_over_gaps(self: ApplyCoordinator) -> None:
    for group in [group for group in self._groups if group.is_done]:
        del self._groups._groups[group.number]
        self.watermarks.low = max(self.watermarks.low, group.through_scn)
        self.watermarks.durable = max(self.watermarks.durable, group.through_scn)
    if self.is_idle:
        self.watermarks.catch_up()


def _doubt_counts_as_made(self: ApplyCoordinator, group: Any, progress: Any, queued: Any) -> None:
    self._finish(group)


def _doubt_counts_as_lost(self: ApplyCoordinator, group: Any, progress: Any, queued: Any) -> None:
    group.take_back()


def _settle_as(*, made: bool) -> Any:
    def settle(self: Work) -> None:
        doubt, self._doubt = self._doubt, None
        if doubt is not None and made:
            doubt.succeed()

    return settle


def _raise_no_epoch(self: MemoryDestination, topology: str, apply: str) -> Any:
    process = self._reach().processes.setdefault((topology, apply), StoredProcess())
    process.epoch, process.life = process.epoch or 1, self.store.life
    progress = self.progress(topology, apply)
    assert progress is not None
    return progress


def _without_tag(open_session: Any, self: MemoryDestination, *args: Any, **options: Any) -> Any:
    return open_session(self, *args, **{**options, "tag": b""})


def _progress_apart(commit: Any, self: MemorySession, applied: Any, *others: Any) -> None:
    commit(self, [], *others)


def _one_delete_only(deletes: Any, rows: Any, chosen: Any) -> Any:
    return deletes(rows, chosen) if len(chosen) == 1 else []


# --------------------------------------------------------------------------- combined


def _delivered_is_committed(poll: Any, self: MountedQueue) -> Any:
    found = poll(self)
    return replace(found, durable_scn=max(found.durable_scn, self.status().sent_scn))


def _begin_where_it_was(open_subscriber: Any, self: QueueCore, *args: Any) -> Any:
    found = open_subscriber(self, *args)
    if not self._keeps:
        for source in self._sources.values():
            if source.publisher is not None:
                source.publisher.rewind_scn, source.publisher.is_rewinding = None, False
    return found


def _grant_unless_mounted(grant: Any, self: QueueCore, *args: Any) -> None:
    if self._keeps:
        grant(self, *args)


# --------------------------------------------------------------------------- rules that read rows


def _take_the_row_as_it_was(of_image: Any, tree: Any, image: Image) -> Any:
    return of_image(tree, Image.OLD if image is Image.NEW else image)


def _forget_on_one_way(reshaped: Any, self: Any, table: Any) -> Any:
    """A propagation sends on what its transformation should have changed; the other way keeps working."""
    found = reshaped(self, table)
    transformation = self._transformation_of(table.owner, table.name)
    return (
        None
        if transformation is not None and any(isinstance(each, KeepColumns) for each in transformation.operations)
        else found
    )


def _add_nothing(values: Any, rows: Any, reshaped: Any, added: Any) -> Any:
    return values(rows, reshaped, reshaping._Constants([NULL] * added.lengths.shape[0]))


def _new_values_only(row: Any, self: Any, batch: Any, number: int, custom: Any) -> Any:
    """A function's change of the old row is lost."""
    found = row(self, batch, number, custom)
    before = RowLcr(batch, number, decode=self._decode, encode=self._encode).get_values("old", use_old=False)
    for lcr in found:
        for name, value in before.items():
            lcr.set_value("old", name, value)
    return found


def _first_of_the_key(with_settings: Any, table: Any, settings: TableSettings, **options: Any) -> Any:
    first = tuple(replace(each, columns=each.columns[:1]) for each in settings.key_columns)
    return with_settings(table, replace(settings, key_columns=first), **options)


def _unknown_is_true(settled: Any, outcome: Any) -> Any:
    return np.where(np.asarray(outcome) == logic.NULL, logic.TRUE, settled(outcome)).astype(np.uint8)


def _asked_for_the_name_of_now(self: ClientsBefore, owner: str, name: str, *, tag: Any) -> bool:
    return all(rules.keeps(owner, name, tag=tag) for rules in self.at_most)


# --------------------------------------------------------------------------- conflicts


def _changed_columns_only(whole_list: Any, met: Any, handler: Any) -> Any:
    return tuple(place for place in whole_list(met, handler) if place in met.row.changed)


def _the_row_wins(by_column: Any, met: Any, handler: Any, row: Any) -> Any:
    by_column(met, handler, row)
    return decisions._Verdict.ROW


def _the_sum_is_the_value(sums: Any, met: Any, handler: Any, listed: Any, row: Any) -> Any:
    return {place: met.row.new[place] for place in sums(met, handler, listed, row)}


def _nothing(self: Any, *args: Any, **options: Any) -> None:
    """Does nothing in place of the method."""


PLANTED = (
    Planted(
        "an update that moves a row into a subset, or out of it, stays an update",
        _set(row_evaluation, "migrated", lambda batch, commands, keep: batch),
        "subsets",
        first=2,
    ),
    Planted(
        "a subset is evaluated on old values alone",
        _around(row_evaluation, "of_image", _take_the_row_as_it_was),
        "subsets",
    ),
    Planted(
        "negative rules with conditions discard nothing",
        _set(row_evaluation, "negated", lambda outcome: logic.TRUE),
        "rules",
    ),
    Planted(
        "an apply process does not follow its own rules",
        _around(apply_process, "rules_at_the_end", lambda ends, ways: ends(ways)[:-1]),
        "subsets",
        first=2,
    ),
    Planted(
        "one of two ways forgets its transformation",
        _around(reshaping.Reshaping, "_reshaped", _forget_on_one_way),
        "transformations",
        first=2,
    ),
    Planted(
        "the rules of earlier clients are asked for the name of now",
        _set(ClientsBefore, "keeps", _asked_for_the_name_of_now),
        "renames",
    ),
    Planted("an added column is NULL", _around(reshaping, "_values", _add_nothing), "transformations"),
    Planted(
        "what a function returns is forgotten",
        _set(CustomCalls, "_row", lambda self, batch, row, custom: [RowLcr(batch, row)]),
        "functions",
    ),
    Planted(
        "what a function makes of old rows is forgotten", _around(CustomCalls, "_row", _new_values_only), "functions"
    ),
    Planted(
        "only the first column of a substitute key finds rows",
        _around(memory_rows, "with_settings", _first_of_the_key),
        "keys",
    ),
    Planted(
        "what is unknown of a row is as good as true", _around(row_evaluation, "settled", _unknown_is_true), "rules"
    ),
    Planted(
        "the log writer confirms what it has read before it is durable",
        _around(StreamIntake, "take", _confirm_before_durable),
        first=2,
    ),
    Planted("redo is published before it is synced", _around(OnlineLog, "write", _publish_unsynced)),
    Planted(
        "a capture process lets redo be purged that it has only sent",
        _around(CaptureHost, "_tell_checkpoint", _tell_sent),
    ),
    Planted("mining keeps an open transaction that comes again", _set(Miner, "_resume", _nothing), first=2),
    Planted(
        "a copy of redo is acknowledged before it is synced",
        _around(standby_log._Segment, "sync", _acknowledge_unsynced),
        "downstream",
    ),
    Planted(
        "redo is purged before its copy has it",
        _set(RedoShipping, "keep_from", property(lambda self: self._position().segment)),
        "downstream",
    ),
    Planted(
        "the source is told what its copy does not have yet",
        _set(RedoShipping, "confirmable", lambda self, scn: scn),
        "downstream",
    ),
    Planted(
        "a queue tells as durable what it has received",
        _set(StagedSource, "durable_scn", property(lambda self: self.log.position)),
    ),
    Planted(
        "a queue waits for its fastest subscriber only",
        _set(StagedSource, "durable_scn", property(_for_one_subscriber)),
    ),
    Planted(
        "a queue does not wait for a subscriber that was added",
        _set(StagedSource, "durable_scn", property(partial(_for_known_ones, vars(StagedSource)["durable_scn"].fget))),
    ),
    Planted(
        "a queue forgets what batches for its slower subscribers it holds",
        _set(
            StagedSource,
            "floor_scn",
            property(
                lambda self: max(
                    (each.acknowledged_scn for each in self.takers if each.is_held), default=self.log.position
                )
            ),
        ),
        first=2,
    ),
    Planted(
        "a queue takes one subscriber's position for another's when it starts again",
        _around(PositionsFile, "load", _take_one_for_another),
        first=14,
    ),
    Planted("a batch is cut one transaction too late", _set(queue_log, "resume_after", _cut_too_late), first=11),
    Planted("spilled batches are read out of order", _around(SpillFiles, "read", _read_another), first=2, is_slow=True),
    Planted(
        "a queue skips a batch for a subscriber", _around(QueueCore, "dequeue", _dequeue_twice_the_same), is_slow=True
    ),
    Planted("a queue loses the credit that subscribers give back", _set(QueueCore, "grant", _nothing), is_slow=True),
    Planted(
        "a propagation acknowledges what was accepted",
        _around(PropagationCore, "_hear", _acknowledge_accepted),
        first=2,
    ),
    Planted("a propagation does not give credit back", _around(PropagationCore, "_hear", _keep_credit), is_slow=True),
    Planted(
        "a propagation drops progress marks", _around(PropagationCore, "_send", _drop_marks), first=6, is_slow=True
    ),
    Planted(
        "rules forget the tags of a batch",
        _set(evaluation, "_tags", lambda batch: (None,) * (len(batch.tags) + 1)),
        "hub_and_spoke",
        first=22,
    ),
    Planted(
        "an apply server sets no tag", _around(MemoryDestination, "open_session", _without_tag), "two_way", first=18
    ),
    Planted(
        "the reader applies again what was applied",
        _set(RowSelection, "_applied", lambda self, order_scn: order_scn < 0),
        first=17,
    ),
    Planted(
        "a group does not wait for those that it depends on",
        _set(UnfinishedGroups, "still", lambda self, group: set()),
        first=16,
    ),
    Planted("dependencies are not seen", _hash_nothing),
    Planted(
        "received counts as durable",
        _set(RecordedProgress, "recorded_scn", property(lambda self: self._coordinator.watermarks.received)),
        first=5,
    ),
    Planted(
        "a commit is told when it is answered, and not when it is on disk",
        _set(FlushGate, "durable_scn", lambda self, recorded: recorded),
    ),
    Planted(
        "a hub tells a commit when it is answered",
        _set(FlushGate, "durable_scn", lambda self, recorded: recorded),
        "hub_and_spoke",
    ),
    Planted(
        "the low watermark passes over a gap",
        _set(ApplyCoordinator, "_advance", _advance_over_gaps),
        "fan_out",
        first=9,
        is_slow=True,
    ),
    Planted(
        "what a dead server was doing counts as committed",
        _set(ApplyCoordinator, "_settle_doubt", _doubt_counts_as_made),
    ),
    Planted(
        "what a dead server was doing counts as lost",
        _set(ApplyCoordinator, "_settle_doubt", _doubt_counts_as_lost),
        first=2,
        is_slow=True,
    ),
    Planted(
        "a commit whose answer was lost is made again",
        _set(Work, "settle", _settle_as(made=False)),
        first=2,
        is_slow=True,
    ),
    Planted("a commit whose answer was lost counts as made", _set(Work, "settle", _settle_as(made=True))),
    Planted("data is committed without its progress", _around(MemorySession, "commit", _progress_apart)),
    Planted("a new driver does not fence the older one out", _set(MemoryDestination, "raise_epoch", _raise_no_epoch)),
    Planted("a large transaction is not begun again when its server dies", _set(Replay, "start", _nothing)),
    Planted("deletes are left out of a set", _around(collapse, "deletes", _one_delete_only), is_slow=True),
    Planted(
        "a combined capture process takes delivered for committed",
        _around(MountedQueue, "poll", _delivered_is_committed),
        "one_way",
        first=2,
    ),
    Planted(
        "a combined capture process goes on where it was, whoever asks",
        _around(QueueCore, "open_subscriber", _begin_where_it_was),
        "one_way",
        is_slow=True,
    ),
    Planted(
        "a combined capture process loses credit",
        _around(QueueCore, "grant", _grant_unless_mounted),
        "one_way",
        first=6,
        is_slow=True,
    ),
    Planted(
        "no redo is kept for the capture process of a split stream",
        _around(RequiredCheckpoints, "register", _keep_no_redo_for_clones),
        "fan_out",
    ),
    Planted(
        "a stream is merged before its queue holds anything for it",
        _around(Splitting, "_advanced", _merge_at_once),
        "fan_out",
        is_slow=True,
    ),
    Planted(
        "a stream is merged before its destination has what its queue does not hold",
        _around(Splitting, "_has_all", _held_is_enough),
        "fan_out",
        first=21,
        is_slow=True,
    ),
    Planted(
        "a queue goes on holding for a stream that is split off", _around(split, "with_splits", _hold_on), "fan_out"
    ),
    Planted(
        "a change wins over one that was committed later",
        _set(LastChange, "is_later_than", lambda self, times, row=0: False),
        "latest_timestamp",
    ),
    Planted(
        "when an applied change was made is not noted",
        _set(memory_rows.MemoryRows, "_note_change", _nothing),
        "latest_timestamp",
        is_slow=True,
    ),
    Planted(
        "a change that wins brings the columns alone that it changed",
        _around(decisions, "_whole_list", _changed_columns_only),
        "conflicts",
        is_slow=True,
    ),
    Planted("a handler keeps what is there", _around(decisions, "_by_column", _the_row_wins), "conflicts"),
    Planted(
        "the last of two sums counts alone",
        _around(decisions, "_sums", _the_sum_is_the_value),
        "conflicts",
        is_slow=True,
    ),
)
