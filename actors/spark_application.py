"""Spark application: supervises the one Spark application of a destination site.

Job
    Keep exactly one process of the site's application running, and give its endpoint to the apply processes.

Main path
    SparkHost.open -> end the earlier process -> `python -m spark_apply.application.process` -> its first line of output
    names its endpoint and its token -> `access`, which apply processes call -> SparkHost.step checks its health.

States
    STARTING SPARK  the process was started and has not reported its endpoint. Memory only.
    RUNNING         it serves. Memory only.

Durable when
    Nothing is stored here. `application.json` names the process, so that a restarted actor can make sure that it has
    ended before starting another one.

Worked flow
    this actor is killed -> the kernel closes the process's standard input -> it ends, and every task with it -> Ray
    restarts the actor -> another process with another endpoint and token -> the site's apply processes, which have kept
    their coordinators and epochs, ask for these and run their servers' tasks there
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from actors.hosting.child_process import ChildEnded, ChildProcess
from actors.hosting.host import Host
from actors.state_folder import site_folder
from headrace.base.errors import HeadraceError, PropagationError
from headrace.status.component import ComponentStatus, WireStatus
from headrace.status.sparks import SparkStatus
from spark_apply.application.spark import remove_left_scratch

if TYPE_CHECKING:
    from protos.links.spark_link import HealthClient
    from topology.spec import TopologySpec

__all__ = ["SparkHost", "build"]

START_TIMEOUT_S = 180.0  # Spark needs 12 s on an idle machine; a loaded small one has been seen to need a minute
STATUS_INTERVAL_S = 0.5  # the end of the process is noticed within this time
HEALTH_INTERVAL_S = 5.0
HEALTH_TIMEOUT_S = 5.0
# A process that is silent for this long hangs; slowness cannot explain it, because the answer is ready in memory.
SILENCE_MAX_S = 60.0


class SparkHost(Host):
    """One site's Spark application."""

    kind: ClassVar[str] = "spark"

    def __init__(self, spec: TopologySpec, name: str, fingerprint: str) -> None:
        super().__init__(f"spark:{name}", spec.state_dir)
        self._spec, self._site, self._fingerprint = spec, name, fingerprint
        self._folder = site_folder(spec, name) / "spark"
        self._child = ChildProcess(
            self.name,
            "the Spark application",
            module="spark_apply.application.process",
            file=self._folder / "application.json",
            log=spec.state_dir / "logs" / f"spark.{name}.application.log",
        )
        self._access: dict[str, str] = {}
        self._started = 0
        self._executors = self._runs = 0
        self._wire: WireStatus | None = None  # refused connections, by the process's last report
        self._client: HealthClient | None = None
        self._answered_at = self._health_at = 0.0

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """End the earlier process, then start a new one and wait for its endpoint."""
        from actors.cluster.nodes import placement
        from actors.hosting.runtime import own_address, own_host
        from actors.security.wire import identity_of
        from spark_apply.application.config import ApplicationConfig, ExecutorResources

        self._access = {}
        site = self._spec.site(self._site)
        configuration = ApplicationConfig(
            topology=self._spec.name,
            site=self._site,
            ray_address=own_address(),
            state_dir=str(self._folder),
            host=own_host(),
            identity=identity_of(self._spec, self._site),
            resources=ExecutorResources(executors=site.executors, node=tuple(placement(dict(site.node)).items())),
        ).to_json()
        self._started += 1
        self._child.start(configuration)
        remove_left_scratch(self._folder)
        answer = self._child.first_answer(START_TIMEOUT_S, lambda: self._wanted and not self._ending)
        self._access = {"endpoint": str(answer["endpoint"]), "token": str(answer["token"])}
        self._answered_at = self._health_at = self._clock.monotonic()

    def step(self) -> float:
        """Check that the process runs and answers; if not, raise an error that causes a restart."""
        from protos.wire.identity import CertificateError

        if not self._child.pid:
            raise self._child.ended()
        now = self._clock.monotonic()
        if now < self._health_at:
            return STATUS_INTERVAL_S
        self._health_at = now + HEALTH_INTERVAL_S
        self._child.bound_log()
        try:
            health = self._health_client().ask(HEALTH_TIMEOUT_S)
            self._executors, self._runs = health.executors, health.runs
            refusals = health.refusals
            self._wire = WireStatus(
                **{field.name: getattr(refusals, field.name) for field in refusals.DESCRIPTOR.fields}
            )
            self._answered_at = self._clock.monotonic()
        except CertificateError as error:
            # This says nothing about the application, whose runs continue over their existing connections.
            self._answered_at = self._clock.monotonic()
            self._wire = replace(self._wire or WireStatus(), problem=error.message)
        except HeadraceError as error:
            if not self._child.pid:
                raise self._child.ended() from error
            if self._clock.monotonic() - self._answered_at > SILENCE_MAX_S:
                raise ChildEnded(
                    f"{self.name}: the Spark application did not answer for {SILENCE_MAX_S:g} s"
                ) from error
        return STATUS_INTERVAL_S

    def _health_client(self) -> HealthClient:
        from actors.security.wire import identity_of
        from protos.links.spark_link import HealthClient
        from protos.wire.identity import Peer

        if self._client is None:
            peer = Peer(address=self._access["endpoint"], site=self._site, identity=identity_of(self._spec, self._site))
            self._client = HealthClient(peer, self._access["token"])
        return self._client

    def close(self) -> None:
        """End the process; return when it has ended."""
        self._access = {}
        if self._client is not None:
            self._client.close()
            self._client = None
        self._executors = self._runs = 0
        self._child.end()
        remove_left_scratch(self._folder)

    def detail_state(self) -> str:
        """Return RUNNING when the application has reported its endpoint, else STARTING SPARK."""
        return "RUNNING" if self._access else "STARTING SPARK"

    def status(self) -> ComponentStatus:
        """Return the status; INITIALIZING is refined to show that the process is starting."""
        status = super().status()
        return replace(status, state=self.detail_state()) if status.state == "INITIALIZING" else status

    def details(self) -> SparkStatus:
        """Return facts about the process and its last answer."""
        return SparkStatus(
            name=self.name,
            site=self._site,
            fingerprint=self._fingerprint,
            wire=self._wire,
            application_pid=self._child.pid,
            applications_started=self._started,
            executors=self._executors,
            runs=self._runs,
        )

    # ------------------------------------------------------------------ what apply processes ask

    def access(self) -> dict[str, str]:
        """Return the application's current endpoint and token.

        Raises:
            PropagationError: the application does not serve (yet): retry.
        """
        access = self._access
        if not access:
            raise PropagationError(f"{self.name}: the Spark application is not up yet")
        return dict(access)


def build(spec: TopologySpec, name: str, fingerprint: str) -> SparkHost:
    """Build the host of a site's Spark application (`actors.hosting.runtime.Factory`).

    Args:
        spec: the topology.
        name: name of the site.
        fingerprint: fingerprint of the topology that brought this component's part; shown in its status.
    """
    return SparkHost(spec, name, fingerprint)
