"""import-linter enforces the import rules of docs/how/architecture.md; these tests check that it finds violations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.session.packages import PACKAGES, ROOT, modules

# Importers as close as possible to the permitted ones.
FORBIDDEN = {
    "headrace.lcr.scn": "headrace.rules.rule",
    "protos.codec": "grpc",
    "actors.apply": "ray",
    "spark_apply.application.process": "raydp",
    "spark_apply.driver.loop.host": "pyspark",
    "headrace.deployment.inspection": "cryptography",
    "topology.spec": "pydantic",
    "headrace.rules.conditions.logic": "sqlglot",
    "protos.wire.transport": "pyarrow",
    "headrace.databases.embedded.servers": "psycopg",
    "headrace.databases.ports": "headrace.databases.postgres.connection",
    "actors.source_database": "headrace.databases.postgres.source.database",
    "headrace.commands.doctor": "headrace.databases.postgres.versions",
    "spark_apply.server.apply_server": "headrace.databases.postgres.destination.server_session.session",
}
CIRCLE = (
    "headrace.redo.records",
    "headrace.redo.segments",
)  # a contract about siblings reports their names and no line


def test_every_folder_of_the_packages_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {str(file.parent.relative_to(ROOT)).replace("/", ".") for file in modules(*PACKAGES)}
    assert (sorted(folders), len(set(listed))) == (sorted(listed), len(listed))


@pytest.mark.slow
def test_forbidden_import_is_found_wherever_it_hides(tmp_path):
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert _lint(tmp_path).returncode == 0
    for importer, imported in (*FORBIDDEN.items(), CIRCLE):
        with (tmp_path / f"{importer.replace('.', '/')}.py").open("a") as file:
            file.write(f"\n\ndef _hidden():\n    import {imported}\n")
    found = _lint(tmp_path)
    assert found.returncode == 1
    assert "0 kept" in found.stdout
    assert [f"{a} -> {b}" for a, b in FORBIDDEN.items() if f"{a} -> {b} (l." not in found.stdout] == []
    assert all(name.rpartition(".")[2] in found.stdout.partition("no circle inside a package")[2] for name in CIRCLE)


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "lint-imports"
    wide = {**os.environ, "COLUMNS": "200"}  # without this, long names are wrapped
    return subprocess.run(
        [program, "--no-logo", "--no-cache"], cwd=folder, env=wide, capture_output=True, text=True, check=False
    )
