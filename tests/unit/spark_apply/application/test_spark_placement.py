"""Placement of a Spark application's parts on nodes."""

from __future__ import annotations

from pathlib import Path

from spark_apply.application.config import ApplicationConfig, ExecutorResources
from spark_apply.application.spark import SparkApplication


def test_executors_and_master_run_and_store_files_on_the_sites_node(tmp_path: Path) -> None:
    resources = ExecutorResources(executors=2, node=(("site_b", 0.001), ("ssd", 0.001)))
    config = ApplicationConfig(
        topology="t",
        site="b",
        ray_address="10.0.0.1:6379",
        host="10.0.0.2",
        state_dir=str(tmp_path),
        resources=resources,
    )
    found = SparkApplication(config)._spark_configuration()
    for part in ("spark_executor", "spark_master"):
        for name in ("site_b", "ssd"):
            assert found[f"spark.ray.raydp_{part}.actor.resource.{name}"] == "0.001"
    assert found["spark.driver.host"] == "10.0.0.2"
    assert found["spark.local.dir"].startswith(str(tmp_path))
