"""The apply servers that have joined: which groups each holds, and what is to be sent to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_apply.conversation.groups import Reopen

if TYPE_CHECKING:
    from spark_apply.conversation.groups import CoordinatorMessage

__all__ = ["ServerSlots"]

# Groups that a server may hold: one being written, and one prepared meanwhile. More would be formed too early and
# be smaller than necessary.
_GROUPS_PER_SERVER = 2


class ServerSlots:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[int, set[int]] = {}  # numbers of groups, by server
        self._outbox: list[tuple[int, CoordinatorMessage]] = []
        self._must_reopen = False  # a session may be older than a join, which removed what it goes on from

    def __len__(self) -> int:
        """How many servers have joined."""
        return len(self._held)

    def __contains__(self, server: int) -> bool:
        """Whether a server has joined."""
        return server in self._held

    def join(self, server: int) -> None:
        """A server waits for work."""
        self._held[server] = set()
        if self._must_reopen:
            self.put(server, Reopen())

    def lose(self, server: int) -> list[int]:
        """A server is gone, and what was not sent to it yet; the numbers of the groups that it held, ascending."""
        self._outbox = [(to, message) for to, message in self._outbox if to != server]
        return sorted(self._held.pop(server, set()))

    def reopen(self) -> None:
        """Every server opens its session again, also those that join later."""
        self._must_reopen = True
        self._outbox += [(server, Reopen()) for server in sorted(self._held)]

    # ------------------------------------------------------------------ groups

    def of(self, server: int) -> list[int]:
        """The numbers of the groups that a server holds, ascending; none, where it has not joined."""
        return sorted(self._held.get(server, ()))

    @property
    def has_room(self) -> bool:
        """Whether a server can take a group."""
        return any(len(held) < _GROUPS_PER_SERVER for held in self._held.values())

    def choose(self, *, is_lowest: bool) -> int:
        """The server that holds the fewest groups; -1: none can take one.

        Args:
            is_lowest: the group is the lowest of those that are not done: everything waits for it, so it is taken by a
                server that has enough already, too.
        """
        server = min(self._held, key=lambda number: (len(self._held[number]), number), default=-1)
        has_room = server >= 0 and (is_lowest or len(self._held[server]) < _GROUPS_PER_SERVER)
        return server if has_room else -1

    def hold(self, server: int, group: int) -> None:
        """A server gets a group.

        Args:
            server: its number.
            group: the number of the group.
        """
        self._held[server].add(group)

    def free(self, server: int, group: int) -> None:
        """A server has a group no more.

        Args:
            server: its number.
            group: the number of the group.
        """
        self._held[server].discard(group)

    def free_all(self) -> None:
        """No server has a group any more."""
        for held in self._held.values():
            held.clear()

    # ------------------------------------------------------------------ messages

    def put(self, server: int, message: CoordinatorMessage) -> None:
        """Have a message sent to a server.

        Args:
            server: its number.
            message: behind those that were put before.
        """
        self._outbox.append((server, message))

    def take(self) -> list[tuple[int, CoordinatorMessage]]:
        """(server, message) in the order to send, since the last call."""
        outbox, self._outbox = self._outbox, []
        return outbox
