"""A node where other users can replace Ray's sockets is a finding; one that they cannot reach is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.security.links import ray_folder_findings
from tests.support.wire.attackers import open_folder
from topology.spec import DatabaseSpec, SiteSpec

SITE = SiteSpec(name="dbs1", database=DatabaseSpec(kind="embedded"), node=(("site_dbs1", 1.0),))


def session_in(folder: Path, mode: int) -> Path:
    """A session folder as Ray makes it, in a folder with this mode."""
    session = folder / "own" / "ray" / "session_1"
    session.mkdir(parents=True)
    for each, its_mode in ((session, 0o777), (session.parent, 0o777), (session.parent.parent, mode)):
        each.chmod(its_mode)
    return session


@pytest.mark.parametrize("mode", [0o755, 0o711])
def test_outermost_folder_that_others_may_write_is_named(mode: int):
    with open_folder() as folder:
        session = session_in(folder, mode)
        (found,) = ray_folder_findings(SITE, session)
    assert found.path == "sites.dbs1.node"
    assert not found.is_error
    assert f"may write {session.parent}, " in found.problem
    assert "--temp-dir" in found.fix


@pytest.mark.parametrize("mode", [0o700, 0o600])
def test_open_folder_behind_a_closed_one_is_no_finding(mode: int):
    with open_folder() as folder:
        session = session_in(folder, mode)
        assert list(ray_folder_findings(SITE, session)) == []


def test_folders_that_others_may_not_write_are_no_finding():
    with open_folder() as folder:
        session = session_in(folder, 0o755)
        session.chmod(0o755)
        session.parent.chmod(0o1777)  # sticky, as /tmp: other users cannot replace it
        assert list(ray_folder_findings(SITE, session)) == []
