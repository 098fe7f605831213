"""Let Java archive the classes of Spark applications now.

Otherwise the start of a topology would wait for each JVM to read and check them.

usage: python -P archive_classes.py [--folder FOLDER]      (-P: this folder's names must not hide the packages)

An application with tasks, run on a private Ray cluster, determines these classes. The archive (90 MB, shared by all JVMs
of a machine) is valid for exactly the installed jars (`spark_apply.application.jvm.class_path`); if it exists for them, the
script does nothing. JVMs also start without it, at twice the processor time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from actors.cluster.local import LocalCluster
from spark_apply.application.config import ApplicationConfig, ExecutorResources
from spark_apply.application.environment import java_environment, java_home
from spark_apply.application.jvm.class_path import ARCHIVES, archived, prepare_archive
from spark_apply.application.spark import SparkApplication

CPUS = 3
TASKS = 8
TIMEOUT_S = 300.0
LOOK_S = 0.2


def task(number: int, items: Iterable[int]) -> Iterator[int]:
    """Return the items."""
    del number
    yield from items


def run_application(folder: Path, lists: Path) -> None:
    """Run an application whose JVMs list the classes that they load.

    Args:
        folder: folder for all files that it writes.
        lists: folder for the lists.
    """
    cluster = LocalCluster(folder / "state", cpus=CPUS)
    os.environ.update(java_environment())
    try:
        address = cluster.start()
        os.environ.update(cluster.client_environment())
        config = ApplicationConfig(
            topology="classes",
            site="here",
            ray_address=address,
            state_dir=str(folder / "site"),
            resources=ExecutorResources(executors=2),
        )
        application = SparkApplication(config, jvm_options=(f"-XX:DumpLoadedClassList={lists}/%p",))
        application.start()
        deadline = time.monotonic() + TIMEOUT_S
        while application.executors() < config.resources.executors:
            if time.monotonic() > deadline:
                raise TimeoutError("the executors did not start")
            time.sleep(LOOK_S)
        # The order of the items proves that the tasks ran.
        if application.run_job("classes", task, range(TASKS), TASKS) != list(range(TASKS)):
            raise AssertionError("the tasks gave something else back")
        application.stop()
    finally:
        cluster.stop()


def merge(lists: Path, merged: Path) -> None:
    """Merge the lists into one.

    Args:
        lists: folder with a list per JVM.
        merged: file of the list to write.
    """
    lines: dict[str, None] = {}
    for file in sorted(lists.iterdir()):
        # "name id: 1" in Java's own lists; numbers are only meaningful in one list. A class of another loader has a
        # source.
        lines |= {
            line if line.startswith("@") else line.partition(" ")[0]: None
            for line in file.read_text(encoding="utf-8").splitlines()
            if not line.startswith("#") and " source: " not in line
        }
    merged.write_text("\n".join(lines) + "\n", encoding="utf-8")


def dump(folder: Path, archives: Path) -> None:
    """Write the archive, complete or not at all.

    Args:
        folder: folder with the merged list.
        archives: folder of the archives.
    """
    path = archived(archives)
    assert path.archive is not None
    unfinished = path.archive.with_suffix(".unfinished")
    done = subprocess.run(
        [
            java_home() / "bin" / "java",
            "-Xshare:dump",
            "-XX:+UseSerialGC",
            f"-XX:SharedClassListFile={folder / 'merged'}",
            f"-XX:SharedArchiveFile={unfinished}",
            "-cp",
            str(path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Java could not archive the classes: {done.stderr.strip() or done.stdout.strip()[-200:]}")
    unfinished.rename(path.archive)
    sys.stdout.write(f"{path.archive}: {path.archive.stat().st_size >> 20} MB\n")


def main() -> int:
    """Run an application, and write the archive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ARCHIVES, help="where archives are")
    archives = parser.parse_args().folder
    if not Path("/proc/self/cwd").exists():
        sys.stdout.write("no archive of Spark's classes on a system without /proc\n")
        return 0
    prepared = archived(archives).archive
    if prepared is not None and prepared.is_file():
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # like Ctrl-C: everything is ended and removed
    prepare_archive(archives)
    folder = Path(tempfile.mkdtemp(prefix="headrace-classes-"))
    try:
        (folder / "lists").mkdir()
        run_application(folder, folder / "lists")
        merge(folder / "lists", folder / "merged")
        dump(folder, archives)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads of Ray and Spark may still run
