"""Transformation functions that end their process, in real processes with the rules that every client has."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from headrace.databases.connectors import value_types
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from headrace.rules.transformations.transformation import Transformation, TransformationError
from headrace.rules.user_code.last_call import CRASHES_MAX, LastCall
from tests.support.apply.custom_functions import custom
from tests.support.values.lcr_batches import insert_batch

EXIT, REFUSED = 7, 8
"""Exit codes of a process: ended by its function; ended by the error that the function is no longer called."""

LIFE_S = 180.0
"""Limit for one process: it starts and imports in seconds, even on a busy machine."""

ENDS = "import os\ndef mask(lcr):\n    if lcr.commit_scn == 30:\n        os._exit({exit})\n    return lcr\n"
SOUND = "def mask(lcr):\n    return lcr\n"


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkServerContext]:
    """Real processes, forked from one that has imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    yield context
    server: Any = forkserver._forkserver
    server._stop()  # it would end with this process, but the session looks for leftovers before


def rules(text: str) -> RuleSet:
    return RuleSet(include=(Rule(tags=ANY_TAG, transformation=Transformation(custom=custom(text))),))


def live(file: Path, text: str) -> None:
    """Run one process: transactions 10 to 50 in two batches."""
    client = RuleEvaluation(rules(text), types=value_types(), last_call=LastCall(file))
    try:
        for batch in (insert_batch([10, 20]), insert_batch([30, 40, 50], previous=20)):
            client.filter(batch)
    except TransformationError as error:
        file.with_name("told").write_text(f"{error.message}; {error.hint}")
        raise SystemExit(REFUSED) from error


def ended(processes: ForkServerContext, file: Path, text: str) -> int | None:
    process = processes.Process(target=live, args=(file, text), daemon=True)
    process.start()
    process.join(LIFE_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


@pytest.mark.long
def test_function_ending_its_process_three_times_stops_the_client(processes: ForkServerContext, tmp_path: Path) -> None:
    file, text = tmp_path / "components" / "capture.c~call", ENDS.format(exit=EXIT)
    assert [ended(processes, file, text) for _ in range(CRASHES_MAX + 2)] == [EXIT] * CRASHES_MAX + [REFUSED] * 2
    told = file.with_name("told").read_text()
    assert re.search(
        rf"own:mask \(\w+\) is not called again: {CRASHES_MAX} processes ended while it ran for this LCR \(LCR: INSERT"
        r" of .*; correct the function",
        told,
    )
    assert ended(processes, file, SOUND) == 0


SLOW = """
import pathlib
import time
inside = pathlib.Path({inside!r})
def mask(lcr):
    inside.touch()
    time.sleep(0.5)
    inside.unlink()
    return lcr
"""
ENDS_OTHERS = """
import os
import pathlib
import time
inside = pathlib.Path({inside!r})
def mask(lcr):
    until = time.monotonic() + 1.0  # in vain where this call is made first, and the sound one waits for its end
    while not inside.exists() and time.monotonic() < until:
        time.sleep(0.01)
    os._exit({exit})
"""


def live_together(folder: Path) -> None:
    """Run a process with two clients: a sound one with a slow function, and one whose function ends the process while
    the sound function runs.
    """
    inside = folder / "inside"
    inside.unlink(missing_ok=True)

    def client(name: str, text: str) -> None:
        evaluation = RuleEvaluation(rules(text), types=value_types(), last_call=LastCall(folder / f"{name}~call"))
        try:
            evaluation.filter(insert_batch([10]))
        except TransformationError as error:
            (folder / f"{name}.told").write_text(error.message)
        else:
            (folder / f"{name}.done").touch()

    texts = {"sound": SLOW.format(inside=str(inside)), "guilty": ENDS_OTHERS.format(inside=str(inside), exit=EXIT)}
    threads = [threading.Thread(target=client, args=each) for each in texts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.long
def test_function_ending_a_shared_process_stops_only_its_own_client(
    processes: ForkServerContext, tmp_path: Path
) -> None:
    lives = 0
    while not (tmp_path / "guilty.told").exists():
        process = processes.Process(target=live_together, args=(tmp_path,), daemon=True)
        process.start()
        process.join(LIFE_S)
        lives += 1
        assert process.exitcode == (0 if (tmp_path / "guilty.told").exists() else EXIT)
        assert not (tmp_path / "sound.told").exists()
        assert lives <= CRASHES_MAX + 2
    assert lives > CRASHES_MAX
    assert (tmp_path / "sound.done").exists()


def note(file: Path, scn: int, *, finishes: bool = False) -> int:
    """Begin a call as a new process; end it only if `finishes`. Return how many processes ended in this call before."""
    last = LastCall(file)
    ends = last.begin("own:mask (1)", scn, 0)
    if finishes:
        last.end()
    last.close()
    return ends


def test_only_consecutive_ends_in_the_same_call_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "call"
    assert [note(file, 10), note(file, 10), note(file, 10)] == [0, 1, 2]
    assert [note(file, 20), note(file, 10)] == [0, 0]  # it died in another call in between
    assert [note(file, 10, finishes=True), note(file, 10)] == [1, 0]


def test_earlier_returning_calls_do_not_reset_the_count_of_a_fatal_call(tmp_path: Path) -> None:
    file, found = tmp_path / "call", []
    for _ in range(3):
        for scn in (10, 20):
            assert note(file, scn, finishes=True) == 0
        found.append(note(file, 30))
    assert found == [0, 1, 2]


def test_refused_call_stays_refused_for_its_version_only(tmp_path: Path) -> None:
    file = tmp_path / "call"
    for _ in range(3):
        note(file, 10)
    for _ in range(2):
        last = LastCall(file)
        assert last.begin("own:mask (1)", 10, 0) == 3
        last.end(refused=True)
        last.close()
    last = LastCall(file)
    assert last.begin("own:mask (2)", 10, 0) == 0
    last.end()
    assert last.begin("own:mask (1)", 10, 1) == 0
    last.end()
    last.close()


def test_call_of_a_killed_process_is_recorded(processes: ForkServerContext, tmp_path: Path) -> None:
    """SIGKILL leaves no time to write anything."""
    process = processes.Process(target=_wait_in_a_call, args=(tmp_path / "call", tmp_path / "ready"), daemon=True)
    process.start()
    while not (tmp_path / "ready").exists():
        assert process.is_alive()
        process.join(0.05)
    process.kill()
    process.join(LIFE_S)
    assert process.exitcode == -signal.SIGKILL
    assert note(tmp_path / "call", 10) == 1


def _wait_in_a_call(file: Path, ready: Path) -> None:
    LastCall(file).begin("own:mask (1)", 10, 0)
    ready.touch()
    while os.getppid() != 1:
        signal.pause()


def test_unwritable_disk_stops_no_function(tmp_path: Path) -> None:
    (tmp_path / "components").write_text("a file where the folder should be")
    file = tmp_path / "components" / "call"
    assert [note(file, 10), note(file, 10)] == [0, 0]
