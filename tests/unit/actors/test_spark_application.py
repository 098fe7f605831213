"""The supervisor of a site's Spark application: it replaces a process that has ended or hangs, and reports it
meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from actors import spark_application
from actors.hosting.child_process import ChildEnded
from actors.security.upkeep import keep_certificates
from actors.spark_application import SILENCE_MAX_S, SparkHost
from headrace.base.clock import VirtualClock
from headrace.base.errors import PropagationError
from headrace.status.component import WireStatus
from protos import apply_pb2 as pb
from protos.links import spark_link
from protos.wire.identity import CertificateError
from tests.support.session.noted import noted
from tests.support.topologies.files import ONE_WAY
from topology.file.reading import read_topology


@pytest.fixture
def host(tmp_path: Path) -> SparkHost:
    """A supervisor whose process runs and serves."""
    file = tmp_path / "t.yaml"
    file.write_text(ONE_WAY)
    spec = read_topology(file)
    keep_certificates(spec)
    host = SparkHost(spec, spec.applies[0].site, "fingerprint")
    host._clock = VirtualClock()
    host._child = SimpleNamespace(  # type: ignore[assignment]
        pid=17,
        ended=lambda: ChildEnded("it was killed"),
        end=lambda: None,
        bound_log=lambda: None,
    )
    host._access = {"endpoint": "127.0.0.1:1", "token": "secret"}
    return host


def test_apply_processes_get_the_endpoint_only_while_it_serves(host: SparkHost):
    assert host.access() == {"endpoint": "127.0.0.1:1", "token": "secret"}
    assert host.detail_state() == "RUNNING"
    host.close()
    with pytest.raises(PropagationError, match="not up yet"):
        host.access()
    assert host.detail_state() == "STARTING SPARK"


def test_token_is_not_shown(host: SparkHost):
    assert "secret" not in repr(host.status())


def test_ended_process_is_a_timed_error(host: SparkHost):
    host._child.pid = 0  # type: ignore[misc]
    with pytest.raises(ChildEnded, match="was killed"):
        host.step()


def test_only_a_process_that_stays_silent_is_abandoned(
    host: SparkHost,
    monkeypatch: pytest.MonkeyPatch,
):
    def silent(*_: object) -> pb.HealthReply:
        raise PropagationError("no answer")

    refusals = pb.Refusals(tls=True, refused_calls=1, last_refusal="no certificate")
    monkeypatch.setattr(
        spark_link.HealthClient, "ask", lambda *_: pb.HealthReply(executors=2, runs=3, refusals=refusals)
    )
    host._answered_at = host._clock.monotonic()
    host.step()
    assert (host.details().executors, host.details().runs) == (2, 3)
    assert host.details().wire == WireStatus(
        tls=True, refused_calls=1, last_refusal="no certificate", last_refused_connection_us=0
    )
    monkeypatch.setattr(spark_link.HealthClient, "ask", silent)
    host._clock.advance(SILENCE_MAX_S - 1)  # type: ignore[attr-defined]
    assert host.step() == spark_application.STATUS_INTERVAL_S
    host._clock.advance(spark_application.HEALTH_INTERVAL_S + 1)  # type: ignore[attr-defined]
    with pytest.raises(ChildEnded, match="did not answer"):
        host.step()


def test_unreadable_certificate_does_not_end_a_working_application(host: SparkHost, monkeypatch: pytest.MonkeyPatch):
    def unreadable(*_: object) -> pb.HealthReply:
        raise CertificateError("site.pem has expired")

    made: list[object] = []
    monkeypatch.setattr(spark_link, "Channel", lambda peer: (noted(made, peer), SimpleNamespace(close=lambda: None))[1])
    monkeypatch.setattr(spark_link.HealthClient, "ask", lambda *_: pb.HealthReply(executors=2, runs=3))
    for _ in range(3):
        host._clock.advance(spark_application.HEALTH_INTERVAL_S + 1)  # type: ignore[attr-defined]
        host.step()
    assert len(made) == 1, "the existing connection is used"
    monkeypatch.setattr(spark_link.HealthClient, "ask", unreadable)
    for _ in range(3):
        host._clock.advance(SILENCE_MAX_S + 1)  # type: ignore[attr-defined]
        host.step()
    assert host.details().wire.problem == "site.pem has expired"
    host.close()
    assert host._client is None
