"""Reading `alerts:` of a topology file, and the secrets that it refers to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from headrace.databases.ports import Finding
from topology.alerts import PER_HOUR_DEFAULT, AlertsSpec, AlertTarget
from topology.file.document import Document, Path_
from topology.file.secret_sources import REFERENCE, SecretError, read_secrets, references
from topology.file.shape.findings import read_shape
from topology.file.shape.models import AlertsModel

__all__ = ["read_alerts"]


class _Unusable(ValueError):  # noqa: N818 - reported to the user as a finding
    """A problem of a text, and its fix."""


class _Unresolved(_Unusable):
    """A reference has no value."""


def read_alerts(content: object, document: Document, environment: Mapping[str, str]) -> AlertsSpec | None:
    """Read the section; add problems to the document's findings.

    Args:
        content: the section, as plain data.
        document: the file.
        environment: the variables that `${NAME}` in a webhook or a token refers to.
    """
    model = read_shape(AlertsModel, content, ("alerts",), document)
    if model is None:
        return None
    to: list[AlertTarget] = []
    names: list[str] = []
    for number, target in enumerate(model.to):
        path: Path_ = ("alerts", "to", number)
        try:
            if target.command is not None:
                to.append(AlertTarget(name=f"command {target.command[0]}", command=tuple(target.command)))
                continue
            names += references(f"{target.webhook} {target.token or ''}")
            path = (*path, "webhook")
            url, host = _url(target.webhook or "", environment)
            path = (*path[:-1], "token")
            to.append(AlertTarget(name=f"webhook at {host}", url=url, token=_token(target.token, environment)))
        except _Unusable as error:
            problem, fix = error.args
            found = Finding(path=document.locate(path), problem=problem, fix=fix)
            document.findings.append(found)
            if isinstance(error, _Unresolved):
                document.unresolved.append(found)
    return AlertsSpec(
        to=_told_apart(to),
        error_transaction=model.error_transaction,
        component=model.component,
        lag_s=model.lag_s or 0.0,
        conflicts_count=model.conflicts.count if model.conflicts else 0,
        conflicts_seconds=model.conflicts.seconds if model.conflicts else 0.0,
        per_hour_max=model.per_hour_max or PER_HOUR_DEFAULT,
        environment=tuple(dict.fromkeys(names)),
    )


def _told_apart(targets: Sequence[AlertTarget]) -> tuple[AlertTarget, ...]:
    """Add their places in the file to the names of targets with one program or host."""
    often = Counter(target.name for target in targets)
    return tuple(
        replace(target, name=f"{target.name} (alerts.to[{number}])") if often[target.name] > 1 else target
        for number, target in enumerate(targets)
    )


def _substituted(text: str, environment: Mapping[str, str]) -> str:
    try:
        values = read_secrets(text, environment)
    except SecretError as error:
        raise _Unresolved(error.problem, error.fix) from error
    return REFERENCE.sub(lambda match: values[match[1]].strip(), text)


def _url(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the address, and its host for people: the rest may be a secret."""
    found = _substituted(text, environment)
    if not found.isprintable() or " " in found:
        raise _Unusable(
            "has a blank or a control character in the address",
            "check that the variable holds exactly one whole address",
        )
    try:
        parts = urlsplit(found)
        port_is_one = parts.port is None or parts.port > 0
        host = parts.hostname if parts.scheme in {"http", "https"} and port_is_one else None
    except ValueError:
        host = None
    if not host:
        raise _Unusable(
            "is not the address of a webhook", "write https://host/path, or ${NAME} of a variable that has it"
        )
    if parts.username or parts.password:
        raise _Unusable(
            "has a user or a password in the address", "write token: ${NAME}, which is sent as Authorization: Bearer"
        )
    return found, host


def _token(text: str | None, environment: Mapping[str, str]) -> str:
    if text is None:
        return ""
    if not REFERENCE.fullmatch(text.strip()):
        raise _Unusable(
            "has a secret in the file",
            "write ${NAME} in its place, and export NAME, or ${file:/path} or ${command:program}",
        )
    found = _substituted(text.strip(), environment)
    if not found.isprintable() or " " in found:
        raise _Unusable("is not a token", "it is sent in a header: use letters, digits and signs, without blanks")
    return found
