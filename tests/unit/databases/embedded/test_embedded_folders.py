"""Which data an embedded server starts, stops and removes after its folder was copied, moved or restored; no server
runs here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, DatabaseError
from headrace.databases.embedded.place import Place, give_all, name_of_data, read, write
from headrace.databases.embedded.servers import EmbeddedServer


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The data folders whose server was started."""
    found: list[Path] = []
    monkeypatch.setattr(EmbeddedServer, "_start", lambda server, facts: found.append(facts.place(server.folder)))
    return found


def made(folder: Path, data: str, *, owner: Path | None = None) -> EmbeddedServer:
    """A server that was started once and does not run, judging by its files."""
    folder.mkdir(parents=True)
    place = folder / data
    place.mkdir(parents=True)
    (place / "PG_VERSION").write_text("18\n")
    (place / "server.log").write_text("started\n")
    if owner is not None:
        (place / "headrace.folder").write_text(f"{owner}\n")
    (folder / "server.json").write_text(
        json.dumps({"version": 18, "port": 20000, "data": str(data), "user_number": os.geteuid()})
    )
    return EmbeddedServer(folder)


def initialized_by(monkeypatch: pytest.MonkeyPatch, parent: Path) -> None:
    """Let new data be initialised below this folder by a stand-in that writes their version."""

    def run(command: list[str], **_: object) -> None:
        if "-D" not in command:
            return
        (Path(command[command.index("-D") + 1]) / "PG_VERSION").write_text("18\n")
        (Path(command[command.index("-D") + 1]) / "postgresql.conf").touch()

    def find(folder: Path, _version: int) -> Place:
        return Place(Path("/bin"), parent, "data" if parent == folder else name_of_data(folder), os.geteuid())

    monkeypatch.setattr("headrace.databases.embedded.servers.run", run)
    monkeypatch.setattr("headrace.databases.embedded.servers.Place.find", find)


def copied(server: EmbeddedServer, folder: Path) -> EmbeddedServer:
    return EmbeddedServer(Path(shutil.copytree(server.folder, folder)))


@pytest.fixture
def works_in() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended after the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.communicate()


def run_in(data: Path, processes: list[subprocess.Popen[bytes]]) -> int:
    """Run something that looks like a data folder's server."""
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=data)
    processes.append(process)
    (data / "postmaster.pid").write_text(f"{process.pid}\n")
    return process.pid


@pytest.mark.parametrize("is_absolute", [True, False])
def test_copy_uses_its_copied_data_and_never_touches_the_original(
    tmp_path: Path, started: list[Path], works_in: list[subprocess.Popen[bytes]], is_absolute: bool
):
    """Earlier versions recorded the whole path of data inside the folder."""
    data = tmp_path / "one" / "data"
    original = made(tmp_path / "one", str(data) if is_absolute else "data")
    pid = run_in(data, works_in)
    copy = copied(original, tmp_path / "two")
    assert (original.pid(), copy.pid()) == (pid, None)
    assert copy.data_folder == tmp_path / "two" / "data"
    copy.stop(immediate=True)
    copy.start()
    assert started == [tmp_path / "two" / "data"]
    copy.destroy()
    assert works_in[0].poll() is None
    assert original.pid() == pid
    assert not copy.folder.exists()
    shutil.rmtree(original.folder / "data")
    with pytest.raises(DatabaseError, match="is gone"):
        original.pid()


@pytest.mark.parametrize("is_absolute", [True, False])
def test_moved_folder_keeps_its_data(tmp_path: Path, started: list[Path], is_absolute: bool):
    data = tmp_path / "one" / "data"
    server = made(tmp_path / "one", str(data) if is_absolute else "data")
    server.folder.rename(tmp_path / "two")
    moved = EmbeddedServer(tmp_path / "two")
    moved.start()
    assert started == [tmp_path / "two" / "data"]
    moved.destroy()
    assert list(tmp_path.iterdir()) == []


def test_data_elsewhere_belong_to_their_recorded_folder_and_not_to_a_copy(
    tmp_path: Path, started: list[Path], works_in: list[subprocess.Popen[bytes]]
):
    data = tmp_path / "var" / "data-1"
    original = made(tmp_path / "one", str(data), owner=tmp_path / "one")
    pid = run_in(data, works_in)
    copy = copied(original, tmp_path / "two")
    assert (original.pid(), copy.pid(), copy.is_running) == (pid, None, False)
    copy.stop()
    for refused in (copy.start, copy.dsn, lambda: copy.port):
        with pytest.raises(ConfigError, match=f"belong to {tmp_path / 'one'}, of which .* is a copy"):
            refused()
    copy.destroy()
    assert not copy.folder.exists()
    assert data.exists()
    assert works_in[0].poll() is None
    assert started == []


def test_data_elsewhere_follow_a_moved_folder(tmp_path: Path, started: list[Path]):
    data = tmp_path / "var" / "data-1"
    made(tmp_path / "one", str(data), owner=tmp_path / "one").folder.rename(tmp_path / "two")
    moved = EmbeddedServer(tmp_path / "two")
    moved.start()
    assert started == [data]
    assert (data / "headrace.folder").read_text() == f"{tmp_path / 'two'}\n"
    # A later folder at the old place does not own the data, and neither does a backup of it.
    with pytest.raises(ConfigError, match="is a copy"):
        copied(moved, tmp_path / "one").start()
    moved.destroy()
    assert not data.exists()


def test_data_elsewhere_of_an_earlier_version_are_recognised_by_name(
    tmp_path: Path, started: list[Path], works_in: list[subprocess.Popen[bytes]]
):
    data = tmp_path / "var" / name_of_data(tmp_path / "one")
    original = made(tmp_path / "one", str(data))
    copy = copied(original, tmp_path / "two")
    run_in(data, works_in)
    with pytest.raises(ConfigError, match="runs for another folder"):
        copy.start()
    with pytest.raises(DatabaseError, match=f"{data} stays"):
        copy.destroy()
    assert data.exists()
    works_in.pop().communicate()
    original.start()
    assert started == [data]
    assert (data / "headrace.folder").read_text() == f"{tmp_path / 'one'}\n"
    original.destroy()
    assert not data.exists()


def test_data_elsewhere_follow_a_folder_moved_before_this_version(tmp_path: Path, started: list[Path]):
    data = tmp_path / "var" / name_of_data(tmp_path / "one")
    made(tmp_path / "one", str(data)).folder.rename(tmp_path / "two")
    moved = EmbeddedServer(tmp_path / "two")
    moved.start()
    assert started == [data]
    moved.destroy()
    assert not data.exists()


def test_used_data_are_never_taken_for_remains_of_an_interrupted_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = made(tmp_path / "one", "data")
    (server.folder / "server.json").unlink()
    initialized_by(monkeypatch, tmp_path / "one")
    with pytest.raises(DatabaseError, match=r"not the file server\.json"):
        server.start()
    assert (server.folder / "data" / "PG_VERSION").exists()


def test_new_server_does_not_take_the_data_of_a_moved_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Path]
):
    """The name of data elsewhere is derived from the folder's path, and a moved folder keeps its data under the old
    name.
    """
    data = tmp_path / "var" / name_of_data(tmp_path / "one")
    made(tmp_path / "one", str(data), owner=tmp_path / "one").folder.rename(tmp_path / "two")
    initialized_by(monkeypatch, tmp_path / "var")
    new = EmbeddedServer(tmp_path / "one")
    new.start()
    assert started == [new.data_folder]
    assert new.data_folder != data
    assert (data / "PG_VERSION").exists()
    assert EmbeddedServer(tmp_path / "two").data_folder == data


def test_link_in_the_data_folder_is_replaced_and_its_target_stays(tmp_path: Path):
    target, path = tmp_path / "target", tmp_path / "headrace.conf"
    target.write_text("root's")
    target.chmod(0o644)
    path.symlink_to(target)
    write(path, "port = 1\n", os.geteuid())
    assert not path.is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("port = 1\n", 0o600)
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("root's", 0o644)
    assert {each.name for each in tmp_path.iterdir()} == {"target", "headrace.conf"}, "no temporary file is left"


def test_hard_link_in_the_data_folder_is_replaced_and_its_file_stays(tmp_path: Path):
    target, path = tmp_path / "target", tmp_path / "headrace.conf"
    target.write_text("root's")
    path.hardlink_to(target)
    write(path, "port = 1\n", os.geteuid())
    assert (path.read_text(), target.read_text()) == ("port = 1\n", "root's")


def test_only_regular_files_in_the_data_folder_are_read(tmp_path: Path):
    (tmp_path / "secret").write_text("root's")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "missing"):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / name)


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path):
    with (tmp_path / "server.log").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")
    found = read(tmp_path / "server.log")
    assert found.endswith("the end\n")
    assert len(found) == 64 << 10


@pytest.mark.parametrize("number", ["0", "-1", "-5", "1" * 5000, "x"])
def test_pid_file_cannot_name_a_process_group(tmp_path: Path, number: str):
    server = made(tmp_path / "a", "data")
    (tmp_path / "a" / "data" / "postmaster.pid").write_text(f"{number}\n")
    assert server.pid() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_below_the_data_folder_keep_their_owner(tmp_path: Path):
    data, outside = tmp_path / "data", tmp_path / "outside"
    (data / "base").mkdir(parents=True)
    outside.mkdir()
    for path in (data / "base" / "1", outside / "roots", tmp_path / "roots"):
        path.write_text("")
    (data / "hard").hardlink_to(tmp_path / "roots")
    (data / "soft").symlink_to(outside / "roots")
    (data / "way").symlink_to(outside)
    for path in (data, data / "base", data / "base" / "1"):
        os.chown(path, 65534, 65534)
    give_all(data, 65521, of=65534)
    owners = {str(path.relative_to(tmp_path)): path.lstat().st_uid for path in tmp_path.rglob("*")}
    assert {name for name, owner in owners.items() if owner == 65521} == {"data", "data/base", "data/base/1"}
    assert owners["roots"] == owners["outside/roots"] == owners["data/hard"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_pid_file_cannot_name_a_shell_of_root_in_the_data_folder(tmp_path: Path):
    server = made(tmp_path / "a", "data")
    data = tmp_path / "a" / "data"
    os.chown(data, 65534, 65534)
    with subprocess.Popen(["/bin/sleep", "60"], cwd=data) as shell:
        (data / "postmaster.pid").write_text(f"{shell.pid}\n")
        try:
            assert server.pid() is None
        finally:
            shell.kill()
