"""A Spark application is asked once how it is."""

from __future__ import annotations

from contextlib import closing

from protos import apply_pb2 as pb
from protos.links.spark_link import HealthClient
from protos.wire.identity import Peer

__all__ = ["fetch_health"]


def fetch_health(endpoint: Peer | str, token: str) -> pb.HealthReply:
    """See `HealthClient.ask`; over a connection of its own."""
    with closing(HealthClient(endpoint, token)) as client:
        return client.ask()
