"""`down --purge --keep-servers`: with embedded servers, the printed remedy for a lost log can be followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from actors.site.connection import access_to, embedded_server
from headrace.base.errors import INSTANTIATE_AGAIN
from headrace.commands.kept import purge_losses
from headrace.databases.connectors import open_destination
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.deployment.deployment import Deployment

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILE = """
topology: kept
state_dir: {state_dir}
sites: {{a: {{database: {{kind: embedded}}}}, b: {{database: {{kind: embedded}}}}}}
replicate: [{{schemas: [shop], between: [a, b]}}]
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Deploy two servers that hold a table and the objects that Headrace creates at a destination; nothing else runs."""
    file = tmp_path / "kept.yaml"
    file.write_text(FILE.format(state_dir=tmp_path / "state"))
    made = Deployment.read(file)
    for server in servers(made).values():
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as user:
            user.execute("CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY); INSERT INTO shop.t VALUES (1)")
    for site in made.spec.sites:
        with closing(open_destination(access_to(site, servers(made)[site.name].dsn()))) as destination:
            destination.prepare("kept")
            destination.raise_epoch("kept", next(apply.name for apply in made.spec.applies if apply.site == site.name))
        (made.spec.state_dir / "sites" / site.name / "redo").mkdir()
    yield made
    for server in servers(made).values():
        server.destroy()


def servers(deployment: Deployment) -> dict[str, EmbeddedServer]:
    return {site.name: embedded_server(deployment.spec, site) for site in deployment.spec.sites}


def test_remedy_for_a_lost_log_names_the_option():
    assert INSTANTIATE_AGAIN.startswith("`headrace down --purge --keep-servers`")


def test_servers_keep_running_with_their_tables_and_all_else_is_removed(deployment: Deployment):
    said: list[str] = []
    servers(deployment)["b"].stop()  # the machine was restarted since
    assert deployment.down(purge=True, keep_servers=True, progress=said.append) == []
    for name, server in servers(deployment).items():
        assert server.is_running
        with psycopg.connect(server.dsn()) as user:
            assert user.execute("SELECT count(*) FROM shop.t").fetchone() == (1,)
            assert user.execute("SELECT pg_catalog.to_regnamespace('headrace')").fetchone() == (None,)
        assert [path.name for path in (deployment.spec.state_dir / "sites" / name).iterdir()] == ["database"]
        assert f"{name}: DROP SCHEMA headrace" in said
    assert {path.name for path in deployment.spec.state_dir.iterdir()} <= {"sites", "audit.log"}
    assert len(deployment.embedded_shells()) == 2
    assert deployment.down(purge=True, keep_servers=True) == []  # again
    assert all(server.is_running for server in servers(deployment).values())
    assert deployment.down(purge=True) == []
    assert not any(server.folder.exists() for server in servers(deployment).values())


def test_removal_is_announced_before(deployment: Deployment):
    assert [line for line in purge_losses(deployment.spec) if "with every table in it" in line]
    kept = purge_losses(deployment.spec, keep_servers=True)
    assert not [line for line in kept if "with every table in it" in line]
    assert [line for line in kept if line.startswith(("a: publication", "b: publication"))]
