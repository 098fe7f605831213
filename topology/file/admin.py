"""The connection strings of sites' administrators (`admin_dsn`).

`check`, `up` and `down --purge` resolve them when they use them. No topology has them, so they reach no state folder,
no process of the topology and no record of one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError
from topology.file.connection_strings import ConnectionStringError, resolve
from topology.file.document import read_document

if TYPE_CHECKING:
    from topology.spec import SiteSpec, TopologySpec

__all__ = ["admin_dsn"]


def admin_dsn(spec: TopologySpec, site: SiteSpec, environment: Mapping[str, str] = os.environ) -> str:
    """Return the connection string of a site's administrator: never shown, never stored.

    Args:
        spec: the topology; its file is read.
        site: of `spec`, with `has_admin`.
        environment: the variables that `${NAME}` refers to.

    Raises:
        ConfigError: the file no longer has it, or it cannot be resolved.
    """
    path = f"sites.{site.name}.database.admin_dsn"
    found: Any = read_document(spec.file).content
    for key in ("sites", site.name, "database", "admin_dsn"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, str):  # the file was edited after the command read it
        raise ConfigError(f"{spec.file}: {path} no longer exists", hint="run the command again")
    try:
        return resolve(found, environment)
    except ConnectionStringError as error:
        raise ConfigError(f"{path}: {error.problem}", hint=error.fix) from error
