"""The attributes of a row LCR that a condition may ask for, by the manuals' names."""

from __future__ import annotations

from typing import Final

from rules.conditions.values import Kind
from streams.lcr_batch import Command

__all__ = ["ATTRIBUTES", "COMMANDS", "REFUSED_ATTRIBUTES"]

COMMANDS: Final = tuple(command.name for command in Command)

ATTRIBUTES: Final = {
    "source_database_name": Kind.TEXT,
    "command_type": Kind.TEXT,
    "object_owner": Kind.TEXT,
    "object_name": Kind.TEXT,
    "tag": Kind.TAG,
    "transaction_id": Kind.INTEGER,
    "scn": Kind.INTEGER,
}

REFUSED_ATTRIBUTES: Final = {
    "commit_scn": "it is not known while a large transaction travels in parts; use scn, which orders the LCRs of a source",
    "source_time": "conditions do not compare commit times; compare a column that has the time, or look at it in a handler",
}
"""What rules cannot ask for. The manuals give the commit SCN to handlers alone, too."""
