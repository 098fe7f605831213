"""Caught up: markers written at every source now, until they are below every low watermark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.console import bytes_text, scn_text
from streams.errors import PropagationError, StreamsError

if TYPE_CHECKING:
    from actors.runtime import RayActors
    from topology.spec import TopologySpec

__all__ = ["NotCaughtUp", "behind_text", "wait_caught_up"]

POLL_S = 0.1
MARKER_TIMEOUT_S = 15.0  # a marker waits for one fsync at the source
CALL_TIMEOUT_S = 5.0

Progress = Callable[[Mapping[str, int | None]], None]
"""Told how many bytes of log each apply process is behind its marker; None: it does not know yet, it is starting."""


class NotCaughtUp(PropagationError):  # noqa: N818 - says what is the matter
    """The destinations did not reach the markers in time."""

    code = "HDR-7002"


def behind_text(behind: Mapping[str, int | None]) -> str:
    """What `Progress` was told, for people."""
    return ", ".join(f"{name} {'starting' if left is None else f'{bytes_text(left)} behind'}" for name, left in behind.items())


@dataclass(slots=True)
class _Wait:
    spec: TopologySpec
    actors: RayActors
    deadline: float | None
    markers: dict[str, int] = field(default_factory=dict)
    behind: dict[str, int | None] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def write_markers(self) -> None:
        for source in sorted({apply.source for apply in self.spec.applies}):
            # A site that is just being restarted answers within seconds.
            while source not in self.markers:
                try:
                    self.markers[source] = int(
                        self.actors.call(f"site:{source}", "write_marker", b"caught-up", timeout_s=MARKER_TIMEOUT_S)
                    )
                except StreamsError as error:
                    if self.is_late():
                        raise NotCaughtUp(f"no marker could be written at {source}: {error.message}") from error
                    time.sleep(POLL_S)

    def look(self) -> bool:
        for apply in self.spec.applies:
            if self.behind.get(apply.name) == 0:
                continue
            name = f"apply:{apply.name}"
            try:
                reached = int(self.actors.call(name, "low_watermark", timeout_s=CALL_TIMEOUT_S))
            except StreamsError as error:
                self.problems[apply.name] = error.message
                continue
            self.problems.pop(apply.name, None)
            self.behind[apply.name] = max(0, self.markers[apply.source] - reached) if reached else None
        return all(self.behind.get(apply.name) == 0 for apply in self.spec.applies)

    def is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline


def wait_caught_up(
    spec: TopologySpec, actors: RayActors, *, timeout_s: float | None = None, progress: Progress | None = None,
) -> dict[str, int]:
    """Wait until everything committed at any source before this call is applied everywhere.

    Args:
        spec: the topology.
        actors: its actors.
        timeout_s: None: as long as it takes.
        progress: see `Progress`.

    Returns:
        The markers' SCNs by source.

    Raises:
        NotCaughtUp: the time is over; the message names who is behind and why.
    """
    wait = _Wait(spec, actors, None if timeout_s is None else time.monotonic() + timeout_s)
    wait.write_markers()
    while not wait.look():
        if progress is not None:
            progress(dict(wait.behind))
        if wait.is_late():
            words = [
                f"{apply.name} has not reached SCN {scn_text(wait.markers[apply.source])} of {apply.source}"
                + (f" ({wait.problems[apply.name]})" if apply.name in wait.problems else "")
                for apply in spec.applies if wait.behind.get(apply.name) != 0
            ]
            raise NotCaughtUp(f"not caught up within {timeout_s:g} s: " + "; ".join(words), hint="see `headrace status`")
        time.sleep(POLL_S)
    return wait.markers
