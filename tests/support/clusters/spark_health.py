"""A single health request to a Spark application."""

from __future__ import annotations

from contextlib import closing

from protos import apply_pb2 as pb
from protos.links.spark_link import HealthClient
from protos.wire.identity import Peer

__all__ = ["fetch_health"]


def fetch_health(endpoint: Peer | str, token: str) -> pb.HealthReply:
    """Ask once, as `HealthClient.ask` does, over a separate connection."""
    with closing(HealthClient(endpoint, token)) as client:
        return client.ask()
