"""The class path of a Spark application's JVMs, and the archive from which they map the classes on it.

Each of an application's five JVMs loads 5,000 to 8,000 classes. Finding, reading and checking them in the jars is half
the cost of its start (measured: 21 CPU seconds for all five, 9 to 12 with an archive). An archive holds for one class
path: the same jars, unchanged, in the same order, from its beginning. So all JVMs of all applications share one class
path of the installed jars, and an application's own entries follow it.

`scripts/archive_classes.py` writes the archive when the environment is set up. The name of its folder depends on the
jars and the Java that it was made for. When one of them was replaced since, no archive matches, and the JVMs read their
classes from the jars.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from spark_apply.application.environment import java_home, package_folder
from spark_apply.application.jvm.ray_class import CLASS, write_ray_class
from spark_apply.application.jvm.spark_home import spark_jars

__all__ = ["ARCHIVES", "ClassPath", "archived", "class_path", "prepare_archive"]

ARCHIVES = Path(sys.prefix) / "lib" / "headrace"
_ARCHIVE, _RAY_CLASS = "classes.jsa", "ray_class.jar"
# The JVM that loads the copied class unpacks a library of 40 MB into its working folder, which differs by application.
_LIBRARIES = Path("/proc/self/cwd/ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPath:
    """The class path of an application's JVMs.

    Args:
        entries: jars and folders, in order.
        archive: archive of the classes in them; None: there is none.
    """

    entries: tuple[Path, ...]
    archive: Path | None = None

    def __str__(self) -> str:
        """Return the class path in Java's form."""
        return os.pathsep.join(map(str, self.entries))

    @property
    def options(self) -> tuple[str, ...]:
        """JVM options that select the archive."""
        return () if self.archive is None else (f"-XX:SharedArchiveFile={self.archive}",)


def class_path(folder: Path, java: str | None, *, archives: Path = ARCHIVES) -> ClassPath:
    """Return the class path of an application that is about to start.

    Args:
        folder: the application's folder for what is not installed; its application master's working folder.
        java: the program that Ray's workers run; only the installed one has an archive.
        archives: folder of the archives.
    """
    prepared = archived(archives)
    if (
        prepared.archive is not None
        and prepared.archive.is_file()
        and java is not None
        and Path(java).resolve().is_relative_to(java_home())
    ):
        return prepared
    if os.pathsep in str(folder):  # it separates the entries
        return ClassPath(entries=_installed())
    write_ray_class(folder / "classes", folder / "ray")
    return ClassPath(entries=(folder / "classes", *_installed()))


def archived(archives: Path = ARCHIVES) -> ClassPath:
    """Return the class path that an archive is made for, whether or not the archive was written."""
    jars = _installed()
    digest = hashlib.sha256()
    for file in (java_home() / "lib" / "server" / "libjvm.so", *jars):
        found = file.stat()
        digest.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode())
    folder = archives / digest.hexdigest()[:16]
    return ClassPath(entries=(folder / _RAY_CLASS, *jars), archive=folder / _ARCHIVE)


def prepare_archive(archives: Path = ARCHIVES) -> ClassPath:
    """Write the parts of the class path that are not installed, and remove archives for other jars."""
    prepared = archived(archives)
    folder = prepared.entries[0].parent
    for other in archives.glob("*"):
        if other != folder:
            shutil.rmtree(other)
    folder.mkdir(parents=True, exist_ok=True)
    write_ray_class(folder, _LIBRARIES)
    with zipfile.ZipFile(prepared.entries[0], "w") as jar:
        jar.write(folder / CLASS, CLASS)
    shutil.rmtree(folder / Path(CLASS).parts[0])
    return prepared


def _installed() -> tuple[Path, ...]:
    """Return RayDP's jars, Spark's and Ray's: a class that several of them have comes from RayDP's."""
    raydp = sorted(package_folder("raydp").glob("jars/*.jar"), key=lambda jar: ("shims" not in jar.name, jar.name))
    return (*raydp, *spark_jars(), *sorted(package_folder("ray").glob("jars/*.jar")))
