"""One value as text for a person: what `errors show` prints."""

from __future__ import annotations

import json

from databases.postgres.python_values import decoded
from streams.lcr import LcrError
from streams.lcr_batch import Column

__all__ = ["value_text"]


def value_text(column: Column, value: bytes) -> str:
    """Decode one value with psycopg's own loaders; a type it has none for is shown as hexadecimal.

    Args:
        column: the source's column.
        value: in the form `column.is_binary` says.
    """
    if not column.is_binary:
        return value.decode("utf-8", "replace")
    try:
        loaded = decoded(column, value)
    except LcrError:
        # A date before year 1, for example, is none of Python's.
        return f"\\x{value.hex()}"
    if isinstance(loaded, bytes | bytearray | memoryview):
        return f"\\x{bytes(loaded).hex()}"
    return json.dumps(loaded) if isinstance(loaded, dict) else str(loaded)
