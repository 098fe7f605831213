"""Ray, behind one small interface. The only module of this package that imports ray.

Job
    Create, find, ask and end named detached actors; everything else speaks of components.

Main path
    connect -> RayActors.create -> ComponentActor.__init__ -> Host.start; RayActors.call -> ComponentActor.call.

States
    None here: Ray's control service knows the actors, a component knows its own state.

Durable when
    Never: a component rebuilds itself from its site's files and databases. Ray restarts a dead actor's process
    (`max_restarts=-1`) and runs its constructor again with the same arguments; the constructor starts the loop, so
    a restarted actor works without being asked.
"""

from __future__ import annotations

import importlib
import logging
import logging.handlers
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from actors.local_cluster import HOST
from actors.taken_over import TakenOver
from spark_apply.application.environment import LOOPBACK
from streams.errors import ConfigError, PropagationError, StreamsError

if TYPE_CHECKING:
    from actors.host import Host

__all__ = [
    "ROUTES_ENVIRONMENT", "ActorSystem", "Factory", "RayActors", "Resolver", "actors_of", "connect", "disconnect", "namespace_of", "own_address", "own_host", "prepare_process", "resolver",
]

CALL_TIMEOUT_S = 5.0  # what answers at once answers within milliseconds, also on a loaded machine within this
_LISTENS_TIMEOUT_S = 5.0  # a node in another place answers within this
# "queue:q_b=host:port;...": what this process reaches at another address than the one it is told, as through a tunnel.
ROUTES_ENVIRONMENT = "HEADRACE_ROUTES"
_CALLS_AT_ONCE = 16  # calls an actor answers at the same time: a waiting one must never hold up `status`
_LOG_BYTES_MAX = 8 << 20
_connected_to = ""  # the address of Ray as this process named it; only in processes that call `connect`
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class Factory(Protocol):
    """Builds a component's host. Named as "module:callable", so that only names travel to the actor."""

    def __call__(self, **arguments: Any) -> Host:  # noqa: ANN401 - each factory has its own
        """Build the host; must be quick and must not raise (a constructor that raises is never restarted)."""
        ...


class Resolver(Protocol):
    """Tells where a component serves now. Ports change on restart: ask again on every reconnect."""

    def __call__(self, name: str) -> str:
        """"host:port" of the component `name`; `PropagationError` (TIMED) when it does not answer."""
        ...


class ActorSystem(Protocol):
    """What the controller needs of the thing that runs actors; `RayActors` is the real one."""

    def create(
        self, name: str, factory: str, arguments: Mapping[str, Any], *, state_dir: Path,
        node: Mapping[str, float], environment: Mapping[str, str],
    ) -> None:
        """Create the actor `name` unless it is there; does not wait until it runs."""
        ...

    def names(self) -> set[str]:
        """Every actor of the namespace that runs or is being restarted."""
        ...

    def call(
        self, name: str, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 - whatever the method answers
        """Call a method of the component."""
        ...

    def call_all(self, names: Iterable[str], method: str, *, timeout_s: float) -> dict[str, Any]:
        """Call a method of many at once; within the timeout, a value or a `StreamsError` for each."""
        ...

    def kill(self, name: str) -> None:
        """End the actor for good; idempotent."""
        ...


def namespace_of(topology: str) -> str:
    """The Ray namespace of a topology's actors."""
    return f"headrace-{topology}"


def connect(address: str, topology: str) -> RayActors:
    """Connect this process to Ray; quick when it is connected there already, also for another topology.

    Raises:
        ConfigError: nothing answers at the address.
    """
    import ray

    global _connected_to
    if ray.is_initialized() and _connected_to != address:
        ray.shutdown()
    if not ray.is_initialized():
        _check_answers(address)
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=address, namespace=namespace_of(topology), log_to_driver=False, configure_logging=False,
                logging_level=logging.ERROR, **({"_node_ip_address": HOST} if address.startswith(HOST) else {}),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster answers at {address}: {error}", hint="run `headrace up` again, or name another --address"
            ) from error
        if threading.current_thread() is threading.main_thread():
            # Ray's own handlers end the process with a dump of its stack.
            signal.signal(signal.SIGTERM, before)
    _connected_to = address
    return RayActors(namespace_of(topology))


def _check_answers(address: str) -> None:
    """Refuse an address at which nobody listens: Ray would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # "auto": Ray itself looks for a cluster
        return
    try:
        socket.create_connection((host, int(port)), timeout=_LISTENS_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address}: {error.strerror or error}",
            hint="run `headrace up` again, or name another --address",
        ) from error


def prepare_process(address: str) -> None:
    """Prepare a process that is not Ray's own for `connect`; before its first `import ray`, else without effect."""
    # Ray prints news of the cluster ("a worker died ...") to standard output, where a command's result belongs.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    if address.startswith(HOST):
        os.environ.update(LOOPBACK)


def disconnect() -> None:
    """Leave Ray; detached actors go on. Idempotent."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()


def own_address() -> str:
    """Address of the Ray cluster this process belongs to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def own_host() -> str:
    """The address under which this process's node is reached by the cluster's other nodes."""
    import ray

    return str(ray.util.get_node_ip_address())


def actors_of(topology: str) -> RayActors:
    """The actors of a topology, for its components: on the cluster this process belongs to."""
    # Named, not asked of Ray: that would answer the namespace of the job that created this actor.
    return RayActors(namespace_of(topology))


def resolver(topology: str) -> Resolver:
    """A resolver for the components of a topology, for one of them."""
    actors = actors_of(topology)
    routes = dict(entry.split("=", 1) for entry in os.environ.get(ROUTES_ENVIRONMENT, "").split(";") if entry)

    def resolve(name: str) -> str:
        return routes.get(name) or str(actors.call(name, "endpoint"))

    return resolve


class RayActors:
    """The actors of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def create(
        self, name: str, factory: str, arguments: Mapping[str, Any], *, state_dir: Path,
        node: Mapping[str, float], environment: Mapping[str, str],
    ) -> None:
        """See `ActorSystem.create`."""
        import ray

        actor = ray.remote(ComponentActor)
        actor.options(
            name=name, namespace=self.namespace, lifetime="detached", get_if_exists=True, num_cpus=0,
            max_restarts=-1, max_task_retries=0, max_concurrency=_CALLS_AT_ONCE, resources=dict(node) or None,
        ).remote(name, factory, dict(arguments), str(state_dir), dict(environment), uuid.uuid4().hex)

    def names(self) -> set[str]:
        """See `ActorSystem.names`."""
        import ray

        named: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
        return {actor["name"] for actor in named if actor["namespace"] == self.namespace}

    def call(
        self, name: str, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 - whatever the method answers
        """See `ActorSystem.call`.

        Raises:
            PropagationError: no such component, or it does not answer now: call again.
            StreamsError: whatever the method raised.
        """
        import ray

        try:
            return ray.get(self._submit(name, method, arguments), timeout=timeout_s)
        except (ray.exceptions.RayError, ValueError) as error:
            raise _translate(name, error) from error

    def call_all(self, names: Iterable[str], method: str, *, timeout_s: float) -> dict[str, Any]:
        """See `ActorSystem.call_all`."""
        import ray

        answers: dict[str, Any] = {}
        pending: dict[Any, str] = {}
        for name in names:
            try:
                pending[self._submit(name, method, ())] = name
            except (ray.exceptions.RayError, ValueError) as error:
                answers[name] = _translate(name, error)
        ready, late = ray.wait(list(pending), num_returns=len(pending), timeout=timeout_s) if pending else ([], [])
        for reference in ready:
            try:
                answers[pending[reference]] = ray.get(reference)
            except (ray.exceptions.RayError, ValueError) as error:
                answers[pending[reference]] = _translate(pending[reference], error)
        for reference in late:
            answers[pending[reference]] = PropagationError(f"{pending[reference]} does not answer within {timeout_s:g} s")
        return answers

    def kill(self, name: str) -> None:
        """See `ActorSystem.kill`."""
        import ray

        try:
            ray.kill(ray.get_actor(name, namespace=self.namespace), no_restart=True)
        except ValueError:
            return  # not there

    def pid(self, name: str) -> int:
        """Process of the actor, on whatever node it is: fault tests and the demo end it."""
        import ray

        try:
            return int(ray.get(ray.get_actor(name, namespace=self.namespace).pid.remote(), timeout=CALL_TIMEOUT_S))
        except (ray.exceptions.RayError, ValueError) as error:
            raise _translate(name, error) from error

    def _submit(self, name: str, method: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - a Ray reference
        import ray

        return ray.get_actor(name, namespace=self.namespace).call.remote(method, *arguments)


def _translate(name: str, error: Exception) -> StreamsError:
    """Ray's errors as ours: what the component raised, or that it cannot be reached now."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, StreamsError):
        return cause
    if isinstance(error, ValueError):  # Ray's answer for a name it does not know
        return PropagationError(f"{name} does not run", hint="`headrace up` starts what is missing")
    words = str(cause) if cause is not None else type(error).__name__
    return PropagationError(f"{name} does not answer: {words}")


class ComponentActor:
    """The one actor class: hosts a component in a process of its own.

    Args:
        name: of the component.
        factory: "module:callable" that builds the host.
        arguments: for the callable.
        state_dir: of the topology: the log is written below it.
        environment: set before any other module of the component is imported (failpoints are armed by it).
        creation: differs for each actor that is created, and stays the same when Ray restarts one.
    """

    def __init__(
        self, name: str, factory: str, arguments: Mapping[str, Any], state_dir: str, environment: Mapping[str, str],
        creation: str,
    ) -> None:
        os.environ.update(environment)
        _log_to(Path(state_dir) / "logs" / f"{name.replace(':', '.')}.log")
        logging.getLogger("headrace").info("%s: process %d starts", name, os.getpid())
        module, _, attribute = factory.partition(":")
        try:
            self._taken_over = TakenOver(Path(state_dir), name, creation)
            self._host: Host = getattr(importlib.import_module(module), attribute)(**self._taken_over.arguments(arguments))
        except BaseException:
            # Ray does not restart what fails here, and tells nobody: the log must.
            logging.getLogger("headrace").exception("%s: cannot be built", name)
            raise
        self._host.start()

    def call(self, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - the component's own answer
        """Call a public method of the host."""
        if method.startswith("_"):
            raise ConfigError(f"not a public method: {method}")
        if method == "reconfigure":
            # Before the component goes by it: Ray restarts it with the arguments of its creation.
            self._taken_over.save(*arguments)
        return getattr(self._host, method)(*arguments)

    def endpoint(self) -> str:
        """See `Host.endpoint`; for callers that know nothing of hosts."""
        return self._host.endpoint()

    def pid(self) -> int:
        """Of this process: fault tests and the demo end it."""
        return os.getpid()


def _log_to(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(file, maxBytes=_LOG_BYTES_MAX, backupCount=1, delay=True)
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    logger = logging.getLogger("headrace")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [handler]
    threading.excepthook = _log_thread_error


def _log_thread_error(arguments: threading.ExceptHookArgs) -> None:
    logging.getLogger("headrace").error(
        "thread %s ended by an error", arguments.thread.name if arguments.thread else "?",
        exc_info=(arguments.exc_type, arguments.exc_value or arguments.exc_type(), arguments.exc_traceback),
    )
