"""Which versions of PostgreSQL are taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.databases.ports import Finding

if TYPE_CHECKING:
    import psycopg

__all__ = ["version_findings"]

_VERSIONS = range(15, 19)  # what the tests meet, or lies between; other databases' type numbers are accepted from 14 on


def version_findings(connection: psycopg.Connection[Any], path: str, *, allow_any_version: bool) -> Iterator[Finding]:
    """What is to be said of a server's version.

    Args:
        connection: to the server.
        path: of the finding: the site in the topology.
        allow_any_version: say it, but do not refuse.
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
