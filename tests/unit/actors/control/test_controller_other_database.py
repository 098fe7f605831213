"""A connection string that leads to a different database than the prepared one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.actors.controllers import started
from topology.edits.stored import prepared_document
from topology.spec import DatabaseSpec


@pytest.fixture
def own(spec):
    """The topology on the user's own servers."""
    return replace(
        spec,
        sites=tuple(
            replace(site, database=DatabaseSpec(kind="postgres", dsn=f"host={site.name}")) for site in spec.sites
        ),
    )


def led_elsewhere(own, site="b"):
    return replace(
        own,
        sites=tuple(
            replace(each, database=replace(each.database, dsn="host=other")) if each.name == site else each
            for each in own.sites
        ),
    )


@pytest.mark.parametrize("site", ["a", "b"])
def test_other_server_is_refused_with_both_system_identifiers(own, actors, site):
    actors.identities = {"site:a": "postgres 71 5 1.5", "site:b": "postgres 72 5 1.5"}
    assert started(own, actors, steps=12).detail_state() == "RUNNING"
    actors.identities[f"site:{site}"] = "postgres 99 5 1.5"
    actors.prepared.clear()
    controller = started(led_elsewhere(own, site), actors, steps=12)
    assert controller.detail_state() == "REFUSED"
    assert actors.prepared == []
    (finding,) = controller.overview()["findings"]
    assert finding["path"] == f"sites.{site}.dsn"
    assert "system identifier 99, database 5" in finding["problem"]
    assert f"system identifier {71 if site == 'a' else 72}, database 5" in finding["problem"]
    assert started(own, replace_identity(actors, site), steps=12).detail_state() == "RUNNING"


def replace_identity(actors, site):
    actors.identities[f"site:{site}"] = f"postgres {71 if site == 'a' else 72} 5 1.5"
    return actors


def test_promoted_standby_and_restarted_server_are_the_same_database(own, actors):
    actors.identities = {"site:a": "postgres 71 5 1.5", "site:b": "postgres 72 5 1.5"}
    started(own, actors, steps=12)
    actors.identities["site:b"] = "postgres 72 5 99.25"
    assert started(led_elsewhere(own), actors, steps=12).detail_state() == "RUNNING"
    assert prepared_document(own.state_dir)["identities"] == {"a": "postgres 71 5", "b": "postgres 72 5"}


def test_other_database_of_the_same_server_is_refused(own, actors):
    actors.identities = {"site:a": "postgres 71 5 1.5", "site:b": "postgres 72 5 1.5"}
    started(own, actors, steps=12)
    actors.identities["site:b"] = "postgres 72 6 1.5"
    assert started(led_elsewhere(own), actors, steps=12).detail_state() == "REFUSED"
