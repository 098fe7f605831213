"""Digest of a table: a number of rows and two sums of 64-bit hashes of each row.

Independent of order, so that chunks add up and two sides may cut a table as they like. What the hashes are of is the
connector's affair (`headrace.databases.ports.copying.OpenPiece.digest`). It imports nothing of ours: Spark tasks load it at their
head.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TableDigest"]

_MODULUS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """Digest of a set of rows; digests of disjoint sets add up.

    Args:
        row_count: rows.
        sums: of their two hashes; kept modulo 2**64.
    """

    row_count: int = 0
    sums: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", (self.sums[0] % _MODULUS, self.sums[1] % _MODULUS))

    def __add__(self, other: TableDigest) -> TableDigest:
        return TableDigest(
            row_count=self.row_count + other.row_count,
            sums=(self.sums[0] + other.sums[0], self.sums[1] + other.sums[1]),
        )

    def __str__(self) -> str:
        """The sums as 32 hexadecimal digits."""
        return "".join(f"{value:016x}" for value in self.sums)

    def to_bytes(self) -> bytes:
        """The sums as the wire has them (`CopyOutcome.digest` in `apply.proto`): two uint64, little-endian."""
        return b"".join(value.to_bytes(8, "little") for value in self.sums)

    @classmethod
    def from_bytes(cls, row_count: int, sums: bytes) -> TableDigest:
        """Make a digest of what `to_bytes` gave.

        Args:
            row_count: rows it stands for; `to_bytes` does not carry it.
            sums: 16 bytes; empty: both sums are 0, the digest of no row.
        """
        return cls(row_count=row_count, sums=(int.from_bytes(sums[:8], "little"), int.from_bytes(sums[8:], "little")))
