"""A type's name as one text, `owner.name`: how it is read where its schema's name has a dot."""

from __future__ import annotations

__all__ = ["possible_names", "type_parts", "type_text"]


def type_text(owner: str, name: str) -> str:
    """Write a type so that `type_parts` reads it: the schema is in double quotes if its name has a dot or a quote.

    Args:
        owner: its schema.
        name: in that schema.
    """
    shown = '"' + owner.replace('"', '""') + '"' if "." in owner or '"' in owner else owner
    return f"{shown}.{name}"


def type_parts(text: str) -> tuple[str, str]:
    """The schema and the name of a type.

    Args:
        text: from `type_text`; or `owner.name`, as logs have it: of a schema with a dot nobody knows then where it
            ends.
    """
    if not text.startswith('"'):
        owner, _, name = text.partition(".")
        return owner, name
    owner, _, name = text[1:].replace('""', "\0").partition('".')
    return owner.replace("\0", '"'), name.replace("\0", '""')


def possible_names(text: str) -> tuple[str, ...]:
    """What the name in its schema may be: one, unless the schema's name or its own has a dot.

    Args:
        text: as for `type_parts`.
    """
    if text.startswith('"'):
        return (type_parts(text)[1],)
    parts = text.split(".")
    return tuple(".".join(parts[place:]) for place in range(1, len(parts)))
