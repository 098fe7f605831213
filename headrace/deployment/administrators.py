"""What a call of `up` does as the administrators of sites: before the controller is asked, and once it has settled.

See `actors.site.admin`. Nothing that runs has their connection strings.

Worked flow (the source is away when `up` begins)
    begin: the source does not answer: nothing is published, and that is told -> the controller waits for it, finds no
    new table in the log, and settles -> publishes_late: the source answers now, and the log has the new tables -> the
    controller is asked once more, and takes them up -> end: what left is taken out of the log
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
    """Those of the sites of one topology, for one call of `up`.

    Args:
        spec: the topology.
        keep_existing: the call keeps the rows of destination tables.
    """

    def __init__(self, spec: TopologySpec, *, keep_existing: bool) -> None:
        self._spec, self._keep_existing = spec, keep_existing
        self._unprepared: tuple[Finding, ...] = ()
        self._unpublished: tuple[Finding, ...] = ()
        self._made: Mapping[str, Published] = {}
        self._is_late = False

    def begin(self) -> None:
        """Make what what runs needs, ahead of it; see `prepare_as_admin` and `publish_as_admin`.

        Raises:
            HeadraceError: an administrator is needed and cannot be asked, or a right is missing.
        """
        from actors.site.admin import prepare_as_admin, publish_as_admin

        self._unprepared = prepare_as_admin(self._spec)
        self._unpublished, self._made = publish_as_admin(self._spec, prepared_topology(self._spec.state_dir))

    def publishes_late(self) -> bool:
        """Behind a controller that has settled: publish where that was not possible before. At most once.

        Not for a call that keeps rows: it is recorded already of which tables.

        Returns:
            Whether the log has tables now that the controller has not seen: it is to be asked once more.

        Raises:
            HeadraceError: see `begin`.
        """
        from actors.site.admin import both, publish_as_admin

        if self._is_late or self._keep_existing or not self._unpublished:
            return False
        self._is_late = True
        self._unpublished, late = publish_as_admin(self._spec, prepared_topology(self._spec.state_dir))
        self._made = both(self._made, late)
        return bool(late)

    def end(self, *, is_refused: bool) -> tuple[Finding, ...]:
        """Take back what was published for a topology that is refused; else take out what is captured no more.

        Args:
            is_refused: the controller has refused the topology.

        Returns:
            What could not be done, now or before.
        """
        from actors.site.admin import finish_as_admin, retreat_as_admin

        told = (*self._unprepared, *self._unpublished)
        if is_refused:
            return (*told, *retreat_as_admin(self._spec, self._made))
        again = f"headrace up FILE{' --keep-existing' if self._keep_existing else ''}"
        return (*told, *finish_as_admin(self._spec, told=self._unpublished, again=again))
