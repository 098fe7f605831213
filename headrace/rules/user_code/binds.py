"""The text of a statement DML handler: its binds, `:old.column`, `:new.column`, `:commit_scn`, become $1, $2, ...

The text is read as PostgreSQL reads it: quotes, dollar quotes and comments contain no binds, and `::` is a cast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.base.errors import ConfigError
from headrace.rules.user_code.handlers import EXECUTE_FALSE, EXECUTE_TRUE, HandlerStatement

__all__ = ["ATTRIBUTES", "read_statement"]

ATTRIBUTES = (
    "command_type",
    "object_owner",
    "object_name",
    "source_database_name",
    "transaction_id",
    "scn",
    "commit_scn",
    "source_time",
    "tag",
)
"""Binds that are no column."""

_IMAGES = ("old", "new")
# One piece of SQL text: a comment, a quoted text or name, a dollar quote, a cast, a bind, or any other character.
# Comments nest in PostgreSQL, so a nested comment is refused rather than read wrongly.
_PIECE = re.compile(
    r"""(?P<comment>--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
      | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
      | (?P<text>'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*")
      | (?P<dollar>\$(?P<tag>[A-Za-z_]\w*)\$.*?\$(?P=tag)\$|\$\$.*?\$\$)
      | (?P<cast>::)
      | :(?P<bind>[A-Za-z_]\w*(?:\.(?:\w+|"(?:[^"]|"")*"))?)
      | (?P<word>[A-Za-z_][\w$]*)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def read_statement(text: str) -> HandlerStatement:
    """Read one statement.

    Args:
        text: SQL with binds, or `lcr.execute true`, `lcr.execute false`.

    Raises:
        ConfigError: a bind names nothing, or the text has placeholders or an unreadable comment.
    """
    plain = " ".join(text.lower().removeprefix(":").split()).rstrip("; ")
    if plain in (EXECUTE_TRUE, EXECUTE_FALSE):
        return HandlerStatement(sql=plain, text=text)
    if plain.startswith("lcr.execute"):
        raise ConfigError(
            f"{text!r} does not say whether conflicts are resolved", hint=f"write {EXECUTE_TRUE!r} or {EXECUTE_FALSE!r}"
        )
    binds: list[str] = []
    sql = "".join(_pieces(text, binds)).strip()
    if not sql:
        raise ConfigError("a statement is empty", hint="write one SELECT, INSERT, UPDATE, DELETE or MERGE")
    return HandlerStatement(sql=sql.rstrip("; \n"), binds=tuple(binds), text=text)


def _pieces(text: str, binds: list[str]) -> Iterator[str]:
    for piece in _PIECE.finditer(text):
        found = piece[0]
        if piece["comment"] and found.startswith("/*") and "/*" in found[2:]:
            raise ConfigError("a comment contains another one", hint="write -- comments")
        if piece["bind"]:
            bind = _bind(piece["bind"])
            if bind not in binds:
                binds.append(bind)
            yield f"${binds.index(bind) + 1}"
        elif piece["other"] == "$" and text[piece.end() : piece.end() + 1].isdigit():
            raise ConfigError(
                f"{text!r} contains a placeholder", hint="write binds as :new.column, :old.column or :commit_scn"
            )
        elif piece["other"] in ("'", '"'):
            raise ConfigError(f"{text!r} has a quote without an end", hint="close it")
        else:
            yield found


def _bind(name: str) -> str:
    image, dot, column = name.partition(".")
    if dot and image.lower() in _IMAGES:
        column = column[1:-1].replace('""', '"') if column.startswith('"') else column.lower()
        return f"{image.lower()}.{column}"
    if not dot and name.lower() in ATTRIBUTES:
        return name.lower()
    raise ConfigError(
        f":{name} names nothing of an LCR",
        hint=f"write :old.column, :new.column or one of {', '.join(f':{each}' for each in ATTRIBUTES)}",
    )
