"""A source with its redo log and a destination, in fresh databases on the session's servers, without Ray and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from databases.embedded import EmbeddedServer

if TYPE_CHECKING:
    from tests.support.postgres_pair import Pair


@pytest.fixture
def pair(
    pg_source: EmbeddedServer, pg_destination: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str], tmp_path: Path
) -> Iterator[Pair]:
    from tests.support.postgres_pair import Pair  # imports the apply servers: not for tests that need none

    made = Pair(fresh_database(pg_source), fresh_database(pg_destination), tmp_path / "redo")
    yield made
    made.close()
