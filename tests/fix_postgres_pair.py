"""A source with its redo log and a destination, in fresh databases on the session's servers, without Ray and Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.copies.copied_pair import CopiedPair
    from tests.support.ways.postgres_pair import Pair


@pytest.fixture
def pair(source_database: str, destination_database: str, tmp_path: Path) -> Iterator[Pair]:
    from tests.support.ways.postgres_pair import Pair  # imports the apply servers: only for tests that need them

    made = Pair(source_database, destination_database, tmp_path / "redo")
    yield made
    made.close()


@pytest.fixture
def copied_pair(source_database: str, destination_database: str, tmp_path: Path) -> Iterator[CopiedPair]:
    """Such a pair whose tables are copied first."""
    from tests.support.copies.copied_pair import CopiedPair  # as above

    made = CopiedPair(source_database, destination_database, tmp_path / "redo")
    yield made
    made.close()
