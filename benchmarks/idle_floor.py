"""CPU use of idle Ray without Headrace: the private cluster that `headrace up` starts, and actors that do nothing.

    python -m benchmarks.idle_floor [--actors 6] [--seconds 30]

A one-way topology has six actors (two sites, captures, apply processes, the holder of Spark, the controller); `make
bench` prints its CPU use.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from actors.cluster.local import LocalCluster
from actors.hosting.runtime import connect, disconnect, prepare_process
from benchmarks.processes import ProcessSampler

SETTLES_S = 20.0  # until work left from starting has ended


def main() -> None:
    """Measure and print: Ray alone, and with the actors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-idle-") as folder:
        cluster = LocalCluster(Path(folder))
        address = cluster.start()
        try:
            alone = _used(cluster, given.seconds)
            with_actors = _with_actors(cluster, address, given.actors, given.seconds)
        finally:
            cluster.stop()
    print(
        f"Ray alone: {alone:.2%} of a core; with {given.actors} actors that do nothing: {with_actors:.2%},"
        f" {(with_actors - alone) / given.actors:.2%} for each"
    )


def _used(cluster: LocalCluster, seconds: float) -> float:
    """Return the share of one core that the cluster's processes use."""
    time.sleep(SETTLES_S)
    facts = cluster.facts()
    assert facts is not None
    sampler = ProcessSampler(tuple(process.pid for process in facts.processes))
    sampler.start()
    time.sleep(seconds)
    return sum(usage.cpu_s for usage in sampler.stop().values()) / seconds


def _with_actors(cluster: LocalCluster, address: str, count: int, seconds: float) -> float:
    prepare_process(address, cluster.client_environment())
    import ray

    connect(address, "idle_floor")

    @ray.remote(num_cpus=0)
    class Idle:
        def pid(self) -> int:
            import os

            return os.getpid()

    idle: Any = Idle  # what Ray's decorator made of the class
    actors = [idle.remote() for _ in range(count)]
    ray.get([actor.pid.remote() for actor in actors])
    try:
        return _used(cluster, seconds)
    finally:
        disconnect()


if __name__ == "__main__":
    main()
