"""Supported versions of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.databases.ports import Finding

if TYPE_CHECKING:
    import psycopg

__all__ = ["version_findings"]

_VERSIONS = range(15, 19)  # tested versions and those between; other databases' type numbers are accepted from 14 on


def version_findings(connection: psycopg.Connection[Any], path: str, *, allow_any_version: bool) -> Iterator[Finding]:
    """Report an unsupported server version.

    Args:
        connection: to the server.
        path: of the finding: the site in the topology.
        allow_any_version: report it as a warning only.
    """
    version = connection.info.server_version // 10000
    if version not in _VERSIONS:
        yield Finding(
            path=path,
            is_error=not allow_any_version,
            problem=f"is PostgreSQL {version}, which was never tried; {_VERSIONS.start} to {_VERSIONS.stop - 1} are"
            " supported",
            fix="use a supported version"
            if allow_any_version
            else f"use a supported version, or write allow_any_version: true under {path}.database",
        )
