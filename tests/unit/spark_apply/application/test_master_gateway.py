"""The gateway into the application master's JVM: no caller without its secret, not even a local user, runs code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ApplyError
from spark_apply.application import raydp_parts
from spark_apply.application.access.master_gateway import open_gateway
from spark_apply.application.environment import java_home
from spark_apply.application.jvm.spark_home import spark_jars
from tests.support.wire.attackers import ask_for_variable

JAVA = str(java_home() / "bin" / "java")
JARS = os.pathsep.join(map(str, spark_jars()))


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    opened = open_gateway([JAVA, "-Xmx64m", "-cp", JARS], {**os.environ, "SECRET": "tell nobody"})
    yield opened
    opened.shutdown()
    opened.proc.terminate()
    opened.proc.wait(timeout=60)


def test_another_user_of_the_machine_cannot_run_code_in_the_jvm(gateway: Any):
    assert gateway.jvm.java.lang.System.getenv("SECRET") == "tell nobody"
    [answer] = ask_for_variable([("127.0.0.1", gateway.gateway_parameters.port)], "SECRET")
    assert "tell nobody" not in answer
    assert answer.count("Authentication") == 3
    assert gateway.jvm.java.lang.System.getenv("SECRET") == "tell nobody"


def test_secret_is_in_no_file_and_no_command_line(gateway: Any):
    secret = gateway.gateway_parameters.auth_token
    assert len(secret) >= 32
    process = Path("/proc") / str(gateway.proc.pid)
    assert secret.encode() not in (process / "cmdline").read_bytes()
    environment = (process / "environ").read_bytes()
    assert secret.encode() not in environment
    told = environment.partition(b"_PYSPARK_DRIVER_CONN_INFO_PATH=")[2].partition(b"\0")[0].decode()
    assert told
    assert not Path(told).parent.exists()


def test_jvm_that_fails_to_start_reports_how_it_ended():
    with pytest.raises(ApplyError, match="JVM ended with"):
        open_gateway([JAVA, "-no-such-option"], os.environ)


def test_raydp_master_starts_with_the_authenticated_gateway(monkeypatch: pytest.MonkeyPatch):
    raydp_parts.without_data_sets()
    from raydp.spark.ray_cluster_master import RayDPSparkMaster

    master = raydp_parts.asks_for_secret(RayDPSparkMaster.__ray_metadata__.modified_class)
    calls: list[list[str]] = []

    class Gateway:
        class jvm:  # noqa: N801 - py4j's attribute
            class org:  # noqa: N801
                class apache:  # noqa: N801
                    class spark:  # noqa: N801
                        class deploy:  # noqa: N801
                            class raydp:  # noqa: N801
                                AppMasterJavaBridge = staticmethod(lambda: "the bridge")

    def opened(command: list[str], _environment: object) -> Any:
        calls.append(command)
        return Gateway()

    monkeypatch.setattr("spark_apply.application.raydp_parts.open_gateway", opened)
    monkeypatch.setattr("spark_apply.application.raydp_parts._ray_logs", lambda: "/logs")
    settings = {
        "spark.javaagent": "/agent.jar",
        "spark.ray.log4j.factory.class": "factory",
        "spark.ray.log4j.config.file.name": "log4j2.xml",
        "spark.ray.raydp_app_master.extraJavaOptions": "-Xmx96m -Da='b c'",
        raydp_parts.FOLDER: "/a folder",
        raydp_parts.SPARK_HOME: "/a folder/home",
    }
    found = master(settings)._launch_gateway("/jars/*")
    assert found.entry_point.getAppMasterBridge() == "the bridge"
    [command] = calls
    assert command[:3] == ["java", "-Xmx96m", "-Da=b c"]
    assert command[-2:] == ["-cp", "/jars/*"]
    assert "-javaagent:/agent.jar" in command
    # The application master, which Ray starts, reads the secret; this JVM does not.
    option = f"@/proc/{os.getpid()}/cwd/home/conf/executor.options"
    assert settings["spark.ray.raydp_app_master.extraJavaOptions"] == f"-Xmx96m -Da='b c' {option}"
    assert option not in command
