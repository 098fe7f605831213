"""Links with TLS on loopback: admission, refusals and their reports, renewal and revocation of certificates.

Longer than 500 lines: all of it uses one queue and its certificates.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from actors.combined import mounted_core
from actors.security.upkeep import keep_certificates
from actors.security.wire import admission_of, identity_of
from actors.staging.queue import QueueCore
from headrace.base.clock import SystemClock
from headrace.base.errors import HeadraceError, NotAdmitted, PropagationError, ProtocolError, QueueError
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.links.ports import RedoPosition, header_of
from headrace.redo.standby.shipping import RedoShipping
from protos import apply_pb2 as pb
from protos import codec, queue_pb2, queue_pb2_grpc
from protos.links.apply_link import fetch_access, serve_apply
from protos.links.queue_link import DequeueClient, EnqueueClient, QueueServer
from protos.links.redo_link import RedoServer, RedoWatchClient
from protos.links.spark_link import serve_tasks
from protos.wire import admission as admission_module
from protos.wire import transport
from protos.wire.admission import FAILURES_MAX, PUBLISH, Admission
from protos.wire.identity import CertificateError, Identity, Peer
from protos.wire.revoked import fingerprint_of, printed_fingerprint
from tests.support.clusters.spark_health import fetch_health
from tests.support.clusters.system import wait_until
from tests.support.session.bounds import STALL_S
from tests.support.values.lcr_batches import insert_batch
from tests.support.wire.attackers import speak_to
from tests.support.wire.certificates import Certificates, other_forms
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = pytest.mark.long

CREDIT = 4 << 20
TOPOLOGY = """
topology: secure_test
combined: never
tls: {authority: certs/ca.pem, certificate: "certs/{site}.pem", key: "certs/{site}.key"}
sites:
  dbs1: {database: {kind: embedded}}
  dbs2: {database: {kind: embedded}}
  dbs3: {database: {kind: embedded}}
replicate:
  - {schemas: [hr], from: dbs1, to: [dbs2]}
  - {schemas: [crm], from: dbs3, to: [dbs2]}
"""


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certs", "secure_test", "dbs1", "dbs2", "dbs3")


@pytest.fixture
def spec(tmp_path: Path, certificates: Certificates) -> TopologySpec:
    (tmp_path / "secure.yaml").write_text(TOPOLOGY)
    return read_topology(tmp_path / "secure.yaml")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a connection as refused soon after its handshake."""
    monkeypatch.setattr(admission_module, "HANDSHAKE_TIMEOUT_S", 1.0)


class Queue:
    """Queue `q_dbs1` of the topology, served with TLS as its actor does."""

    def __init__(self, spec: TopologySpec, folder: Path) -> None:
        self.spec, self.name = spec, spec.captures[0].queue
        self.admission = admission_of(spec, f"queue:{self.name}")
        self.server = QueueServer(QueueCore(spec, self.name, folder), admission=self.admission)
        self.endpoint = self.server.endpoint

    def publisher(
        self, identity: Identity | None, *, component: str = "", site: str = "dbs1", endpoint: str = ""
    ) -> EnqueueClient:
        return EnqueueClient(
            Peer(address=endpoint or self.endpoint, site=site, identity=identity),
            topology=self.spec.name,
            component=component or self.spec.captures[0].name,
            queue=self.name,
            source="dbs1",
            incarnation=transport.new_incarnation(),
        )

    def subscriber(self, identity: Identity | None, *, component: str = "") -> DequeueClient:
        return DequeueClient(
            Peer(address=self.endpoint, site="dbs1", identity=identity),
            topology=self.spec.name,
            component=component or self.spec.propagations[0].name,
            queue=self.name,
            incarnation=transport.new_incarnation(),
        )


@pytest.fixture
def queue(spec: TopologySpec, tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(spec, tmp_path / "q")
    yield queue
    queue.server.stop()


def _pass_a_batch(queue: Queue, publisher: EnqueueClient, subscriber: DequeueClient) -> None:
    publisher.connect()
    subscriber.subscribe({"dbs1": Scn(0)}, CREDIT)
    batch = insert_batch([10, 20])
    publisher.send(header_of(batch), codec.encode(batch), 60)
    delivery = subscriber.poll(60)
    assert delivery is not None
    assert delivery.header == header_of(batch)


def _refused(call: Callable[[], object], client: EnqueueClient | DequeueClient) -> HeadraceError:
    with pytest.raises((PropagationError, ProtocolError)) as caught:
        call()
    client.close()
    return caught.value


def test_batches_pass_between_sites_that_the_topology_names(queue: Queue, certificates: Certificates) -> None:
    publisher, subscriber = (make(certificates.of("dbs1")) for make in (queue.publisher, queue.subscriber))
    _pass_a_batch(queue, publisher, subscriber)
    assert queue.admission.status().refused_calls == 0
    publisher.close()
    subscriber.close()


def test_client_without_a_valid_certificate_is_refused_and_counted(
    queue: Queue, certificates: Certificates, tmp_path: Path
) -> None:
    foreign = Certificates(tmp_path / "foreign", "secure_test", "dbs1")
    mixed = Identity(  # trusts our authority, and shows a certificate of another one
        topology="secure_test",
        site="dbs1",
        authority=str(certificates.folder / "ca.pem"),
        certificate=str(foreign.folder / "dbs1.pem"),
        key=str(foreign.folder / "dbs1.key"),
    )

    def counted() -> int:
        return int(queue.admission.status().refused_connections)

    # There is more than one refusal of each if a busy machine takes a second to close a refused client: gRPC reconnects
    # by itself.
    for identity in (None, mixed):
        client, before = queue.publisher(identity), counted()
        assert type(_refused(client.connect, client)) is PropagationError
        wait_until("it is counted", lambda before=before: counted() > before, 60)
    before = counted()
    root = (certificates.folder / "ca.pem").read_bytes()
    options = [("grpc.ssl_target_name_override", certificates.of("dbs1").principal)]
    with grpc.secure_channel(queue.endpoint, grpc.ssl_channel_credentials(root), options=options) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/headrace.v1.Redo/Checkpoint")(b"", timeout=STALL_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    wait_until("it is counted", lambda: counted() > before, 60)
    # No part of it reached the queue, and authorised clients are served as before.
    publisher, subscriber = (make(certificates.of("dbs1")) for make in (queue.publisher, queue.subscriber))
    _pass_a_batch(queue, publisher, subscriber)
    publisher.close()
    subscriber.close()


def test_site_without_a_role_at_this_queue_is_refused_logged_and_counted(
    queue: Queue, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    other = certificates.of("dbs3")
    publisher = queue.publisher(other)
    error = _refused(publisher.connect, publisher)
    assert isinstance(error, NotAdmitted)
    assert "dbs3.secure-test.headrace.internal" in error.message
    assert "dbs1.secure-test.headrace.internal" in error.message
    # Under its own name it is neither a publisher nor a subscriber of this queue.
    each: EnqueueClient | DequeueClient
    for client, connect in (
        (each := queue.publisher(other, component=queue.spec.captures[1].name), each.connect),
        (
            each := queue.subscriber(other, component=queue.spec.applies[0].name),
            lambda each=each: each.subscribe({"dbs1": Scn(0)}, CREDIT),
        ),
        (
            each := queue.subscriber(other, component="nobody"),
            lambda each=each: each.subscribe({"dbs1": Scn(0)}, CREDIT),
        ),
    ):
        error = _refused(connect, client)
        assert isinstance(error, NotAdmitted)
        assert "may not" in error.message
    status = queue.admission.status()
    assert status.refused_calls == 4
    assert "may not subscribe" in status.last_refusal
    assert len([record for record in caplog.records if "refused" in record.message]) == 1  # one line a minute


def test_client_refuses_a_server_that_is_another_site(queue: Queue, certificates: Certificates) -> None:
    client = queue.publisher(certificates.of("dbs1"), site="dbs2")
    error = _refused(client.connect, client)
    assert type(error) is PropagationError
    assert "headrace check" in error.hint


def test_certificate_is_checked_by_site_and_not_by_address(queue: Queue, certificates: Certificates) -> None:
    port = queue.endpoint.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost"):
        client = queue.publisher(certificates.of("dbs1"), endpoint=f"{host}:{port}")
        assert client.connect().needed_scn == 0
        client.close()


def test_topology_that_admits_another_component_is_used_at_the_next_call(
    queue: Queue, certificates: Certificates
) -> None:
    client = queue.publisher(certificates.of("dbs3"), component="newcomer")
    assert isinstance(_refused(client.connect, client), NotAdmitted)
    queue.admission.change({PUBLISH: {"newcomer": "dbs3"}})
    client = queue.publisher(certificates.of("dbs3"), component="newcomer")
    # The client is admitted; the queue itself takes sources only from the publishers of its topology.
    with pytest.raises(QueueError, match="takes no LCRs of dbs1 from newcomer"):
        client.connect()
    client.close()


def test_renewed_certificate_works_without_a_restart_and_half_does_no_harm(
    queue: Queue, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    identity = certificates.of("dbs1")
    key = Path(identity.key)
    old = key.read_bytes()
    key.write_bytes(Path(certificates.of("dbs2").key).read_bytes())  # the certificate has not been replaced yet
    client = queue.publisher(identity)
    with pytest.raises(CertificateError):
        client.connect()
    # The server keeps its present certificate.
    other = queue.subscriber(certificates.of("dbs2"))
    assert isinstance(_refused(lambda: other.subscribe({"dbs1": Scn(0)}, CREDIT), other), NotAdmitted)
    key.write_bytes(old)
    certificates.renew("dbs1")
    client = queue.publisher(identity)
    assert client.connect().needed_scn == 0
    assert any("takes the renewed certificate" in record.message for record in caplog.records)
    client.close()
    # With a new authority, clients with a certificate of the former one are refused from now on.
    before = certificates.kept("dbs1")
    for name in ("ca.pem", "ca.key"):
        (certificates.folder / name).unlink()
    certificates.renew("dbs1")
    client = queue.publisher(before)
    assert type(_refused(client.connect, client)) is PropagationError
    client = queue.publisher(identity)
    assert client.connect().needed_scn == 0
    client.close()


def _listed(spec_file: Path) -> TopologySpec:
    """Return the topology with an empty list of revoked certificates."""
    (spec_file.parent / "revoked").write_text("# none yet\n")
    spec_file.write_text(TOPOLOGY.replace("tls: {", "tls: {revoked: revoked, "))
    return read_topology(spec_file)


def _revoke(spec: TopologySpec, identity: Identity) -> None:
    with (spec.file.parent / "revoked").open("a") as file:
        file.write(f"{printed_fingerprint(fingerprint_of(Path(identity.certificate).read_text()))}  # stolen\n")


def test_stolen_certificate_works_until_listed_then_on_no_stream(
    spec: TopologySpec,
    certificates: Certificates,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    monkeypatch.setattr(transport, "REVOKED_LOOK_S", 0.1)
    queue = Queue(_listed(spec.file), tmp_path / "q")
    request.addfinalizer(queue.server.stop)
    stolen = certificates.kept("dbs1")
    certificates.renew("dbs1")  # the site itself continues with another one
    ours = [make(certificates.of("dbs1")) for make in (queue.publisher, queue.subscriber)]
    thief = queue.subscriber(stolen)
    thief.subscribe({"dbs1": Scn(0)}, CREDIT)
    assert thief.poll(0.0) is None
    _revoke(queue.spec, stolen)

    def is_over() -> bool:
        try:
            thief.poll(0.1)
        except PropagationError:
            return True
        return False

    wait_until("its stream ends", is_over, STALL_S)
    thief.close()
    each: EnqueueClient | DequeueClient
    for client, connect in (
        (each := queue.subscriber(stolen), lambda each=each: each.subscribe({"dbs1": Scn(0)}, CREDIT)),
        (each := queue.publisher(stolen), each.connect),
    ):
        error = _refused(connect, client)
        assert isinstance(error, NotAdmitted)
        assert "which" in error.message
        assert "lists" in error.message
    status = queue.admission.status()
    assert status.refused_calls == 3
    assert fingerprint_of(Path(stolen.certificate).read_text())[:2].upper() in status.last_refusal
    assert "dbs1.secure-test.headrace.internal connects to" in status.last_refusal
    assert any("with the certificate" in record.message for record in caplog.records)
    # Clients with the new one are served meanwhile.
    _pass_a_batch(queue, *ours)
    # A mistake in the list does not help the thief, and is reported.
    (spec.file.parent / "revoked").write_text("oops\n")

    def is_not_admitted() -> bool:
        client = queue.publisher(stolen)
        # A call that is open when the mistake is noticed ends with the streams, before its answer.
        return isinstance(_refused(client.connect, client), NotAdmitted)

    wait_until("the thief is not admitted", is_not_admitted, STALL_S)
    assert "stands in line 1" in queue.admission.status().revoked_problem
    for each in ours:
        each.close()


def test_revoked_certificate_is_refused_with_a_rewritten_signature(
    spec: TopologySpec, certificates: Certificates, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    queue = Queue(_listed(spec.file), tmp_path / "q")
    request.addfinalizer(queue.server.stop)
    stolen = certificates.kept("dbs1")
    original = Path(stolen.certificate).read_text()
    for other in other_forms(original):
        Path(stolen.certificate).write_text(other)
        try:
            queue.publisher(stolen).connect()
        except PropagationError:
            continue  # of another curve: not valid
        break
    else:
        raise AssertionError("the other form is not admitted before it is revoked either")
    Path(stolen.certificate).write_text(original)
    _revoke(queue.spec, stolen)
    Path(stolen.certificate).write_text(other)
    client = queue.publisher(stolen)
    assert isinstance(_refused(client.connect, client), NotAdmitted)
    assert printed_fingerprint(fingerprint_of(original)) in queue.admission.status().last_refusal


def test_tasks_with_revoked_certificates_are_refused_list_errors_reported(
    spec: TopologySpec, certificates: Certificates, request: pytest.FixtureRequest
) -> None:
    listed = _listed(spec.file)
    server = serve_tasks("127.0.0.1", _Listener(), "token", admission=admission_of(listed, "site:dbs2"))
    request.addfinalizer(server.stop)
    peer = Peer(address=server.endpoint, site="dbs2", identity=certificates.of("dbs2"))
    assert not fetch_health(peer, "token").refusals.revoked_problem
    (listed.file.parent / "revoked").write_text("oops\n")
    assert "line 1" in fetch_health(peer, "token").refusals.revoked_problem
    _revoke(listed, certificates.of("dbs2"))
    with pytest.raises(NotAdmitted, match="lists"):
        fetch_health(peer, "token")


def test_expired_certificate_is_refused_by_both_sides(queue: Queue, certificates: Certificates) -> None:
    before = certificates.kept("dbs1")
    certificates.renew("dbs1", days=0)
    client = queue.publisher(certificates.of("dbs1"))  # the server also shows the expired certificate
    error = _refused(client.connect, client)
    assert type(error) is PropagationError
    assert "headrace check" in error.hint
    for name in ("dbs1.pem", "dbs1.key"):
        (certificates.folder / name).write_bytes((certificates.folder / "kept" / name).read_bytes())
    certificates.renew("dbs2", days=0)
    client = queue.publisher(certificates.of("dbs2"))
    assert type(_refused(client.connect, client)) is PropagationError
    client = queue.publisher(before)
    assert client.connect().needed_scn == 0
    client.close()


class _Writer:
    position = RedoPosition(1, 10, 9)

    def __init__(self) -> None:
        self.required_checkpoints = self

    def record(self, capture: str, scn: int) -> int:
        return scn

    mine_again = record


def test_redo_is_served_only_to_the_sources_capture_processes(
    spec: TopologySpec, certificates: Certificates, request: pytest.FixtureRequest
) -> None:
    admission = admission_of(spec, "site:dbs1")
    server = RedoServer("secure_test", "dbs1", _Writer(), admission=admission)
    request.addfinalizer(server.stop)

    def watch(site: str, capture: str) -> RedoWatchClient:
        return RedoWatchClient(
            Peer(address=server.endpoint, site="dbs1", identity=certificates.of(site)),
            topology="secure_test",
            capture=capture,
            source="dbs1",
            incarnation="1",
        )

    ours = watch("dbs1", spec.captures[0].name)
    assert ours.connect() == _Writer.position
    assert ours.checkpoint(7) == 7
    for ask in (ours.checkpoint, ours.mine_again):
        with pytest.raises(ProtocolError, match="negative"):
            ask(-7)
    for site, capture in (("dbs3", spec.captures[1].name), ("dbs2", spec.captures[0].name)):
        client = watch(site, capture)
        with pytest.raises(NotAdmitted):
            client.checkpoint(7)
        with pytest.raises(NotAdmitted):
            client.mine_again(7)
        with pytest.raises(NotAdmitted):
            client.connect()
        client.close()
    ours.close()
    assert admission.status().refused_calls == 8


def test_combined_capture_process_serves_only_its_apply_process(
    spec: TopologySpec, certificates: Certificates, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    apply = spec.applies[0]
    core = mounted_core(spec, spec.captures[0], apply, acknowledged=FIRST_SCN, clock=SystemClock())
    admission = Admission("capture", certificates.of("dbs1"), {"subscribe": {apply.name: "dbs2"}})
    outlet = QueueServer(core, admission=admission)
    request.addfinalizer(outlet.stop)

    def subscribe(site: str) -> DequeueClient:
        client = DequeueClient(
            Peer(address=outlet.endpoint, site="dbs1", identity=certificates.of(site)),
            topology="secure_test",
            component=apply.name,
            queue=apply.queue,
            incarnation="1",
        )
        client.subscribe({apply.source: Scn(0)}, CREDIT)
        return client

    subscribe("dbs2").close()
    with pytest.raises(NotAdmitted):
        subscribe("dbs3")


class _Listener:
    """A coordinator whose token is known to every caller."""

    def access(self, request: pb.AccessRequest) -> pb.AccessReply:
        return pb.AccessReply(destination=pb.DatabaseAccess(site="dbs2", dsn="secret"))

    def health(self) -> pb.HealthReply:
        return pb.HealthReply(executors=2)


@pytest.mark.parametrize("kind", ["coordinator", "spark"])
def test_tasks_are_served_only_to_their_sites_processes_despite_the_token(
    kind: str, certificates: Certificates, request: pytest.FixtureRequest
) -> None:
    admission = Admission(kind, certificates.of("dbs2"))
    ask: Callable[[Peer | str, str], Any]
    if kind == "coordinator":
        server = serve_apply("127.0.0.1", _Listener(), servers=1, admission=admission)
        ask = fetch_access
    else:
        server = serve_tasks("127.0.0.1", _Listener(), "token", admission=admission)
        ask = fetch_health
    request.addfinalizer(server.stop)

    def peer(site: str) -> Peer:
        return Peer(address=server.endpoint, site="dbs2", identity=certificates.of(site))

    answer = ask(peer("dbs2"), "token")
    if kind == "spark":
        assert (answer.refusals.tls, answer.refusals.refused_calls) == (True, 0)
    with pytest.raises(NotAdmitted, match=r"dbs1\.secure-test"):
        ask(peer("dbs1"), "token")
    with pytest.raises(PropagationError):
        ask(server.endpoint, "token")
    assert admission.status().refused_calls == 1


def test_connection_with_too_many_refused_calls_is_no_longer_heard(queue: Queue, certificates: Certificates) -> None:
    channel = transport.Channel(Peer(address=queue.endpoint, site="dbs1", identity=certificates.of("dbs3")))
    hello = transport.make_hello("secure_test", queue.spec.captures[0].name, queue.name, "1")
    stub = queue_pb2_grpc.QueueStub(channel.grpc)
    for number in range(FAILURES_MAX + 2):
        call = stub.Enqueue(iter([queue_pb2.EnqueueRequest(hello=hello)]))
        assert call.code() is grpc.StatusCode.PERMISSION_DENIED
        assert ("calls of this connection" in call.details()) == (number >= FAILURES_MAX)
    channel.close()


def test_stream_without_a_hello_ends_in_time_while_others_are_served(
    queue: Queue, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the others send theirs within this bound, even on a busy machine
    monkeypatch.setattr(admission_module, "HELLO_TIMEOUT_S", 6.0)
    channel = transport.Channel(Peer(address=queue.endpoint, site="dbs1", identity=certificates.of("dbs1")))
    silence = threading.Event()
    began = time.monotonic()
    calls = [queue_pb2_grpc.QueueStub(channel.grpc).Enqueue(iter(silence.wait, True)) for _ in range(3)]
    publisher, subscriber = (make(certificates.of("dbs1")) for make in (queue.publisher, queue.subscriber))
    _pass_a_batch(queue, publisher, subscriber)
    for call in calls:
        assert call.code() is grpc.StatusCode.CANCELLED
    assert time.monotonic() - began < 60
    status = queue.admission.status()
    assert "did not begin" in status.last_refusal
    assert status.refused_calls == 3
    silence.set()
    for each in (publisher, subscriber, channel):
        each.close()


@pytest.mark.parametrize("is_secure", [True, False], ids=["certificates that up makes", "none"])
def test_another_user_is_served_only_where_the_file_says_tls_none(
    tmp_path: Path, is_secure: bool, request: pytest.FixtureRequest
) -> None:
    text = TOPOLOGY.replace("tls:", "#" if is_secure else "tls: none #")
    (tmp_path / "t.yaml").write_text(text)
    spec = read_topology(tmp_path / "t.yaml")
    keep_certificates(spec)
    queue = Queue(spec, tmp_path / "q")
    request.addfinalizer(queue.server.stop)
    (tmp_path / "redo").mkdir()
    shipping = RedoShipping(tmp_path / "redo", "dbs1", lambda: RedoPosition(0, 0, Scn(0)))
    shipping.register({"receiver": True})
    redo = RedoServer(spec.name, "dbs1", _Writer(), shipper=shipping, admission=admission_of(spec, "site:dbs1"))
    request.addfinalizer(redo.stop)
    capture, subscriber = spec.captures[0].name, spec.propagations[0].name
    of_queue = [
        ("Enqueue", spec.name, capture, queue.name, "dbs1"),
        ("Dequeue", spec.name, subscriber, queue.name, "dbs1"),
    ]
    of_redo = [
        (method, spec.name, name, "dbs1", "dbs1")
        for method, name in (("Watch", capture), ("Checkpoint", capture), ("Ship", "receiver"))
    ]
    ports = {int(server.endpoint.rpartition(":")[2]): calls for server, calls in ((queue, of_queue), (redo, of_redo))}
    secured, served = speak_to(list(ports), [*of_queue, *of_redo])
    assert secured == (set(ports) if is_secure else set())
    assert served == (
        set()
        if is_secure
        else {(port, method, component) for port, calls in ports.items() for method, _, component, *_ in calls}
    )
    # Components of the topology are served.
    publisher, reader = queue.publisher(identity_of(spec, "dbs1")), queue.subscriber(identity_of(spec, "dbs1"))
    if is_secure:
        _pass_a_batch(queue, publisher, reader)
    publisher.close()
    reader.close()


def test_topology_with_tls_none_has_no_identities(tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(TOPOLOGY.replace("tls:", "tls: none # "))
    spec = read_topology(tmp_path / "plain.yaml")
    assert all(identity_of(spec, site.name) is None for site in spec.sites)
