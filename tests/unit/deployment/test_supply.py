"""The supply chain of Headrace: lock file, bill of materials and licences agree with pyproject.toml and the
environment.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.licences import PAGE, REVIEWED, LicenceError, Review, is_usable, licence_of, licences, page

ROOT = Path(__file__).resolve().parents[3]
ENTRY = re.compile(r"^([a-z0-9.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", re.MULTILINE)


@pytest.fixture(scope="module")
def required() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(each) for each in project["dependencies"]]


def test_lock_file_has_every_requirement_in_its_range_with_a_hash(required: list[Requirement]):
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(ENTRY.findall(text))
    assert len(locked) == text.count("==")
    wrong = [
        str(each)
        for each in required
        if each.name.lower() not in locked or not each.specifier.contains(locked[each.name.lower()])
    ]
    assert not wrong, "run scripts/lock.py"


def test_bill_of_materials_names_requirements_and_accompanying_programs(required: list[Requirement]):
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


def test_every_locked_package_has_a_usable_licence_on_the_page(
    required: list[Requirement],
):
    found = licences()
    assert set(found) == {name for name, _ in ENTRY.findall((ROOT / "requirements.lock").read_text())}
    assert {each.name.lower() for each in required} <= set(found)
    assert PAGE.read_text() == page(found), "run python -m scripts.licences"
    assert set(REVIEWED) <= set(found)
    assert [name for name, each in REVIEWED.items() if not each.reason] == []


@pytest.mark.parametrize(
    ("expression", "usable"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND MIT", True),
        ("BSD-3-Clause AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only OR AGPL-3.0-only", False),
        ("GPL-3.0-only OR MIT AND SSPL-1.0", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("(MIT OR GPL-3.0-only) AND MIT", False),  # parentheses need a review
        ("BSD License", False),  # one of four licences of this name
        ("", False),
    ],
)
def test_licence_is_usable_if_one_whole_alternative_is_usable(expression: str, usable: bool):
    assert is_usable(expression) is usable


@pytest.mark.parametrize("said", ["", "AGPL-3.0-only", "BSD License"])
def test_package_with_an_unusable_or_no_licence_is_refused(said: str):
    with pytest.raises(LicenceError, match="package"):
        licence_of("package", said, {})


def test_review_counts_until_the_metadata_change():
    reviewed = {"package": Review("BSD License", "BSD-2-Clause", "Its licence file has two clauses.")}
    assert licence_of("package", "BSD License", reviewed) == "BSD-2-Clause"
    with pytest.raises(LicenceError, match="review it again"):
        licence_of("package", "SSPL-1.0", reviewed)


def test_headrace_has_the_full_apache_licence_and_its_package_names_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    # The Apache Software Foundation's file, byte for byte.
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
