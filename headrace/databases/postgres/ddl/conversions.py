"""Rewritings whose result is certain: the destination's server gives each row the value that the source's server gave.

At the place of a DDL change the destination's rows are the source's. A statement that wrote them anew is repeated where
nothing but these rows decides on the new values:

    ALTER COLUMN ... TYPE     from one built-in type to another, by a conversion that depends on no setting
    ADD COLUMN ... GENERATED  the server takes immutable expressions alone, and `refusals` those without users' functions

Two structures do not show by which expression a column was converted, nor that another one was computed anew without
another type. So the client's text is read: one ALTER TABLE that converts types, and drops or sets what no value depends
on. The reader knows few forms. Whatever else it meets (a string, an operator, a function) makes the text unknown, and
the change is not made. The text is never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from headrace.lcr.ddl_record import CastRules, DdlRecord
from headrace.lcr.structure import ColumnPart

__all__ = ["Cast", "begins_with", "casts_of", "read_casts", "rewriting_refusal"]

QUERY_MAX = 65536
"""Characters of the client's text from which on the source cuts it (`headrace.databases.postgres.source.ddl.objects`)."""

_GENERATED, _CONVERTED = 2, 4  # AT_REWRITE_DEFAULT_VAL, AT_REWRITE_COLUMN_REWRITE of PostgreSQL
_ANEW = "the source wrote the table's rows anew, and their new values are not in its log"


class Cast(StrEnum):
    """How a statement converts a column."""

    ASSIGNMENT = "assignment"
    """Without USING, as an INSERT would."""
    EXPLICIT = "explicit"
    """`USING column::type`, with the column's own new type."""
    UTC = "UTC"
    """`USING column AT TIME ZONE 'UTC'`."""


# Types as the server prints them, without their modifiers. A type of users has its schema before it.
_INTEGERS = ("smallint", "integer", "bigint")
_TEXTS = ("text", "character varying", "character", "bpchar")
_MOMENTS = ("timestamp without time zone", "timestamp with time zone")


def _pairs(before: Sequence[str], after: Sequence[str]) -> frozenset[tuple[str, str]]:
    return frozenset((one, other) for one in before for other in after)


# Not here, because a setting, a time zone or a library decides: floating point and dates from texts and to them, money,
# intervals, bytea. Not here, because they are rare: arrays, ranges, bits, enumerated types, domains.
_BY_ASSIGNMENT = frozenset(
    {
        *_pairs(_INTEGERS, (*_INTEGERS, "numeric", "real", "double precision")),
        *_pairs(("numeric",), ("numeric", *_INTEGERS)),
        ("real", "double precision"),
        *_pairs(_TEXTS, _TEXTS),
        *_pairs((*_INTEGERS, "numeric", "uuid", "boolean"), _TEXTS),
        *_pairs(("date", _MOMENTS[0]), ("date", _MOMENTS[0])),
        (_MOMENTS[1], _MOMENTS[1]),
        ("json", "jsonb"),
        ("jsonb", "json"),
    }
)
_EXPLICIT = _BY_ASSIGNMENT | {
    *_pairs(_TEXTS, (*_INTEGERS, "numeric", "uuid", "boolean", "json", "jsonb")),
    ("integer", "boolean"),
    ("boolean", "integer"),
}
_CERTAIN: Mapping[Cast, frozenset[tuple[str, str]]] = {
    Cast.ASSIGNMENT: _BY_ASSIGNMENT,
    Cast.EXPLICIT: _EXPLICIT,
    Cast.UTC: frozenset({_MOMENTS, _MOMENTS[::-1]}),
}
# Their output is taken for immutable, and depends on a setting of the session: extra_float_digits, bytea_output.
_PRINTED_BY_SETTINGS = re.compile(r"\b(?:real|double precision|bytea)\b")
_UTC_BY_SETTING = 18  # from this version on, abbreviations of the session's time zone come before UTC
_MODIFIER = re.compile(r"\(\d+(?:,-?\d+)?\)")


def rewriting_refusal(record: DdlRecord, rules: CastRules | None) -> str:
    """Return why a destination cannot give its rows the values that the source's rows got; empty: it can.

    Args:
        record: a change that wrote the source's rows anew.
        rules: the destination's; None: not asked for.
    """
    why = next(_doubts(record, rules), None)
    return "" if why is None else f"{_ANEW}: {why}"


def casts_of(record: DdlRecord) -> Mapping[str, Cast]:
    """Return how a change whose rewriting is certain converts columns, by their names."""
    return (read_casts(record.query, record.after.name) or {}) if record.after and record.rewritten & _CONVERTED else {}


def _doubts(record: DdlRecord, rules: CastRules | None) -> Iterator[str]:
    if not record.rewritten or record.rewritten & ~(_GENERATED | _CONVERTED):
        yield "not because of columns"
    added = [part for part in record.delta.added if isinstance(part, ColumnPart)]
    if plain := next((part for part in added if not part.generated), None):
        yield f"{plain.key} was added with them"
    if record.rewritten & _GENERATED and not added:
        yield "a default or an expression gave them"
    if added and any(map(_PRINTED_BY_SETTINGS.search, _texts(record))):
        yield "an expression may print a floating-point number or bytea, which a setting of the session decides on"
    if record.rewritten & _CONVERTED:
        yield from _doubts_of_types(record, rules)
    elif changed := next(_converted(record), None):
        yield f"{changed[1].key} has another type, too"


def _doubts_of_types(record: DdlRecord, rules: CastRules | None) -> Iterator[str]:
    source = record.rewriting.rules if record.rewriting is not None else None
    if source is None or rules is None:
        yield "the record does not show by what they were converted"
        return
    if record.is_nested:
        yield "a function or a DO block ran the statement, and its text is not known"
        return
    casts = None if record.after is None else read_casts(record.query, record.after.name)
    if casts is None:
        yield "the statement is not one ALTER TABLE that converts types alone, without an expression of its own"
        return
    if source.has_own or rules.has_own:
        yield "there is a CREATE CAST between types of PostgreSQL"
    converted = {after.name: (before, after) for before, after in _converted(record)}
    for name in [*converted, *(name for name in casts if name not in converted)]:
        cast = casts.get(name)
        if name not in converted and cast is not Cast.UTC:
            continue  # it has its type already
        before, after = converted.get(name, (None, None))
        types = tuple(_type(each) for each in (before, after) if each is not None)
        if cast is None or types not in _CERTAIN[cast]:
            shown = " to ".join(each.type_name for each in (before, after) if each is not None) or "the same type"
            yield f'column "{name}": how values become another one depends on more than the row ({shown})'
        elif cast is Cast.UTC and record.version >= _UTC_BY_SETTING:
            yield f'column "{name}": UTC may be another zone in the client\'s session'
        elif "SQL_ASCII" in (source.encoding, rules.encoding) and any(each in _TEXTS for each in types):
            yield f'column "{name}": SQL_ASCII has other lengths of texts'


def _texts(record: DdlRecord) -> Iterator[str]:
    """Yield the types of a table, and the expressions of its generated columns."""
    for column in record.after.columns if record.after is not None else ():
        yield column.type_name
        if column.generated and column.default is not None:
            yield column.default


def _converted(record: DdlRecord) -> Iterator[tuple[ColumnPart, ColumnPart]]:
    """Yield the columns that got another type, as they were and as they are."""
    for pair in record.delta.altered:
        before, after = pair.before, pair.after
        if isinstance(before, ColumnPart) and isinstance(after, ColumnPart) and before.type_name != after.type_name:
            yield before, after


def _type(column: ColumnPart) -> str:
    return _MODIFIER.sub("", column.type_name)


# ---------------------------------------------------------------------- the client's text

_SPACE = re.compile(r"[ \t\n\r\f\v]+|--[^\n\r]*")
_TOKEN = re.compile(
    r"""(?P<word>[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*)(?!['&])  # not U&"", E'', N''
    | "(?P<name>(?:[^"]|"")+)"
    | (?P<number>[0-9]+)(?![A-Za-z0-9_.])
    | (?P<utc>'UTC')(?!')
    | (?P<sign>::|[(),.;*\[\]-])""",
    re.VERBOSE,
)
_IDENTIFIER_MAX = 63  # bytes; the server cuts longer ones
_END = ""
_QUOTED = '"'


def read_casts(text: str, table: str) -> dict[str, Cast] | None:
    """Read how one ALTER TABLE converts columns, by their names.

    Args:
        text: what the client sent.
        table: name of the table, without its schema.

    Returns:
        None: it is something else, or more.
    """
    if len(text) >= QUERY_MAX:
        return None
    tokens = _tokens(text)
    if tokens is None:
        return None
    try:
        return _Statement(tokens).casts(table)
    except _UnknownFormError:
        return None


def begins_with(text: str, *words: str) -> bool:
    """Return whether a text begins with these words, in lower case, whatever comments are between them."""
    at = 0
    for word in words:
        at = _behind_space(text, at)
        match = _TOKEN.match(text, at)
        if match is None or match["word"] is None or _token(match) != word:
            return False
        at = match.end()
    return True


class _UnknownFormError(Exception):
    """The text is in none of the known forms."""


def _tokens(text: str) -> list[str] | None:
    """Return the tokens: keywords and unquoted names in lower case, names in double quotes with one quote before them.

    None: the text has another kind of token.
    """
    found, at = list[str](), 0
    while (at := _behind_space(text, at)) < len(text):
        match = _TOKEN.match(text, at)
        token = None if match is None else _token(match)
        if match is None or token is None:
            return None
        at = match.end()
        found.append(token)
    return found


def _behind_space(text: str, at: int) -> int:
    """Return where space and comments end that begin here."""
    while True:
        if match := _SPACE.match(text, at):
            at = match.end()
        elif text.startswith("/*", at):
            at = _end_of_comment(text, at)
        else:
            return at


def _token(match: re.Match[str]) -> str | None:
    word, name = match["word"], match["name"]
    if word is not None:
        # The server folds ASCII alone.
        folded = "".join(each.lower() if each.isascii() else each for each in word)
        return folded if len(folded.encode()) <= _IDENTIFIER_MAX else None
    if name is not None:
        plain = name.replace('""', '"')
        return f'"{plain}' if len(plain.encode()) <= _IDENTIFIER_MAX else None
    return match[0]


def _end_of_comment(text: str, at: int) -> int:
    """Return where a comment ends, which may have others in it; one that does not end takes the rest."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    return len(text)


class _Statement:
    """The tokens of one statement, read from left to right."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens, self._at = tokens, 0

    def casts(self, table: str) -> dict[str, Cast]:
        """Read the statement.

        Raises:
            _UnknownFormError: it has another form, or is about another table.
        """
        self._need("alter", "table")
        self._take("if", "exists")
        self._take("only")
        name = self._name()
        if self._take("."):
            name = self._name()
        self._take("*")
        if name != table:
            raise _UnknownFormError
        found: dict[str, Cast] = {}
        self._action(found)
        while self._take(","):
            self._action(found)
        self._take(";")
        if self._next() != _END:
            raise _UnknownFormError
        return found

    def _action(self, found: dict[str, Cast]) -> None:
        self._need("alter")
        self._take("column")
        written = self._next()
        column = self._name()
        for form in (("set", "not", "null"), ("drop", "not", "null"), ("drop", "default")):
            if self._take(*form):
                return
        if self._take("set", "default"):
            self._constant()
            return
        self._take("set", "data")
        self._need("type")
        wanted = self._until("collate", "using")
        if self._take("collate"):
            self._name()
            if self._take("."):
                self._name()
        cast = self._using(written, wanted) if self._take("using") else Cast.ASSIGNMENT
        if column in found or not wanted:
            raise _UnknownFormError
        found[column] = cast

    def _constant(self) -> None:
        if any(self._take(each) for each in ("null", "true", "false")):
            return
        self._take("-")
        if not self._next().isdigit():
            raise _UnknownFormError
        self._at += 1

    def _using(self, column: str, wanted: Sequence[str]) -> Cast:
        """Read an expression that is the column, or its cast to its new type, as it is written before it.

        A quoted column is quoted here, too: `user` without quotes is a function.
        """
        given, wanted = self._until(), _in_words(wanted)
        while given[:1] == ["("] and _closing(given) == len(given) - 1:
            given = given[1:-1]
        for name in {column, f'"{column.removeprefix(_QUOTED)}'}:
            for of in ([name], ["(", name, ")"]):
                if given == of:
                    return Cast.ASSIGNMENT
                if given == [*of, "at", "time", "zone", "'UTC'"]:
                    return Cast.UTC
                if any(_is_cast(given, begin, wanted, end) for begin, end in _casts(of)):
                    return Cast.EXPLICIT
        raise _UnknownFormError

    def _until(self, *words: str) -> list[str]:
        """Take the tokens up to one of these words, or to the end of the action, outside of parentheses."""
        begin, depth = self._at, 0
        while (token := self._next()) != _END and (depth or token not in (",", ";", *words)):
            depth += {"(": 1, ")": -1}.get(token, 0)
            if depth < 0:
                raise _UnknownFormError
            self._at += 1
        return list(self._tokens[begin : self._at])

    def _name(self) -> str:
        token = self._next()
        if not (token[:1] == _QUOTED or token[:1] == "_" or token[:1].isalpha() or token[:1] >= "\u0080"):
            raise _UnknownFormError
        self._at += 1
        return token.removeprefix(_QUOTED)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _take(self, *tokens: str) -> bool:
        is_there = tuple(self._tokens[self._at : self._at + len(tokens)]) == tokens
        self._at += len(tokens) if is_there else 0
        return is_there

    def _need(self, *tokens: str) -> None:
        if not self._take(*tokens):
            raise _UnknownFormError


def _casts(of: Sequence[str]) -> tuple[tuple[list[str], list[str]], ...]:
    """Return what is before the type, and behind it, in the two forms of a cast."""
    return ([*of, "::"], []), (["cast", "(", *of, "as"], [")"])


def _is_cast(given: Sequence[str], begin: Sequence[str], wanted: Sequence[str], end: Sequence[str]) -> bool:
    return (
        [*given[: len(begin)]] == begin
        and [*given[len(given) - len(end) :]] == end
        and _in_words(given[len(begin) : len(given) - len(end)]) == wanted
    )


def _in_words(tokens: Sequence[str]) -> list[str]:
    """Return a type's tokens with one word for `int` and `integer`, which are one to the server's grammar.

    Not a column's: `int` and `integer` are two columns.
    """
    return ["integer" if each == "int" else each for each in tokens]


def _closing(tokens: Sequence[str]) -> int:
    """Return where the first parenthesis closes."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if not depth:
            return at
    return -1
