"""The set-up's archive of Spark's classes: a JVM with the class path of an application uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_apply.application.environment import java_home
from spark_apply.application.jvm.class_path import ARCHIVES, archived, class_path

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
# For each of the five JVMs: the application master's two, the driver, an executor with a task.
LOADED = (
    "org.apache.spark.deploy.raydp.AppMasterJavaBridge",
    "org.apache.spark.deploy.raydp.RayAppMaster",
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.executor.RayDPExecutor",
    "org.apache.spark.api.python.PythonRunner",
    "org.apache.spark.api.python.PythonGatewayServer",
)


@pytest.mark.soak
def test_archive_is_made_once_and_leaves_nothing_else(tmp_path: Path):
    archives = tmp_path / "archives"
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-P", ROOT / "scripts" / "archive_classes.py", "--folder", archives]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    archive = archived(archives).archive
    assert archive is not None
    assert archive.is_file()
    assert sorted(path.name for path in archive.parent.iterdir()) == ["classes.jsa", "ray_class.jar"]
    assert list((tmp_path / "temporary").iterdir()) == []
    written = archive.stat().st_mtime_ns
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
    assert archive.stat().st_mtime_ns == written
    assert_jvms_take_it(tmp_path, archives)


def test_jvms_load_an_applications_classes_from_the_set_ups_archive(tmp_path: Path):
    assert_jvms_take_it(tmp_path, ARCHIVES)


def assert_jvms_take_it(tmp_path: Path, archives: Path) -> None:
    java = str(java_home() / "bin" / "java")
    path = class_path(tmp_path / "site", java, archives=archives)
    # With `on` a JVM refuses to start with an archive for another class path; further entries after it are allowed.
    listed = subprocess.run(
        [
            java,
            "-Xshare:on",
            "-XX:+UseSerialGC",
            *path.options,
            "-cp",
            f"{path}:{tmp_path}",
            "-Xlog:class+load",
            "org.apache.spark.SparkConf",
        ],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert "org.apache.spark.SparkConf source: shared objects file" in listed
    names = subprocess.run(
        [
            java,
            "-Xshare:on",
            "-XX:+UnlockDiagnosticVMOptions",
            "-XX:+PrintSharedArchiveAndExit",
            *path.options,
            "-cp",
            str(path),
            "-version",
        ],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert [name for name in LOADED if name not in names] == []
