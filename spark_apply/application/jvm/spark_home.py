"""Spark's installation, without the jars of what an apply process never uses.

A JVM keeps the directory of every jar that it has opened, and looks a missing class up in every jar of its class path.
The class path of each of an application's five JVMs is Spark's whole folder of jars: 260 files with 150,000 entries, of
which a job of Python tasks needs 60. So Spark gets a home of links, in which what belongs to Hive, Kubernetes, Mesos,
YARN, machine learning, streams and file formats is left out.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from spark_apply.application.environment import package_folder

__all__ = ["home_environment", "spark_jars", "write_spark_home"]

_UNUSED = (
    # Hive and its store
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
    # other cluster managers and what they coordinate with
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
    # Spark's shell and its pages
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
"""Starts of the names of the jars that are left out. py4j asks for all methods of a class, so what Spark's core
mentions anywhere must be there.
"""
_LAUNCHER = "spark-launcher_"


def spark_jars() -> tuple[Path, ...]:
    """The installed jars that an application's JVMs need, in the order of their names.

    Real paths: Ray opens them once more under the path that a symbolic link leads to, and a JVM would keep every
    directory twice.
    """
    return tuple(
        sorted(jar for jar in (package_folder("pyspark") / "jars").glob("*.jar") if not jar.name.startswith(_UNUSED))
    )


def home_environment(home: Path) -> dict[str, str]:
    """The environment under which Spark's driver takes this home, and its own settings in it.

    A Ray of one's own may run in an environment that names another folder of settings: the driver would find no secret
    there, and run that folder's `spark-env.sh`.

    Args:
        home: see `write_spark_home`.
    """
    return {"SPARK_HOME": str(home), "SPARK_CONF_DIR": str(home / "conf")}


def write_spark_home(home: Path) -> None:
    """Make a Spark home of links to the installed one.

    Its only jar is that of Spark's launcher, a JVM of 0.02 CPU seconds instead of 0.2 with all jars: the others are on
    the class path that the application's JVMs get (`spark_apply.application.jvm.class_path`).

    Args:
        home: folder to make; may exist, of another pyspark too.
    """
    jars = home / "jars"
    # An earlier process of the same number may have left it, and pyspark was replaced since: never two versions on a
    # class path.
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
