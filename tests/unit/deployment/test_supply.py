"""What Headrace is installed with: the lock file and the bill of materials agree with pyproject.toml and the
environment.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
ENTRY = re.compile(r"^([a-z0-9.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", re.MULTILINE)


@pytest.fixture(scope="module")
def required() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(each) for each in project["dependencies"]]


def test_the_lock_file_has_every_requirement_in_its_range_with_a_hash(required: list[Requirement]):
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(ENTRY.findall(text))
    assert len(locked) == text.count("==")
    wrong = [
        str(each)
        for each in required
        if each.name.lower() not in locked or not each.specifier.contains(locked[each.name.lower()])
    ]
    assert not wrong, "run scripts/lock.py"


def test_the_bill_of_materials_names_every_requirement_and_the_programs_that_come_along(required: list[Requirement]):
    script = ROOT / "scripts" / "bill_of_materials.py"
    bill = json.loads(
        subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300).stdout
    )
    found = {each["name"]: each for each in bill["components"] if each["type"] == "library"}
    assert bill["metadata"]["component"]["version"] == version("headrace")
    assert {each.name.lower() for each in required} <= set(found)
    assert "pytest" not in found
    assert found["psycopg"]["version"] == version("psycopg")
    assert [each["name"] for each in bill["components"] if each["type"] == "platform"] == [
        "OpenJDK",
        "PostgreSQL",
        "PostgreSQL",
    ]
