"""The door into the application master's JVM: a caller without its secret, also another user of the machine, runs nothing in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_apply.application import raydp_parts
from spark_apply.application.environment import java_home
from spark_apply.application.master_gateway import asks_for_secret, open_gateway
from spark_apply.application.spark_home import spark_jars
from streams.errors import ApplyError

JAVA = str(java_home() / "bin" / "java")
JARS = os.pathsep.join(map(str, spark_jars()))
NOBODY = 65534

# What py4j's protocol sends for `java.lang.System.getenv("SECRET")`, behind nothing and behind a guessed secret.
ATTACK = """
import encodings.idna, os, socket
if os.getuid() == 0:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
for hello in (b"", b"A\\nguess\\ne\\n", b"A\\n\\ne\\n"):
    with socket.create_connection(("127.0.0.1", {port}), timeout=30) as link:
        link.sendall(hello + b"c\\nz:java.lang.System\\ngetenv\\nsSECRET\\ne\\n")
        answer = b""
        try:
            while piece := link.recv(4096):
                answer += piece
        except OSError:
            pass
        print(answer)
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    opened = open_gateway([JAVA, "-Xmx64m", "-cp", JARS], {**os.environ, "SECRET": "tell nobody"})
    yield opened
    opened.shutdown()
    opened.proc.terminate()
    opened.proc.wait(timeout=60)


def test_another_user_of_the_machine_runs_nothing_in_the_jvm(gateway: Any):
    assert gateway.jvm.java.lang.System.getenv("SECRET") == "tell nobody"
    port = gateway.gateway_parameters.port
    attack = [sys.executable, "-I", "-c", ATTACK.format(port=port, nobody=NOBODY)]
    answers = subprocess.run(attack, capture_output=True, text=True, check=True, timeout=120, cwd="/").stdout
    assert len(answers.splitlines()) == 3
    assert "tell nobody" not in answers
    assert all("Authentication" in line or line == "b''" for line in answers.splitlines())
    assert gateway.jvm.java.lang.System.getenv("SECRET") == "tell nobody"


def test_the_secret_is_in_no_file_and_not_among_the_jvms_words(gateway: Any):
    secret = gateway.gateway_parameters.auth_token
    assert len(secret) >= 32
    process = Path("/proc") / str(gateway.proc.pid)
    assert secret.encode() not in (process / "cmdline").read_bytes()
    environment = (process / "environ").read_bytes()
    assert secret.encode() not in environment
    told = environment.partition(b"_PYSPARK_DRIVER_CONN_INFO_PATH=")[2].partition(b"\0")[0].decode()
    assert told
    assert not Path(told).parent.exists()


def test_a_jvm_that_does_not_start_says_how_it_ended():
    with pytest.raises(ApplyError, match="JVM ended with"):
        open_gateway([JAVA, "-no-such-option"], os.environ)


def test_rayDPs_master_opens_this_door(monkeypatch: pytest.MonkeyPatch):
    raydp_parts.without_data_sets()
    from raydp.spark.ray_cluster_master import RayDPSparkMaster

    master = asks_for_secret(RayDPSparkMaster.__ray_metadata__.modified_class)
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

    monkeypatch.setattr("spark_apply.application.master_gateway.open_gateway", opened)
    monkeypatch.setattr("spark_apply.application.master_gateway._ray_logs", lambda: "/logs")
    settings = {
        "spark.javaagent": "/agent.jar", "spark.ray.log4j.factory.class": "factory", "spark.ray.log4j.config.file.name": "log4j2.xml",
        "spark.ray.raydp_app_master.extraJavaOptions": "-Xmx96m -Da='b c'",
    }
    found = master(settings)._launch_gateway("/jars/*")
    assert found.entry_point.getAppMasterBridge() == "the bridge"
    [command] = calls
    assert command[:3] == ["java", "-Xmx96m", "-Da=b c"]
    assert command[-2:] == ["-cp", "/jars/*"]
    assert "-javaagent:/agent.jar" in command
