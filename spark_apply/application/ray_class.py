"""A copy of one class of Ray's Java library that keeps its 40 MB native library in a folder of ours.

The application master's JVM is a Ray driver, and a Ray driver unpacks its native library into `/tmp/ray/<milliseconds>`,
whatever Ray's temporary folder is. Nobody removes it, so every incarnation of an apply process would cost 40 MB; and on a machine
where another user's Ray made `/tmp/ray` first, that folder cannot be written and Spark never starts.

The path is a constant of one class and no setting changes it. So that class is copied with another constant, for the class path to find first.
Constants of a class file are referred to by number: another length moves nothing.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from streams.errors import BugError

__all__ = ["write_ray_class"]

_CLASS = "io/ray/runtime/RayNativeRuntime.class"
_FIXED_FOLDER = "/tmp/ray/"  # noqa: S108 - what is replaced


def _constant(text: str) -> bytes:
    """A text as it stands among a class file's constants: a mark (1), its length, its bytes."""
    data = text.encode("utf-8")
    return b"\x01" + len(data).to_bytes(2, "big") + data


def write_ray_class(classes: Path, libraries: Path, *, jar: Path | None = None) -> None:
    """Write the copy of the class.

    Args:
        classes: root of a class path; made when missing.
        libraries: where the native library goes, into a folder of its own for each JVM.
        jar: Ray's Java library; the installed one's when None.

    Raises:
        BugError: this version of Ray is another one than what is known here.
    """
    if jar is None:
        import ray

        jar = Path(ray.__file__).parent / "jars" / "ray_dist.jar"
    with zipfile.ZipFile(jar) as archive:
        data = archive.read(_CLASS)
    known = _constant(_FIXED_FOLDER)
    if data.count(known) != 1:
        raise BugError(f"{_CLASS} in {jar} has no single constant {_FIXED_FOLDER}", hint="make setup installs the Ray that fits")
    target = classes / _CLASS
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data.replace(known, _constant(f"{libraries}/")))
