"""Spark's installation, without the jars of what an apply process never uses.

A JVM keeps the directory of every jar that it has opened, and looks a missing class up in every jar of its class path. The class path of each of an
application's five JVMs is Spark's whole folder of jars: 260 files with 150,000 entries, of which a job of Python tasks needs 60. So
Spark gets a home of links, in which what belongs to Hive, Kubernetes, Mesos, YARN, machine learning, streams and file formats is left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_spark_home"]

_UNUSED = (
    # Hive and its store
    "hive-", "spark-hive", "datanucleus-", "derby-", "javax.jdo-", "jdo-api-", "HikariCP-", "bonecp-", "libthrift-", "libfb303-", "ST4-",
    "antlr-runtime-", "jodd-", "super-csv-", "stax-api-", "jta-", "transaction-api-", "commons-dbcp-", "commons-pool-",
    # other cluster managers and what they coordinate with
    "spark-kubernetes", "kubernetes-", "okhttp-", "okio-", "zjsonpatch-", "spark-mesos", "mesos-", "spark-yarn", "curator-", "zookeeper-",
    # machine learning, graphs, streams
    "spark-mllib", "breeze", "spire", "algebra_", "cats-", "arpack", "blas-", "lapack-", "JTransforms-", "JLargeArrays-", "spark-graphx",
    "spark-streaming",
    # Spark's shell and its pages
    "spark-repl", "scala-compiler-", "jline-", "jersey-", "hk2-", "javassist-",
    # file formats
    "parquet-", "orc-", "avro-mapred-", "avro-ipc-", "snakeyaml-engine-",
)
"""Starts of the names of the jars that are left out. py4j asks for all methods of a class, so what Spark's core mentions anywhere must be there."""


def write_spark_home(home: Path) -> Path | None:
    """Make a Spark home of links to the installed one.

    The jars are hard links: Ray opens them once more under the path that a symbolic link leads to, and a JVM would keep every directory twice.

    Args:
        home: folder to make; may exist, of another pyspark too.

    Returns:
        `home`, for SPARK_HOME; None: the installed one must do, because it is on another file system, or belongs to
        another user, whose files Linux does not let this user link.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    wanted = {jar.name: jar for jar in (installed / "jars").glob("*.jar") if not jar.name.startswith(_UNUSED)}
    jars = home / "jars"
    try:
        if jars.exists() and not _are_of(jars, wanted):
            # An earlier process of the same number left it, and pyspark was replaced since: never two versions on a class path.
            shutil.rmtree(jars)
        jars.mkdir(parents=True, exist_ok=True)
        for name, jar in wanted.items():
            if not (jars / name).exists():
                (jars / name).hardlink_to(jar)
    except OSError:
        shutil.rmtree(home, ignore_errors=True)
        return None
    for name in ("bin", "sbin", "python"):
        link = home / name
        if link.is_symlink() and link.readlink() != installed / name:
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(installed / name)
    return home


def _are_of(jars: Path, wanted: Mapping[str, Path]) -> bool:
    """Whether every jar in the folder is, by name and inode, one of those that are wanted."""
    return all(jar.name in wanted and jar.samefile(wanted[jar.name]) for jar in jars.iterdir())
