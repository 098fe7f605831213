"""Who may speak with the JVMs of a Spark application: only who knows the secret of the cluster's processes.

Job
    An executor runs what it is sent, and each of the JVMs deserializes what comes over a connection. Spark lets nobody
    in who does not know a secret, and encrypts what follows, if it is told so. The secret is a variable of the
    environment of Ray's processes, which nobody but their user can read: a private cluster gets a new one each time it
    starts (`actors.cluster.local`), and the nodes of a cluster of one's own from whoever starts Ray on them.

Main path
    secret_environment -> Ray's processes -> authentication_settings and write_secret, for the driver ->
      join_application, when it runs.

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

__all__ = ["SECRET", "authentication_settings", "join_application", "secret_environment", "write_secret"]

SECRET = "_SPARK_AUTH_SECRET"  # noqa: S105 - a name
"""The variable; the name is Spark's."""
_SECRET_BYTES = 32  # nobody guesses 256 bits
_DEFAULTS = "spark-defaults.conf"


def secret_environment() -> dict[str, str]:
    """The variable with a new secret, for the processes of a cluster that starts."""
    return {SECRET: token_hex(_SECRET_BYTES)}


def authentication_settings() -> dict[str, str]:
    """Settings under which the JVMs authenticate and encrypt.

    None where this process, which Ray started, has no secret.
    """
    if not os.environ.get(SECRET):
        return {}
    return {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        # Who does not know the newer way is not let in by the older one.
        "spark.network.crypto.saslFallback": "false",
    }


def write_secret(home: Path) -> None:
    """Give the driver its secret in a file of its Spark home: in a setting's place it would stand in the process list.

    Args:
        home: of Spark; its own user alone can read the file.
    """
    folder = home / "conf"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / _DEFAULTS
    file.unlink(missing_ok=True)
    secret = os.environ.get(SECRET)
    if secret:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(f"spark.authenticate.secret {secret}\n")


def join_application(context: Any) -> None:  # noqa: ANN401 - py4j has no types
    """Give the driver the name of its application that its executors have; before the first job.

    Args:
        context: Spark's, as Python has it.
    """
    if not authentication_settings():
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
