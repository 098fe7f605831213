"""Spark's home: what a job of Python tasks needs is in it, Hive and the like is not."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_apply.application.jvm.spark_home import home_environment, spark_jars, write_spark_home

INSTALLED = Path(pyspark.__file__).resolve().parent


def test_class_path_has_the_installed_jars_but_for_families_that_nothing_uses():
    jars = {jar.name: jar for jar in spark_jars()}
    installed = {jar.name: jar for jar in (INSTALLED / "jars").glob("*.jar")}
    assert 100 < len(jars) < len(installed) - 100
    assert all(jar == installed[name] for name, jar in jars.items())
    families = {name.split("-")[0] for name in jars}
    assert {"spark", "hadoop", "scala", "netty", "jackson", "log4j", "py4j"} <= families
    assert not families & {"hive", "kubernetes", "mesos", "datanucleus", "parquet", "orc"}


def test_jars_have_no_symbolic_links_in_their_paths_because_ray_would_open_them_twice():
    assert all(jar == jar.resolve() for jar in spark_jars())


def test_jars_have_the_same_order_always_because_an_archive_of_classes_is_for_one_order():
    assert list(spark_jars()) == sorted(spark_jars())


def test_home_has_programs_and_python_and_can_be_made_again(tmp_path: Path):
    home = tmp_path / "home"
    for _ in range(2):
        write_spark_home(home)
        assert (home / "bin" / "spark-submit").is_file()
        assert list((home / "python" / "lib").glob("py4j-*.zip"))


def test_home_has_the_jar_of_sparks_launcher_alone_because_the_others_are_on_the_class_path(tmp_path: Path):
    write_spark_home(tmp_path / "home")
    (jar,) = (tmp_path / "home" / "jars").iterdir()
    with zipfile.ZipFile(jar) as archive:
        assert "org/apache/spark/launcher/Main.class" in archive.namelist()
    assert jar.resolve() in spark_jars()


def test_home_of_an_earlier_process_keeps_no_jar_of_another_version(tmp_path: Path):
    """Two versions of a jar on one class path: which of them a class comes from is a matter of chance."""
    home = tmp_path / "home"
    write_spark_home(home)
    (installed,) = (home / "jars").iterdir()
    installed.unlink()
    installed.write_bytes(b"installed anew under the same name")
    (home / "jars" / "spark-launcher_2.12-0.1.0.jar").write_bytes(b"another version")
    write_spark_home(home)
    assert [jar.resolve() for jar in (home / "jars").iterdir()] == [INSTALLED / "jars" / installed.name]


def test_the_driver_reads_the_settings_of_this_home_whatever_the_environment_of_ray_names(tmp_path: Path):
    assert home_environment(tmp_path) == {"SPARK_HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path / "conf")}


def test_home_of_an_earlier_process_leads_to_the_programs_of_the_pyspark_of_now(tmp_path: Path):
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
# The core mentions these too: leader election of Spark's own cluster manager, and pages. A topology has neither. The
# others have classes that the JDK has.
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
    """The classes that a class file names (Java Virtual Machine Specification, 4.4): its constants, and types in them."""
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
    number, count, at = 1, int.from_bytes(data[8:10], "big"), 10
    while number < count:
        mark = data[at]
        if mark == 1:
            end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
            text = data[at + 3 : end].decode("utf-8", "replace")
            yield text
            yield from re.findall(r"L([\w/$]+);", text)
            at = end
        else:
            at += 1 + sizes[mark]
        number += 2 if mark in {5, 6} else 1


@pytest.mark.long
def test_nothing_that_spark_itself_mentions_is_left_out():
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
