"""Actions of `up` in the role of the sites' administrators, before the controller is asked and after it has settled.

They use `actors.site.admin`. No running component has the administrators' connection strings.

Worked flow (the source is unavailable when `up` begins)
    begin: the source does not answer, so nothing is published, and `up` reports it -> the controller waits for the
    source, finds no new table in the log, and settles -> publishes_late: the source answers now, and the log gets the
    new tables -> `up` asks the controller again, which takes them up -> end: removed tables are taken out of the log
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from topology.edits.stored import prepared_topology

if TYPE_CHECKING:
    from actors.site.admin import Published
    from headrace.databases.ports import Finding
    from topology.spec import TopologySpec

__all__ = ["Administrators"]


class Administrators:
    """The administrators of one topology's sites, for one call of `up`.

    Args:
        spec: the topology.
        keep_existing: whether the call keeps the rows of destination tables.
    """

    def __init__(self, spec: TopologySpec, *, keep_existing: bool) -> None:
        self._spec, self._keep_existing = spec, keep_existing
        self._unprepared: tuple[Finding, ...] = ()
        self._unpublished: tuple[Finding, ...] = ()
        self._made: Mapping[str, Published] = {}
        self._is_late = False

    def begin(self) -> None:
        """Create what the components need, with `prepare_as_admin` and `publish_as_admin`.

        Raises:
            HeadraceError: an administrator is needed but unavailable, or a right is missing.
        """
        from actors.site.admin import prepare_as_admin, publish_as_admin

        self._unprepared = prepare_as_admin(self._spec)
        self._unpublished, self._made = publish_as_admin(self._spec, prepared_topology(self._spec.state_dir))

    def publishes_late(self) -> bool:
        """Publish, after the controller has settled, where that failed before. At most once.

        Not for a call that keeps rows, because it has already recorded for which tables.

        Returns:
            Whether the log now has tables that the controller has not seen, so that it must be asked again.

        Raises:
            HeadraceError: an administrator is needed but unavailable, or a right is missing.
        """
        from actors.site.admin import both, publish_as_admin

        if self._is_late or self._keep_existing or not self._unpublished:
            return False
        self._is_late = True
        self._unpublished, late = publish_as_admin(self._spec, prepared_topology(self._spec.state_dir))
        self._made = both(self._made, late)
        return bool(late)

    def end(self, *, is_refused: bool) -> tuple[Finding, ...]:
        """Retract what was published if the topology is refused; otherwise unpublish what is no longer captured.

        Args:
            is_refused: whether the controller has refused the topology.

        Returns:
            What could not be done, now or before.
        """
        from actors.site.admin import finish_as_admin, retreat_as_admin

        told = (*self._unprepared, *self._unpublished)
        if is_refused:
            return (*told, *retreat_as_admin(self._spec, self._made))
        again = f"headrace up FILE{' --keep-existing' if self._keep_existing else ''}"
        return (*told, *finish_as_admin(self._spec, told=self._unpublished, again=again))
