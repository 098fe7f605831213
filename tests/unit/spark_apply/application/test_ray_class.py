"""Ray's Java library unpacks into our folder: the copied class differs from Ray's in one constant only."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import ray

from headrace.base.errors import BugError
from spark_apply.application.jvm.ray_class import write_ray_class

CLASS = "io/ray/runtime/RayNativeRuntime.class"
JAR = Path(ray.__file__).parent / "jars" / "ray_dist.jar"


def constants(data: bytes) -> list[object]:
    """Yield a class file's constants in order, then the rest of the file (Java Virtual Machine Specification, 4.4)."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
    assert data[:4] == b"\xca\xfe\xba\xbe"
    left, at, found = int.from_bytes(data[8:10], "big") - 1, 10, []
    while left > 0:
        mark, size = data[at], sizes.get(data[at], 0)
        if mark == 1:
            size = 2 + int.from_bytes(data[at + 1 : at + 3], "big")
            found.append(data[at + 3 : at + 1 + size].decode("utf-8"))
        else:
            found.append(data[at : at + 1 + size])
        at += 1 + size
        left -= 2 if mark in {5, 6} else 1  # long and double take two numbers
    return [*found, data[at:]]


@pytest.mark.parametrize("name", ["x", "a folder with blanks and an ü", "long" * 50])
def test_copied_ray_class_differs_only_in_the_library_folder(tmp_path: Path, name: str):
    write_ray_class(tmp_path / "classes", tmp_path / name)
    with zipfile.ZipFile(JAR) as archive:
        before = constants(archive.read(CLASS))
    after = constants((tmp_path / "classes" / CLASS).read_bytes())
    differences = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert differences == [("/tmp/ray/", f"{tmp_path / name}/")]


def test_unknown_version_of_ray_is_refused(tmp_path: Path):
    jar = tmp_path / "other.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(CLASS, b"\xca\xfe\xba\xbe")
    with pytest.raises(BugError, match="no single constant"):
        write_ray_class(tmp_path / "classes", tmp_path, jar=jar)
