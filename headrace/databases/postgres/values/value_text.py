"""One value as readable text, for `errors show`."""

from __future__ import annotations

import json

from headrace.databases.postgres.values.python_values import builtin_number, decoded
from headrace.lcr.batch import Column
from headrace.lcr.lcr_value import LcrError

__all__ = ["value_text"]


def value_text(column: Column, value: bytes) -> str:
    """Decode one value with psycopg's loaders; a value that they cannot load is shown in hexadecimal.

    Args:
        column: the source's column.
        value: in the form that `column.is_binary` says.
    """
    if not column.is_binary:
        return value.decode("utf-8", "replace")
    try:
        loaded = decoded(column, value)
    except LcrError:
        # A date before year 1, for example, has no Python object.
        return f"\\x{value.hex()}"
    if isinstance(loaded, bytes | bytearray | memoryview):
        return _label(column, bytes(loaded)) or f"\\x{bytes(loaded).hex()}"
    return json.dumps(loaded) if isinstance(loaded, dict) else str(loaded)


def _label(column: Column, value: bytes) -> str:
    """Return a user-defined type's value whose binary form is text, such as an enum label; else an empty string."""
    if builtin_number(column):
        return ""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""
