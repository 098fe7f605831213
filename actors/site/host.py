"""The tasks of every site, with or without a database: above all, it knows which of its components an operator stopped.

The controller may run on another machine, and a bypassed component does not run at all: only its site can check.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, ClassVar

from actors.hosting.host import Host
from actors.records.wanted import Wanted
from actors.site.connection import remove_but_server
from actors.staging.queue_host import delete_spilled, forget_queues
from actors.state_folder import site_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from topology.spec import TopologySpec

__all__ = ["SiteHost"]


class SiteHost(Host):
    """One site. Subclasses set `_spec`."""

    kind: ClassVar[str] = "site"
    adopts_open: ClassVar[bool] = True

    _spec: TopologySpec

    def stopped(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return which of these components an operator stopped; they need not run.

        Args:
            names: full names of components of this site.
        """
        return tuple(name for name in names if not Wanted(self._spec.state_dir, name).is_enabled())

    def forget_stops(self, names: Iterable[str]) -> None:
        """Enable components of these names, whatever an operator wanted of earlier ones; idempotent.

        Args:
            names: full names of components, none of which runs. Components of other sites are unaffected.
        """
        for name in names:
            Wanted(self._spec.state_dir, name).forget()

    def begin_anew(self, spec: TopologySpec, names: Collection[str]) -> None:
        """Delete the leftovers of earlier components before new ones of these names start; idempotent.

        Args:
            spec: topology of the new components; this site may not have adopted it yet.
            names: full names of components, none of which runs. Components of other sites are unaffected.
        """
        self.forget_stops(names)
        forget_queues(spec, self.name.removeprefix("site:"), names)

    def delete_spilled(self, names: Collection[str]) -> None:
        """Delete the spilled batches of ended queues of this site; idempotent.

        Args:
            names: full names of components, none of which runs. Components of other sites are unaffected.
        """
        delete_spilled(self._spec, self.name.removeprefix("site:"), names)

    def clear_up(self, keep_server: bool = False) -> None:  # noqa: FBT001, FBT002 - called by position, through Ray
        """End this component, and delete everything that its components keep on this machine; idempotent.

        The topology is being removed: no other component of it may run here, except sites that are removed next.

        Args:
            keep_server: whether an embedded server's folder stays.
        """
        self.end()
        folder, state_dir = site_folder(self._spec, self.name.removeprefix("site:")), self._spec.state_dir
        if keep_server:
            remove_but_server(folder)
        for each in (*(() if keep_server else (folder,)), state_dir / "components", state_dir / "logs"):
            shutil.rmtree(each, ignore_errors=True)
        for each in (folder.parent, state_dir):
            with contextlib.suppress(OSError):  # not empty, already gone, or a mount point
                each.rmdir()
