"""Positions and identities: the integers that order everything else."""

from __future__ import annotations

from typing import NewType

__all__ = ["FIRST_SCN", "NO_OBJECT", "ObjectNumber", "Scn", "TransactionId", "parse_scn", "scn_text"]

Scn = NewType("Scn", int)
"""A 64-bit position in one source's log. Comparable only within one source.

A transaction has two: `order_scn`, where its commit record starts (known from the transaction's first record on), and
`commit_scn`, where its commit record ends. Within a source `order_scn(t) < commit_scn(t) <= order_scn(next t)`, so
either one tells what a watermark covers.
"""

TransactionId = NewType("TransactionId", int)
"""A source's own transaction number. Unique only among transactions in progress: the SCNs give the order."""

ObjectNumber = NewType("ObjectNumber", int)
"""A source's own number for a table. The multiversioned dictionary turns it into a name."""

NO_OBJECT = ObjectNumber(0)
"""The number of no table: 'not known'."""

FIRST_SCN = Scn(0)
"""Below every SCN: 'nothing yet'."""


def parse_scn(text: str) -> Scn:
    """Parse an SCN in the form of `scn_text`, or as a decimal number.

    Raises:
        ValueError: the text has neither form, or the number does not fit into 63 bits.
    """
    high, slash, low = text.strip().partition("/")
    scn = (int(high, 16) << 32) + int(low, 16) if slash else int(high)
    if scn < 0 or scn >= 1 << 63 or (slash and not (0 <= int(low, 16) < 1 << 32)):
        message = f"{text!r} is no SCN"
        raise ValueError(message)
    return Scn(scn)


def scn_text(scn: int) -> str:
    """Return an SCN for messages and tables: two hexadecimal halves, the form of PostgreSQL's own tools."""
    return f"{scn >> 32:X}/{scn & 0xFFFFFFFF:08X}"
