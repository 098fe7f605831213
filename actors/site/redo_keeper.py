"""Who keeps the redo that capture processes of its site mine: a source's site, or a redo receiver.

Their SCNs are its business.

Called from the threads of calls: `headrace.redo.checkpoints` says what may come from any thread.
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
    """A part of a component that keeps redo."""

    name: str

    def with_log(self, status: S, statistics: LogWriterStatistics | StandbyStatistics) -> S:
        """The component's status with what there is of every redo log.

        Args:
            status: of the component.
            statistics: of its redo log.
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
        """The redo; None: it is not open."""
        raise NotImplementedError

    def oldest_scn(self) -> Scn:
        """Redo can be mined from here on; FIRST_SCN: there is none.

        Raises:
            PropagationError: the redo is not open yet.
        """
        return self._redo().oldest_scn

    def set_first_scn(self, capture: str, scn: int) -> None:
        """See `RequiredCheckpoints.set_first_scn`.

        Args:
            capture: name of a capture process that mines here.
            scn: the new first SCN.

        Raises:
            ConfigError: it breaks a rule of first SCNs.
            PropagationError: the redo is not open yet.
        """
        redo = self._redo()
        redo.required_checkpoints.set_first_scn(capture, Scn(scn), oldest_scn=redo.oldest_scn)

    def set_start_scn(self, capture: str, scn: int) -> None:
        """See `RequiredCheckpoints.set_start_scn`.

        Args:
            capture: name of a capture process that mines here.
            scn: the new start SCN.

        Raises:
            ConfigError: it breaks a rule of start SCNs.
            PropagationError: the redo is not open yet.
        """
        redo = self._redo()
        redo.required_checkpoints.set_start_scn(capture, Scn(scn), oldest_scn=redo.oldest_scn)

    def capture_scns(self) -> dict[str, CaptureScns]:
        """First and start SCN of every capture process that mines here."""
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
        checkpoints: of the redo that they mine.
        spec: the topology.
        captures: their names.
    """
    names = list(captures)
    for name in names:
        capture = spec.capture(name)
        checkpoints.register(
            name, first_scn=capture.first_scn, start_scn=capture.start_scn, retention_s=capture.checkpoint_retention_s
        )
    checkpoints.forget_others(names)


def with_capture_scns(components: Iterable[ComponentStatus]) -> list[ComponentStatus]:
    """Add to the status of each capture process the SCNs that only who keeps its redo knows, as far as that answers.

    Args:
        components: statuses, of capture processes and of others.
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
