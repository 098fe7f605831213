"""Digest of a table: a row count and two sums of 64-bit hashes of each row.

It does not depend on order: chunks add up, and two sides may cut a table differently. The connector chooses what is
hashed (`headrace.databases.ports.copying.OpenPiece.digest`). It imports no module of ours: Spark tasks load it first.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TableDigest"]

_MODULUS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """Digest of a set of rows; digests of disjoint sets add up.

    Args:
        row_count: number of rows.
        sums: of the rows' two hashes, modulo 2**64.
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
        """Return the sums as 32 hexadecimal digits."""
        return "".join(f"{value:016x}" for value in self.sums)

    def to_bytes(self) -> bytes:
        """Return the sums in wire form (`CopyOutcome.digest` in `apply.proto`): two uint64, little-endian."""
        return b"".join(value.to_bytes(8, "little") for value in self.sums)

    @classmethod
    def from_bytes(cls, row_count: int, sums: bytes) -> TableDigest:
        """Build a digest from the result of `to_bytes`.

        Args:
            row_count: its number of rows; `to_bytes` does not carry it.
            sums: 16 bytes; empty: both sums are 0, the digest of no rows.
        """
        return cls(row_count=row_count, sums=(int.from_bytes(sums[:8], "little"), int.from_bytes(sums[8:], "little")))
