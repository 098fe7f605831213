"""Removals of `down --purge`: objects in databases, files on disks, embedded servers, the state folder.

What cannot be removed stays and is reported as a problem; rerunning the command removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.records.requests import REQUESTS_FILE
from actors.site.left import left_in
from headrace.audit.log import AUDIT_FILES
from headrace.base.durable_file import remove_file
from headrace.base.errors import HeadraceError, PropagationError
from headrace.deployment import endings
from headrace.deployment.remembered_cluster import RememberedCluster
from headrace.lcr.table_name import literal
from topology.edits.stored import KEY_FILE, PREPARED_FILE
from topology.links import CERTIFICATES, REVOKED

if TYPE_CHECKING:
    from pathlib import Path

    from actors.hosting.runtime import RayActors
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["STATE_PARENT", "Removal", "stays_for_ever"]

STATE_PARENT = ".headrace"  # default parent of state folders; removed with the last of them
DATABASE_TIMEOUT_S = 120.0  # statements of `down --purge` wait for locks
_STATUS_TIMEOUT_S = 5.0  # a site's actor on a live node answers within a second

_NO_DSN = "its site is gone from the file, and so is its connection string"  # retries do not help


def stays_for_ever(problem: str) -> bool:
    """Return whether a removal's problem persists however often it is retried."""
    return _NO_DSN in problem


@dataclass(frozen=True, slots=True)
class Removal:
    """The removal of everything that a topology created.

    Args:
        spec: the topology of the file.
        tell: called with a line of text for each finished step.
        keep_servers: whether embedded servers stay, with their tables.
        lost: sites that are lost for ever: nothing is asked of them, and nothing there is a problem.
    """

    spec: TopologySpec
    tell: Callable[[str], None]
    keep_servers: bool = False
    lost: frozenset[str] = frozenset()

    def left_at_lost(self) -> dict[str, tuple[str, ...]]:
        """Return, by lost site, the statements that remove there what this command cannot remove."""
        from headrace.databases.connectors import removal_by_hand

        spec = self.spec
        return {
            site.name: removal_by_hand(
                site.database.kind,
                spec.name,
                site.name,
                is_source=any(each.source == site.name for each in spec.captures),
                is_destination=any(each.site == site.name for each in spec.applies),
                has_ddl=any(each.source == site.name and each.rules.names_ddl for each in spec.captures),
            )
            for site in spec.sites
            if site.name in self.lost
        }

    def from_databases(self, actors: RayActors | None) -> list[str]:
        """Remove Headrace's objects from the users' databases; embedded servers that are not kept are removed entirely.

        Return one line of text for each database in which something stays.

        Args:
            actors: the sites' actors, whose sessions do it; None: nothing runs, and this process does it.
        """
        present = actors.names() if actors is not None else set()
        problems = []
        for name, statements in self.left_at_lost().items():
            self.tell(
                f"{name}: lost, nothing was removed there. If its database is ever back, and no other topology uses it,"
                f" run in it, one by one: {'; '.join(statements)}"
            )
        for site in self.spec.sites:
            if site.name in self.lost:
                continue
            if site.database.kind != "postgres" and not (self.keep_servers and site.database.kind == "embedded"):
                continue
            try:
                lines = self._from_site(site, actors if f"site:{site.name}" in present else None)
                for line in self.with_admin(site, lines):
                    self.tell(f"{site.name}: {line}")
            except HeadraceError as error:
                problems.append(f"{site.name}: what the topology made there could not be removed: {error.message}")
        return problems + self._from_left(actors, present)

    def _from_left(self, actors: RayActors | None, present: set[str]) -> list[str]:
        """Remove Headrace's objects from users' databases that are no longer in the file."""
        from actors.site.connection import original_of

        problems = []
        for each in left_in(self.spec.state_dir):
            if not each.is_removed or each.kind == "embedded" or each.name in self.lost:
                continue
            if original := original_of(self.spec, each.name):
                self.tell(f"{each.name}: {self._of_original(original)}")
                continue
            try:
                if actors is None or each.component not in present:
                    raise PropagationError(_NO_DSN)
                for line in actors.call(each.component, "remove", timeout_s=DATABASE_TIMEOUT_S):
                    self.tell(f"{each.name}: {line}")
            except HeadraceError as error:
                problems.append(
                    f"{each.name}: what the topology made there could not be removed: {error.message}; it keeps WAL"
                    f" until it is dropped there: SELECT pg_drop_replication_slot({literal(each.slot)})"
                )
        return problems

    def _from_site(self, site: SiteSpec, actors: RayActors | None) -> tuple[str, ...]:
        from actors.site.connection import claim_on, embedded_server, original_of, remove_from

        if actors is not None:
            try:
                lines: tuple[str, ...] = actors.call(f"site:{site.name}", "remove", timeout_s=DATABASE_TIMEOUT_S)
            except PropagationError:
                pass  # its actor is dead: remove them from this process
            else:
                return lines
        if original := original_of(self.spec, site.name):
            return (self._of_original(original),)
        if site.database.kind == "embedded":  # its actor is gone; a server on another machine needed that actor
            server = embedded_server(self.spec, site)
            if not server.folder.exists():
                return ()
            server.start()
            return remove_from(self.spec, site, server.dsn())
        if actors is None:
            # The site may still run on a Ray cluster that does not answer, and the claim would take over what this
            # folder's own site holds.
            endings.wait_free(self.spec.state_dir, f"site:{site.name}", endings.GONE_TIMEOUT_S)
        with closing(claim_on(self.spec, site)) as claim:
            claim.hold()  # refuse to remove what another copy uses
            return remove_from(self.spec, site, site.database.dsn)

    def with_admin(self, site: SiteSpec, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return what was removed at a site, including what only its administrator may remove, if the file names one.

        Args:
            site: a site of the file.
            lines: what was removed, as lines of text.
        """
        from actors.site.admin import remove_as_admin
        from headrace.databases.ports.operator import LEFT_TO_ADMIN

        # The file may have lost the administrator since `up`; then the line says what stays.
        if LEFT_TO_ADMIN not in lines or not site.database.has_admin:
            return lines
        return (*(line for line in lines if line != LEFT_TO_ADMIN), *remove_as_admin(self.spec, site))

    def _of_original(self, original: str) -> str:
        return (
            f"nothing removed: {self.spec.state_dir} is a copy that has not run, and what is there belongs to"
            f" {original}"
        )

    def clear_nodes(self, actors: RayActors, names: set[str], *, purge: bool) -> list[str]:
        """Stop embedded servers and remove files on the machines of sites with a `node`.

        Only the sites' actors reach these machines. Return one line of text for each machine on which something stays.

        Args:
            actors: the sites' actors.
            names: components that run.
            purge: whether to remove files; False: only stop the servers.
        """
        problems = []
        for site in self.spec.sites:
            if not site.node or site.name in self.lost or not (purge or site.database.kind == "embedded"):
                continue
            actor, what = (
                f"site:{site.name}",
                f"what it keeps in {self.spec.state_dir} of its machine" if purge else "its embedded server",
            )
            try:
                if actor not in names:
                    raise PropagationError(f"{actor} does not run")
                # A short call first, so that an absent node is not waited for.
                actors.call(actor, "status", timeout_s=_STATUS_TIMEOUT_S)
                actors.call(
                    actor,
                    *(("clear_up", self.keep_servers) if purge else ("stop_server",)),
                    timeout_s=DATABASE_TIMEOUT_S,
                )
            except HeadraceError as error:
                problems.append(f"{site.name}: {error.message}: {what} stays; end or remove it there")
            else:
                self.tell(f"{site.name}: {'removed from' if purge else 'embedded server stopped on'} its machine")
        return problems

    def stop_servers(self, *, purge: bool) -> list[str]:
        """Stop the embedded servers of this machine. Return one line of text for each that did not stop.

        Args:
            purge: whether to remove them too.
        """
        from actors.site.connection import embedded_server, left_servers

        problems = []
        servers = {
            site.name: embedded_server(self.spec, site) for site in self.spec.sites if site.database.kind == "embedded"
        }
        for name, server in (servers | left_servers(self.spec)).items():
            try:
                is_news = server.folder.exists() if purge else server.is_running
                if purge:
                    server.destroy()
                else:
                    server.stop()
            except HeadraceError as error:
                problems.append(f"{name}: the embedded server could not be stopped: {error.message}")
            else:
                if is_news:
                    self.tell(f"{name}: embedded server {'removed' if purge else 'stopped'}")
        return problems

    def remove_state(self, cluster_file: Path) -> list[str]:
        """Remove Headrace's files from the state folder, and the folder if it is then empty.

        The audit log stays, because it records who removed the rest. Return a line of text if the folder stays.

        Args:
            cluster_file: the private cluster's file in that folder.
        """
        import shutil

        from actors.site.connection import remove_but_server

        folder = self.spec.state_dir
        if not folder.exists():
            return []
        # files that this command alone creates are no news
        is_news = not {each.name for each in folder.iterdir()} <= {*AUDIT_FILES, "cluster.lock"}
        for name in ("sites", "components", "logs", CERTIFICATES):
            path = folder / name
            if name == "sites" and self.keep_servers:
                for site in sorted(path.glob("*")):
                    remove_but_server(site)
                with suppress(OSError):
                    path.rmdir()
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        RememberedCluster(folder).forget()
        remove_file(cluster_file)
        for name in (
            "cluster.lock",
            "ray_token",
            KEY_FILE,
            PREPARED_FILE,
            REQUESTS_FILE,
            REVOKED,
            "chaos.json",
            "chaos.lock",
        ):
            remove_file(folder / name)
        for interrupted in folder.glob(f"{KEY_FILE}.*"):
            interrupted.unlink(missing_ok=True)
        for empty in (folder, *(folder.parents[:1] if folder.parent.name == STATE_PARENT else ())):
            if empty.exists() and not any(empty.iterdir()):
                empty.rmdir()
        if is_news:
            self.tell(
                "state folder removed"
                + (", its audit log excepted" if any((folder / name).exists() for name in AUDIT_FILES) else "")
            )
        return [f"{folder} could not be removed"] if (folder / "sites").exists() and not self.keep_servers else []
