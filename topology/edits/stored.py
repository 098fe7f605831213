"""A topology as JSON: what is kept on disk of the topology that was prepared last.

Connection strings may hold passwords. In their place stand digests, which tell whether one was changed, and nothing else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streams.errors import ConfigError
from streams.plain_data import as_json, from_json
from topology.spec import TopologySpec

__all__ = ["PREPARED_FILE", "entrusted", "prepared_document", "prepared_topology", "spec_from_json", "spec_to_json", "with_secrets_of", "without_secrets"]

PREPARED_FILE = "desired.json"  # in the state folder: what the controller prepared last

_DIGEST = "digest:"


def spec_to_json(spec: TopologySpec) -> dict[str, Any]:
    """The topology as plain data for `json`, without secrets."""
    return as_json(without_secrets(spec))


def prepared_topology(state_dir: Path) -> TopologySpec | None:
    """The topology that was prepared last from this state folder; None: none was, or another version of Headrace did."""
    try:
        return spec_from_json(prepared_document(state_dir)["spec"])
    except (KeyError, ConfigError):
        return None


def prepared_document(state_dir: Path) -> dict[str, Any]:
    """The record of the topology that was prepared last from this state folder; empty: none was."""
    try:
        document: dict[str, Any] = json.loads((state_dir / PREPARED_FILE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return document


def without_secrets(spec: TopologySpec) -> TopologySpec:
    """The topology with digests in the place of connection strings, and of the secrets of alerts; idempotent."""
    stored = _with_dsns(spec, {site.name: _digest(site.database.dsn) for site in spec.sites})
    if spec.alerts is None:
        return stored
    to = tuple(dataclasses.replace(each, url=_digest(each.url), token=_digest(each.token)) for each in spec.alerts.to)
    return dataclasses.replace(stored, alerts=dataclasses.replace(spec.alerts, to=to))


def entrusted(spec: TopologySpec, component: str) -> TopologySpec:
    """The topology with the secrets that one of its components needs: a site has the connection string of its database, nobody else has any.

    An apply process asks the sites of its source and its destination for theirs whenever it begins a driver. The controller alone sends alerts.

    Args:
        spec: the topology.
        component: full name of a component other than the controller.
    """
    kind, _, name = component.partition(":")
    own = {site.name: site.database.dsn if (kind, name) == ("site", site.name) else "" for site in spec.sites}
    return dataclasses.replace(_with_dsns(spec, own), alerts=None)


def with_secrets_of(spec: TopologySpec, other: TopologySpec) -> TopologySpec:
    """A topology with connection strings in the place of their digests, and the alerts of the other one.

    Args:
        spec: the topology, as `without_secrets` left it.
        other: where the connection strings are, by name of the site; a site that it does not have keeps what `spec` says.
    """
    return dataclasses.replace(_with_dsns(spec, {site.name: site.database.dsn for site in other.sites}), alerts=other.alerts)


def _with_dsns(spec: TopologySpec, dsns: Mapping[str, str]) -> TopologySpec:
    return dataclasses.replace(spec, sites=tuple(
        dataclasses.replace(site, database=dataclasses.replace(site.database, dsn=dsns.get(site.name, site.database.dsn)))
        for site in spec.sites
    ))


def _digest(dsn: str) -> str:
    if not dsn or dsn.startswith(_DIGEST):
        return dsn
    return _DIGEST + hashlib.sha256(dsn.encode()).hexdigest()[:16]


def spec_from_json(document: Any) -> TopologySpec:  # noqa: ANN401 - what `json` made of a file
    """Read what `spec_to_json` wrote.

    Raises:
        ConfigError: it is not such a document: another version of Headrace wrote it.
    """
    return from_json(TopologySpec, document)
