"""Ray, behind one small interface. The only module of this package that imports ray.

Job
    Create, find, call and end named detached actors; all other modules only know components.

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

CALL_TIMEOUT_S = 5.0  # a method that answers at once needs milliseconds, and less than this on a loaded machine
_LISTENS_TIMEOUT_S = 5.0  # a remote node answers within this
# "queue:q_b=host:port;...": components that this process reaches at another address, for example through a tunnel.
ROUTES_ENVIRONMENT = "HEADRACE_ROUTES"
_CALLS_AT_ONCE = 16  # concurrent calls of an actor: a waiting one must never block `status`
_LOG_BYTES_MAX = 8 << 20
_connected_to = ""  # the address of Ray as this process named it; only in processes that call `connect`
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class Factory(Protocol):
    """Builds a component's host. Named as "module:callable", so that only names are sent to the actor."""

    def __call__(self, **arguments: Any) -> Host:  # noqa: ANN401 - each factory has its own
        """Build the host; must be quick and must not raise (a constructor that raises is never restarted)."""
        ...


class Resolver(Protocol):
    """Returns the current endpoint of a component. Ports change on restart: call it on every reconnect."""

    def __call__(self, name: str) -> str:
        """"host:port" of the component `name`; `PropagationError` (TIMED) when it does not answer."""
        ...


class ActorSystem(Protocol):
    """The controller's interface to an actor system; `RayActors` is the real one."""

    def create(
        self, name: str, factory: str, arguments: Mapping[str, Any], *, state_dir: Path,
        node: Mapping[str, float], environment: Mapping[str, str],
    ) -> None:
        """Create the actor `name` unless it exists; does not wait until it runs.

        Args:
            name: of the component.
            factory: "module:callable" that builds the component's host.
            arguments: for the callable.
            state_dir: of the topology.
            node: amounts of Ray's custom resources that place the actor.
            environment: additional environment variables (failpoints).
        """
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
        """Call a method of several components concurrently; returns a value or a `StreamsError` for each within the time-out."""
        ...

    def kill(self, name: str) -> None:
        """End the actor for good; idempotent."""
        ...


def namespace_of(topology: str) -> str:
    """The Ray namespace of a topology's actors."""
    return f"headrace-{topology}"


def connect(address: str, topology: str) -> RayActors:
    """Connect this process to Ray; quick if it is already connected there, even for another topology.

    Args:
        address: of Ray's control service, or "auto".
        topology: name of the topology.

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
            # Ray's own handlers would end the process with a stack dump.
            signal.signal(signal.SIGTERM, before)
    _connected_to = address
    return RayActors(namespace_of(topology))


def _check_answers(address: str) -> None:
    """Refuse an address at which nothing listens: Ray would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # "auto": Ray itself finds a cluster
        return
    try:
        socket.create_connection((host, int(port)), timeout=_LISTENS_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address}: {error.strerror or error}",
            hint="run `headrace up` again, or name another --address",
        ) from error


def prepare_process(address: str) -> None:
    """Prepare a process that Ray did not start for `connect`; it has no effect after the first `import ray`."""
    # Ray prints events of the cluster ("a worker died ...") to standard output, which is for a command's result.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    if address.startswith(HOST):
        os.environ.update(LOOPBACK)


def disconnect() -> None:
    """Disconnect from Ray; detached actors keep running. Idempotent."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()


def own_address() -> str:
    """The address of the Ray cluster to which this process belongs."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def own_host() -> str:
    """The address at which the cluster's other nodes reach this process's node."""
    import ray

    return str(ray.util.get_node_ip_address())


def actors_of(topology: str) -> RayActors:
    """The actors of a topology, for its components: on the cluster this process belongs to."""
    # Computed, not queried: Ray would return the namespace of the job that created this actor.
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
            PropagationError: there is no such component, or it does not answer now: call again.
            StreamsError: raised by the method.
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
        """The actor's process id, on any node; fault tests and the demo kill it."""
        import ray

        try:
            return int(ray.get(ray.get_actor(name, namespace=self.namespace).pid.remote(), timeout=CALL_TIMEOUT_S))
        except (ray.exceptions.RayError, ValueError) as error:
            raise _translate(name, error) from error

    def _submit(self, name: str, method: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - a Ray reference
        import ray

        return ray.get_actor(name, namespace=self.namespace).call.remote(method, *arguments)


def _translate(name: str, error: Exception) -> StreamsError:
    """Convert a Ray error: to the error that the component raised, or to a PropagationError if it cannot be reached."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, StreamsError):
        return cause
    if isinstance(error, ValueError):  # Ray's error for an unknown name
        return PropagationError(f"{name} does not run", hint="`headrace up` starts what is missing")
    words = str(cause) if cause is not None else type(error).__name__
    return PropagationError(f"{name} does not answer: {words}")


class ComponentActor:
    """The only actor class: hosts a component in its own process.

    Args:
        name: of the component.
        factory: "module:callable" that builds the host.
        arguments: for the callable.
        state_dir: of the topology: the log is written below it.
        environment: set before any other module of the component is imported (failpoints are armed by it).
        creation: identifies this creation of the actor; unchanged when Ray restarts it.
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
            # Ray does not restart an actor that fails here and does not report it: log it.
            logging.getLogger("headrace").exception("%s: cannot be built", name)
            raise
        self._host.start()

    def call(self, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - the component's own answer
        """Call a public method of the host."""
        if method.startswith("_"):
            raise ConfigError(f"not a public method: {method}")
        if method == "reconfigure":
            # Save it before the component uses it: Ray restarts the actor with the arguments of its creation.
            self._taken_over.save(*arguments)
        return getattr(self._host, method)(*arguments)

    def endpoint(self) -> str:
        """See `Host.endpoint`; for callers that do not know hosts."""
        return self._host.endpoint()

    def pid(self) -> int:
        """The process id; fault tests and the demo kill it."""
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
