"""A type's name as one text, `owner.name`, readable even if the schema's name has a dot."""

from __future__ import annotations

__all__ = ["possible_names", "type_parts", "type_text"]


def type_text(owner: str, name: str) -> str:
    """Write a type for `type_parts`: the schema is in double quotes if its name has a dot or a quote.

    Args:
        owner: its schema.
        name: its name in that schema.
    """
    shown = '"' + owner.replace('"', '""') + '"' if "." in owner or '"' in owner else owner
    return f"{shown}.{name}"


def type_parts(text: str) -> tuple[str, str]:
    """Return the schema and the name of a type.

    Args:
        text: text from `type_text`, or `owner.name` as in logs: if that schema's name has a dot, its end is ambiguous.
    """
    if not text.startswith('"'):
        owner, _, name = text.partition(".")
        return owner, name
    owner, _, name = text[1:].replace('""', "\0").partition('".')
    return owner.replace("\0", '"'), name.replace("\0", '""')


def possible_names(text: str) -> tuple[str, ...]:
    """Return the possible names of the type in its schema: one, unless the schema's name or its own has a dot.

    Args:
        text: as for `type_parts`.
    """
    if text.startswith('"'):
        return (type_parts(text)[1],)
    parts = text.split(".")
    return tuple(".".join(parts[place:]) for place in range(1, len(parts)))
