"""The apply servers that have joined: the groups that each holds, and the messages to send to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_apply.conversation.groups import Reopen

if TYPE_CHECKING:
    from spark_apply.conversation.groups import CoordinatorMessage

__all__ = ["ServerSlots"]

# Groups that a server may hold: one being written, and one prepared meanwhile. More would be formed too early and be
# smaller than necessary.
_GROUPS_PER_SERVER = 2


class ServerSlots:
    """The joined servers of one coordinator."""

    def __init__(self) -> None:
        self._held: dict[int, set[int]] = {}  # numbers of groups, by server
        self._outbox: list[tuple[int, CoordinatorMessage]] = []
        # A session may be older than a join, which removed the progress that it continues from, or know tables as they
        # were before a DDL LCR.
        self._must_reopen = False

    def __len__(self) -> int:
        """Return the number of joined servers."""
        return len(self._held)

    def __contains__(self, server: int) -> bool:
        """Return whether a server has joined."""
        return server in self._held

    def join(self, server: int) -> None:
        """Add a server that waits for work."""
        self._held[server] = set()
        if self._must_reopen:
            self.put(server, Reopen())

    def lose(self, server: int) -> list[int]:
        """Remove a lost server and its unsent messages; return the numbers of the groups that it held, ascending."""
        self._outbox = [(to, message) for to, message in self._outbox if to != server]
        return sorted(self._held.pop(server, set()))

    def reopen(self) -> None:
        """Have every server reopen its session, including servers that join later."""
        self._must_reopen = True
        self._outbox += [(server, Reopen()) for server in sorted(self._held)]

    # ------------------------------------------------------------------ groups

    def of(self, server: int) -> list[int]:
        """Return the numbers of the groups that a server holds, ascending; empty if it has not joined."""
        return sorted(self._held.get(server, ()))

    @property
    def has_room(self) -> bool:
        """Whether a server can take a group."""
        return any(len(held) < _GROUPS_PER_SERVER for held in self._held.values())

    def choose(self, *, is_lowest: bool) -> int:
        """Return the server that holds the fewest groups; -1: none can take one.

        Args:
            is_lowest: the group is the lowest unfinished one. Everything waits for it, so even a server that holds
                enough groups takes it.
        """
        server = min(self._held, key=lambda number: (len(self._held[number]), number), default=-1)
        has_room = server >= 0 and (is_lowest or len(self._held[server]) < _GROUPS_PER_SERVER)
        return server if has_room else -1

    def hold(self, server: int, group: int) -> None:
        """Note that a server gets a group.

        Args:
            server: its number.
            group: number of the group.
        """
        self._held[server].add(group)

    def free(self, server: int, group: int) -> None:
        """Note that a server no longer has a group.

        Args:
            server: its number.
            group: number of the group.
        """
        self._held[server].discard(group)

    def free_all(self) -> None:
        """Take all groups from all servers."""
        for held in self._held.values():
            held.clear()

    # ------------------------------------------------------------------ messages

    def put(self, server: int, message: CoordinatorMessage) -> None:
        """Queue a message to a server, behind those queued earlier.

        Args:
            server: its number.
            message: the message.
        """
        self._outbox.append((server, message))

    def take(self) -> list[tuple[int, CoordinatorMessage]]:
        """Return (server, message) pairs queued since the last call, in the order to send."""
        outbox, self._outbox = self._outbox, []
        return outbox
