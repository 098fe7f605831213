"""Faults that tests inject into a running topology, and proof that they happened and did no harm."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil

from headrace.base.failpoints import ARMED_FILE, fired_count
from headrace.faults.errors import NotFired
from headrace.faults.links import Links, links_of
from headrace.faults.processes import Processes, executor_of
from headrace.faults.proxy import Proxy
from headrace.load.pgbench import Sums
from tests.fix_cluster import TABLES
from tests.support.clusters.system import System, wait_until

__all__ = [
    "Arriving",
    "apply_name",
    "armed",
    "delete_errors",
    "errors",
    "pgbench_through",
    "propagation_name",
    "proxied_propagation",
    "application_name",
    "spark_processes",
    "wait_for_next_application",
]

CLIENTS = 4
RATE = 200  # transactions per second: below what a loaded small machine replicates, so that a test ends soon
SECONDS = 3  # of pgbench at that rate: faults happen in its first run
# recovery may take a minute: until then changes are always in flight, and the backlog stays small
LATER_RATE = 20
DETOUR_S = 600.0  # longer than any test
LATER_SECONDS = 1  # of pgbench at that rate before the next check whether to continue


def apply_name(system: System) -> str:
    return f"apply:{system.spec.applies[0].name}"


def application_name(system: System) -> str:
    """Return the Spark application of the first apply process's site."""
    return f"spark:{system.spec.applies[0].site}"


def errors(system: System, apply: str = "") -> list[dict[str, Any]]:
    """Return the error queue of an apply process, by default the first one."""
    return list(system.call(apply or apply_name(system), "errors"))


def delete_errors(system: System, apply: str = "") -> None:
    """Empty the error queue without applying anything."""
    for error in errors(system, apply):
        system.call(apply or apply_name(system), "delete_errors", [error["number"]])


def propagation_name(system: System) -> str:
    return f"propagation:{system.spec.propagations[0].name}"


# --------------------------------------------------------------------------- workload


@dataclass
class Arriving:
    """Observes the arrival of pgbench's changes while something breaks."""

    system: System
    before: int

    def wait_arriving(self, rows: int = 1) -> None:
        """Wait until this run's changes arrive, so that the next fault hits a working system."""
        wait_until("changes arrive", lambda: self.arrived >= rows)

    @property
    def arrived(self) -> int:
        return int(self.system.execute("dst", "SELECT count(*) FROM pgbench_history")[0][0]) - self.before


def moved(system: System, site: str) -> Sums:
    """Return the balances that pgbench's clients have moved, as a site has them."""
    with system.connection(site) as connection:
        return Sums.of(connection)


@contextlib.contextmanager
def pgbench_through(system: System) -> Iterator[Arriving]:
    """Run pgbench at the source until the block ends.

    Then every table must be equal at both ends: nothing is lost or duplicated.
    """
    before = moved(system, "src")
    running = Arriving(system, before.transactions)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_write_until, ended, system)
        try:
            yield running
        finally:
            ended.set()
        written = writing.result()
    system.assert_converged(TABLES)
    assert running.arrived == written
    for site in ("src", "dst"):
        assert moved(system, site).since(before).problems() == [], site


def _write_until(ended: threading.Event, system: System) -> int:
    """Run pgbench repeatedly until `ended`; return the number of committed transactions."""
    written, rate, seconds = 0, RATE, SECONDS
    while written == 0 or not ended.is_set():
        transactions = rate * seconds // CLIENTS
        with system.pgbench("src", "-c", str(CLIENTS), "-t", str(transactions), "-R", str(rate)):
            pass
        written, rate, seconds = written + transactions * CLIENTS, LATER_RATE, LATER_SECONDS
    return written


# --------------------------------------------------------------------------- failpoints


@contextlib.contextmanager
def armed(system: System, name: str, action: str = "kill", times: int = 1) -> Iterator[Callable[[], int]]:
    """Arm a failpoint in every running process and disarm it at the end; yield a counter of how often it fired."""
    folder = system.folder / "failpoints"
    mine = folder / f"{name}.{len(list(folder.iterdir()))}"
    aside = folder / f"{ARMED_FILE}.new"
    aside.write_text(f"{name}={action}@{mine}*{times}")
    aside.replace(folder / ARMED_FILE)
    try:
        yield lambda: fired_count(mine, name)
    finally:
        (folder / ARMED_FILE).unlink()
        for hold in mine.glob("*.hold"):
            hold.unlink()


# --------------------------------------------------------------------------- Spark's processes


def spark_processes(system: System) -> dict[str, list[psutil.Process]]:
    """Return the processes of the Spark application of the first apply process's site.

    They are `driver` and its JVM (`gateway`), the application master's JVM (`master`), `executors` (JVMs) and the first
    apply process's `workers`. A worker is a Python process with an apply server in it; `status` of the apply process
    names them.
    """
    processes, (apply, *_) = Processes(system.deployment), system.spec.applies
    found: dict[str, list[psutil.Process]] = {"driver": [], "gateway": [], "master": [], "executors": [], "workers": []}
    with contextlib.suppress(psutil.NoSuchProcess, NotFired):
        driver = processes.driver(apply.site)
        found["driver"].append(driver)
        found["gateway"] += [child for child in driver.children() if child.name() == "java"]
        found["master"] += _masters(driver)
    found["workers"] += processes.workers(apply.name)
    for worker in found["workers"]:
        with contextlib.suppress(NotFired):
            executor = executor_of(worker)
            found["executors"] += [executor] if executor not in found["executors"] else []
    return found


def wait_for_next_application(system: System, old: int) -> dict[str, Any]:
    """Wait until every apply process of the site applies in an application other than process `old`.

    Returns:
        Their statuses by name.
    """
    names = [f"apply:{apply.name}" for apply in system.spec.applies if apply.site == system.spec.applies[0].site]

    def apply() -> dict[str, Any] | None:
        if system.status(application_name(system))["application_pid"] in {0, old}:
            return None
        found = {name: system.status(name) for name in names}
        return found if all(status.get("ready") for status in found.values()) else None

    return dict(wait_until("every apply process applies in another application", apply))


def _masters(driver: psutil.Process) -> list[psutil.Process]:
    """Return JVMs of the application master, below one of Ray's workers; their shared folder identifies the owner."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        with contextlib.suppress(psutil.Error):
            is_driver_s = any(word.endswith(f"/spark/{driver.pid}") for word in process.info["cmdline"] or ())
            if (
                process.info["name"] == "java"
                and is_driver_s
                and any("SparkMaster" in word for word in process.parent().cmdline())
            ):
                found.append(process)
    return found


# --------------------------------------------------------------------------- network


@contextlib.contextmanager
def proxied_propagation(system: System) -> Iterator[Proxy]:
    """Let the propagation reach its destination queue through a proxy during the block."""
    queue = f"queue:{system.spec.propagations[0].to_queue}"
    (link,) = (link for link in links_of(system.spec) if link.server == queue)
    assert link.openers == (propagation_name(system),)
    with contextlib.closing(Links(system.spec, system.deployment.connect, lease_s=DETOUR_S)) as links:
        assert links.lead_through([link]) == []
        yield links.proxies[link.name]
