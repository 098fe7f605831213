"""Shared fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.console.output import Output
from tests.support.topologies.files import ONE_WAY


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """A file with a one-way topology; its state folder will be next to it."""
    file = tmp_path / "t.yaml"
    file.write_text(ONE_WAY)
    return file


@pytest.fixture(autouse=True)
def _no_file_named() -> Iterator[None]:
    """Keep a file named by one test's command line out of the next test."""
    yield
    Output.file = ""
