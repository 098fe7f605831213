"""Untested versions of PostgreSQL are refused unless the topology allows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.databases.postgres.versions import version_findings


def server(version: int) -> Any:
    return SimpleNamespace(info=SimpleNamespace(server_version=version))


@pytest.mark.parametrize("version", [150004, 160000, 170009, 180001])
def test_supported_versions_are_accepted_silently(version: int) -> None:
    assert list(version_findings(server(version), "sites.a", allow_any_version=False)) == []


@pytest.mark.parametrize(("version", "major"), [(140020, 14), (190000, 19), (90624, 9)])
def test_other_versions_are_refused_with_the_key_that_allows_them(version: int, major: int) -> None:
    (found,) = version_findings(server(version), "sites.a", allow_any_version=False)
    assert found.is_error
    assert found.path == "sites.a"
    assert found.problem.startswith(f"is PostgreSQL {major},")
    assert found.fix.endswith("allow_any_version: true under sites.a.database")
    (allowed,) = version_findings(server(version), "sites.a", allow_any_version=True)
    assert not allowed.is_error
    assert allowed.problem == found.problem
