"""The controller's knowledge of running components while it splits and merges streams (`actors.splitting.phases.Facts`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.lcr.scn import Scn
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus
from headrace.status.queues import QueueStatus

if TYPE_CHECKING:
    from actors.control.lag import PositionSamples

__all__ = ["ObservedFacts", "required_of"]


class ObservedFacts:
    """Facts from the controller's last observation.

    Args:
        statuses: statuses of the components.
        labels: the label of each component when it is up to date.
        samples: positions of each source's log, by site.
        stopped: asks a site whether an operator stopped a component there; None: the site does not say.
    """

    def __init__(
        self,
        statuses: Sequence[ComponentStatus],
        labels: Mapping[str, str],
        samples: Mapping[str, PositionSamples],
        stopped: Callable[[str, str], bool | None],
    ) -> None:
        self._statuses, self._labels, self._samples = {each.name: each for each in statuses}, labels, samples
        self._ask_stopped, self._stopped = stopped, dict[str, bool | None]()

    def is_quiet(self) -> bool:
        """Return whether no answering component is outdated; the controller itself looks for unwanted ones before."""
        found = ((name, status.fingerprint) for name, status in self._statuses.items())
        return all(label is None or label == self._labels.get(name, label) for name, label in found)

    def is_current(self, component: str) -> bool:
        """Return whether a component answers and has its part of the topology."""
        status = self._statuses.get(component)
        label = None if status is None else status.fingerprint
        return label is not None and label == self._labels.get(component)

    def queue(self, name: str) -> QueueStatus | None:
        """Return the last status of a queue; None: it does not answer, or is not open."""
        status = self._statuses.get(f"queue:{name}")
        return status if isinstance(status, QueueStatus) else None

    def required_scn(self, capture: str) -> Scn | None:
        """Return the SCN from which redo is kept, or soon will be, for a capture process; None: unknown."""
        status = self._statuses.get(f"capture:{capture}")
        return required_of(status) if isinstance(status, CaptureStatus) else None

    def is_stopped(self, component: str) -> bool | None:
        """Return whether an operator stopped a component; None: its site does not say.

        The site is asked, because the component may not answer and its last answer may be old. It is asked once per
        component: many propagations may read one queue.
        """
        if component not in self._stopped:
            status = self._statuses.get(component)
            self._stopped[component] = None if status is None else self._ask_stopped(status.site, component)
        return self._stopped[component]

    def behind_s(self, source: str, scn: Scn, other: Scn) -> float | None:
        """Return how much later the source was at another SCN, in seconds; None: unknown.

        See `Facts.behind_s` for the arguments.
        """
        samples = self._samples.get(source)
        first, second = (None, None) if samples is None else (samples.time_us(scn), samples.time_us(other))
        return None if first is None or second is None else max(0, second - first) / 1e6


def required_of(status: CaptureStatus) -> Scn | None:
    """Return the SCN from which redo is kept for a capture process, or will be within a second.

    Args:
        status: status of the capture process, which reports a durable position to the site within a second.
    """
    if status.required_checkpoint_scn is None or status.applied_scn is None:
        return None
    return Scn(max(status.required_checkpoint_scn, status.applied_scn))
