"""Redo transport over real gRPC on loopback: prompt, within its credit, and resumed after any break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError, LogGone, PropagationError, ProtocolError, QueueError, RedoError
from headrace.faults.proxy import Proxy
from headrace.links.standby import StandbyPlace
from headrace.redo.standby.standby_log import StandbyLog
from protos.links import redo_transport
from protos.links.redo_transport import RedoShippingClient
from tests.support.clusters.system import wait_until
from tests.support.redo.served_redo import Source
from tests.support.redo.standby_redo import log_bytes, standby_log
from tests.support.session.bounds import STALL_S

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(tmp_path)
    yield made
    made.server.stop()


def connected(source: Source, standby: StandbyLog, address: str = "") -> RedoShippingClient:
    standby.rollback()
    client = source.client(address)
    client.connect(standby.place, timeout_s=STALL_S)
    return client


def end_of(client: RedoShippingClient) -> HeadraceError:
    """Return why a stream ended, when it has."""
    found: list[HeadraceError] = []

    def has_ended() -> bool:
        try:
            while client.take_nowait() is not None:
                pass
        except HeadraceError as error:
            found.append(error)
        return bool(found)

    wait_until("the stream ends", has_ended)
    return found[0]


def take_all(source: Source, standby: StandbyLog, client: RedoShippingClient) -> None:
    """Take redo until the copy has reached the source's position."""

    def is_there() -> bool:
        taken = 0
        while (frame := client.take_nowait()) is not None:
            standby.take(frame)
            taken += len(frame.data)
        if standby.sync():
            client.acknowledge(standby.place)
        if taken:
            client.grant(taken)
        return standby.position == source.writer.position

    wait_until("the copy is where the source is", is_there)


def test_durable_redo_arrives_and_is_acknowledged(source: Source, tmp_path: Path) -> None:
    standby = standby_log(tmp_path / "standby")
    client = connected(source, standby)
    for _ in range(4):
        source.commit(20)
        take_all(source, standby, client)
    assert log_bytes(tmp_path / "standby") == log_bytes(source.folder)
    wait_until("it is acknowledged", lambda: source.shipped().durable_scn == source.writer.position.scn)
    assert source.acknowledged.is_set()
    assert source.shipped().state == "SHIPPING"
    client.close()
    wait_until("it is away", lambda: source.shipped().state == "AWAY")


def test_redo_in_flight_stays_within_the_receivers_credit(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redo_transport, "CREDIT_BYTES", 10_000)
    monkeypatch.setattr("headrace.redo.standby.shipping.FRAME_BYTES", 3000)
    standby = standby_log(tmp_path / "standby")
    source.commit(60)
    client = connected(source, standby)
    wait_until("frames came", lambda: len(client._frames) >= 4)
    source.commit(5)
    assert sum(len(frame.data) for frame in client._frames) <= 10_000 + 3000
    take_all(source, standby, client)
    assert log_bytes(tmp_path / "standby") == log_bytes(source.folder)
    client.close()


def test_broken_network_and_a_new_log_writer_lose_nothing(source: Source, tmp_path: Path) -> None:
    standby = standby_log(tmp_path / "standby")
    with Proxy(source.server.endpoint) as proxy:
        client = connected(source, standby, proxy.endpoint)
        source.commit(20)
        take_all(source, standby, client)
        source.commit(20)
        proxy.cut()
        assert isinstance(end_of(client), PropagationError)
        client.close()
    client = connected(source, standby)
    take_all(source, standby, client)
    source.writer.close()
    source.writer = source.write()
    source.server.attach(source.writer, source.writer.shipping)
    assert isinstance(end_of(client), PropagationError)
    client.close()
    source.commit(20)
    client = connected(source, standby)
    take_all(source, standby, client)
    assert log_bytes(tmp_path / "standby") == log_bytes(source.folder)
    client.close()


def test_newer_incarnation_ends_the_older_ones_stream(source: Source, tmp_path: Path) -> None:
    older = source.client(incarnation="1")
    older.connect(StandbyPlace())
    newer = source.client(incarnation="2")
    newer.connect(StandbyPlace())
    assert "a newer stream" in end_of(older).message
    again = source.client(incarnation="1")
    with pytest.raises(QueueError, match="a newer stream"):
        again.connect(StandbyPlace())
    for client in (older, newer):
        client.close()


def test_errors_cross_the_wire_unchanged(source: Source, tmp_path: Path) -> None:
    source.commit(10)
    with pytest.raises(RedoError, match="another redo log"):
        source.client().connect(StandbyPlace(segment=9, offset=500))
    with pytest.raises(ProtocolError, match="wants t/dbs9"):
        source.client(target="dbs9").connect(StandbyPlace())
    source.writer.required_checkpoints.forget("keeps_all")
    source.commit(200)
    standby = standby_log(tmp_path / "standby")
    client = connected(source, standby)
    take_all(source, standby, client)
    wait_until("it is acknowledged", lambda: source.shipped().segment == source.writer.position.segment)
    source.writer.step(0.0)
    client.close()
    with pytest.raises(LogGone, match="are gone"):
        source.client().connect(StandbyPlace(segment=1, offset=500))
