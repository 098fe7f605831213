"""The class path of an application's JVMs: equal for all to match the class archive, another one without an archive."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from spark_apply.application.environment import java_home
from spark_apply.application.jvm import class_path as module
from spark_apply.application.jvm.class_path import archived, class_path, prepare_archive

JAVA = str(java_home() / "bin" / "java")
CLASS = "io/ray/runtime/RayNativeRuntime.class"


def with_archive(folder: Path) -> Path:
    """An empty archive file for the installed jars."""
    archive = prepare_archive(folder).archive
    assert archive is not None
    archive.touch()
    return archive


def test_class_path_lists_each_raydp_spark_and_ray_jar_once(tmp_path: Path):
    jars = [entry.name for entry in class_path(tmp_path, None, archives=tmp_path / "archives").entries[1:]]
    assert len(set(jars)) == len(jars)
    kinds = [0 if "raydp" in name else 2 if name == "ray_dist.jar" else 1 for name in jars]
    assert kinds == sorted(kinds)
    assert set(kinds) == {0, 1, 2}


def test_class_archive_is_used_only_by_its_java_version(tmp_path: Path):
    archive = with_archive(tmp_path / "archives")
    found = class_path(tmp_path / "site", JAVA, archives=tmp_path / "archives")
    assert found.options == (f"-XX:SharedArchiveFile={archive}",)
    assert not (tmp_path / "site").exists()
    for other in (None, "/usr/bin/java"):
        assert class_path(tmp_path / "site", other, archives=tmp_path / "archives").options == ()


def test_unpacking_class_is_first_and_equal_for_all_applications(tmp_path: Path):
    with_archive(tmp_path)
    first, *_ = class_path(tmp_path / "site", JAVA, archives=tmp_path).entries
    with zipfile.ZipFile(first) as jar:
        assert jar.namelist() == [CLASS]
        assert b"/proc/self/cwd/ray/" in jar.read(CLASS)


def test_unpacking_class_without_an_archive_is_in_the_application_folder(tmp_path: Path):
    found = class_path(tmp_path / "site", JAVA, archives=tmp_path / "archives")
    assert found.options == ()
    assert str(tmp_path / "site" / "ray").encode() in (found.entries[0] / CLASS).read_bytes()


def test_folder_with_a_colon_is_never_on_the_class_path(tmp_path: Path):
    found = class_path(tmp_path / "a:b", JAVA, archives=tmp_path / "archives")
    assert not any(entry.is_relative_to(tmp_path) for entry in found.entries)


def test_archive_of_a_replaced_jar_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A JVM refuses such an archive, and with it the archive of the JDK's own classes."""
    jar = tmp_path / "spark-core.jar"
    jar.write_bytes(b"one version")
    monkeypatch.setattr(module, "spark_jars", lambda: (jar,))
    with_archive(tmp_path / "archives")
    assert class_path(tmp_path / "site", JAVA, archives=tmp_path / "archives").archive is not None
    os.utime(jar, ns=(1, 1))
    assert class_path(tmp_path / "site", JAVA, archives=tmp_path / "archives").archive is None


def test_preparing_an_archive_removes_archives_for_other_jars(tmp_path: Path):
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "classes.jsa").write_bytes(b"90 MB")
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "earlier"] == []
    folder = prepare_archive(tmp_path).entries[0].parent
    assert list(tmp_path.iterdir()) == [folder]
    assert archived(tmp_path).archive == folder / "classes.jsa"
