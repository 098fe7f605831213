"""The secret of Spark's connections: the files that contain it and the places that must not."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from spark_apply.application.access import authentication
from spark_apply.application.access.authentication import (
    SETTINGS,
    executor_option,
    join_application,
    master_option,
    write_secret,
)
from spark_apply.application.access.master_gateway import open_gateway
from spark_apply.application.environment import java_home
from spark_apply.application.jvm.spark_home import spark_jars

VARIABLE = "_SPARK_AUTH_SECRET"  # Spark's name for it


def _told(home: Path) -> tuple[str, str, str]:
    """Return the secrets that the driver, an executor and the application master read."""
    driver = (home / "conf" / "spark-defaults.conf").read_text()
    executor, master = (
        Path(option.strip('"@')).read_text().splitlines()[0].removeprefix("-Dspark.authenticate.secret=")
        for option in (executor_option(home), master_option(Path(os.path.relpath(home))))
    )
    return (
        driver.removeprefix("spark.authenticate.secret ").rstrip("\n"),
        executor,
        master,
    )


def test_each_application_start_has_a_new_secret_known_to_all_its_jvms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(VARIABLE, raising=False)
    write_secret(tmp_path)
    one = _told(tmp_path)
    write_secret(tmp_path)  # a process with the same number left the first secret
    other = _told(tmp_path)
    assert len(set(one)) == len(set(other)) == 1
    assert len(one[0]) == 64
    assert one != other


def test_secret_files_are_readable_only_by_their_user(tmp_path: Path):
    write_secret(tmp_path)
    assert stat.S_IMODE((tmp_path / "conf").stat().st_mode) == 0o700
    files = list((tmp_path / "conf").iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_settings_and_command_lines_contain_no_secret(tmp_path: Path):
    write_secret(tmp_path)
    assert SETTINGS["spark.authenticate"] == "true"
    assert SETTINGS["spark.network.crypto.enabled"] == "true"
    assert _told(tmp_path)[0] not in f"{SETTINGS} {executor_option(tmp_path)}"


def test_all_jvms_use_the_secret_with_which_ray_was_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An executor and the application master prefer this variable, which Ray sets for them."""
    monkeypatch.setenv(VARIABLE, "of-an-earlier-version")
    write_secret(tmp_path)
    assert set(_told(tmp_path)) == {"of-an-earlier-version"}


def test_executor_reads_the_secret_and_keeps_crash_reports_in_its_folder(tmp_path: Path):
    """The report contains the secret; by default Java writes it to the working folder, readable by everyone."""
    home = tmp_path / """a b"c\\d'e%p#f"""
    home.mkdir()
    write_secret(home)
    java = [str(java_home() / "bin" / "java"), "-Xmx64m", "-XX:-CreateCoredumpOnCrash"]
    jars = os.pathsep.join(map(str, spark_jars()))

    plain = open_gateway([*java, "-cp", jars], os.environ)
    split = plain.jvm.org.apache.spark.util.Utils.splitCommandString(f"-Xss512k {executor_option(home)}")
    options = [split.apply(number) for number in range(split.size())]
    plain.shutdown()
    plain.proc.kill()
    plain.proc.wait()
    assert options == ["-Xss512k", f"@{home}/conf/executor.options"]

    executor = open_gateway([*java, *options, "-cp", jars], os.environ)
    report = home / "conf" / f"hs_err_{executor.proc.pid}.log"
    try:
        secret = executor.jvm.java.lang.System.getProperty("spark.authenticate.secret")
        assert secret == (home / "conf" / "spark-defaults.conf").read_text().split()[1]
        executor.proc.send_signal(signal.SIGSEGV)
        executor.proc.wait(timeout=60)
        assert secret in report.read_text()
    finally:
        executor.proc.kill()
        executor.proc.wait()
    assert list(tmp_path.rglob("hs_err_*")) == [report]


def test_application_master_option_contains_no_blank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    folder = tmp_path / "a b"
    (folder / "home").mkdir(parents=True)
    write_secret(folder / "home")
    monkeypatch.chdir(folder)
    option = master_option(Path("home"))
    assert option.split() == [option]
    assert option.startswith("@")
    assert Path(option[1:]).samefile(folder / "home" / "conf" / "executor.options")


def test_driver_without_authentication_is_left_unchanged():
    class Context:
        def getConf(self) -> dict[str, str]:
            return {}

    join_application(Context())


class _Class:
    def __init__(self, name: str, fields: list[Any], above: _Class | None = None) -> None:
        self.name, self.fields, self.above = name, fields, above

    def getName(self) -> str:
        return self.name

    def getDeclaredFields(self) -> list[Any]:
        return self.fields

    def getSuperclass(self) -> _Class | None:
        return self.above


def test_spark_version_without_the_expected_fields_is_named():
    class Backend:
        def getClass(self) -> _Class:
            return _Class("org.example.Backend", [], _Class("java.lang.Object", []))

    with pytest.raises(
        LookupError, match=r"org.example.Backend has no field appId: the installed version of pyspark or raydp is not"
    ):
        authentication._field(Backend(), "appId")
