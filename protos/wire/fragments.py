"""Bytes that are too large for one message: split into pieces, and joined again, in order.

Nothing is reserved for the size that a peer declares: memory grows with what has arrived, up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.base.errors import ProtocolError
from headrace.links.ports import PieceCompressor
from protos import queue_pb2
from protos.wire import compression

__all__ = ["FRAGMENT_BYTES", "REASSEMBLED_BYTES_MAX", "Pieces", "Reassembly", "fragments"]

# A batch is about 1 MiB, so it is sent in one piece; a piece is small enough not to delay a ping for long.
FRAGMENT_BYTES = 2 << 20
# PostgreSQL's largest value is 1 GB; a batch with such a value may contain little else. Protobuf's limit is 2 GB.
REASSEMBLED_BYTES_MAX = 1_200_000_000


class Pieces:
    """Joins pieces of bytes.

    Args:
        bytes_max: maximum that a peer may make us hold.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._first: bytes | None = None
        # One buffer, not a list: a million pieces of one byte must not cost more than their content.
        self._rest = bytearray()
        self.size = 0

    def __bool__(self) -> bool:
        """Whether a piece has arrived and more are to come."""
        return self._first is not None

    def add(self, piece: bytes, *, is_last: bool) -> bytes | None:
        """Take the next piece; return the whole when it is the last one.

        Args:
            piece: not empty, unless it is the last.
            is_last: whether no more pieces follow.

        Raises:
            ProtocolError: the piece is empty, or the pieces exceed the bound.
        """
        if not piece and not is_last:
            raise ProtocolError("a piece that is not the last is empty: the pieces would never end")
        self.size += len(piece)
        if self.size > self._bytes_max:
            raise ProtocolError(
                f"the pieces of a message have more than {self._bytes_max} bytes",
                hint="a row must be smaller than 1 GB",
                bytes_max=self._bytes_max,
            )
        if self._first is None:
            self._first = piece
        else:
            self._rest += piece
        if not is_last:
            return None
        whole = self._first + self._rest if self._rest else self._first
        self._first, self._rest, self.size = None, bytearray(), 0
        return whole


def fragments(
    header: Any,  # noqa: ANN401 - a message
    data: bytes,
    compressor: PieceCompressor | None = None,
    *,
    piece_bytes: int = FRAGMENT_BYTES,
) -> Iterator[queue_pb2.Fragment]:
    """Split a serialized batch into fragments; each is cut and compressed when it is drawn.

    Args:
        header: header of the batch (`lcr_pb2.BatchHeader`); sent with the first piece.
        data: the serialized batch.
        compressor: compresses each piece; None: pieces are sent unchanged.
        piece_bytes: maximum bytes of the batch in one piece, at most `FRAGMENT_BYTES`.
    """
    total = len(data)
    if total <= piece_bytes and compressor is None:
        yield queue_pb2.Fragment(header=header, data=data, last=True, total_bytes=total)
        return
    view = memoryview(data)
    for start in range(0, max(1, total), piece_bytes):
        end = min(start + piece_bytes, total)
        piece = queue_pb2.Fragment(last=end == total)
        if start == 0:
            piece.header.CopyFrom(header)
            piece.total_bytes = total
        packed = None if compressor is None else compressor.compress(view[start:end])
        if packed is None:
            piece.data = bytes(view[start:end])
        else:
            piece.data, piece.compression, piece.whole_bytes = packed, queue_pb2.ZSTD, end - start
        yield piece


class Reassembly:
    """Joins one stream's fragments, in order.

    Args:
        bytes_max: maximum that a peer may make us hold for one batch.
    """

    def __init__(self, bytes_max: int = REASSEMBLED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pieces = Pieces(bytes_max)
        self._header: Any = None
        self._expected = 0

    def add(self, fragment: queue_pb2.Fragment) -> tuple[Any, bytes] | None:
        """Take the next fragment; return the header message and the whole batch when it was the last one.

        Raises:
            ProtocolError: the fragments do not form the batch that the first one declared.
        """
        if not self._pieces:
            self._begin(fragment)
        elif fragment.HasField("header"):
            raise ProtocolError("a batch began before the one before it had ended")
        piece = self._piece(fragment)
        missing = self._expected - self._pieces.size - len(piece)
        if missing < 0 or fragment.last != (missing == 0):
            raise ProtocolError("a batch's fragments do not add up", expected=self._expected)
        whole = self._pieces.add(piece, is_last=fragment.last)
        if whole is None:
            return None
        header, self._header = self._header, None
        return header, whole

    def _begin(self, fragment: queue_pb2.Fragment) -> None:
        if not fragment.HasField("header"):
            raise ProtocolError("a batch's first fragment has no header")
        if fragment.total_bytes > self._bytes_max:
            raise ProtocolError(
                f"a batch of {fragment.total_bytes} bytes is larger than this side takes",
                hint="a row must be smaller than 1 GB",
                bytes_max=self._bytes_max,
            )
        self._header, self._expected = fragment.header, fragment.total_bytes

    def _piece(self, fragment: queue_pb2.Fragment) -> bytes:
        """Return a fragment's part of the batch. Its declared size is checked before memory is allocated for it."""
        if fragment.compression == queue_pb2.NONE:
            return fragment.data
        if fragment.compression != queue_pb2.ZSTD:
            raise ProtocolError(
                f"a fragment is compressed in a way this side does not know ({fragment.compression})",
                hint="run the same Headrace version at both sites",
            )
        bytes_max = min(FRAGMENT_BYTES, self._expected - self._pieces.size)
        if not 0 < fragment.whole_bytes <= bytes_max:
            raise ProtocolError(
                "a compressed fragment claims more than a fragment may hold",
                whole_bytes=fragment.whole_bytes,
                bytes_max=bytes_max,
            )
        return compression.decompressed(fragment.data, fragment.whole_bytes)
