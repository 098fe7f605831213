"""Who may speak with the JVMs of a Spark application: only who knows its secret.

Job
    An executor runs what it is sent, and each of the JVMs deserializes what comes over a connection. Spark lets nobody
    in who does not know a secret, and encrypts what follows, if it is told so. Each start of an application makes a new
    one, and tells its JVMs in files that only their user may read: in a setting's place it would stand in process
    lists, and Ray shows what it is given for an actor.

Main path
    write_secret, when the application starts -> the driver reads its Spark home; the command lines of the executors
      (`executor_option`) and of the application master (`master_option`) name a file
      -> join_application, when the driver runs.

Why the driver is changed when it runs
    RayDP's executors are named after the application as its master numbers it, the driver after a number of Spark's
    own. An authenticated connection belongs to an application, and what belongs to another one is not handed out: no
    executor could read what the driver has for it. Spark offers no setting for the driver's; so the driver's two users
    of the name get the master's, before the first job.
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
    # Who does not know the newer way is not let in by the older one.
    "spark.network.crypto.saslFallback": "false",
    # 2 derives the session's key from the whole exchange. Spark 3.5 takes 1 if nothing is said, to speak with earlier
    # versions; all JVMs of an application are of one.
    "spark.network.crypto.authEngineVersion": "2",
    # `spark.network.crypto.cipher` stays AES/CTR/NoPadding, which does not notice altered bytes. AES/GCM/NoPadding would,
    # but with it the installed Spark reads the first message of each connection only (SPARK-56227).
}
"""Settings under which the JVMs authenticate and encrypt."""

# A name of Spark's. Where Ray was started with it, as earlier versions asked for, all JVMs prefer it to what they read.
_VARIABLE = "_SPARK_AUTH_SECRET"
_SETTING = "spark.authenticate.secret"
_SECRET_BYTES = 32  # nobody guesses 256 bits
_DRIVERS, _EXECUTORS = "spark-defaults.conf", "executor.options"


def write_secret(home: Path) -> None:
    """Make the secret of an application that is to start, and write what its JVMs read it from.

    Args:
        home: of Spark, of this application alone; its own user alone can read the files.
    """
    folder = home / "conf"
    folder.mkdir(mode=0o700, exist_ok=True)
    secret = os.environ.get(_VARIABLE) or token_hex(_SECRET_BYTES)
    # A crash report shows an executor's options, also those that Java read from a file, and everybody may read it. Java
    # puts it into the working folder, or into /tmp, unless it is told a place; it takes %p for the process's number.
    reports = _quoted(f"-XX:ErrorFile={str(folder).replace('%', '%%')}/hs_err_%p.log")
    for name, lines in ((_DRIVERS, f"{_SETTING} {secret}\n"), (_EXECUTORS, f"-D{_SETTING}={secret}\n{reports}\n")):
        (folder / name).unlink(missing_ok=True)  # an application of the same number left it
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(lines)


def executor_option(home: Path) -> str:
    """The option of Java with which an executor reads the secret, as Spark's settings quote it.

    Spark refuses its own settings among an executor's options; what is in a file is read by Java alone.

    Args:
        home: see `write_secret`.
    """
    return _quoted(f"@{home / 'conf' / _EXECUTORS}")


def _quoted(option: str) -> str:
    """An option as one word, for Spark's settings and for Java's files of options: both read quotes in the same way."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def master_option(home: Path) -> str:
    """The option of Java with which the application master reads the secret, as RayDP's setting takes it.

    Ray starts the master, in an environment of its own. RayDP splits the master's options at blanks, and knows no
    quotes: so the path leads over the working folder of this process, which runs until the master has started.

    Args:
        home: see `write_secret`; from the working folder of this process on.
    """
    return f"@/proc/{os.getpid()}/cwd/{home}/conf/{_EXECUTORS}"


def join_application(context: Any) -> None:  # noqa: ANN401 - py4j has no types
    """Give the driver the name of its application that its executors have; before the first job.

    Args:
        context: Spark's, as Python has it.
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
    """A field of an object of the JVM, and its value.

    Args:
        owner: the object.
        name: of the field; Scala's compiler puts its class before it.
        type_name: of its class; empty: any.

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
        f"{owner.getClass().getName()} has no field {name}: pyspark or raydp is another version than the one"
        " that is required"
    )
    raise LookupError(message)
