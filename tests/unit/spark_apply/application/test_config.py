"""The configuration of a site's Spark application is sent as one line."""

from __future__ import annotations

import pytest

from headrace.base.errors import ApplyError, ConfigError
from headrace.databases.connectors import DatabaseAccess
from spark_apply.application.config import ApplicationConfig, ExecutorResources
from spark_apply.apply_config import ApplyConfig


@pytest.mark.parametrize(
    "config",
    [
        ApplicationConfig(
            topology="t",
            site="b",
            ray_address="127.0.0.1:1",
            state_dir="state",
            resources=ExecutorResources(executors=2),
        ),
        ApplicationConfig(
            topology="t",
            site="ünï",
            ray_address="127.0.0.1:1",
            state_dir="state",
            host="10.0.0.1",
            resources=ExecutorResources(node=(("site_b", 1.0),), executors=3),
        ),
    ],
)
def test_configuration_round_trips_through_one_line(config: ApplicationConfig) -> None:
    line = config.to_json()
    assert "\n" not in line
    assert ApplicationConfig.from_json(line) == config


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"password": "secret"}', "not json password=secret"])
def test_invalid_configuration_line_is_refused_without_showing_it(line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ApplicationConfig.from_json(line)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def _apply(**changes: object) -> ApplyConfig:
    fields = {
        "topology": "t",
        "apply": "apply_from_a",
        "source": DatabaseAccess(site="a", kind="postgres", dsn="password=one"),
        "destination": DatabaseAccess(site="b", kind="embedded", dsn="password=two"),
        "queue": "q",
    }
    return ApplyConfig(**{**fields, **changes})


def test_printed_configuration_contains_no_secrets() -> None:
    config = _apply()
    assert "password" not in repr(config) + str(config) + repr(config.source)


@pytest.mark.parametrize("field", ["parallelism", "group_transactions", "group_rows"])
def test_bound_below_one_is_refused(field: str) -> None:
    with pytest.raises(ConfigError):
        _apply(**{field: 0})


def test_described_failure_contains_its_retry_kind() -> None:
    described = ApplyError("it is so", hint="do this").described()
    assert described == {
        "error": "ApplyError",
        "code": "HDR-5000",
        "message": "it is so",
        "hint": "do this",
        "retry": "manual",
    }
