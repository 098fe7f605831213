"""The audit log: whole lines, private to its owner, bounded, even with other writers and truncated lines."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

import headrace.audit.log
from headrace.audit.log import AUDIT_FILES, FILE, OLDER_FILE, AuditLog

WRITERS, LINES = 6, 25


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "state" / "t")


def test_entry_is_read_back_and_the_file_is_private(log):
    before = os.umask(0)
    try:
        log.append({"verb": "up", "user": "zoë\n"})
    finally:
        os.umask(before)
    log.append({"verb": "down"})
    assert log.lines().entries == ({"verb": "up", "user": "zoë\n"}, {"verb": "down"})
    assert [(log.state_dir / FILE).stat().st_mode & 0o777, log.state_dir.stat().st_mode & 0o022] == [0o600, 0]
    assert len((log.state_dir / FILE).read_text().splitlines()) == 2


def test_next_entry_closes_a_file_that_others_may_read(log):
    log.append({"verb": "up"})
    (log.state_dir / FILE).chmod(0o644)
    log.append({"verb": "up"})
    assert (log.state_dir / FILE).stat().st_mode & 0o777 == 0o600


def test_concurrent_commands_lose_no_line_while_the_file_is_rotated(log, monkeypatch):
    """About two thirds of all lines fit the first file, so that it is rotated once."""
    length = len(json.dumps({"verb": "stop", "writer": 0, "number": 10})) + 1
    monkeypatch.setattr(headrace.audit.log, "BYTES_MAX", WRITERS * LINES * length * 2 // 3)

    def write(writer: int) -> None:
        for number in range(LINES):
            log.append({"verb": "stop", "writer": writer, "number": number})

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = log.lines()
    assert found.damaged == 0
    assert sorted((entry["writer"], entry["number"]) for entry in found.entries) == [
        (writer, number) for writer in range(WRITERS) for number in range(LINES)
    ]
    assert {each.name for each in log.state_dir.iterdir()} == AUDIT_FILES


def test_writer_with_the_lock_of_a_rotated_file_writes_into_the_new_one(log, monkeypatch):
    log.append({"verb": "up"})
    lock, calls = fcntl.flock, iter(range(100))

    def late(descriptor: int, how: int) -> None:
        if next(calls) == 0:
            (log.state_dir / FILE).replace(log.state_dir / OLDER_FILE)
            log.append({"verb": "stop"})
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    log.append({"verb": "down"})
    assert [json.loads(line)["verb"] for line in (log.state_dir / FILE).read_text().splitlines()] == ["stop", "down"]


def test_two_files_are_kept_however_much_is_written(log, monkeypatch):
    monkeypatch.setattr(headrace.audit.log, "BYTES_MAX", 300)
    for number in range(60):
        log.append({"verb": "stop", "number": number})
    assert {each.name for each in log.state_dir.iterdir()} == AUDIT_FILES
    assert all(each.stat().st_size <= 300 for each in log.state_dir.iterdir())
    assert (log.state_dir / OLDER_FILE).stat().st_size > 200
    numbers = [entry["number"] for entry in log.lines().entries]
    assert numbers == list(range(numbers[0], 60))


def test_line_truncated_by_a_crash_is_counted_and_damages_no_other(log):
    log.append({"verb": "up"})
    with (log.state_dir / FILE).open("ab") as file:
        file.write(b'{"verb": "do')
    log.append({"verb": "down"})
    found = log.lines()
    assert ([entry["verb"] for entry in found.entries], found.damaged) == (["up", "down"], 1)


def test_line_that_does_not_fit_the_disk_is_removed_again(log, monkeypatch):
    log.append({"verb": "up"})
    before, write = (log.state_dir / FILE).read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:5]))
    with pytest.raises(OSError, match="disk is full"):
        log.append({"verb": "down"})
    assert (log.state_dir / FILE).read_bytes() == before


def test_link_in_place_of_the_file_is_not_followed(log, tmp_path):
    log.append({"verb": "up"})
    (log.state_dir / FILE).unlink()
    (log.state_dir / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=FILE):
        log.append({"verb": "up"})
    assert not (tmp_path / "elsewhere").exists()


def test_folder_that_others_may_write_gets_no_entry(log):
    log.state_dir.mkdir(parents=True)
    log.state_dir.chmod(0o777)
    with pytest.raises(OSError, match="other users may write"):
        log.append({"verb": "up"})
    assert list(log.state_dir.iterdir()) == []


def test_wait_for_a_lock_of_a_stopped_command_has_a_bound(log, monkeypatch):
    monkeypatch.setattr(headrace.audit.log, "LOCK_S", 0.0)
    log.append({"verb": "up"})
    with (log.state_dir / FILE).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="is locked"):
            log.append({"verb": "stop"})
    log.append({"verb": "stop"})
    assert len(log.lines().entries) == 2
