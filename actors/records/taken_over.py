"""The topology that a running component adopted, kept for its restarted process.

Ray restarts an actor with the arguments of its creation. A component that has adopted a changed topology since then
must not return to the old one. A capture process would omit an added table; a queue would not wait for a new
subscriber.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.records.files import component_file
from headrace.base.durable_file import replace_file
from topology.edits.stored import spec_from_json, spec_to_json, with_secrets_of

if TYPE_CHECKING:
    from topology.spec import TopologySpec

__all__ = ["TakenOver"]


class TakenOver:
    """The file of one component.

    Args:
        creation: identifies the creation of its actor; files of an earlier actor of the same name are ignored.
    """

    def __init__(self, state_dir: Path, name: str, creation: str) -> None:
        self._file = component_file(state_dir, name, "~topology.json")
        self._creation = creation

    def save(self, spec: TopologySpec, fingerprint: str) -> None:
        """Save the topology that the component adopts; durable when this returns.

        Args:
            spec: the topology.
            fingerprint: fingerprint of the component in it.

        Raises:
            OSError: the file could not be written; the component must not adopt the topology.
        """
        document = {"creation": self._creation, "fingerprint": fingerprint, "spec": spec_to_json(spec)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, json.dumps(document) + "\n")

    def arguments(self, created_with: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for building the component.

        They are those of its creation, with the topology that it has adopted since.

        Raises:
            ConfigError: another version of Headrace wrote the file.
        """
        arguments = dict(created_with)
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return arguments
        if document.get("creation") != self._creation:
            return arguments
        # Connection strings are not on disk. A component that depends on one never adopts a changed one.
        spec = with_secrets_of(spec_from_json(document["spec"]), arguments["spec"])
        return arguments | {"spec": spec, "fingerprint": document["fingerprint"]}
