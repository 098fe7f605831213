"""A topology as JSON: the record on disk of the topology that was prepared last.

Connection strings may hold passwords, so digests replace them. A digest shows whether a string changed, and nothing
else: guesses of a weak password cannot be tested without the key, which is in a file of the state folder that only its
owner can read. Earlier versions wrote digests without a key; they are still compared, and are replaced at the next
write.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.base.durable_file import sync_folder
from headrace.base.errors import ConfigError
from headrace.base.plain_data import as_json, from_json
from topology.spec import TopologySpec

__all__ = [
    "KEY_FILE",
    "PREPARED_FILE",
    "entrusted",
    "prepared_document",
    "prepared_topology",
    "spec_from_json",
    "spec_to_json",
    "with_secrets_of",
    "without_secrets",
]

PREPARED_FILE = "desired.json"  # in the state folder: the topology that the controller prepared last

KEY_FILE = "digest_key"  # in the same folder
_KEY_BYTES = 32  # the length of a SHA-256 digest
_SEALED = "sealed:"
_UNSALTED = "digest:"  # written by earlier versions: SHA-256 without a key
_unwritten: dict[Path, bytes] = {}
"""Keys for state folders without one, for comparisons in this process: no stored digest matches them."""


def spec_to_json(spec: TopologySpec) -> dict[str, Any]:
    """Return the topology as plain data for `json`, without secrets; makes the state folder's key if it has none.

    Raises:
        OSError: the key could not be written.
    """
    _make_key(spec.state_dir)
    return as_json(without_secrets(spec))


def prepared_topology(state_dir: Path) -> TopologySpec | None:
    """Return the topology prepared last from this state folder; None: none was, or by another version of Headrace."""
    try:
        return spec_from_json(prepared_document(state_dir)["spec"])
    except (KeyError, ConfigError):
        return None


def prepared_document(state_dir: Path) -> dict[str, Any]:
    """Return the record of the topology that was prepared last from this state folder; empty: none was."""
    try:
        document: dict[str, Any] = json.loads((state_dir / PREPARED_FILE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return document


def without_secrets(spec: TopologySpec, *, like: TopologySpec | None = None) -> TopologySpec:
    """Return the topology with digests in place of connection strings and secrets of alerts; idempotent.

    Args:
        spec: of a state folder, whose key determines the digests.
        like: possibly stored by an earlier version. Where it has a digest of that version for the same text, the result
            has the same digest.
    """
    key, old = _key(spec.state_dir), frozenset(_secrets_of(like) if like is not None else ())
    stored = _with_dsns(spec, {site.name: _digest(site.database.dsn, key, old) for site in spec.sites})
    if spec.alerts is None:
        return stored
    to = tuple(
        dataclasses.replace(each, url=_digest(each.url, key, old), token=_digest(each.token, key, old))
        for each in spec.alerts.to
    )
    return dataclasses.replace(stored, alerts=dataclasses.replace(spec.alerts, to=to))


def entrusted(spec: TopologySpec, component: str) -> TopologySpec:
    """Return the topology with the secrets that one of its components needs.

    A site has the connection string of its database; no other component has any. An apply process asks its source's and
    its destination's site for theirs whenever it starts a driver. Only the controller sends alerts.

    Args:
        spec: the topology.
        component: full name of a component other than the controller.
    """
    kind, _, name = component.partition(":")
    own = {site.name: site.database.dsn if (kind, name) == ("site", site.name) else "" for site in spec.sites}
    return dataclasses.replace(_with_dsns(spec, own), alerts=None)


def _secrets_of(spec: TopologySpec) -> Iterator[str]:
    yield from (site.database.dsn for site in spec.sites)
    for each in spec.alerts.to if spec.alerts is not None else ():
        yield from (each.url, each.token)


def with_secrets_of(spec: TopologySpec, other: TopologySpec) -> TopologySpec:
    """Return a topology with connection strings in place of their digests, and the alerts of another topology.

    Args:
        spec: the topology, as `without_secrets` returned it.
        other: the source of the connection strings, by site name; a site that it lacks keeps the digest of `spec`.
    """
    return dataclasses.replace(
        _with_dsns(spec, {site.name: site.database.dsn for site in other.sites}), alerts=other.alerts
    )


def _with_dsns(spec: TopologySpec, dsns: Mapping[str, str]) -> TopologySpec:
    return dataclasses.replace(
        spec,
        sites=tuple(
            dataclasses.replace(
                site, database=dataclasses.replace(site.database, dsn=dsns.get(site.name, site.database.dsn))
            )
            for site in spec.sites
        ),
    )


def _digest(text: str, key: bytes, old: Collection[str]) -> str:
    if not text or text.startswith((_SEALED, _UNSALTED)):
        return text
    unsalted = _UNSALTED + hashlib.sha256(text.encode()).hexdigest()[:16]
    return unsalted if unsalted in old else _SEALED + hmac.digest(key, text.encode(), "sha256").hex()


def _key(state_dir: Path) -> bytes:
    try:
        return (state_dir / KEY_FILE).read_bytes()
    except OSError:
        return _unwritten.setdefault(state_dir, secrets.token_bytes(_KEY_BYTES))


def _make_key(state_dir: Path) -> None:
    """Write a key if none exists: atomically, as another process may do so at the same time."""
    file = state_dir / KEY_FILE
    if file.exists():
        return
    state_dir.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.{os.getpid()}.new")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as written:
        written.write(_unwritten.pop(state_dir) if state_dir in _unwritten else secrets.token_bytes(_KEY_BYTES))
        written.flush()
        os.fsync(written.fileno())
    try:
        os.link(aside, file)
    except FileExistsError:
        aside.unlink()
    # a file system without links: the last writer wins, and a record that another process has just stored counts as
    # changed
    except OSError:
        aside.replace(file)
    else:
        aside.unlink()
    sync_folder(state_dir)


def spec_from_json(document: Any) -> TopologySpec:  # noqa: ANN401 - what `json` made of a file
    """Read what `spec_to_json` wrote.

    Raises:
        ConfigError: another version of Headrace wrote the document.
    """
    return from_json(TopologySpec, document)
