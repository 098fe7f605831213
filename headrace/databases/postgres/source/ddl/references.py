"""SQL with which a source's record says which tables a table's foreign keys refer to, by number."""

from __future__ import annotations

__all__ = ["NEEDED_BY_KEYS", "REFERENCES"]

# Not a part of the structure: nothing but a changed definition makes a record, and names are in that.
REFERENCES = """(SELECT coalesce(pg_catalog.jsonb_object_agg(k.conname, k.confrelid::pg_catalog.int8), '{{}}')
                FROM pg_catalog.pg_constraint k WHERE k.conrelid = {relation} AND k.contype = 'f')"""
"""One object: for each foreign key of a table its name, and the number of the table that it refers to."""

# A table that is dropped needs no order: the destination first drops the keys that refer to it.
NEEDED_BY_KEYS = """UNION ALL SELECT l.relation, key.needed::oid
            FROM (SELECT p.relation FROM placed p WHERE p.relation IS NOT NULL
                  GROUP BY p.relation HAVING NOT bool_or(p.kind = 'table')) p
            CROSS JOIN LATERAL (SELECT l.relation, l.content FROM headrace_ddl.log l
                                WHERE l.relation = p.relation ORDER BY l.number DESC LIMIT 1) l
            CROSS JOIN LATERAL jsonb_each_text(coalesce(l.content::jsonb -> 'references', '{}')) AS key (name, needed)
            WHERE is_readable AND key.needed::oid <> l.relation
              AND key.needed::oid IN (SELECT p.relation FROM placed p GROUP BY p.relation HAVING NOT bool_or(p.kind = 'table'))"""
"""Pairs of tables of which a statement dropped parts: a foreign key goes before the constraint or index that it needs."""
