"""Compression of a hop: zstd on the pieces of a batch, between a propagation and the destination queue.

Queues hold batches as they were captured: compression concerns only the wire. Each fragment is a separate zstd frame. So
neither side ever holds more than one piece twice, and a peer can make us allocate at most the size of one fragment.

pyarrow provides the codec. It is a dependency already, is loaded only where something is compressed (27 MB), and
releases the interpreter's lock while it works.
"""

from __future__ import annotations

import time
from typing import Any

from headrace.base.errors import ConfigError, ProtocolError

__all__ = ["LEVEL", "PIECE_BYTES_MIN", "Compressor", "decompressed"]

# On batches of pgbench level 3 saves nothing more, and takes a sixth longer (decision 33).
LEVEL = 1
PIECE_BYTES_MIN = 512  # below this a frame's overhead exceeds the saving: progress marks, mostly


class Compressor:
    """Compresses the pieces of one propagation's source, and counts gain and cost.

    One sending thread at a time calls it; any thread may read the counters.
    """

    def __init__(self) -> None:
        self._codec = _codec()
        self.bytes_before = self.bytes_after = 0
        self.cpu_ns = 0

    def compress(self, piece: memoryview) -> bytes | None:
        """Compress a piece; None: it would not become smaller, and is sent unchanged."""
        before = len(piece)
        packed: bytes | None = None
        if before >= PIECE_BYTES_MIN:
            began_ns = time.thread_time_ns()
            packed = self._codec.compress(piece, asbytes=True)
            self.cpu_ns += time.thread_time_ns() - began_ns
            if packed is not None and len(packed) >= before:
                packed = None
        self.bytes_before += before
        self.bytes_after += before if packed is None else len(packed)
        return packed


def decompressed(data: bytes, size: int) -> bytes:
    """Decompress a piece.

    Args:
        data: a zstd frame.
        size: size of the piece; already checked against the bound of a piece. Exactly this much memory is allocated.

    Raises:
        ProtocolError: the data is no zstd frame of exactly this size.
    """
    try:
        piece: bytes = _codec().decompress(data, decompressed_size=size, asbytes=True)
    except OSError as error:
        raise ProtocolError("a compressed fragment is damaged", size=len(data), whole_bytes=size) from error
    return piece


def _codec() -> Any:  # noqa: ANN401 - pyarrow has no types
    import pyarrow as pa

    if not pa.Codec.is_available("zstd"):
        raise ConfigError(
            "this build of pyarrow has no zstd", hint="install pyarrow from its wheel, or remove compression: zstd"
        )
    return pa.Codec("zstd", compression_level=LEVEL)
