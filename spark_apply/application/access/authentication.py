"""Authentication of the JVMs of a Spark application: only callers with its secret get in.

Job
    An executor runs what it is sent, and each JVM deserializes what arrives over a connection. If configured, Spark
    refuses callers that do not know a secret, and encrypts the rest. Each start of an application makes a new secret
    and passes it to its JVMs in files that only their user can read. As a setting it would appear in process lists, and
    Ray shows the arguments of an actor.

Main path
    write_secret, when the application starts -> the driver reads its Spark home; the command lines of the executors
      (`executor_option`) and of the application master (`master_option`) name a file
      -> join_application, when the driver runs.

Why the driver is changed while it runs
    RayDP's executors have the application's name as its master numbers it; the driver has a name with a number of
    Spark's own. An authenticated connection belongs to one application, and blocks of another are not handed out: no
    executor could read the driver's blocks. Spark offers no setting for the driver's name. So the driver's two users of
    the name get the master's, before the first job.
"""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex
from typing import Any

__all__ = ["SETTINGS", "executor_option", "join_application", "master_option", "write_secret"]

SETTINGS = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # A caller that does not know the newer protocol is not let in by the older one.
    "spark.network.crypto.saslFallback": "false",
    # 2 derives the session's key from the whole exchange. Spark 3.5 defaults to 1, to speak with earlier versions; all
    # JVMs of an application have the same version.
    "spark.network.crypto.authEngineVersion": "2",
    # `spark.network.crypto.cipher` stays AES/CTR/NoPadding, which does not detect altered bytes. AES/GCM/NoPadding
    # would, but with it the installed Spark reads only the first message of each connection (SPARK-56227).
}
"""Settings under which the JVMs authenticate and encrypt."""

# A variable of Spark's. If Ray was started with it, as earlier versions of Headrace required, all JVMs prefer it to the
# files.
_VARIABLE = "_SPARK_AUTH_SECRET"
_SETTING = "spark.authenticate.secret"
_SECRET_BYTES = 32  # 256 bits cannot be guessed
_DRIVERS, _EXECUTORS = "spark-defaults.conf", "executor.options"


def write_secret(home: Path) -> None:
    """Make the secret of an application that is about to start, and write the files from which its JVMs read it.

    Args:
        home: Spark home of this application alone; only its user can read the files.
    """
    folder = home / "conf"
    folder.mkdir(mode=0o700, exist_ok=True)
    secret = os.environ.get(_VARIABLE) or token_hex(_SECRET_BYTES)
    # A crash report shows an executor's options, even those that Java read from a file, and everyone can read it. Java
    # puts it into the working folder or into /tmp, unless it is given a place; it replaces %p by the process's number.
    reports = _quoted(f"-XX:ErrorFile={str(folder).replace('%', '%%')}/hs_err_%p.log")
    for name, lines in ((_DRIVERS, f"{_SETTING} {secret}\n"), (_EXECUTORS, f"-D{_SETTING}={secret}\n{reports}\n")):
        (folder / name).unlink(missing_ok=True)  # an application with the same number left it
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(lines)


def executor_option(home: Path) -> str:
    """Return the Java option with which an executor reads the secret, quoted for Spark's settings.

    Spark refuses its own settings among an executor's options; only Java reads the content of a file.

    Args:
        home: as in `write_secret`.
    """
    return _quoted(f"@{home / 'conf' / _EXECUTORS}")


def _quoted(option: str) -> str:
    """Return an option as one word for Spark's settings and Java's option files, which read quotes in the same way."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def master_option(home: Path) -> str:
    """Return the Java option with which the application master reads the secret, for RayDP's setting.

    Ray starts the master in another environment. RayDP splits the master's options at blanks and knows no quotes.
    Therefore the path goes through the working folder of this process, which runs until the master has started.

    Args:
        home: as in `write_secret`, relative to the working folder of this process.
    """
    return f"@/proc/{os.getpid()}/cwd/{home}/conf/{_EXECUTORS}"


def join_application(context: Any) -> None:  # noqa: ANN401 - py4j has no types
    """Give the driver the application name that its executors have; call before the first job.

    Args:
        context: Spark's context in Python.
    """
    if context.getConf().get("spark.authenticate", "false") != "true":
        return
    scheduler = context._jsc.sc()  # noqa: SLF001 - not in pyspark's API
    name = _field(scheduler.schedulerBackend(), "appId", "java.util.concurrent.atomic.AtomicReference")[1].get()
    blocks = scheduler.env().blockManager().blockTransferService()
    server = _value(_value(blocks, "transportContext"), "rpcHandler")
    clients = _value(_value(blocks, "clientFactory"), "clientBootstraps")
    for user in (server, *(clients.get(number) for number in range(clients.size()))):
        field, _ = _field(user, "appId")
        field.set(user, name)


def _value(owner: Any, name: str) -> Any:  # noqa: ANN401 - as above
    return _field(owner, name)[1]


def _field(owner: Any, name: str, type_name: str = "") -> tuple[Any, Any]:  # noqa: ANN401 - as above
    """Return a field of a JVM object, and its value.

    Args:
        owner: the object.
        name: name of the field; Scala's compiler prefixes it with its class.
        type_name: class of the field; empty: any.

    Raises:
        LookupError: this version of Spark or RayDP has no such field.
    """
    kind = owner.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if field.getName().rpartition("$$")[2] == name and type_name in {"", field.getType().getName()}:
                field.setAccessible(True)
                return field, field.get(owner)
        kind = kind.getSuperclass()
    message = (
        f"{owner.getClass().getName()} has no field {name}: the installed version of pyspark or raydp is not the"
        " required one"
    )
    raise LookupError(message)
