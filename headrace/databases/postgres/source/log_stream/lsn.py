"""SCNs in PostgreSQL's notation: `16/B374D848`."""

from __future__ import annotations

from headrace.lcr.scn import Scn

__all__ = ["format_lsn", "parse_lsn"]


def parse_lsn(text: str) -> Scn:
    """Return the SCN that PostgreSQL prints as `16/B374D848`."""
    high, _, low = text.partition("/")
    return Scn(int(high, 16) << 32 | int(low, 16))


def format_lsn(scn: int) -> str:
    """Return the SCN as PostgreSQL prints it."""
    return f"{scn >> 32:X}/{scn & 0xFFFFFFFF:X}"
