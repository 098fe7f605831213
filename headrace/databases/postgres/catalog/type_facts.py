"""Facts about PostgreSQL's types: which values are equal, ordered or numbers, can be hashed, or fit a wider type.

Canonical equality (`DestinationColumn.equality`) is decided only here: PostgreSQL considers two values of a type equal
exactly when their canonical forms have equal bytes.

    integer   int2, int4, int8, oid: the number
    numeric   numeric: without trailing zeros (1.0 = 1.00)
    float     float4, float8: one zero, one NaN
    bpchar    character(n): without trailing blanks
    text      the value's unchanged bytes, the same in text and binary form: text, varchar and name under a
              deterministic collation, and enums
    uuid      its 16 bytes
    bytes     the bytes of its binary form: "char", bytea, bool, date, time, timetz, timestamp, timestamptz, money, inet,
              cidr, macaddr, macaddr8, bit, varbit, pg_lsn, xid, xid8, tid
    none      everything else: interval (1 month = 30 days), jsonb, arrays, ranges, composites, citext, text
              under a nondeterministic collation, every extension's type

A domain has its base type's form. A table with "none" in a unique key cannot be hashed: it is serialised.
"""

from __future__ import annotations

__all__ = ["equality_of", "is_hashable", "is_number", "is_ordered", "wider_types"]

_EQUALITY = {
    "integer": ("int2", "int4", "int8", "oid"),
    "numeric": ("numeric",),
    "float": ("float4", "float8"),
    "bpchar": ("bpchar",),
    "text": ("text", "varchar", "name"),
    "uuid": ("uuid",),
    "bytes": (
        "char",
        "bytea",
        "bool",
        "date",
        "time",
        "timetz",
        "timestamp",
        "timestamptz",
        "money",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "bit",
        "varbit",
        "pg_lsn",
        "xid",
        "xid8",
        "tid",
    ),
}
_EQUALITY_OF = {f"pg_catalog.{name}": form for form, names in _EQUALITY.items() for name in names}
# Types whose order means nothing to people are excluded, though an index can sort them (jsonb, arrays, ranges).
_ORDERED = frozenset(
    f"pg_catalog.{name}"
    for name in (
        "int2",
        "int4",
        "int8",
        "oid",
        "numeric",
        "float4",
        "float8",
        "money",
        "text",
        "varchar",
        "bpchar",
        "name",
        "char",
        "bytea",
        "bool",
        "date",
        "time",
        "timetz",
        "timestamp",
        "timestamptz",
        "interval",
        "uuid",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "bit",
        "varbit",
        "pg_lsn",
        "xid8",
    )
)
# Floating-point sums depend on the order of addition.
_NUMBERS = frozenset(f"pg_catalog.{name}" for name in ("int2", "int4", "int8", "numeric"))
# Types whose every value has the same text and the same canonical form in the wider type: they are indistinguishable.
# Not float4 in float8 (0.1 becomes 0.10000000149011612), not bpchar in text (trailing blanks are lost).
_WIDER = {
    "pg_catalog.int4": ("int2",),
    "pg_catalog.int8": ("int2", "int4"),
    "pg_catalog.text": ("varchar",),
    "pg_catalog.varchar": ("text",),
}
_COLLATED = frozenset({"pg_catalog.text", "pg_catalog.varchar", "pg_catalog.bpchar", "pg_catalog.name"})

# Types that `hash_record_extended` can hash in every supported version; it finds rows of tables without a key.
_HASHABLE = frozenset(
    f"pg_catalog.{name}"
    for name in (
        "int2",
        "int4",
        "int8",
        "oid",
        "text",
        "varchar",
        "bpchar",
        "name",
        "char",
        "bool",
        "date",
        "time",
        "timetz",
        "timestamp",
        "timestamptz",
        "uuid",
        "float4",
        "float8",
        "numeric",
        "inet",
        "cidr",
        "macaddr",
        "interval",
    )
)


def equality_of(base_type: str, *, is_enum: bool, is_deterministic: bool) -> str:
    """Return the canonical form in which values of a type are hashed (`DestinationColumn.equality`).

    Args:
        base_type: `owner.name`; for a domain the type below it.
        is_enum: it is an enumerated type.
        is_deterministic: the column's collation treats text as equal only if its bytes are; True for types without
            collation.

    Returns:
        "none" when equal values may have different bytes and no canonical form is known here.
    """
    if is_enum:
        return "text"
    if base_type in _COLLATED and not is_deterministic:
        return "none"
    return _EQUALITY_OF.get(base_type, "none")


def is_ordered(base_type: str, *, is_enum: bool) -> bool:
    """Whether values of a type have an order that is meaningful to people.

    Args:
        base_type: `owner.name`; of a domain the type below it.
        is_enum: it is an enumerated type.
    """
    return base_type in _ORDERED or is_enum


def is_number(base_type: str) -> bool:
    """Whether sums of a type's values do not depend on the order of addition."""
    return base_type in _NUMBERS


def is_hashable(base_type: str, *, is_enum: bool) -> bool:
    """Whether `hash_record_extended` can hash values of a type.

    Args:
        base_type: `owner.name`; of a domain the type below it.
        is_enum: it is an enumerated type.
    """
    return base_type in _HASHABLE or is_enum


def wider_types(base: str, modifier: int, *, is_domain: bool = False) -> tuple[str, ...]:
    """Return the other built-in types, without their schema, whose every value a type accepts unchanged.

    Args:
        base: `owner.name`; for a domain, of the type below it.
        modifier: of the type; -1: none.
        is_domain: it is a domain, whose own modifier is unknown.
    """
    if modifier != -1 or (is_domain and base == "pg_catalog.varchar"):
        # A cast to a domain over varchar(n) silently truncates what is too long.
        return ()
    return _WIDER.get(base, ())
