"""Content of each site's log: the transactions of each stream, with their commit SCNs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.lcr.scn import Scn

__all__ = ["Entry", "SiteLogs"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A transaction in a site's log.

    Args:
        scn: SCN of its commit there.
        stream: number of its stream.
        number: number of its table class.
        transaction: its number in the stream.
    """

    scn: Scn
    stream: int
    number: int
    transaction: int


class SiteLogs:
    """Transactions in the logs of all sites."""

    def __init__(self) -> None:
        self._entries: dict[str, list[Entry]] = {}
        self._scns: dict[tuple[int, int], dict[str, int]] = {}  # by (stream, transaction), then by site

    def of(self, site: str) -> list[Entry]:
        """Return the transactions of a site's log, in commit order."""
        return self._entries.setdefault(site, [])

    def add(self, site: str, entry: Entry) -> None:
        """Record a transaction in a site's log."""
        self.of(site).append(entry)
        self._scns.setdefault((entry.stream, entry.transaction), {})[site] = entry.scn

    def scns(self, stream: int, transaction: int) -> dict[str, int]:
        """Return the commit SCN of a transaction in each log.

        Args:
            stream: number of its stream.
            transaction: its number in the stream.
        """
        return self._scns.get((stream, transaction), {})

    def scns_at(self, site: str, scn: int) -> dict[str, int]:
        """Return the commit SCNs, in each log, of the transaction that committed at `scn` in one site's log.

        Args:
            site: the site of that log.
            scn: commit SCN there.
        """
        return next(
            (self.scns(each.stream, each.transaction) for each in self.of(site) if each.scn == scn), {site: scn}
        )
