"""The driver's configuration travels as one line, and keeps its secrets to itself."""

from __future__ import annotations

import pytest

from databases.connectors import DatabaseAccess
from rules.rule import Rule, RuleSet
from spark_apply.application.job_config import (
    ApplyJobConfig,
    ExecutorResources,
    TableToInstantiate,
    describe_failure,
)
from streams.errors import ApplyError, ConfigError
from streams.table_name import TableName


def _config(**changes: object) -> ApplyJobConfig:
    fields = {
        "topology": "t", "apply": "apply_from_a", "source": DatabaseAccess(site="a", kind="postgres", dsn="password=one"),
        "destination": DatabaseAccess(site="b", kind="embedded", dsn="password=two"), "queue": "queue:q",
        "queue_name": "q", "ray_address": "127.0.0.1:1", "ray_namespace": "headrace-t", "state_dir": "state",
    }
    return ApplyJobConfig(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [
    _config(),
    _config(
        tables=(
            TableToInstantiate(identity="1", source=TableName("public", "ünï"), destination=TableName("s", "uni")),
            TableToInstantiate(
                identity="2", source=TableName("s", "t"), destination=TableName("s", "t"), keep_existing=True, may_empty=True,
            ),
        ),
        tag=b"\x00\xff", parallelism=7, group_transactions=1, resources=ExecutorResources(node=(("site_b", 1.0),), cores=3),
        rules=RuleSet(include=(Rule(owner="public", name="a*", tagged=True),), exclude=(Rule(dml=False, ddl=True),)),
        returned_from=("apply_from_b",),
    ),
    _config(rules=RuleSet(include=())),
])
def test_configuration_survives_its_line(config: ApplyJobConfig) -> None:
    line = config.to_json()
    assert "\n" not in line
    assert ApplyJobConfig.from_json(line) == config


def test_secrets_do_not_show_in_what_is_printed() -> None:
    config = _config()
    assert "password" not in repr(config) + str(config) + repr(config.source)


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"password": "secret"}', "not json password=secret"])
def test_wrong_line_is_refused_without_showing_it(line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ApplyJobConfig.from_json(line)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("field", ["parallelism", "group_transactions", "group_rows"])
def test_bound_below_one_is_refused(field: str) -> None:
    with pytest.raises(ConfigError):
        _config(**{field: 0})


def test_one_executor_alone_can_run_every_server_and_something_beside() -> None:
    assert _config(parallelism=3).executor_cores == 4
    assert _config(parallelism=3, resources=ExecutorResources(cores=2)).executor_cores == 2


def test_failure_says_whether_time_heals_it() -> None:
    described = describe_failure(ApplyError("it is so", hint="do this"))
    assert described == {
        "error": "ApplyError", "code": "HDR-5000", "message": "it is so", "hint": "do this", "retry": "manual",
    }
