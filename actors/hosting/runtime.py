"""Ray, behind one small interface. The only module of this package that imports ray.

Longer than 500 lines: it contains everything that calls Ray, so that no other module has to.

Job
    Create, find, call and end named detached actors; all other modules only know components.

Main path
    connect -> RayActors.create -> ProcessActor.settle -> Components.settle -> Host.start; RayActors.call ->
    ProcessActor.call.
    An actor is a process; Ray's key-value store records which components it holds (`_Records`).

States
    None here: Ray's control service knows the actors and the records of components, a component knows its own state.

Durable when
    Never: a component rebuilds itself from its site's files and databases. Ray restarts a dead actor's process
    (`max_restarts=-1`) and runs its constructor again. The constructor starts what is recorded for the process, so a
    restarted actor works without a request. Records last as long as Ray's control service, as the actors do.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import pickle
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from actors.cluster.local import HOST
from actors.cluster.nodes import placement
from actors.hosting.components import Components, Record
from actors.state_folder import keep_private, make_private
from headrace.base.errors import ConfigError, HeadraceError, PropagationError
from spark_apply.application.environment import LOOPBACK

if TYPE_CHECKING:
    from ray.job_config import JobConfig

    from actors.hosting.host import Host

__all__ = [
    "ActorSystem",
    "Factory",
    "RayActors",
    "Resolver",
    "actors_of",
    "connect",
    "disconnect",
    "namespace_of",
    "own_address",
    "own_host",
    "prepare_process",
    "resolver",
    "session_folder",
]

CALL_TIMEOUT_S = 5.0  # a method that answers at once needs milliseconds, and less than this on a loaded machine
_LISTENS_TIMEOUT_S = 5.0  # a remote node answers within this
_CALLS_AT_ONCE = 16  # concurrent calls of an actor: a waiting one must never block `status`
# Their own threads, whatever other calls wait for. `settle` ends a hanging component, and with it the process, which
# takes 45 s; endpoints are requested on every reconnect.
_GROUPS = {"settle": 4, "prompt": 2}
_GROUP_OF = {"endpoint": "prompt"}  # other methods: the actor's own 16
_LOG_BYTES_MAX = 8 << 20
_connected_to = ""  # the address of Ray as given to `connect`; empty in processes that do not call it
_environments: dict[str, dict[str, str]] = {}  # client environments of the clusters that this process knows, by address
_own_environment: dict[str, str | None] = {}  # the values before `prepare_process` changed them; None: was not set
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class Factory(Protocol):
    """Builds a component's host. Named as "module:callable", so that only names are sent to the actor."""

    def __call__(self, **arguments: Any) -> Host:  # noqa: ANN401 - each factory has its own
        """Build the host; must be quick and must not raise (a constructor that raises is never restarted)."""
        ...


class Resolver(Protocol):
    """Finds the current endpoint of a component. Ports change on restart: call it on every reconnect."""

    def __call__(self, name: str) -> str:
        """Return the address ("host:port") of the component `name`; `PropagationError` (TIMED) when it does not answer."""
        ...


class ActorSystem(Protocol):
    """The controller's interface to an actor system; `RayActors` is the real one."""

    def create(
        self,
        name: str,
        factory: str,
        arguments: Mapping[str, Any],
        *,
        process: str,
        state_dir: Path,
        node: Mapping[str, float],
        environment: Mapping[str, str],
    ) -> None:
        """Create the component `name` unless it exists; does not wait until it runs.

        Args:
            name: name of the component.
            factory: name of a `Factory`.
            arguments: keyword arguments of the factory.
            process: name of the process; components created with the same process name share it.
            state_dir: state folder of the topology.
            node: node of the component's site in the topology; places the process if it does not run yet
                (`actors.cluster.nodes`).
            environment: environment of the process if it does not run yet.
        """
        ...

    def names(self) -> set[str]:
        """Return every component of the namespace that runs, is being restarted, or is about to end."""
        ...

    def held(self) -> Mapping[str, Collection[str]]:
        """Return the components that each process holds, is to hold, or is about to end."""
        ...

    def call(
        self,
        name: str,
        method: str,
        *arguments: Any,  # noqa: ANN401
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:  # noqa: ANN401 - whatever the method answers
        """Call a method of the component.

        Args:
            name: full name of the component, e.g. "queue:q_dbs1".
            method: a public method of its host.
            arguments: arguments of the method; they are pickled.
            timeout_s: seconds to wait; the method may still run afterwards.

        Raises:
            PropagationError: the component does not exist, or does not answer now: retry.
            HeadraceError: raised by the method.
        """
        ...

    def call_all(self, names: Iterable[str], method: str, *, timeout_s: float) -> dict[str, Any]:
        """Call a method of several components concurrently.

        Args:
            names: full names of the components.
            method: a public method of every host, called without arguments.
            timeout_s: seconds to wait for all of them together.

        Returns:
            By name the method's value, or a `HeadraceError`: the one that the method raised, or one for an answer that
            did not arrive in time.
        """
        ...

    def kill(self, name: str) -> None:
        """End the component for good; idempotent. Its process is killed when it holds no other component."""
        ...

    def nodes(self) -> list[Mapping[str, float]]:
        """Return the resources of each living node, by resource name. A disconnected node counts as living for seconds.

        Raises:
            PropagationError: the cluster does not answer now.
        """
        ...

    def end(self, names: Collection[str], *, timeout_s: float) -> None:
        """End components for good and orderly: each finishes its step and closes before its process is killed.

        Idempotent. The end is recorded first: if a process dies meanwhile, no component stays halfway, and `create`
        starts it anew.

        Args:
            names: full names of the components.
            timeout_s: seconds to wait for all of them together; components that take longer are killed.
        """
        ...


def namespace_of(topology: str) -> str:
    """Return the Ray namespace of a topology's actors."""
    return f"headrace-{topology}"


def connect(address: str, topology: str) -> RayActors:
    """Connect this process to Ray; quick if it is already connected there, even for another topology.

    Args:
        address: address of Ray's control service.
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
                address=address,
                namespace=namespace_of(topology),
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
                job_config=_without_own_folders(),
                **({"_node_ip_address": HOST} if address.startswith(HOST) else {}),
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster answers at {address}: {error}",
                hint="run `headrace up` again, or specify another --address",
            ) from error
        if threading.current_thread() is threading.main_thread():
            # Ray's own handlers would end the process with a stack dump.
            signal.signal(signal.SIGTERM, before)
    _connected_to = address
    return RayActors(namespace_of(topology))


class _NoFolders(list[str]):
    """The list to which Ray would add folders that all components search for modules first; it ignores additions."""

    def extend(self, _folders: Iterable[str]) -> None:
        """Add nothing."""


def _without_own_folders() -> JobConfig:
    """Return a job whose components search for modules only where these are installed.

    Ray would put the folder in which the command runs first. With `cd /tmp; headrace up FILE` each component would then
    run a file `/tmp/psycopg.py` of another user, and a file `types.py` in the operator's own folder would break it.
    """
    from ray.job_config import JobConfig

    config = JobConfig()
    config._py_driver_sys_path = _NoFolders()  # noqa: SLF001 - Ray has no setting for it; a test looks at a component's path
    return config


def _check_answers(address: str) -> None:
    """Refuse an address at which nothing listens: Ray would retry for many minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # Ray reports what is wrong with it
        return
    try:
        socket.create_connection((host, int(port)), timeout=_LISTENS_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address}: {error.strerror or error}",
            hint="run `headrace up` again, or specify another --address",
        ) from error


def prepare_process(address: str, environment: Mapping[str, str]) -> None:
    """Prepare a process that Ray did not start for `connect`.

    Args:
        address: address of Ray's control service.
        environment: environment of the cluster's clients (`actors.cluster.local.LocalCluster.client_environment`).
            Empty: the one given for this address before. Without one, it is a cluster of the user's, which the
            process's own environment describes.
    """
    # Ray prints events of the cluster ("a worker died ...") to standard output, which is for a command's result.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    if environment:
        _environments[address] = dict(environment)
    variables = {**(LOOPBACK if address.startswith(HOST) else {}), **_environments.get(address, {})}
    if "ray" not in sys.modules:
        _set_environment(variables)
    elif address != _connected_to or any(os.environ.get(name) != value for name, value in variables.items()):
        # Another cluster than before: Ray keeps the settings that it read when it was imported, even if the environment
        # has changed since.
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

        disconnect()
        _set_environment(variables)
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


def _set_environment(variables: Mapping[str, str]) -> None:
    """Set the environment of a cluster's client; variables that another cluster changed get the process's own value back."""
    for name in variables:
        _own_environment.setdefault(name, os.environ.get(name))
    for name, own in _own_environment.items():
        value = variables.get(name, own)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def disconnect() -> None:
    """Disconnect from Ray; detached actors keep running. Idempotent."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()


def own_address() -> str:
    """Return the address of the Ray cluster to which this process belongs."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def session_folder() -> Path | None:
    """Return Ray's folder on this process's node, with its sockets and logs; None: this process is on no cluster."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return Path(ray._private.worker._global_node.get_session_dir_path())  # noqa: SLF001 - as RayDP does


def own_host() -> str:
    """Return the address at which the cluster's other nodes reach this process's node."""
    import ray

    return str(ray.util.get_node_ip_address())


def actors_of(topology: str) -> RayActors:
    """Return the actors of a topology, for its components: on the cluster to which this process belongs."""
    # Computed, not queried: Ray would return the namespace of the job that created this actor.
    return RayActors(namespace_of(topology))


def resolver(topology: str, site: str) -> Resolver:
    """Make a resolver of a topology's components, for use by a component.

    Args:
        topology: name of the topology.
        site: site of the connecting component.
    """
    actors = actors_of(topology)

    def resolve(name: str) -> str:
        return actors.detour(site, name) or str(actors.call(name, "endpoint"))

    return resolve


class RayActors:
    """The components of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._records = _Records(namespace)
        # abandoned answers of `call_all`: a late call is not cancelled
        self._late: dict[tuple[str, str], Any] = {}
        # components that were told to end: a component on an unreachable node hears it when the node is back
        self._told: dict[str, Any] = {}

    def create(
        self,
        name: str,
        factory: str,
        arguments: Mapping[str, Any],
        *,
        process: str,
        state_dir: Path,
        node: Mapping[str, float],
        environment: Mapping[str, str],
    ) -> None:
        """Create the component unless it exists; a process that holds no component is killed first.

        See `ActorSystem.create` for the arguments.
        """
        import ray

        alive, places = self._alive(), self._records.places()
        if any(each == name and place in alive for each, place in places):
            return
        if process in alive and process not in {place for _, place in places}:
            # The caller that ended its last component died before killing the process, which may be on another node,
            # with another environment.
            self._kill_process(process)
        record = Record(creation=uuid.uuid4().hex, factory=factory, arguments=dict(arguments), state_dir=str(state_dir))
        # Before the process is notified: whenever that dies, it finds the record when it restarts.
        self._records.put(name, process, record)
        actor = (
            ray.remote(concurrency_groups=_GROUPS)(ProcessActor)
            .options(
                name=process,
                namespace=self.namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=_CALLS_AT_ONCE,
                resources=placement(node),
            )
            .remote(process, self.namespace, str(state_dir), dict(environment))
        )
        _settle(actor, name)

    def names(self) -> set[str]:
        """Return every component that runs, is being restarted, or is about to end."""
        alive = self._alive()
        return {name for name, process in self._records.places() if process in alive}

    def held(self) -> dict[str, set[str]]:
        """Return the components that each process holds, is to hold, or is about to end."""
        found: dict[str, set[str]] = {}
        for name, process in self._records.places():
            found.setdefault(process, set()).add(name)
        return found

    def state_dir(self) -> Path | None:
        """Return the state folder of the topology whose components are recorded.

        None: no component is recorded, or another version recorded them.
        """
        for name, process in self._records.running():
            with contextlib.suppress(AttributeError, ImportError, TypeError, pickle.UnpicklingError):
                record = self._records.get(name, process)
                if record is not None:
                    return Path(record.state_dir)
        return None

    def processes(self) -> dict[str, set[str]]:
        """Return the processes that run or are being restarted, each with its components."""
        found: dict[str, set[str]] = {process: set() for process in self._alive()}
        for name, process in self._records.places():
            if process in found:
                found[process].add(name)
        return found

    def call(
        self,
        name: str,
        method: str,
        *arguments: Any,  # noqa: ANN401
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:  # noqa: ANN401 - whatever the method answers
        """Call a method of a component.

        See `ActorSystem.call` for the arguments.

        Raises:
            PropagationError: the component does not exist, or does not answer now: retry.
            HeadraceError: raised by the method.
        """
        import ray

        try:
            return ray.get(_call(self._actor_of(name), name, method, *arguments), timeout=timeout_s)
        except (ray.exceptions.RayError, ValueError) as error:
            raise _translate(name, error) from error

    def call_all(self, names: Iterable[str], method: str, *, timeout_s: float) -> dict[str, Any]:
        """Call a method of several components concurrently; a component whose last call is still pending is not called.

        See `ActorSystem.call_all` for the arguments.
        """
        import ray

        answers: dict[str, Any] = {}
        pending: dict[Any, str] = {}
        places, actors = dict(self._records.running()), dict[str, Any]()
        for name in names:
            if self._is_late(name, method):
                answers[name] = PropagationError(f"{name} has not answered the last call of {method} yet")
                continue
            try:
                process = places.get(name, "")
                if process not in actors:
                    actors[process] = self._actor(process)
                pending[_call(actors[process], name, method)] = name
            except (ray.exceptions.RayError, ValueError) as error:
                answers[name] = _translate(name, error)
        ready, late = ray.wait(list(pending), num_returns=len(pending), timeout=timeout_s) if pending else ([], [])
        for reference in ready:
            try:
                answers[pending[reference]] = ray.get(reference)
            except (ray.exceptions.RayError, ValueError) as error:
                answers[pending[reference]] = _translate(pending[reference], error)
        for reference in late:
            self._late[pending[reference], method] = reference
            answers[pending[reference]] = PropagationError(
                f"{pending[reference]} does not answer within {timeout_s:g} s"
            )
        return answers

    def _is_late(self, name: str, method: str) -> bool:
        """Return whether the last call is still pending; another would only occupy one more thread of the process."""
        import ray

        reference = self._late.pop((name, method), None)
        if reference is None or ray.wait([reference], timeout=0)[0]:
            return False
        self._late[name, method] = reference
        return True

    def kill(self, name: str) -> None:
        """End the component for good; its process is killed when it holds no other component."""
        import ray

        process = dict(self._records.places()).get(name)
        if process is None:
            return
        self._records.end(name, process)
        if process not in {place for _, place in self._records.running()}:
            self._kill_process(process)
            return
        if name in self._told and not ray.wait([self._told[name]], timeout=0)[0]:
            return
        with contextlib.suppress(ValueError):  # the process does not exist
            self._told[name] = _settle(self._actor(process), name)

    def end(self, names: Collection[str], *, timeout_s: float) -> None:
        """End components for good and orderly, then kill the processes that hold no other.

        See `ActorSystem.end` for the arguments.
        """
        import ray

        places = dict(self._records.places())
        processes, settled = [places[name] for name in names if name in places], list[Any]()
        answers = self.call_all(names, "status", timeout_s=CALL_TIMEOUT_S)
        for name in names:
            if name in places:
                self._records.end(name, places[name])
                with contextlib.suppress(ValueError):  # the process does not exist
                    reference = _settle(self._actor(places[name]), name)
                    # A component on an unreachable node is not waited for.
                    settled += [] if isinstance(answers.get(name), HeadraceError) else [reference]
        if settled:
            ray.wait(settled, num_returns=len(settled), timeout=timeout_s)
        for process in set(processes) - {place for _, place in self._records.running()}:
            self._kill_process(process)

    def clear_away(self) -> None:
        """Remove leftovers of interrupted commands; idempotent.

        These are processes whose last component was ended, and records of components whose process never started. Call
        it only when no command creates components of this namespace.
        """
        # before the processes: records that another `up` adds in between must not look like leftovers
        places = self._records.places()
        processes = self.processes()
        for process, names in processes.items():
            if not names:
                self._kill_process(process)
        for name, process in places:
            if process not in processes:
                self._records.end(name, process)
                self._records.ended(name, process)

    def _kill_process(self, process: str) -> None:
        import ray

        with contextlib.suppress(ValueError):  # the process does not exist
            ray.kill(self._actor(process), no_restart=True)

    def nodes(self) -> list[Mapping[str, float]]:
        """Return the resources of each living node, by resource name."""
        import ray

        try:
            return [each["Resources"] for each in ray.nodes() if each["Alive"]]
        except ray.exceptions.RayError as error:
            raise _translate("the cluster", error) from error

    def detour(self, site: str, name: str) -> str:
        """Return the address to which components of a site connect instead of a component's own; empty: no detour.

        Args:
            site: site of the connecting components.
            name: name of the serving component.

        Raises:
            PropagationError: the cluster does not answer now.
        """
        import ray

        try:
            return self._records.detour(site, name)
        except ray.exceptions.RayError as error:
            raise _translate(name, error) from error

    def set_detour(self, site: str, name: str, address: str, seconds: float) -> None:
        """Redirect the next connections of a site's components; `headrace chaos` breaks links this way.

        Args:
            site: site of the connecting components.
            name: name of the serving component.
            address: "host:port" that leads to it; empty: the detour ends.
            seconds: the detour expires after this time, so that connections do not lead nowhere when its maker has
                died.
        """
        self._records.set_detour(site, name, address, time.time() + seconds)

    def pid(self, name: str) -> int:
        """Return the process id of the component, on whatever node it is; fault tests and the demo end it."""
        import ray

        try:
            return int(
                ray.get(self._actor_of(name).pid.options(concurrency_group="prompt").remote(), timeout=CALL_TIMEOUT_S)
            )
        except (ray.exceptions.RayError, ValueError) as error:
            raise _translate(name, error) from error

    def _actor_of(self, name: str) -> Any:  # noqa: ANN401 - a Ray actor's handle
        return self._actor(self._records.process_of(name))

    def _actor(self, process: str) -> Any:  # noqa: ANN401 - a Ray actor's handle
        import ray

        if not process:
            message = "no record of a process"
            raise ValueError(message)
        return ray.get_actor(process, namespace=self.namespace)

    def _alive(self) -> set[str]:
        import ray

        named: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
        return {actor["name"] for actor in named if actor["namespace"] == self.namespace}


def _settle(actor: Any, component: str) -> Any:  # noqa: ANN401 - a Ray actor's handle, a reference
    return actor.settle.options(concurrency_group="settle").remote(component)


def _call(actor: Any, component: str, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - a handle, a reference
    call = actor.call
    group = _GROUP_OF.get(method)
    return (call if group is None else call.options(concurrency_group=group)).remote(component, method, *arguments)


class _Records:
    """The components of a namespace and their processes, in Ray's key-value store.

    A key is "run|<component>|<process>", its value the `Record`; or "end|<component>|<process>" while the component is
    about to end.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def put(self, name: str, process: str, record: Record) -> None:
        """Record a component that is to run."""
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(f"run|{name}|{process}", pickle.dumps(record), namespace=self._namespace)

    def get(self, name: str, process: str) -> Record | None:
        """Return a component's record; None: it is not to run in this process."""
        from ray.experimental.internal_kv import _internal_kv_get

        value = _internal_kv_get(f"run|{name}|{process}", namespace=self._namespace)
        return None if value is None else cast("Record", pickle.loads(value))  # noqa: S301 - what `put` wrote

    def end(self, name: str, process: str) -> None:
        """Record that a component is to end."""
        from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

        _internal_kv_put(f"end|{name}|{process}", b"", namespace=self._namespace)
        _internal_kv_del(f"run|{name}|{process}", namespace=self._namespace)

    def ended(self, name: str, process: str) -> None:
        """Record that a component has ended."""
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(f"end|{name}|{process}", namespace=self._namespace)

    def running(self) -> list[tuple[str, str]]:
        """Return (component, process) of the components that are to run."""
        return self._list("run|")

    def places(self) -> list[tuple[str, str]]:
        """Return (component, process) of components that are to run or about to end; a moving one maps to its new process."""
        return [*self._list("end|"), *self._list("run|")]

    def detour(self, site: str, name: str) -> str:
        """Return the address of a detour; empty: none, or it has expired.

        The key is "detour|<site>|<component>", the value "<address> <end, as the time of day>".
        """
        from ray.experimental.internal_kv import _internal_kv_get

        address, _, end = (
            (_internal_kv_get(f"detour|{site}|{name}", namespace=self._namespace) or b"").decode().partition(" ")
        )
        return address if address and time.time() < float(end) else ""

    def set_detour(self, site: str, name: str, address: str, end: float) -> None:
        """Record or remove a detour.

        Args:
            site: site of the connecting components.
            name: name of the serving component.
            address: address that leads to it; empty: the detour is removed.
            end: time of day at which it expires, in seconds.
        """
        from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

        key = f"detour|{site}|{name}"
        if address:
            _internal_kv_put(key, f"{address} {end}".encode(), namespace=self._namespace)
        else:
            _internal_kv_del(key, namespace=self._namespace)

    def process_of(self, name: str) -> str:
        """Return the process in which a component is to run; empty: none."""
        return next((process for _, process in self._list(f"run|{name}|")), "")

    def _list(self, prefix: str) -> list[tuple[str, str]]:
        from ray.experimental.internal_kv import _internal_kv_list

        keys = _internal_kv_list(prefix, namespace=self._namespace)
        return [(name, process) for _, name, process in (key.decode().split("|") for key in keys)]


class _RecordsOfProcess:
    """The records of one process (`actors.hosting.components.Records`)."""

    def __init__(self, records: _Records, process: str) -> None:
        self._records, self._process = records, process

    def names(self) -> list[str]:
        return sorted({name for name, process in self._records.places() if process == self._process})

    def get(self, component: str) -> Record | None:
        return self._records.get(component, self._process)

    def ended(self, component: str) -> None:
        self._records.ended(component, self._process)


def _translate(name: str, error: Exception) -> HeadraceError:
    """Convert a Ray error to the error that the component raised, or to a PropagationError if it cannot be reached."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, HeadraceError):
        return cause
    if isinstance(error, ValueError):  # Ray's error for an unknown name
        return PropagationError(f"{name} does not run", hint="`headrace up` starts what is missing")
    words = str(cause) if cause is not None else type(error).__name__
    return PropagationError(f"{name} does not answer: {words}")


class ProcessActor:
    """The one actor class: a process with the components that are recorded for it.

    Args:
        namespace: namespace of its topology's actors.
        state_dir: state folder of the topology: the log is written below it.
        environment: set before any module of a component is imported (it arms failpoints).
    """

    def __init__(self, name: str, namespace: str, state_dir: str, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        keep_private()  # the user's own Ray may have another umask
        make_private(Path(state_dir))
        _log_to(Path(state_dir) / "logs" / f"{name.replace(':', '.')}.log")
        logging.getLogger("headrace").info("%s: process %d starts", name, os.getpid())
        self._components = Components(_RecordsOfProcess(_Records(namespace), name))
        self._components.settle_all()

    def settle(self, component: str) -> None:
        """Start, end or restart a component, as the records require."""
        with contextlib.suppress(PropagationError):  # no caller waits for the answer; the error is in the log
            self._components.settle(component)

    def call(self, component: str, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - the component's own answer
        """Call a public method of a component.

        See `Components.call` for the arguments.
        """
        return self._components.call(component, method, *arguments)

    def pid(self) -> int:
        """Return the process id; fault tests and the demo kill the process."""
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
        "thread %s ended by an error",
        arguments.thread.name if arguments.thread else "?",
        exc_info=(arguments.exc_type, arguments.exc_value or arguments.exc_type(), arguments.exc_traceback),
    )
