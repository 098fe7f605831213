"""The wheel: built as a release is, and installed into an environment that has no other copy of Headrace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = [pytest.mark.long, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PACKAGES = ("actors", "headrace", "protos", "spark_apply", "topology")
SOURCES = (*PACKAGES, "LICENSE", "README.md", "pyproject.toml")
# All in one process: loading the command line takes longer than checking a file.
CHECK_EACH = """
import sys
from headrace.cli.entry import main
for example in sys.argv[1:]:
    sys.argv = ["headrace", "check", "--offline", example]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (example, ended.code)
"""
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed; return its output."""
    outside = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, cwd=cwd, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from a copy of the sources: a build writes beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, sources / name)
    run(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources, cwd=folder)
    return next(folder.glob("headrace-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """Return the folder of programs of a new environment that has the wheel and this environment's other packages."""
    environment = wheel.parent / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    run(*PIP, "--python", python, "install", "--quiet", "--no-deps", "--no-compile", wheel, cwd=wheel.parent)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=wheel.parent).strip()
    # Use a plain path: this environment's own .pth files, which name the sources, are not read.
    (Path(packages) / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return environment / "bin"


def test_wheel_has_every_module_and_nothing_else(wheel: Path):
    here = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    with ZipFile(wheel) as opened:
        there = {name for name in opened.namelist() if name.endswith(".py")}
    assert here == there


def test_installed_program_prints_its_version(installed: Path, tmp_path: Path):
    assert run(installed / "headrace", "--version", cwd=tmp_path).strip() == "headrace 0.1.0"


def test_installed_program_checks_every_example(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / "examples", folder, ignore=shutil.ignore_patterns("certs", ".headrace*", "__pycache__"))
    examples = sorted(folder.glob("*.yaml"))
    assert examples
    # as the head of tls.yaml says
    run(installed / "headrace", "certs", folder / "certs", "--topology", folder / "tls.yaml", cwd=tmp_path)
    for example in examples:
        for name in re.findall(r"\$\{(\w+)\}", example.read_text()):
            monkeypatch.setenv(name, f"host=db.example dbname={name.lower()}")
    run(installed / "python", "-c", CHECK_EACH, *examples, cwd=tmp_path)


def test_testing_kit_comes_from_the_wheel(installed: Path, tmp_path: Path):
    where = run(installed / "python", "-c", "import headrace.testing as t; print(t.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
