"""The keeper of the redo that capture processes of its site mine: a source's site, or a redo receiver.

It also records the SCNs of these capture processes. Its methods run on the threads of calls:
`headrace.redo.checkpoints` states what any thread may call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.base.errors import PropagationError
from headrace.lcr.scn import Scn
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus
from headrace.status.redo import CaptureScns, RedoLogStatus
from topology.routing.downstream import keeper_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.redo.checkpoints import RequiredCheckpoints
    from headrace.redo.standby.standby_log import StandbyStatistics
    from headrace.redo.writing.log_writer import LogWriterStatistics
    from topology.spec import TopologySpec

__all__ = ["RedoKeeper", "register_captures"]

S = TypeVar("S", bound=RedoLogStatus)


class _Redo(Protocol):
    """A log writer, or a standby redo log."""

    required_checkpoints: RequiredCheckpoints

    @property
    def oldest_scn(self) -> Scn:
        """Redo can be mined from here on."""
        ...


class RedoKeeper:
    """Part of a component that keeps redo."""

    name: str

    def with_log(self, status: S, statistics: LogWriterStatistics | StandbyStatistics) -> S:
        """Return the component's status with the facts that every redo log has.

        Args:
            status: status of the component.
            statistics: statistics of its redo log.
        """
        return replace(
            status,
            redo_bytes=statistics.redo_bytes,
            redo_bytes_max=statistics.redo_bytes_max,
            redo_segments=statistics.segments,
            redo_scn=statistics.position.scn,
            redo_segment=statistics.position.segment,
            fsyncs_total=statistics.syncs,
            purged_bytes_total=statistics.purged_bytes,
            required_checkpoint_scn=statistics.required_checkpoint_scn,
            captures=self.capture_scns(),
        )

    def kept_redo(self) -> _Redo | None:
        """Return the redo; None: it is not open."""
        raise NotImplementedError

    def oldest_scn(self) -> Scn:
        """Return the SCN from which redo can be mined; FIRST_SCN: there is no redo.

        Raises:
            PropagationError: the redo is not open yet.
        """
        return self._redo().oldest_scn

    def set_first_scn(self, capture: str, scn: int) -> None:
        """Raise the first SCN of a capture process; durable when this returns.

        Args:
            capture: name of a capture process that mines here.
            scn: the new first SCN.

        Raises:
            ConfigError: the SCN is not allowed.
            PropagationError: the redo is not open yet.
        """
        redo = self._redo()
        redo.required_checkpoints.set_first_scn(capture, Scn(scn), oldest_scn=redo.oldest_scn)

    def set_start_scn(self, capture: str, scn: int) -> None:
        """Set the SCN at which a capture process begins to capture again; durable when this returns.

        Args:
            capture: name of a capture process that mines here.
            scn: the new start SCN.

        Raises:
            ConfigError: the SCN is not allowed.
            PropagationError: the redo is not open yet.
        """
        redo = self._redo()
        redo.required_checkpoints.set_start_scn(capture, Scn(scn), oldest_scn=redo.oldest_scn)

    def capture_scns(self) -> dict[str, CaptureScns]:
        """Return the first and start SCN of every capture process that mines here."""
        redo = self.kept_redo()
        if redo is None:
            return {}
        found = redo.required_checkpoints.scns(redo.oldest_scn)
        return {name: CaptureScns(first_scn=each.first_scn, start_scn=each.start_scn) for name, each in found.items()}

    def _redo(self) -> _Redo:
        redo = self.kept_redo()
        if redo is None:
            raise PropagationError(
                f"{self.name} has not opened its redo yet", hint="ask again when it runs; see `headrace status`"
            )
        return redo


def register_captures(checkpoints: RequiredCheckpoints, spec: TopologySpec, captures: Iterable[str]) -> None:
    """Keep redo for these capture processes only.

    Args:
        checkpoints: checkpoints of the redo that they mine.
        spec: the topology.
        captures: names of the capture processes.
    """
    names = list(captures)
    for name in names:
        capture = spec.capture(name)
        checkpoints.register(
            name, first_scn=capture.first_scn, start_scn=capture.start_scn, retention_s=capture.checkpoint_retention_s
        )
    checkpoints.forget_others(names)


def with_capture_scns(components: Iterable[ComponentStatus]) -> list[ComponentStatus]:
    """Add to each capture process's status the SCNs that only the keeper of its redo knows, as far as it answers.

    Args:
        components: statuses of capture processes and other components.
    """
    statuses = list(components)
    kept = {status.name: status.captures or {} for status in statuses if isinstance(status, RedoLogStatus)}
    found: list[ComponentStatus] = []
    for status in statuses:
        if isinstance(status, CaptureStatus):
            scns = kept.get(keeper_of(status.source, status.site), {}).get(status.name.partition(":")[2])
            found.append(
                status if scns is None else replace(status, first_scn=scns.first_scn, start_scn=scns.start_scn)
            )
        else:
            found.append(status)
    return found
