"""The secret of Spark's connections: where it is, and where not."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from spark_apply.application import authentication
from spark_apply.application.authentication import (
    SECRET,
    authentication_settings,
    join_application,
    secret_environment,
    write_secret,
)


def test_each_cluster_gets_a_secret_of_its_own():
    one, other = secret_environment(), secret_environment()
    assert set(one) == {SECRET}
    assert len(one[SECRET]) == 64
    assert one != other


def test_settings_name_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SECRET, "of-this-cluster")
    settings = authentication_settings()
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.network.crypto.enabled"] == "true"
    assert "of-this-cluster" not in str(settings)


def test_the_driver_reads_it_from_a_file_of_its_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(SECRET, "one")
    write_secret(tmp_path)
    monkeypatch.setenv(SECRET, "two")
    write_secret(tmp_path)  # a process of the same number left the first
    file = tmp_path / "conf" / "spark-defaults.conf"
    assert file.read_text() == "spark.authenticate.secret two\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_a_secret_spark_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(SECRET, "one")
    write_secret(tmp_path)
    monkeypatch.delenv(SECRET)
    assert authentication_settings() == {}
    write_secret(tmp_path)
    assert not list((tmp_path / "conf").iterdir())
    join_application(None)  # nothing is asked of it


class _Class:
    def __init__(self, name: str, fields: list[Any], above: _Class | None = None) -> None:
        self.name, self.fields, self.above = name, fields, above

    def getName(self) -> str:
        return self.name

    def getDeclaredFields(self) -> list[Any]:
        return self.fields

    def getSuperclass(self) -> _Class | None:
        return self.above


def test_another_version_without_the_fields_is_named():
    class Backend:
        def getClass(self) -> _Class:
            return _Class("org.example.Backend", [], _Class("java.lang.Object", []))

    with pytest.raises(
        LookupError, match=r"org.example.Backend has no field appId: pyspark or raydp is another version"
    ):
        authentication._field(Backend(), "appId")
