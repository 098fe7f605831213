"""Spark's home contains what jobs of Python tasks need, without Hive and similar parts."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_apply.application.jvm.spark_home import home_environment, spark_jars, write_spark_home

INSTALLED = Path(pyspark.__file__).resolve().parent


def test_class_path_has_the_installed_jars_except_unused_families():
    jars = {jar.name: jar for jar in spark_jars()}
    installed = {jar.name: jar for jar in (INSTALLED / "jars").glob("*.jar")}
    assert 100 < len(jars) < len(installed) - 100
    assert all(jar == installed[name] for name, jar in jars.items())
    families = {name.split("-")[0] for name in jars}
    assert {"spark", "hadoop", "scala", "netty", "jackson", "log4j", "py4j"} <= families
    assert not families & {"hive", "kubernetes", "mesos", "datanucleus", "parquet", "orc"}


def test_jar_paths_contain_no_symbolic_links():
    assert all(jar == jar.resolve() for jar in spark_jars())


def test_jars_are_always_in_the_same_order():
    assert list(spark_jars()) == sorted(spark_jars())


def test_home_has_programs_and_python_and_can_be_recreated(tmp_path: Path):
    home = tmp_path / "home"
    for _ in range(2):
        write_spark_home(home)
        assert (home / "bin" / "spark-submit").is_file()
        assert list((home / "python" / "lib").glob("py4j-*.zip"))


def test_home_contains_only_the_jar_of_sparks_launcher(tmp_path: Path):
    write_spark_home(tmp_path / "home")
    (jar,) = (tmp_path / "home" / "jars").iterdir()
    with zipfile.ZipFile(jar) as archive:
        assert "org/apache/spark/launcher/Main.class" in archive.namelist()
    assert jar.resolve() in spark_jars()


def test_recreated_home_keeps_no_jar_of_another_version(tmp_path: Path):
    """With two versions of a jar on one class path it is a matter of chance which one provides a class."""
    home = tmp_path / "home"
    write_spark_home(home)
    (installed,) = (home / "jars").iterdir()
    installed.unlink()
    installed.write_bytes(b"installed anew under the same name")
    (home / "jars" / "spark-launcher_2.12-0.1.0.jar").write_bytes(b"another version")
    write_spark_home(home)
    assert [jar.resolve() for jar in (home / "jars").iterdir()] == [INSTALLED / "jars" / installed.name]


def test_driver_reads_this_homes_settings_despite_rays_environment(tmp_path: Path):
    assert home_environment(tmp_path) == {"SPARK_HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path / "conf")}


def test_recreated_home_links_to_the_current_pysparks_programs(tmp_path: Path):
    home = tmp_path / "home"
    write_spark_home(home)
    (home / "python").unlink()
    (home / "python").symlink_to(tmp_path / "an_earlier_environment")
    write_spark_home(home)
    assert (home / "python").samefile(INSTALLED / "python")


CORE = (
    "spark-core",
    "spark-common",
    "spark-network",
    "spark-unsafe",
    "spark-launcher",
    "spark-kvstore",
    "spark-catalyst",
    "spark-sql-api",
)
# The core also references these: leader election of Spark's own cluster manager, and web pages. A topology uses
# neither. The JDK contains the classes of the others.
NOT_USED = {
    "curator-framework",
    "curator-client",
    "curator-recipes",
    "zookeeper",
    "jersey-common",
    "jersey-container-servlet-core",
    "jta",
    "transaction-api",
    "stax-api",
}


def mentioned(data: bytes) -> Iterator[str]:
    """Yield the classes that a class file names in constants and types (Java Virtual Machine Specification, 4.4)."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
    number, count, at = 1, int.from_bytes(data[8:10], "big"), 10
    while number < count:
        mark = data[at]
        if mark == 1:
            end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
            text = data[at + 3 : end].decode("utf-8", "replace")
            yield text
            if ";" in text:
                yield from re.findall(r"L([\w/$]+);", text)
            at = end
        else:
            at += 1 + sizes[mark]
        number += 2 if mark in {5, 6} else 1


@pytest.mark.long
def test_no_class_that_spark_references_is_missing():
    kept = {jar.name for jar in spark_jars()}
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
                        missing |= {
                            lost: each for name in mentioned(archive.read(each)) for lost in left_out.get(name, ())
                        }
    assert {jar.rpartition("-")[0] for jar in missing} <= NOT_USED, missing
