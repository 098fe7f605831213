"""`make setup`: which Python it accepts, what it refuses and why, and that repeating it is quick and safe.

The Pythons here are small scripts that answer as one; nothing is installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.session.bounds import STALL_S

ROOT = Path(__file__).parents[3]


class Clone:
    """A clone with only the files that the setup reads, and a folder of Pythons as the only PATH besides the system's
    tools.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self.pythons = folder / "pythons"
        self.calls = folder / "calls"
        (self.folder / "scripts").mkdir(parents=True)
        self.pythons.mkdir()
        shutil.copy(ROOT / "scripts" / "setup.sh", self.folder / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.folder)
        for tool in ("bash", "dirname", "cat", "rm", "mv", "tail", "env", "mkdir", "cp", "chmod"):
            (self.pythons / tool).symlink_to(str(shutil.which(tool)))

    def add_python(
        self,
        name: str,
        version: str,
        *,
        has_venv: bool = True,
        venv: str = "",
        pip: str = "exit 0",
        scripts: str = "exit 99",
    ) -> Path:
        """Add a program that answers the setup's questions to a Python, and copies itself as a virtual environment."""
        major, minor, _ = version.split(".")
        path = self.pythons / name
        path.write_text(f"""#!/bin/bash
case "$*" in
  *sys.version_info*) exit {0 if (major, minor) == ("3", "11") else 1} ;;
  *"import ensurepip"*) exit {0 if has_venv else 1} ;;
  *python_version*) echo {version} ;;
  "-m venv "*) {venv or ":"}; mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "#!$PWD/$3/bin/python" >"$3/bin/pip"; echo venv >>{self.calls} ;;
  "-m pip --version") exit 0 ;;
  "-m pip install"*) echo "pip $*" >>{self.calls}; {pip} ;;
  "- "*) exec {sys.executable} "$@" ;;
  "-P scripts/"*) {scripts} ;;
  *) echo "unexpected: $*" >&2; exit 99 ;;
esac
""")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which("bash") or "bash", "scripts/setup.sh"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={"PATH": str(self.pythons), "HOME": str(self.folder), **environment},
            check=False,
            timeout=60,
        )

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [shutil.which("bash") or "bash", "scripts/setup.sh"],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": str(self.pythons), "HOME": str(self.folder)},
        )

    def called(self) -> list[str]:
        return [line.split()[0] for line in self.calls.read_text().splitlines()] if self.calls.exists() else []


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_setup_makes_the_environment_and_then_has_nothing_to_do(clone):
    clone.add_python("python3.11", "3.11.7")
    first = clone.run()
    assert (first.returncode, clone.called()) == (0, ["venv", "pip"])
    assert "setup: done" in first.stderr
    second = clone.run()
    assert (second.returncode, second.stderr, clone.called()) == (0, "", ["venv", "pip"])


def test_setup_reinstalls_only_for_changed_dependencies(clone):
    clone.add_python("python3.11", "3.11.7")
    clone.run()
    file = clone.folder / "pyproject.toml"
    file.write_text(file.read_text().replace("line-length = 120", "line-length = 100"))
    clone.run()
    assert clone.called() == ["venv", "pip"]
    file.write_text(file.read_text().replace("pyyaml>=6,<7", "pyyaml>=6.1,<7"))
    clone.run()
    assert clone.called() == ["venv", "pip", "pip"]


def test_interrupted_setup_is_repeated(clone):
    clone.add_python("python3.11", "3.11.7", pip="kill -9 $PPID; exit 1")
    assert clone.run().returncode != 0
    clone.add_python("python3.11", "3.11.7")
    shutil.copy(clone.pythons / "python3.11", clone.folder / ".venv" / "bin" / "python")
    assert clone.run().returncode == 0
    assert clone.called() == ["venv", "pip", "pip"]


def test_setup_shows_the_end_of_pips_log_when_pip_fails(clone):
    clone.add_python("python3.11", "3.11.7", pip="echo 'ERROR: No matching distribution'; exit 1")
    run = clone.run()
    assert run.returncode == 3
    assert "ERROR: No matching distribution" in run.stderr
    assert "usually: no network" in run.stderr
    assert not (clone.folder / ".venv" / ".setup-stamp").exists()


def test_setup_shows_progress_instead_of_pips_output(clone):
    talk = "for n in $(echo {1..45}); do echo \"Collecting p$n\"; done; echo 'Installing collected packages: a, b, c'"
    clone.add_python("python3.11", "3.11.7", pip=talk)
    run = clone.run()
    assert [line for line in run.stderr.splitlines() if "packages" in line] == [
        "setup: 20 packages found",
        "setup: 40 packages found",
        "setup: installing 3 packages",
    ]
    assert run.stdout == ""


@pytest.mark.skipif(shutil.which("flock") is None, reason="this system has no flock: nothing is locked")
def test_setup_waits_for_another_one_in_the_same_clone(clone):
    (clone.pythons / "flock").symlink_to(str(shutil.which("flock")))
    clone.add_python("python3.11", "3.11.7")
    with (clone.folder / "scripts" / "setup.sh").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with clone.start() as setup:
            assert "waiting for its end" in setup.stderr.readline()
            assert clone.called() == []
            fcntl.flock(held, fcntl.LOCK_UN)
            setup.communicate(timeout=60)
    assert setup.returncode == 0
    assert clone.called() == ["venv", "pip"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_interrupt_ends_all_preparations_of_the_setup(clone, tmp_path, how):
    """Kernels and classes are prepared in parallel, and a script's background jobs ignore Ctrl-C."""
    pids = tmp_path / "pids"
    clone.add_python("python3.11", "3.11.7", scripts=f"echo $$ >>{pids}; exec {shutil.which('sleep')} 600")

    def begun() -> list[int]:
        return [int(line) for line in pids.read_text().split()] if pids.exists() else []

    with clone.start() as setup:
        deadline = time.monotonic() + STALL_S
        while len(begun()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        setup.send_signal(how)
        told = setup.communicate(timeout=STALL_S)[1]
    assert setup.returncode == 130
    assert "interrupted; the same command goes on from here" in told
    assert len(begun()) == 2
    assert [pid for pid in begun() if Path(f"/proc/{pid}").exists()] == []


def test_failed_environment_leaves_its_reason_and_no_folder(clone):
    clone.add_python("python3.11", "3.11.7", venv="mkdir $3; echo 'Error: no space left on device' >&2; exit 1")
    run = clone.run()
    assert run.returncode == 3
    assert "Error: no space left on device" in run.stderr
    assert not (clone.folder / ".venv").exists()


def test_environment_without_its_python_is_recreated(clone):
    clone.add_python("python3.11", "3.11.7")
    clone.run()
    (clone.folder / ".venv" / "bin" / "python").unlink()
    run = clone.run()
    assert run.returncode == 0
    assert "or was moved: making it again" in run.stderr
    assert clone.called() == ["venv", "pip", "venv", "pip"]


def test_moved_clone_is_set_up_anew(clone):
    """The programs in .venv/bin contain the path where they were made."""
    clone.add_python("python3.11", "3.11.7")
    clone.run()
    clone.folder = clone.folder.rename(clone.folder.with_name("moved"))
    assert clone.run().returncode == 0
    assert clone.called() == ["venv", "pip", "venv", "pip"]


@pytest.mark.parametrize(
    "name", ["with blanks", "a:b", "it's", "a$b", "a(b)", "a;b", "a&b", 'a"b', "a*b", "a[b]", "a\\b", "a#b", "a`b"]
)
def test_path_that_ray_cannot_run_from_is_refused(clone, name):
    clone.add_python("python3.11", "3.11.7")
    clone.folder = clone.folder.rename(clone.folder.with_name(name))
    run = clone.run()
    assert run.returncode == 2
    assert "move the clone" in run.stderr
    assert clone.called() == []


@pytest.mark.parametrize("name", ["plain-1.0_a", "ünï", "a+b@c,d=e%"])
def test_other_paths_are_accepted(clone, name):
    clone.add_python("python3.11", "3.11.7")
    clone.folder = clone.folder.rename(clone.folder.with_name(name))
    assert clone.run().returncode == 0


REFUSALS = {
    "another version": ({"python3": "3.12.1"}, {}, "no Python 3.11 in PATH; python3 is Python 3.12.1."),
    "one that is not what its name says": (
        {"python3.11": "3.12.1"},
        {},
        "no Python 3.11 in PATH; python3.11 is Python 3.12.1.",
    ),
    "no Python": ({}, {}, "no Python in PATH."),
    "a named one that does not run": (
        {"python3.11": "3.11.7"},
        {"PYTHON": "/bin/false"},
        "PYTHON=/bin/false does not run.",
    ),
    "a named one of another version": (
        {"python3.11": "3.11.7", "python3.10": "3.10.4"},
        {"PYTHON": "python3.10"},
        "PYTHON=python3.10 is Python 3.10.4.",
    ),
    "a named one that is missing": (
        {"python3.11": "3.11.7"},
        {"PYTHON": "/no/python"},
        "PYTHON=/no/python: there is no such program.",
    ),
}


@pytest.mark.parametrize(("pythons", "environment", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
def test_unsuitable_python_is_refused_with_reason_and_install_command(clone, pythons, environment, reason):
    for name, version in pythons.items():
        clone.add_python(name, version)
    run = clone.run(**environment)
    assert run.returncode == 2
    assert run.stderr.splitlines()[0] == f"setup: {reason}"
    assert "apt install python3.11 python3.11-venv" in run.stderr
    assert clone.called() == []
    assert not (clone.folder / ".venv").exists()


def test_python_without_venv_is_named_with_the_missing_package(clone):
    clone.add_python("python3.11", "3.11.2", has_venv=False)
    run = clone.run()
    assert run.returncode == 2
    assert "python3.11 has no venv module (Debian: apt install python3.11-venv)" in run.stderr


def test_python3_is_used_when_it_is_3_11_and_python3_11_is_missing(clone):
    clone.add_python("python3", "3.11.9")
    assert clone.run().returncode == 0


def test_python_with_venv_is_preferred_to_one_without(clone):
    clone.add_python("python3.11", "3.11.2", has_venv=False)
    clone.add_python("python3", "3.11.9")
    run = clone.run()
    assert run.returncode == 0
    assert str(clone.pythons / "python3") in run.stderr.splitlines()[0]


def test_make_runs_the_setup_before_every_job():
    text = (ROOT / "Makefile").read_text()
    for target in ("demo", "lint", "bench", "fmt", "protos", "docs"):
        assert f"\n{target}: setup\n" in text
    assert "\ntest: lint\n" in text
    assert "\ncheck: lint\n" in text


def test_ci_runs_the_test_command_of_the_readme():
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert run.read_text().splitlines()[-1] == "exec make test"
    assert "make test" in (ROOT / "README.md").read_text()
