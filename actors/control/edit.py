"""The edit that a controller performs: components that are up to date, and the actions for the others.

Every component shows a label in its status: the fingerprint of the topology in which its own part last changed. A
component whose part an edit does not touch keeps its label and is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.base.errors import ConfigError
from topology.edits.changes import adopted_first, changes, components_of
from topology.edits.stored import spec_from_json, with_secrets_of
from topology.spec import TopologySpec

__all__ = ["Edit"]

_UNPREPARED = "-unprepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The difference between the topology that was prepared last and the wanted one.

    Args:
        labels: the label of each wanted component when it is up to date.
        takes_over: components that adopt the change while they run, with their label before it. A component with
            another label missed an edit, and is created again. Restarting sites are included, with a special label
            (`unprepared`).
        waits_for: components that adopt the edit only when others have (`topology.edits.changes.adopted_first`).
        ending: components that end when everything is prepared: they restart with another part, or are no longer
            wanted.
        is_known: whether the topology that was prepared last is known; False: everything that runs ends.
        before: the topology that was prepared last, without secrets; None: it is the wanted one, or unknown.
    """

    labels: Mapping[str, str]
    takes_over: Mapping[str, str] = field(default_factory=dict)
    waits_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ending: frozenset[str] = frozenset()
    is_known: bool = True
    before: TopologySpec | None = None

    @classmethod
    def since(cls, prepared: Mapping[str, Any], spec: TopologySpec, fingerprint: str) -> Edit:
        """Determine the edit.

        Args:
            prepared: the record of the last prepared topology; empty: none was.
            spec: the wanted topology.
            fingerprint: fingerprint of `spec`.
        """
        waits_for = {name: tuple(others) for name, others in prepared.get("waits_for", {}).items()}
        if prepared.get("prepared") == fingerprint and "labels" in prepared:
            return cls(labels=prepared["labels"], takes_over=prepared["takes_over"], waits_for=waits_for)
        fresh = {component.name: fingerprint for component in components_of(spec)}
        try:
            before, known = spec_from_json(prepared["spec"]), prepared["labels"]
        except (KeyError, ConfigError):
            return cls(labels=fresh, is_known=False)
        found = changes(before, spec)
        same = {change.component: known[change.component] for change in found if change.action == "same"}
        takes_over = {change.component: known[change.component] for change in found if change.action == "takes over"}
        return cls(
            labels=fresh | same,
            before=before,
            waits_for=adopted_first(before, spec, waits_for),
            takes_over=takes_over
            | {
                change.component: fingerprint + _UNPREPARED
                for change in found
                if change.action == "restarts" and change.component.startswith("site:")
            },
            ending=frozenset(change.component for change in found if change.action in {"restarts", "ends"}),
        )

    def usable(self, site: str) -> set[str]:
        """Return the labels with which a site can answer and be prepared for the wanted topology."""
        return {self.labels[site], *([self.takes_over[site]] if site in self.takes_over else [])}

    def recorded(self) -> dict[str, Any]:
        """Return its part of the topology's record, which `since` reads."""
        return {
            "labels": self.labels,
            "takes_over": self.takes_over,
            "waits_for": {name: list(others) for name, others in self.waits_for.items()},
        }

    def unprepared(self, site: str, wanted: TopologySpec) -> tuple[TopologySpec, str]:
        """Return the topology and the label with which a site is created before the wanted topology is prepared.

        The site adopts the wanted topology when that is prepared.

        Preparing needs the wanted site: its database, its bounds. But the site still serves the capture processes and
        redo receivers of the topology that was prepared last. The wanted topology may be refused, and redo that the site
        no longer kept for them would be gone.

        Args:
            site: full name of the site's component.
            wanted: the wanted topology.
        """
        if self.before is None or site not in self.takes_over:
            return wanted, self.labels[site]
        itself = wanted.site(site.removeprefix("site:"))
        spec = replace(
            self.before,
            sites=tuple(itself if each.name == itself.name else each for each in self.before.sites),
            # The current location of the files: the earlier topology of a moved project names the old one.
            file=wanted.file,
            state_dir=wanted.state_dir,
            redo_bytes_max=wanted.redo_bytes_max,
            segment_bytes=wanted.segment_bytes,
        )
        return with_secrets_of(spec, wanted), self.takes_over[site]
