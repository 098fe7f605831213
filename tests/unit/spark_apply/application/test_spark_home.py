"""Spark's home: what a job of Python tasks needs is in it, Hive and the like is not."""

from __future__ import annotations

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


def test_installed_home_serves_where_jars_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(self), None, str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert write_spark_home(tmp_path / "home") is None
    assert not (tmp_path / "home").exists()
