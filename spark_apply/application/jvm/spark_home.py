"""Spark's installation without the jars that an apply process never uses.

A JVM keeps the directory of every jar that it has opened, and looks a missing class up in every jar of its class path.
By default, each of an application's five JVMs has Spark's whole folder of jars as its class path: 260 files with
150,000 entries. A job of Python tasks needs 60 of them. So Spark gets a home of links without the jars of Hive,
Kubernetes, Mesos, YARN, machine learning, streams and file formats.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from spark_apply.application.environment import package_folder

__all__ = ["home_environment", "spark_jars", "write_spark_home"]

_UNUSED = (
    # Hive and its metastore
    "hive-",
    "spark-hive",
    "datanucleus-",
    "derby-",
    "javax.jdo-",
    "jdo-api-",
    "HikariCP-",
    "bonecp-",
    "libthrift-",
    "libfb303-",
    "ST4-",
    "antlr-runtime-",
    "jodd-",
    "super-csv-",
    "stax-api-",
    "jta-",
    "transaction-api-",
    "commons-dbcp-",
    "commons-pool-",
    # other cluster managers and their coordination services
    "spark-kubernetes",
    "kubernetes-",
    "okhttp-",
    "okio-",
    "zjsonpatch-",
    "spark-mesos",
    "mesos-",
    "spark-yarn",
    "curator-",
    "zookeeper-",
    # machine learning, graphs, streams
    "spark-mllib",
    "breeze",
    "spire",
    "algebra_",
    "cats-",
    "arpack",
    "blas-",
    "lapack-",
    "JTransforms-",
    "JLargeArrays-",
    "spark-graphx",
    "spark-streaming",
    # Spark's shell and web pages
    "spark-repl",
    "scala-compiler-",
    "jline-",
    "jersey-",
    "hk2-",
    "javassist-",
    # file formats
    "parquet-",
    "orc-",
    "avro-mapred-",
    "avro-ipc-",
    "snakeyaml-engine-",
)
"""Prefixes of the names of unused jars. py4j asks for all methods of a class, so everything that Spark's core mentions
must be there.
"""
_LAUNCHER = "spark-launcher_"


def spark_jars() -> tuple[Path, ...]:
    """Return the installed jars that an application's JVMs need, in the order of their names.

    They are real paths: Ray opens them again under the target of a symbolic link, and a JVM would keep every directory
    twice.
    """
    return tuple(
        sorted(jar for jar in (package_folder("pyspark") / "jars").glob("*.jar") if not jar.name.startswith(_UNUSED))
    )


def home_environment(home: Path) -> dict[str, str]:
    """Return the environment under which Spark's driver uses this home and its own settings in it.

    An operator's own Ray may run in an environment that names another folder of settings. The driver would find no
    secret there, and would run that folder's `spark-env.sh`.

    Args:
        home: as written by `write_spark_home`.
    """
    return {"SPARK_HOME": str(home), "SPARK_CONF_DIR": str(home / "conf")}


def write_spark_home(home: Path) -> None:
    """Make a Spark home of links to the installed one.

    Its only jar is that of Spark's launcher, a JVM of 0.02 CPU seconds instead of 0.2 with all jars. The others are on
    the class path that the application's JVMs get (`spark_apply.application.jvm.class_path`).

    Args:
        home: folder to make; it may exist, even from another pyspark.
    """
    jars = home / "jars"
    # An earlier process with the same number may have left it, and pyspark may have been replaced since: never put two
    # versions on a class path.
    shutil.rmtree(jars, ignore_errors=True)
    jars.mkdir(parents=True)
    for jar in spark_jars():
        if jar.name.startswith(_LAUNCHER):
            (jars / jar.name).symlink_to(jar)
    installed = package_folder("pyspark")
    for name in ("bin", "sbin", "python"):
        link = home / name
        if link.is_symlink() and link.readlink() != installed / name:
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(installed / name)
