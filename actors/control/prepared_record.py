"""The controller's record: the topology that was prepared last, and the facts that must survive with it.

Durable when
    `update` has returned: the file is replaced as a whole. A concurrent reader
    (`topology.edits.stored.prepared_document`) sees the old one or the new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.base.durable_file import replace_file
from headrace.base.errors import ConfigError
from headrace.base.plain_data import from_json
from topology.edits.known_columns import TableColumns
from topology.edits.stored import PREPARED_FILE, prepared_topology
from topology.spec import TopologySpec

__all__ = ["PreparedRecord"]


class PreparedRecord:
    """`desired.json` of one state folder. Only the topology's controller writes it."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    @property
    def topology(self) -> TopologySpec | None:
        """The topology that was prepared last, without secrets; None: none was, or by another version of Headrace."""
        return prepared_topology(self._state_dir)

    def read(self) -> dict[str, Any]:
        """Return the record; empty: none exists.

        Raises:
            ConfigError: the file is damaged. Treated as empty, it would let a lost slot be created again, and the changes
                in between would be missing.
        """
        file = self._state_dir / PREPARED_FILE
        try:
            document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"{file} is damaged: {error}",
                hint="restore it, or remove it: then `headrace up` prepares everything anew",
            ) from error
        return document

    @property
    def columns(self) -> dict[str, tuple[TableColumns, ...]]:
        """By source, the columns of its tables of which a transformation names some; as of the preparation."""
        return {
            source: tuple(from_json(TableColumns, each) for each in tables)
            for source, tables in self.read().get("columns", {}).items()
        }

    def update(self, fields: Mapping[str, Any]) -> None:
        """Write some fields of the record; all others stay unchanged.

        Args:
            fields: JSON values, by name.
        """
        document = {**self.read(), **fields}
        self._state_dir.mkdir(parents=True, exist_ok=True)
        replace_file(self._state_dir / PREPARED_FILE, json.dumps(document, indent=1) + "\n")
