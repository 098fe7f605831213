"""A state folder that root closes to others, and its embedded servers that run as a spare user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.state_folder import make_private
from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.wire.attackers import open_folder, readable_by_others

pytestmark = [pytest.mark.postgres]


@pytest.fixture
def shared() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs embedded servers as another user")
def test_embedded_server_of_root_keeps_its_data_in_a_closed_state_folder(shared: Path):
    state_dir = shared / "state"
    server = EmbeddedServer(state_dir / "sites" / "a" / "database", name="closed-a")
    before = os.umask(0o077)
    try:
        server.folder.mkdir(parents=True)
        make_private(state_dir)
        server.start()
        assert server.data_folder == server.folder / "data"
        every = [state_dir, *sorted(state_dir.rglob("*"))]
        assert len(every) > 20
        assert readable_by_others(every) == []
    finally:
        os.umask(before)
        server.destroy()
