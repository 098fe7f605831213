"""Progress of an apply process, as its destination stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.lcr.scn import FIRST_SCN

if TYPE_CHECKING:
    from headrace.lcr.scn import Scn

__all__ = ["ApplyProgress", "LogPositions", "ScnRange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScnRange:
    """Transactions with `after < commit_scn <= through`."""

    after: Scn
    through: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPositions:
    """Two positions in a database's own log.

    Every commit acknowledged before is at or below `written`, and durable at or below `flushed`.
    """

    written: int
    flushed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyProgress:
    """What is committed at a destination for one apply process.

    Durable except for the last commits of lazy sessions (`LogPositions`).

    Args:
        epoch: of the last incarnation that wrote.
        low_watermark: everything up to here is applied or in the error queue.
        above: applied ranges above the low watermark, disjoint and ascending.
        ahead_scn: above the low watermark while copied tables join (`DestinationDatabase.join_tables`): every table
            except those JOINING is applied up to here.
    """

    epoch: int
    low_watermark: Scn
    above: tuple[ScnRange, ...]
    ahead_scn: Scn = FIRST_SCN
