"""The types nested in a type."""

from __future__ import annotations

__all__ = ["parts_of"]


def parts_of(type_: str) -> str:
    """Return SQL for the types of a value's parts (`number`).

    Parts are an array's elements, a domain's base, a range's bounds, a multirange's ranges, a composite's fields. A
    missing part may appear as 0.

    Args:
        type_: alias of a row of `pg_type`, from an earlier FROM item.
    """
    return f"""(
        SELECT {type_}.typelem AS number UNION ALL SELECT {type_}.typbasetype
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = {type_}.oid
        UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = {type_}.oid
        UNION ALL SELECT f.atttypid FROM pg_catalog.pg_attribute f
                  WHERE {type_}.typtype = 'c' AND f.attrelid = {type_}.typrelid AND f.attnum > 0 AND NOT f.attisdropped
    )"""
