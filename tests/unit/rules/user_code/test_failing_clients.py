"""Failures of transformations in each client of rules.

A function raises, hangs, returns a wrong result or is killed, or a declarative step cannot be applied. Capture
process, propagation and apply process stop at the LCR with the error and keep what they need. They continue there
when the rules are corrected.
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.databases.connectors import value_types
from headrace.databases.memory.source import MemorySource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.scn import FIRST_SCN, ObjectNumber
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from headrace.rules.transformations.transformation import (
    AddColumn,
    DeleteColumns,
    Operation,
    Transformation,
    TransformationError,
)
from headrace.rules.user_code.last_call import LastCall
from protos import codec
from tests.support.apply.custom_functions import custom
from tests.support.histories.apply_history import TABLES
from tests.support.histories.apply_world import MemoryPlace, World
from tests.support.redo.redo_logs import mine, miner, write_redo
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.two_queues import TwoQueues

CORRECT = "def mask(lcr):\n    return lcr\n"
BROKEN = {
    "raises": "raise ValueError('no')",
    "hangs": "while True: pass",
    "returns nothing": "return None",
    "killed": "import signal; signal.raise_signal(signal.SIGINT)",
    "leaves threads": "import threading, time; [threading.Thread(target=time.sleep, args=(20,), daemon=True).start()"
    " for _ in range(65)]",
}
NAMED = r"\(LCR: [A-Z]+ of \w+\.\w+, number \d+ of transaction \d+ of dbs1, SCN 0/[0-9A-F]{8}\)"


def rules(condition: str, body: str) -> RuleSet:
    """A function that fails at some LCRs; without a body it never fails."""
    text = f"def mask(lcr):\n    if {condition}:\n        {body}\n    return lcr\n" if body else CORRECT
    return RuleSet(
        include=(
            Rule(
                tags=ANY_TAG,
                transformation=Transformation(custom=custom(text, timeout_s=30.0 if "threading" in text else 0.3)),
            ),
        )
    )


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


def captured(folder: Path, body: str, broken: RuleSet | None = None) -> tuple[list[bytes], list[bytes], BaseException]:
    """Return the rows that a capture process sends before it stops and after a restart with corrected rules.

    The rows are those of table t from the eighth on. The third value is the error.
    """
    source = MemorySource()
    for name in ("t", "u"):
        source.create_table(f"hr.{name}", ["id", "c1"], key=["id"])
    for number in range(12):
        with source.transaction() as transaction:
            transaction.insert("hr.t" if number >= 7 else "hr.u", id=str(number), c1="x")
    writer = write_redo(folder / "redo", source)
    batches: list[LcrBatch] = []
    with pytest.raises((TransformationError, KeyboardInterrupt)) as caught:
        batches.extend(
            mine(
                miner(folder / "redo", rules=broken or rules("lcr.get_value('new', 'id').raw == b'7'", body)),
                writer,
                rows_max=3,
            )
        )
    position = batches[-1].through_scn if batches else FIRST_SCN
    later = list(mine(miner(folder / "redo", position, rules=rules("", "")), writer, rows_max=3))
    before, after = (
        [_key(batch, row) for batch in found for row in range(batch.row_count)] for found in (batches, later)
    )
    return before, after, caught.value


def propagated(
    folder: Path, body: str, broken: RuleSet | None = None
) -> tuple[list[bytes], list[bytes], BaseException]:
    """The same for a propagation: unsent rows stay in its queue."""
    queues = TwoQueues(folder, broken or rules("lcr.commit_scn == 80", body))
    for number in range(12):
        batch = insert_batch([10 * number + 10], previous=10 * number, value=str(number).encode())
        (table,) = batch.tables
        queues.publish(
            replace(
                batch,
                tables=(
                    replace(
                        table,
                        owner="hr",
                        name="t" if number >= 7 else "u",
                        object_number=ObjectNumber(1 + (number >= 7)),
                    ),
                ),
            )
        )
    with pytest.raises((TransformationError, KeyboardInterrupt)) as caught:
        queues.work()
    before = _arrived(queues)
    queues.rules = rules("", "")
    queues.connect()
    queues.work()
    return before, _arrived(queues), caught.value


def _arrived(queues: TwoQueues) -> list[bytes]:
    found = (codec.decode(data) for data in queues.arrived())
    return [RowLcr(batch, row).get_value("new", "c1").raw or b"" for batch in found for row in range(batch.row_count)]


def _key(batch: LcrBatch, row: int) -> bytes:
    return RowLcr(batch, row).get_value("new", "id").raw or b""


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("client", [captured, propagated])
def test_failing_function_stops_each_client_without_loss_or_duplicates(
    client: Callable[[Path, str], tuple[list[bytes], list[bytes], BaseException]],
    body: str,
    tmp_path: Path,
) -> None:
    before, after, error = client(tmp_path, body)
    assert b"7" not in before  # the untransformed row must never leave
    assert before + after == [str(number).encode() for number in range(12)]
    _check_told(error, body)


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_failing_function_stops_apply_and_transactions_apply_once(body: str) -> None:
    world = World(5, MemoryPlace(), count=20, conflicts=2, large=3)
    with pytest.raises((TransformationError, KeyboardInterrupt)) as caught:
        world.engine(5, parallelism=2, rules=rules("lcr.transaction_id == 9", body)).run()
    _check_told(caught.value, body)
    if isinstance(caught.value, TransformationError):
        assert "number 1 of transaction 9 of dbs1" in caught.value.message
    world.engine(random.Random(5).randrange(1000), parallelism=2, rules=rules("", "")).run()
    world.check()


def _check_told(error: BaseException, body: str) -> None:
    if isinstance(error, KeyboardInterrupt):
        return
    assert isinstance(error, TransformationError)
    assert "own:mask" in error.message
    assert re.search(NAMED, error.message)
    assert error.hint
    if "threading" in body:
        assert (
            "has left 65 threads running, and 64 are allowed; it is at handlers/own.py, line 1, in mask"
            in error.message
        )
    elif "return None" not in body:
        assert "handlers/own.py, line 3, in mask" in error.message


def unfit(operation: Operation, *names: str) -> RuleSet:
    """A declarative step that cannot be applied to the first of these tables."""
    first = Transformation(operations=(operation,))
    return RuleSet(
        include=tuple(
            Rule(name=name, tags=ANY_TAG, transformation=None if place else first) for place, name in enumerate(names)
        )
    )


UNFIT = {
    "adds a column that is there": AddColumn(name="c1", type_name="pg_catalog.text", value="x"),
    "leaves no column": DeleteColumns(deleted=("id", "c0", "c1")),
}


@pytest.mark.parametrize("step", UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize(("client", "scn"), [(captured, ""), (propagated, "0/0000004F")])
def test_inapplicable_step_stops_each_client_at_a_named_lcr(
    client: Callable[[Path, str, RuleSet], tuple[list[bytes], list[bytes], BaseException]],
    scn: str,
    step: Operation,
    tmp_path: Path,
) -> None:
    before, after, error = client(tmp_path, "", unfit(step, "t", "u"))
    assert b"7" not in before
    assert before + after == [str(number).encode() for number in range(12)]
    assert isinstance(error, TransformationError)
    assert re.search(
        rf"\(LCR: INSERT of hr\.t, number 1 of transaction \d+ of dbs1, SCN 0/[0-9A-F]*{scn.removeprefix('0/')}\)$",
        error.message,
    )
    assert error.hint


def test_inapplicable_step_stops_apply_and_transactions_apply_once() -> None:
    world = World(5, MemoryPlace(), count=20, conflicts=2, large=3)
    table = TABLES[0]
    broken = unfit(
        AddColumn(name=table.columns[1], type_name="pg_catalog.text", value="x"), *(each.name for each in TABLES)
    )
    with pytest.raises(
        TransformationError, match=rf"of {table.owner}\.{table.name}, number \d+ of transaction \d+ of dbs1, SCN "
    ):
        world.engine(5, parallelism=2, rules=broken).run()
    world.engine(random.Random(5).randrange(1000), parallelism=2, rules=rules("", "")).run()
    world.check()


@pytest.mark.parametrize(
    "made", ["[lcr, lcr.copy(), lcr.copy()]", "[lcr] if int(lcr.get_value('new', 'id').raw) % 3 else []"]
)
def test_function_results_in_transaction_parts_have_distinct_positions(made: str, tmp_path: Path) -> None:
    source = MemorySource()
    source.create_table("hr.t", ["id", "a"], key=["id"])
    with source.transaction() as transaction:
        for number in range(20):
            transaction.insert("hr.t", id=str(number), a="x")
    writer = write_redo(tmp_path / "redo", source)
    function = custom(f"def mask(lcr):\n    return {made}\n", is_at_capture=True)
    several = RuleSet(include=(Rule(tags=ANY_TAG, transformation=Transformation(custom=function)),))
    batches = [
        batch
        for batch in mine(miner(tmp_path / "redo", rules=several), writer, rows_max=4)
        if not batch.is_progress_mark
    ]
    assert len(batches) > 2
    positions = [RowLcr(batch, row).position for batch in batches for row in range(batch.row_count)]
    # `errors show` and `errors edit` find a row by its position.
    assert positions == list(range(len(positions)))


WAITS = "import own_gate\ndef mask(lcr):\n    if lcr.commit_scn == 80:\n        own_gate.wait()\n    return lcr\n"


def test_function_blocked_in_the_kernel_is_reported_then_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can interrupt such a wait in the thread of a component."""
    gate, module = threading.Event(), types.ModuleType("own_gate")
    module.wait = lambda: gate.wait(30)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_gate", module)
    last, raised = LastCall(tmp_path / "call"), list[TransformationError]()
    rule = Rule(tags=ANY_TAG, transformation=Transformation(custom=custom(WAITS, timeout_s=0.1)))
    client = RuleEvaluation(RuleSet(include=(rule,)), types=value_types(), last_call=last)

    def work() -> None:
        try:
            for scn in (70, 80):
                client.filter(insert_batch([scn], previous=scn - 10))
        except TransformationError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until = time.monotonic() + 30
    while not last.late and time.monotonic() < until:
        time.sleep(0.01)
    assert re.search(
        r"own:mask \(\w+\) has not ended within 0.1 s, and waits at handlers/own.py, line 4, in mask \(LCR: INSERT of"
        r" .* SCN 0/0000004F\)",
        last.late,
    )
    assert not raised
    gate.set()
    thread.join(30)
    (error,) = raised
    assert "did not end within 0.1 s; it was at handlers/own.py, line 4, in mask" in error.message
    assert last.late == ""


def test_threads_left_by_a_function_are_counted_across_tasks() -> None:
    """A copy evaluates each piece of a table in a new evaluation, in the same process."""
    body = (
        "import threading, time; [threading.Thread(target=time.sleep, args=(20,), daemon=True).start() for _ in"
        " range(40)]"
    )
    batch = insert_batch([70], previous=60)
    RuleEvaluation(rules("True", body), types=value_types()).filter(batch)
    with pytest.raises(TransformationError, match="has left 80 threads running"):
        RuleEvaluation(rules("True", body), types=value_types()).filter(batch)


def test_threads_of_a_running_call_are_not_counted_as_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several components of a site share a process and can call the same function at once."""
    began, gate, module, raised = (
        threading.Event(),
        threading.Event(),
        types.ModuleType("own_gate"),
        list[BaseException](),
    )
    module.began, module.wait = began.set, lambda: gate.wait(30)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_gate", module)
    text = (
        "import own_gate, threading\ndef mask(lcr):\n    if lcr.commit_scn == 80:\n        return lcr\n    pool ="
        " [threading.Thread(target=own_gate.wait) for _ in range(65)]\n"
        "    for each in pool:\n        each.start()\n    own_gate.began()\n    for each in pool:\n       "
        " each.join()\n    return lcr\n"
    )
    both = RuleSet(include=(Rule(tags=ANY_TAG, transformation=Transformation(custom=custom(text, timeout_s=30.0))),))

    def work(scn: int) -> None:
        try:
            RuleEvaluation(both, types=value_types()).filter(insert_batch([scn], previous=scn - 10))
        except TransformationError as error:
            raised.append(error)

    one = threading.Thread(target=work, args=(70,))
    one.start()
    assert began.wait(30)
    work(80)
    gate.set()
    one.join(30)
    assert not raised
