"""Physical standbys of a test's server, made by pg_basebackup."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psycopg

from headrace.databases.embedded.place import give
from headrace.databases.embedded.servers import EmbeddedServer

__all__ = ["make_standby", "promote"]


def make_standby(primary: EmbeddedServer, folder: Path, *, slot: str) -> EmbeddedServer:
    """Return a running standby that synchronises slots where its version can.

    Args:
        primary: a running server.
        folder: of the standby; below the primary's parent, which the server's user can enter.
        slot: name of its physical slot, which is created.
    """
    facts = json.loads((primary.folder / "server.json").read_text())
    folder.mkdir()
    data = folder / "data"
    connection = f"host=127.0.0.1 port={primary.port} user=postgres password={primary.password}"
    subprocess.run(
        [
            str(primary.binary("pg_basebackup")),
            "-d",
            connection,
            "-D",
            str(data),
            "-X",
            "stream",
            "-c",
            "fast",
            "-C",
            "-S",
            slot,
        ],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (data / "standby.signal").touch()
    for path in [data, *data.rglob("*")]:
        give(path, facts["user_number"])
    (folder / "password").write_text(primary.password)
    (folder / "server.json").write_text(json.dumps({**facts, "data": str(data)}))
    settings = {
        "primary_conninfo": f"{connection} dbname=postgres",
        "primary_slot_name": slot,
        "hot_standby_feedback": "on",
    }
    if primary.version >= 17:
        settings["sync_replication_slots"] = "on"
    standby = EmbeddedServer(folder, version=primary.version, name=slot, settings={**primary._settings, **settings})
    standby.start()
    return standby


def promote(standby: EmbeddedServer) -> None:
    """Promote it to a primary on a new timeline."""
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        assert connection.execute("SELECT pg_promote(true, 300)").fetchone() == (True,)
