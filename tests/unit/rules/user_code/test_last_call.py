"""Transformation functions that end their process: real processes, each with the rules that every client of rules has."""

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
"""What a process ends with: by its function; with an error that says that the function is not called."""

LIFE_S = 180.0
"""Bounds one process: it starts and imports in seconds, also on a busy machine."""

ENDS = "import os\ndef mask(lcr):\n    if lcr.commit_scn == 30:\n        os._exit({exit})\n    return lcr\n"
SOUND = "def mask(lcr):\n    return lcr\n"


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkServerContext]:
    """Real processes, forked from one that has imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    yield context
    server: Any = forkserver._forkserver
    server._stop()  # it would end with this process, which the session looks for before


def rules(text: str) -> RuleSet:
    return RuleSet(include=(Rule(tags=ANY_TAG, transformation=Transformation(custom=custom(text))),))


def live(file: Path, text: str) -> None:
    """The life of one process: the transactions 10 to 50, in two batches."""
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
def test_a_function_that_ends_its_process_each_time_is_an_error_of_the_client_after_three_and_a_corrected_one_is_called(
    processes: ForkServerContext,
    tmp_path: Path,
) -> None:
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
    time.sleep(1.0)
    inside.unlink()
    return lcr
"""
ENDS_OTHERS = """
import os
import pathlib
import time
inside = pathlib.Path({inside!r})
def mask(lcr):
    until = time.monotonic() + 5.0
    while not inside.exists() and time.monotonic() < until:
        time.sleep(0.01)
    os._exit({exit})
"""


def live_together(folder: Path) -> None:
    """The life of a process with two clients: a sound one with a slow function, and one whose function ends the process
    while the other one runs, if it does.
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
def test_a_function_that_ends_the_process_of_several_clients_is_an_error_of_its_own_client_alone(
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
    """What a process finds that begins a call; it ends in it, or not."""
    last = LastCall(file)
    ends = last.begin("own:mask (1)", scn, 0)
    if finishes:
        last.end()
    last.close()
    return ends


def test_only_ends_in_one_and_the_same_call_count_and_one_that_returns_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "call"
    assert [note(file, 10), note(file, 10), note(file, 10)] == [0, 1, 2]
    assert [note(file, 20), note(file, 10)] == [0, 0]  # it died in another one meanwhile
    assert [note(file, 10, finishes=True), note(file, 10)] == [1, 0]


def test_calls_before_the_one_that_ends_the_process_do_not_hide_how_often_it_did(tmp_path: Path) -> None:
    file, found = tmp_path / "call", []
    for _ in range(3):
        for scn in (10, 20):
            assert note(file, scn, finishes=True) == 0
        found.append(note(file, 30))
    assert found == [0, 1, 2]


def test_a_refused_call_stays_refused_and_another_version_is_another_call(tmp_path: Path) -> None:
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


def test_what_a_killed_process_was_calling_is_known(processes: ForkServerContext, tmp_path: Path) -> None:
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


def test_a_disk_that_takes_nothing_stops_no_function(tmp_path: Path) -> None:
    (tmp_path / "components").write_text("a file where the folder should be")
    file = tmp_path / "components" / "call"
    assert [note(file, 10), note(file, 10)] == [0, 0]
