"""SQL with which a source's record says which tables a table's foreign keys refer to, by number."""

from __future__ import annotations

__all__ = ["REFERENCES"]

# Not a part of the structure: nothing but a changed definition makes a record, and names are in that.
REFERENCES = """(SELECT coalesce(pg_catalog.jsonb_object_agg(k.conname, k.confrelid::pg_catalog.int8), '{{}}')
                FROM pg_catalog.pg_constraint k WHERE k.conrelid = {relation} AND k.contype = 'f')"""
"""One object: for each foreign key of a table its name, and the number of the table that it refers to."""
