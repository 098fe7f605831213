"""`pip install .` installs the whole product: pyproject.toml lists all of its packages, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_package_of_the_product_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    tops = {name.partition(".")[0] for name in listed}
    found = {
        ".".join(file.parent.relative_to(ROOT).parts) for top in tops for file in (ROOT / top).rglob("__init__.py")
    }
    assert sorted(found) == sorted(listed)
