"""The class path of a Spark application's JVMs, and the archive from which they map the classes on it.

Each of an application's five JVMs loads 5,000 to 8,000 classes. To find them in the jars, read and check them is half
of what its start costs (measured: 21 CPU seconds for all five, 9 to 12 with an archive). An archive holds for one class
path: the same jars, unchanged, in the same order, from its beginning. So all JVMs of all applications have the same
one, of the installed jars, and what an application adds of its own comes behind it.

`scripts/archive_classes.py` writes the archive when the environment is set up. Its folder is named after the jars and
the Java that it was made for: where one of them was replaced since, there is none, and the JVMs read their classes from
the jars.
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
# The JVM that loads the copied class unpacks a library of 40 MB into its working folder, which is another one for each
# application.
_LIBRARIES = Path("/proc/self/cwd/ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPath:
    """What the JVMs of an application load classes from.

    Args:
        entries: jars and folders, in order.
        archive: of the classes in them; None: there is none.
    """

    entries: tuple[Path, ...]
    archive: Path | None = None

    def __str__(self) -> str:
        """As Java takes it."""
        return os.pathsep.join(map(str, self.entries))

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the JVMs."""
        return () if self.archive is None else (f"-XX:SharedArchiveFile={self.archive}",)


def class_path(folder: Path, java: str | None, *, archives: Path = ARCHIVES) -> ClassPath:
    """The class path of an application that is to start.

    Args:
        folder: of the application, for what is not installed; its application master's working folder.
        java: the program that Ray's workers run; only an installed one has an archive.
        archives: where archives are.
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
    """The class path of which there is an archive, when it was written, and where.

    Args:
        archives: where archives are.
    """
    jars = _installed()
    digest = hashlib.sha256()
    for file in (java_home() / "lib" / "server" / "libjvm.so", *jars):
        found = file.stat()
        digest.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode())
    folder = archives / digest.hexdigest()[:16]
    return ClassPath(entries=(folder / _RAY_CLASS, *jars), archive=folder / _ARCHIVE)


def prepare_archive(archives: Path = ARCHIVES) -> ClassPath:
    """Write everything of the class path that is not installed, and remove archives for other jars.

    Args:
        archives: where archives are.
    """
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
    """RayDP's jars, Spark's and Ray's: a class that is in several of them comes from RayDP's."""
    raydp = sorted(package_folder("raydp").glob("jars/*.jar"), key=lambda jar: ("shims" not in jar.name, jar.name))
    return (*raydp, *spark_jars(), *sorted(package_folder("ray").glob("jars/*.jar")))
