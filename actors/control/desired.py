"""The desired topology: that of the file with its split streams, and the edit that leads to it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from actors.control.edit import Edit
from headrace.base.plain_data import as_json
from headrace.databases.ports import Finding
from topology.edits.changes import Component, bypassed_of, components_of
from topology.edits.stored import entrusted, spec_to_json
from topology.spec import TopologySpec
from topology.split import Split

__all__ = ["CONTROLLER", "DesiredTopology", "fingerprint_of"]

CONTROLLER = "controller"
_STRETCH = 1 << 14  # of scrypt, with blocks of 8: 16 MiB and a tenth of a second for each guess


def fingerprint_of(spec: TopologySpec) -> str:
    """Return a hash of the whole topology."""
    # A connection string is not part of a repr (it may contain a password), but a changed one matters.
    hidden = "".join(site.database.dsn for site in spec.sites)
    hidden += "".join(target.url + target.token for target in (spec.alerts.to if spec.alerts is not None else ()))
    return hashlib.sha256(repr(spec).encode() + _stretched(hidden, spec.name)).hexdigest()[:16]


@functools.lru_cache(maxsize=16)
def _stretched(text: str, salt: str) -> bytes:
    """Return a slow hash: the fingerprint that contains it is shown by `status` and stored in files.

    A reader of these cannot guess passwords quickly. There is no key: each node must compute the same hash.
    """
    return hashlib.scrypt(text.encode(), salt=salt.encode(), n=_STRETCH, r=8, p=1, dklen=32) if text else b""


@dataclass(frozen=True, kw_only=True)
class DesiredTopology:
    """One topology that the controller works towards; a split or a merge creates another one.

    Args:
        spec: the topology.
        fingerprint: fingerprint of `spec`.
        edit: the edit from the topology that was prepared last to this one.
        splits: the split streams in it.
        misfits: findings about recorded split streams that no longer fit the file.
    """

    spec: TopologySpec
    fingerprint: str
    edit: Edit
    splits: tuple[Split, ...] = ()
    misfits: tuple[Finding, ...] = ()

    @classmethod
    def since(
        cls,
        prepared: Mapping[str, Any],
        spec: TopologySpec,
        splits: tuple[Split, ...],
        misfits: tuple[Finding, ...],
    ) -> DesiredTopology:
        """Make the desired topology, with its edit.

        Args:
            prepared: the record of the topology that was prepared last; empty: none was.
            spec: the topology.
            splits: the split streams in it.
            misfits: findings about recorded split streams that no longer fit the file.
        """
        fingerprint = fingerprint_of(spec)
        edit = Edit.since(prepared, spec, fingerprint)
        return cls(spec=spec, fingerprint=fingerprint, edit=edit, splits=splits, misfits=misfits)

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The components that are to run."""
        return components_of(self.spec)

    @cached_property
    def names(self) -> frozenset[str]:
        """Full names of the components that are to run."""
        return frozenset(component.name for component in self.components)

    @cached_property
    def sites(self) -> tuple[Component, ...]:
        """The components that are sites."""
        return tuple(component for component in self.components if component.kind == "site")

    @cached_property
    def sources(self) -> frozenset[str]:
        """Full names of the sites from which something is captured."""
        return frozenset(f"site:{capture.source}" for capture in self.spec.captures)

    @cached_property
    def bypassed(self) -> Mapping[Component, str]:
        """Components that need not run, and the component that does the work of each."""
        return bypassed_of(self.spec)

    def recorded(self) -> dict[str, Any]:
        """Return its part of the controller's record, which `since` reads."""
        return {
            "prepared": self.fingerprint,
            "spec": spec_to_json(self.spec),
            **self.edit.recorded(),
            "splits": [as_json(each) for each in self.splits],
        }

    def entrusted(self, component: str) -> TopologySpec:
        """Return the topology as one of its components gets it.

        Args:
            component: full name of the component.
        """
        return entrusted(self.spec, component)

    def outdated(self, labels: Mapping[str, str | None]) -> set[str]:
        """Return the components that run with another part of the topology than they should.

        Args:
            labels: the last label of each component; None: unknown.
        """
        wanted = self.edit.labels
        return {name for name, label in labels.items() if label is not None and label != wanted.get(name, label)}

    def unwanted(self, present: Collection[str], leaving: Collection[str]) -> set[str]:
        """Return the components that run and are to end.

        Args:
            present: full names of the components that run.
            leaving: full names of components that end by themselves when their sites are cleared.
        """
        return set(present) - self.names - set(leaving) - {CONTROLLER}

    def clients_of(self, source: str) -> set[str]:
        """Return the full names of the components that capture the changes of a source or propagate them."""
        captures = {f"capture:{each.name}" for each in self.spec.captures if each.source == source}
        propagations = {f"propagation:{each.name}" for each in self.spec.propagations if source in each.sources}
        return (captures | propagations) & self.names
