"""The right to act as the owner of a destination table, with whose rights DDL is applied."""

from __future__ import annotations

from headrace.databases.postgres.connection import qualified, quote
from headrace.lcr.table_name import TableName

__all__ = ["acting_fix"]


def acting_fix(table: TableName, owner: str, role: str, *, is_superusers: bool, is_member: bool) -> str:
    """Return the statement with which the applying role can act as the owner of a table.

    Args:
        table: name of the table.
        owner: the role that owns it.
        role: the applying role, which cannot act as the owner.
        is_superusers: the owner is a superuser. A role that may act as one has all its rights, so the table changes hands.
        is_member: the applying role is a member of the owner already, and may not take its role.
    """
    if is_superusers:
        return f"ALTER TABLE {qualified(*table)} OWNER TO {quote(role)}"
    return f"GRANT {quote(owner)} TO {quote(role)}{' WITH SET TRUE' if is_member else ''}"
