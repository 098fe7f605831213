"""A site's connection string: references are resolved, and secrets in the file are refused.

A reference (`topology.file.secret_sources`) has the plain value. Inside a connection string the value is escaped as its
part requires; a reference that is the whole string is used unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from headrace.base.errors import ConfigError
from headrace.databases.connectors import hosts_of
from topology.file.secret_sources import SecretError, read_secrets, with_plain_names

__all__ = ["ConnectionStringError", "UnresolvedError", "check_written", "resolve"]

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_URI = re.compile(r"^(postgres(?:ql)?://)(?:([^@/]*)@)?([^/?]*)(.*)$", re.DOTALL)
_FORMS = "write postgresql://user@host:5432/database, or host=... dbname=... user=..."
_PASSWORD = re.compile(r"\b(?:ssl)?password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]*)")


class ConnectionStringError(ValueError):
    """A problem of a connection string, and its fix."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem, self.fix = problem, fix


class UnresolvedError(ConnectionStringError):
    """A reference has no value."""


def check_written(text: str) -> None:
    """Refuse a string that must not be in the file, without resolving its references.

    Args:
        text: as the file has it, with references.

    Raises:
        ConnectionStringError: it has a password or a malformed reference.
    """
    plain, _ = with_plain_names(text)
    _refuse_secrets(plain)
    _refuse_broken_references(plain)


def resolve(text: str, environment: Mapping[str, str]) -> str:
    """Put the environment's values into a connection string.

    Args:
        text: as the file has it, with references.
        environment: of the command; a variable with an empty value counts as missing.

    Raises:
        UnresolvedError: a reference has no value.
        ConnectionStringError: the file has a password, or the text is no connection string.
    """
    check_written(text)
    plain, names = with_plain_names(text)
    try:
        values = read_secrets(text, environment)
    except SecretError as error:
        raise UnresolvedError(error.problem, error.fix) from error
    resolved = _substitute(plain, {plain_name: values[name] for plain_name, name in names.items()})
    if not (_URI.match(resolved) or "=" in resolved):
        raise ConnectionStringError(
            "is not a connection string",
            _FORMS,
        )
    try:
        hosts_of(resolved)
    except ConfigError as error:  # the connector would report this later, without site and line
        raise ConnectionStringError(error.message.removeprefix("a PostgreSQL dsn "), error.hint or _FORMS) from error
    return resolved


def _refuse_broken_references(text: str) -> None:
    if "$" in _REFERENCE.sub("", text):
        raise ConnectionStringError(
            "has a $ that is not a reference",
            "write ${NAME}, letters, digits and _ only, ${file:/path} or ${command:program argument}",
        )


def _refuse_secrets(text: str) -> None:
    uri = _URI.match(text)
    secrets = [value.strip("'") for value in _PASSWORD.findall(text)]
    if uri and uri[2] and ":" in uri[2]:
        secrets.append(uri[2].partition(":")[2])
    if any(secret and not _REFERENCE.fullmatch(secret) for secret in secrets):
        raise ConnectionStringError(
            "has a password in the file",
            "move it out: write ${NAME} in its place and export NAME, or ${file:/path} or ${command:program}, or use a"
            " password file (~/.pgpass)",
        )


def _substitute(text: str, environment: Mapping[str, str]) -> str:
    whole = _REFERENCE.fullmatch(text.strip())
    if whole:
        return environment[whole[1]].strip()
    uri = _URI.match(text)
    if uri:
        scheme, user, hosts, rest = uri[1], uri[2], uri[3], uri[4]
        # Hosts may be a list with ports. Elsewhere a delimiter in a value must be escaped.
        user = f"{_encoded(user, environment)}@" if user is not None else ""
        return scheme + user + _encoded(hosts, environment, safe=":,[]") + _encoded(rest, environment)
    return _REFERENCE.sub(lambda match: _keyword_value(match, environment), text)


def _encoded(part: str, environment: Mapping[str, str], safe: str = "") -> str:
    return _REFERENCE.sub(lambda match: quote(environment[match[1]], safe=safe), part)


def _keyword_value(match: re.Match[str], environment: Mapping[str, str]) -> str:
    value = environment[match[1]].replace("\\", "\\\\").replace("'", "\\'")
    text = match.string
    is_quoted = text[: match.start()].count("'") % 2 == 1
    is_whole = text[: match.start()].rstrip().endswith("=") and text[match.end() : match.end() + 1] in (
        "",
        " ",
        "\n",
        "\t",
    )
    return value if is_quoted or not is_whole else f"'{value}'"
