"""Queries of a capture process to its source's site about table names (`headrace.redo.mining.names.NamesAtSource`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.redo.mining.names import NameOfNow
    from topology.edits.receivers import Receivers

__all__ = ["AskedNames"]


class AskedNames:
    """Caches each answer until `forget`.

    Args:
        ask: calls a method of the site: "names_of_now", which queries the site's database, or "receivers", which does
            not.
    """

    def __init__(self, ask: Callable[[str], Any]) -> None:
        self._ask = ask
        self._now: Mapping[int, NameOfNow] | None = None
        self._receivers: Receivers | None = None

    def forget(self) -> None:
        """Drop the cached answers."""
        self._now = self._receivers = None

    def of_now(self) -> Mapping[int, NameOfNow]:
        """Return the current names of the source's captured tables, by object number."""
        if self._now is None:
            self._now = self._ask("names_of_now")
        return self._now

    def lost_by(self, object_number: int, owner: str, name: str) -> tuple[str, ...]:
        """Return the apply processes that got the table when it was prepared and do not get it under this name.

        See `NamesAtSource.lost_by` for the arguments.
        """
        if self._receivers is None:
            self._receivers = self._ask("receivers")
        identity = self._receivers.identity_of(object_number)
        lost = self._receivers.lost_by(identity, owner, name)
        if lost and identity is None:  # a partition created since: its other partitions identify the table
            now = self.of_now().get(object_number)
            lost = () if now is None else self._receivers.lost_by(now.identity, owner, name)
        return lost
