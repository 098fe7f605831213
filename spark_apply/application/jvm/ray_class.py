"""A copy of one class of Ray's Java library that unpacks its 40 MB native library into a folder of ours.

The application master's JVM is a Ray driver, and a Ray driver unpacks its native library into
`/tmp/ray/<milliseconds>`, whatever Ray's temporary folder is. Nothing removes it, so every incarnation of an apply
process would cost 40 MB. On a machine where another user's Ray created `/tmp/ray` first, that folder is not writable
and Spark never starts.

The path is a constant of one class, and no setting changes it. So a copy of that class with another constant is put
first on the class path. A class file refers to its constants by number, so a constant of another length moves nothing.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from headrace.base.errors import BugError
from spark_apply.application.environment import package_folder

__all__ = ["CLASS", "write_ray_class"]

CLASS = "io/ray/runtime/RayNativeRuntime.class"
_FIXED_FOLDER = "/tmp/ray/"  # noqa: S108 - the constant that is replaced


def _constant(text: str) -> bytes:
    """Encode a text constant of a class file: a mark (1), its length, its bytes."""
    data = text.encode("utf-8")
    return b"\x01" + len(data).to_bytes(2, "big") + data


def write_ray_class(classes: Path, libraries: Path, *, jar: Path | None = None) -> None:
    """Write the copy of the class.

    Args:
        classes: root of a class path; created if missing.
        libraries: folder for the native library; each JVM gets its own subfolder.
        jar: Ray's Java library; None: the installed one.

    Raises:
        BugError: this code does not support the version of Ray.
    """
    if jar is None:
        jar = package_folder("ray") / "jars" / "ray_dist.jar"
    with zipfile.ZipFile(jar) as archive:
        data = archive.read(CLASS)
    known = _constant(_FIXED_FOLDER)
    if data.count(known) != 1:
        raise BugError(
            f"{CLASS} in {jar} has no single constant {_FIXED_FOLDER}", hint="make setup installs the Ray that fits"
        )
    target = classes / CLASS
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data.replace(known, _constant(f"{libraries}/")))
