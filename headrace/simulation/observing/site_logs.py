"""What is in each site's log: which transaction of which stream, at which commit SCN."""

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
        scn: of its commit there.
        stream: whose it is.
        number: of the class.
        transaction: its number in the stream.
    """

    scn: Scn
    stream: int
    number: int
    transaction: int


class SiteLogs:
    """See the module."""

    def __init__(self) -> None:
        self._entries: dict[str, list[Entry]] = {}
        self._scns: dict[tuple[int, int], dict[str, int]] = {}  # by stream and transaction, by site

    def of(self, site: str) -> list[Entry]:
        """What a site's log has, in the order of its commits.

        Args:
            site: its name.
        """
        return self._entries.setdefault(site, [])

    def add(self, site: str, entry: Entry) -> None:
        """A transaction is in a site's log.

        Args:
            site: its name.
            entry: the transaction.
        """
        self.of(site).append(entry)
        self._scns.setdefault((entry.stream, entry.transaction), {})[site] = entry.scn

    def scns(self, stream: int, transaction: int) -> dict[str, int]:
        """The commit SCN that a transaction has in each log.

        Args:
            stream: whose it is.
            transaction: its number in the stream.
        """
        return self._scns.get((stream, transaction), {})

    def scns_at(self, site: str, scn: int) -> dict[str, int]:
        """The commit SCNs of the transaction that committed at `scn` in a site's log.

        Args:
            site: whose log.
            scn: in it.
        """
        return next(
            (self.scns(each.stream, each.transaction) for each in self.of(site) if each.scn == scn), {site: scn}
        )
