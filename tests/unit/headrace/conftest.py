"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.console.output import Output
from tests.support.topologies.files import ONE_WAY


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """The file of a topology of one way, beside which its state folder will be."""
    file = tmp_path / "t.yaml"
    file.write_text(ONE_WAY)
    return file


@pytest.fixture(autouse=True)
def _no_file_named() -> Iterator[None]:
    """A command line that a test ran names no file to the next one."""
    yield
    Output.file = ""
