"""What every site does, with or without a database: it knows which of its components an operator stopped.

The controller may run on another machine, and a component that is bypassed does not run at all: only its site can look.
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
        """Which of these components an operator stopped; they need not run.

        Args:
            names: full names of components of this site.
        """
        return tuple(name for name in names if not Wanted(self._spec.state_dir, name).is_enabled())

    def forget_stops(self, names: Iterable[str]) -> None:
        """Let components of these names begin enabled, whatever an operator wanted of earlier ones; idempotent.

        Args:
            names: full names of components; none of them runs. Those of other sites make no difference.
        """
        for name in names:
            Wanted(self._spec.state_dir, name).forget()

    def begin_anew(self, spec: TopologySpec, names: Collection[str]) -> None:
        """Let components that are about to begin find nothing of earlier ones of their name; idempotent.

        Args:
            spec: that they are a part of; this site need not have adopted it yet.
            names: full names of components; none of them runs. Those of other sites make no difference.
        """
        self.forget_stops(names)
        forget_queues(spec, self.name.removeprefix("site:"), names)

    def delete_spilled(self, names: Collection[str]) -> None:
        """Delete what queues of this site that have ended left on disk; idempotent.

        Args:
            names: full names of components; none of them runs. Those of other sites make no difference.
        """
        delete_spilled(self._spec, self.name.removeprefix("site:"), names)

    def clear_up(self, keep_server: bool = False) -> None:  # noqa: FBT001, FBT002 - called by position, through Ray
        """The topology is removed: end this component, and remove all that its components keep on this machine.

        Idempotent.

        No other component of the topology may run here, but those of other sites that are to be removed next.

        Args:
            keep_server: an embedded server's folder stays.
        """
        self.end()
        folder, state_dir = site_folder(self._spec, self.name.removeprefix("site:")), self._spec.state_dir
        if keep_server:
            remove_but_server(folder)
        for each in (*(() if keep_server else (folder,)), state_dir / "components", state_dir / "logs"):
            shutil.rmtree(each, ignore_errors=True)
        for each in (folder.parent, state_dir):
            with contextlib.suppress(OSError):  # it is not empty, gone already, or where a disk is mounted
                each.rmdir()
