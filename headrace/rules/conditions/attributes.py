"""The attributes of a row LCR that a condition may use, by the manuals' names."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from headrace.lcr.batch import Command
from headrace.rules.conditions.values import Kind

__all__ = ["ATTRIBUTES", "COMMANDS", "MAY_BE_NULL", "REFUSED_ATTRIBUTES", "UNIX_TO_2000_US", "WITH_ORDER", "instant"]

COMMANDS: Final = tuple(command.name for command in Command)

ATTRIBUTES: Final = {
    "source_database_name": Kind.TEXT,
    "command_type": Kind.TEXT,
    "object_owner": Kind.TEXT,
    "object_name": Kind.TEXT,
    "tag": Kind.TAG,
    "transaction_id": Kind.INTEGER,
    "scn": Kind.INTEGER,
    "source_time": Kind.INSTANT,
}

MAY_BE_NULL: Final = frozenset({"tag", "source_time"})
"""Attributes that may be NULL; every LCR has all others."""

WITH_ORDER: Final = frozenset({Kind.INTEGER, Kind.INSTANT})
"""Kinds of attributes with an order, for `<` and the like."""

REFUSED_ATTRIBUTES: Final = {
    "commit_scn": "it is not known while a large transaction is sent in parts; use scn, which orders the LCRs of a"
    " source",
}
"""Attributes that rules cannot use. The manuals, too, give the commit SCN to handlers only."""

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)", re.ASCII)
_FROM_2000: Final = datetime(2000, 1, 1, tzinfo=UTC)
UNIX_TO_2000_US: Final = 946_684_800 * 1_000_000
"""Offset from the LCRs' source time to the origin of `Kind.INSTANT`, in microseconds."""


def instant(text: str) -> int:
    """Parse a literal for a comparison with the source time.

    Returns microseconds since 2000-01-01 00:00 UTC, the form of `Kind.INSTANT`.

    Args:
        text: the literal.

    Raises:
        ValueError: the text is no time, or has no offset from UTC.
    """
    if _INSTANT.fullmatch(text) is None:
        raise ValueError(text)
    return (datetime.fromisoformat(text) - _FROM_2000) // timedelta(microseconds=1)
