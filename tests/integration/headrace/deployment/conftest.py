"""Shared fixture for tests of checks: two empty databases and the file that names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from tests.support.databases.checked import Checked


@pytest.fixture
def checked(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Checked:
    return Checked(fresh_database(pg_source), fresh_database(pg_destination), tmp_path, monkeypatch)
