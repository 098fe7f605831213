"""A state folder is its owner's alone: nobody else can read it, and one that others made or can write is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.security.upkeep import keep_certificates
from actors.state_folder import check_owned, make_private, not_owned
from headrace.base.errors import ConfigError
from headrace.deployment.deployment import Deployment
from headrace.deployment.inspection import check_topology, plan_topology
from tests.support.wire.attackers import NOBODY, open_folder, readable_by_others

IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root makes folders of another user")
FILE = (
    "topology: closed\nstate_dir: {state_dir}\nsites: {{a: {{database: {{kind: embedded}}}}, b: {{database:"
    " {{kind: embedded}}}}}}\nreplicate: [{{schemas: [public], from: a, to: [b]}}]\n"
)


@pytest.fixture
def shared() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@contextmanager
def another_user() -> Iterator[None]:
    """Run the block as a user that owns nothing; only root can become one."""
    groups = os.getgroups()
    os.setgroups([])
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setgroups(groups)


def filled(state_dir: Path) -> list[Path]:
    """A state folder as earlier versions left it."""
    files = [
        "desired.json",
        "cluster.json",
        "logs/site.a.log",
        "components/a~topology.json",
        "sites/a/redo/1",
        "sites/a/identity",
        "sites/a/database/server.json",
    ]
    for name in files:
        file = state_dir / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("secret")
    every = [state_dir, *sorted(state_dir.rglob("*"))]
    for each in every:
        each.chmod(0o755 if each.is_dir() else 0o644)
    return every


def test_open_folder_of_an_earlier_version_is_closed(shared: Path):
    state_dir = shared / "state"
    every = filled(state_dir)
    if IS_ROOT:
        assert set(readable_by_others(every)) == set(every)
    make_private(state_dir)
    # `EmbeddedServer` writes that file again
    assert [each for each in readable_by_others(every) if each.name != "server.json"] == []
    for each in every:
        assert each.is_dir() or each.read_text() == "secret"
    make_private(state_dir)


@as_root
def test_other_user_reaches_its_own_folder_and_sees_nothing_on_the_way(shared: Path):
    """An embedded server that root starts is such a user."""
    state_dir = shared / "state"
    data = state_dir / "sites" / "a" / "database" / "data"
    data.mkdir(parents=True, mode=0o700)
    os.chown(data, NOBODY, NOBODY)
    make_private(state_dir)
    above = [state_dir, state_dir / "sites", state_dir / "sites" / "a", data.parent]
    assert readable_by_others([*above, data]) == [data]
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


@as_root
def test_new_folders_above_the_state_folder_let_an_embedded_server_through(shared: Path):
    """The default, `.headrace/TOPOLOGY`, is two folders: if the server's user could not pass through, its data would go
    to a temporary folder.
    """
    state_dir = shared / ".headrace" / "closed"
    keep = (
        "from actors.state_folder import keep_private, make_private; from pathlib import Path; keep_private();"
        " make_private(Path({!r}))"
    )
    subprocess.run([sys.executable, "-c", keep.format(str(state_dir))], check=True, timeout=60)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (state_dir.parent, state_dir)] == [0o711, 0o711]


@as_root
def test_certificates_made_first_make_the_same_folders(shared: Path):
    file = shared / "closed.yaml"
    file.write_text(FILE.format(state_dir=shared / ".headrace" / "closed"))
    keep = (
        "from actors.state_folder import keep_private; from actors.security.upkeep import keep_certificates; from"
        " headrace.deployment.deployment import Deployment; keep_private(); from pathlib import Path;"
        " keep_certificates(Deployment.read(Path({!r})).spec)"
    )
    subprocess.run([sys.executable, "-c", keep.format(str(file))], check=True, timeout=60)
    assert {stat.S_IMODE(each.stat().st_mode) for each in (shared / ".headrace", shared / ".headrace" / "closed")} == {
        0o711
    }


def test_command_and_its_children_write_for_their_user_alone(tmp_path: Path):
    program = (
        "import headrace.cli.app, subprocess; headrace.cli.app.main = lambda: subprocess.run(['touch', 'made'],"
        " check=True); from headrace.cli.entry import main; main()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=60)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o600


def test_own_and_later_folders_are_accepted(shared: Path):
    for state_dir in (shared / "later" / "state", shared, shared / "linked"):
        if state_dir.name == "linked":
            state_dir.symlink_to(shared / "there")
            (shared / "there").mkdir()
        assert not_owned(state_dir) is None


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_folder_that_others_may_write_is_refused(shared: Path, mode: int):
    state_dir = shared / "its state"
    state_dir.mkdir()
    state_dir.chmod(mode)
    with pytest.raises(ConfigError, match=f"other users may write {state_dir}") as refused:
        check_owned(state_dir)
    (command, _, _) = refused.value.hint.partition(",")
    subprocess.run(["/bin/sh", "-c", command], check=True)
    check_owned(state_dir)


def test_folder_in_a_parent_where_others_could_replace_it_is_refused(shared: Path):
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    (shared / "open" / "state").mkdir()
    with pytest.raises(ConfigError, match=f"other users may write {shared / 'open'} "):
        check_owned(shared / "open" / "state")


@as_root
@pytest.mark.parametrize("made", ["the folder", "its parent", "a link"])
def test_first_user_in_a_shared_folder_does_not_get_the_topology(shared: Path, made: str):
    state_dir = shared / "first" / "state"
    if made == "a link":
        state_dir = shared / "state"
        (shared / "elsewhere").mkdir()
        state_dir.symlink_to(shared / "elsewhere")
        os.chown(state_dir, NOBODY, NOBODY, follow_symlinks=False)
    else:
        state_dir.mkdir(parents=True)
        os.chown(state_dir if made == "the folder" else state_dir.parent, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=str(NOBODY)):
        check_owned(state_dir)


@as_root
def test_error_for_another_user_names_the_owner_of_the_folders_above(shared: Path):
    """The folders that Headrace makes are closed, too; the user who is asked to correct their rights may open them."""
    state_dir = shared / ".headrace" / "closed"
    state_dir.mkdir(parents=True)
    state_dir.parent.chmod(0o700)
    file = shared / "closed.yaml"
    file.write_text(FILE.format(state_dir=state_dir))
    with another_user():
        with pytest.raises(ConfigError) as refused:
            Deployment.read(file)
        found = check_topology(file, ask_databases=False).findings
    assert f"user {NOBODY} may not look into {state_dir.parent}, which belongs to user 0" in refused.value.message
    assert refused.value.hint.startswith("run it as that user")
    assert [each.path for each in found] == ["state_dir"]


@as_root
def test_check_by_another_user_ignores_unreadable_certificates(shared: Path):
    file = shared / "closed.yaml"
    file.write_text(FILE.format(state_dir=shared / "state"))
    keep_certificates(Deployment.read(file).spec)
    with another_user():
        found = check_topology(file, ask_databases=False).findings
    assert [each.path for each in found] == ["state_dir"]


def test_check_plan_and_every_command_refuse_such_a_folder(shared: Path):
    state_dir = shared / "state"
    state_dir.mkdir()
    state_dir.chmod(0o777)
    file = shared / "closed.yaml"
    file.write_text(FILE.format(state_dir=state_dir))
    (found,) = check_topology(file, ask_databases=False).findings
    assert (found.path, found.is_error) == ("state_dir", True)
    assert found.fix.startswith(f"chmod go-w {state_dir}")
    for read in (lambda: Deployment.read(file), lambda: plan_topology(file, ask_databases=False)):
        with pytest.raises(ConfigError, match="state_dir: other users may write"):
            read()
