"""Spark's home: what a job of Python tasks needs is in it, Hive and the like is not."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_apply.application.spark_home import write_spark_home

INSTALLED = Path(pyspark.__file__).parent


def linked_home(folder: Path) -> Path:
    home = write_spark_home(folder)
    if home is None:
        pytest.skip("the temporary folder is on another file system than pyspark")
    return home


def test_home_has_the_installed_jars_but_for_families_that_nothing_uses(tmp_path: Path):
    jars = {jar.name: jar for jar in (linked_home(tmp_path / "home") / "jars").iterdir()}
    installed = {jar.name: jar for jar in (INSTALLED / "jars").glob("*.jar")}
    assert 100 < len(jars) < len(installed) - 100
    assert all(jar.samefile(installed[name]) for name, jar in jars.items())
    families = {name.split("-")[0] for name in jars}
    assert {"spark", "hadoop", "scala", "netty", "jackson", "log4j", "py4j"} <= families
    assert not families & {"hive", "kubernetes", "mesos", "datanucleus", "parquet", "orc"}


def test_jars_are_no_symbolic_links_because_ray_would_open_them_twice(tmp_path: Path):
    assert not any(jar.is_symlink() for jar in (linked_home(tmp_path / "home") / "jars").iterdir())


def test_home_has_programs_and_python_and_can_be_made_again(tmp_path: Path):
    first = linked_home(tmp_path / "home")
    assert write_spark_home(tmp_path / "home") == first
    assert (first / "bin" / "spark-submit").is_file()
    assert list((first / "python" / "lib").glob("py4j-*.zip"))


def test_home_of_an_earlier_process_keeps_no_jar_of_another_version(tmp_path: Path):
    """Two versions of a jar on one class path: which of them a class comes from is a matter of chance."""
    jars = linked_home(tmp_path / "home") / "jars"
    kept, replaced = sorted(jar.name for jar in jars.iterdir())[:2]
    (jars / "spark-core_2.12-0.1.0.jar").write_bytes(b"another version")
    (jars / replaced).unlink()
    (jars / replaced).write_bytes(b"installed anew under the same name")
    (jars / "hive-exec-2.3.9-core.jar").hardlink_to(jars / kept)
    expected = {jar.name for jar in linked_home(tmp_path / "new" / "home").joinpath("jars").iterdir()}
    found = {jar.name: jar for jar in (linked_home(tmp_path / "home") / "jars").iterdir()}
    assert set(found) == expected
    assert all(jar.samefile(INSTALLED / "jars" / name) for name, jar in found.items())


def test_home_of_an_earlier_process_leads_to_the_programs_of_the_pyspark_of_now(tmp_path: Path):
    home = linked_home(tmp_path / "home")
    (home / "python").unlink()
    (home / "python").symlink_to(tmp_path / "an_earlier_environment")
    assert linked_home(home).joinpath("python").samefile(INSTALLED / "python")


def test_jars_that_are_still_the_installed_ones_are_not_linked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = linked_home(tmp_path / "home")

    def refuse(self: Path, target: Path) -> None:
        raise AssertionError(f"{self} -> {target}")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert write_spark_home(home) == home


def test_installed_home_serves_where_jars_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(self), None, str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert write_spark_home(tmp_path / "home") is None
    assert not (tmp_path / "home").exists()


CORE = ("spark-core", "spark-common", "spark-network", "spark-unsafe", "spark-launcher", "spark-kvstore", "spark-catalyst", "spark-sql-api")
# The core mentions these too: leader election of Spark's own cluster manager, and pages. A topology has neither. The others
# have classes that the JDK has.
NOT_USED = {"curator-framework", "curator-client", "curator-recipes", "zookeeper", "jersey-common", "jersey-container-servlet-core",
            "jta", "transaction-api", "stax-api"}


def mentioned(data: bytes) -> Iterator[str]:
    """The classes that a class file names (Java Virtual Machine Specification, 4.4): its constants, and types in them."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
    number, count, at = 1, int.from_bytes(data[8:10], "big"), 10
    while number < count:
        mark = data[at]
        if mark == 1:
            end = at + 3 + int.from_bytes(data[at + 1:at + 3], "big")
            text = data[at + 3:end].decode("utf-8", "replace")
            yield text
            yield from re.findall(r"L([\w/$]+);", text)
            at = end
        else:
            at += 1 + sizes[mark]
        number += 2 if mark in {5, 6} else 1


@pytest.mark.long
def test_nothing_that_spark_itself_mentions_is_left_out(tmp_path: Path):
    kept = {jar.name for jar in (linked_home(tmp_path / "home") / "jars").iterdir()}
    left_out: dict[str, set[str]] = {}
    for jar in (INSTALLED / "jars").glob("*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.endswith(".class"):
                    left_out.setdefault(name.removesuffix(".class"), set()).add(jar.name)
    left_out = {name: jars for name, jars in left_out.items() if not jars & kept}
    missing: dict[str, str] = {}
    for jar in (INSTALLED / "jars").glob("*.jar"):
        if jar.name.startswith(CORE):
            with zipfile.ZipFile(jar) as archive:
                for each in archive.namelist():
                    if each.endswith(".class"):
                        missing |= {lost: each for name in mentioned(archive.read(each)) for lost in left_out.get(name, ())}
    assert {jar.rpartition("-")[0] for jar in missing} <= NOT_USED, missing
