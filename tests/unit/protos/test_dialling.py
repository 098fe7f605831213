"""A subscriber's stream that opens without waiting: it asks for the queue's address on its own thread."""

from __future__ import annotations

import threading

import pytest

from headrace.base.errors import HeadraceError, PropagationError
from headrace.lcr.scn import Scn
from protos.links.grpc_links import GrpcLinks
from tests.support.clusters.system import wait_until

WAIT_S = 30.0  # each of these takes milliseconds


def links(resolve: object, woken: threading.Event) -> GrpcLinks:
    return GrpcLinks("t", "apply_a", resolve, wake=woken.set)


def has_ended(name: str) -> bool:
    return not any(thread.name == f"stream-queue {name}" for thread in threading.enumerate())


def test_error_of_the_address_query_appears_when_the_stream_is_polled():
    def resolve(name: str) -> str:
        raise PropagationError(f"{name} does not run")

    woken = threading.Event()
    stream = links(resolve, woken).subscriber("q_unknown")
    stream.subscribe_nowait({"dbs1": Scn(0)}, 1)
    assert woken.wait(WAIT_S)
    assert not stream.is_open
    with pytest.raises(PropagationError, match="queue:q_unknown does not run"):
        stream.poll()
    stream.close()
    assert has_ended("q_unknown")


def test_close_does_not_wait_for_an_address_and_leaves_nothing_behind():
    asked, answered, woken = threading.Event(), threading.Event(), threading.Event()

    def resolve(_: str) -> str:
        asked.set()
        assert answered.wait(WAIT_S)
        return "127.0.0.1:1"

    stream = links(resolve, woken).subscriber("q_slow")
    stream.subscribe_nowait({"dbs1": Scn(0)}, 1)
    assert asked.wait(WAIT_S)
    assert stream.poll() is None
    stream.close()
    assert not answered.is_set()
    answered.set()
    wait_until("its thread has ended", lambda: has_ended("q_slow"), WAIT_S)
    with pytest.raises(PropagationError, match="was closed"):
        stream.poll()


def test_address_where_nothing_listens_is_an_error_of_the_stream():
    stream = links(lambda _: "127.0.0.1:1", threading.Event()).subscriber("q_gone")
    with pytest.raises(HeadraceError):
        stream.subscribe({"dbs1": Scn(0)}, 1)
    wait_until("its thread has ended", lambda: has_ended("q_gone"), WAIT_S)


def test_all_streams_of_a_components_life_have_one_incarnation():
    """Otherwise a clock that was set back would make the queue refuse the next stream of the same process."""
    made = links(lambda _: "127.0.0.1:1", threading.Event())
    streams = [made.publisher("q", "dbs1"), made.subscriber("q"), made.subscriber("q")]
    assert len({stream._incarnation for stream in streams}) == 1
