"""Each component gets only the secrets of its own site's database; none gets those of alerts."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import labels, started
from tests.support.topologies.files import read
from topology.edits.changes import changes, components_of

_DSNS = {
    f"DSN_{name.upper()}": f"host={name}.invalid user=headrace password=of-{name}" for name in ("hub", "a", "b", "mine")
}
_HUB = """
topology: t
sites:
  hub: {database: {kind: postgres, dsn: "${DSN_HUB}"}}
  a: {database: {kind: postgres, dsn: "${DSN_A}"}}
  b: {database: {kind: postgres, dsn: "${DSN_B}"}}
  mine: {database: {kind: postgres, dsn: "${DSN_MINE}"}}
queues:
  mined: {site: mine}
  arrived: {site: b}
captures:
  downstream: {site: mine, source: a, queue: mined, rules: {include: [{table: public.u}]}}
propagations:
  onward: {from: mined, to: arrived}
applies:
  from_mined: {site: b, source: a, queue: arrived, combined: never}
replicate:
  - {tables: [public.t], hub: hub, spokes: [a, b]}
alerts:
  to: [{webhook: "${HOOK}", token: "${TOKEN}"}]
"""
_ALERTS = {"HOOK": "https://alerts.invalid/of-alerts", "TOKEN": "token-of-alerts"}


@pytest.fixture
def spec(tmp_path):
    found = read(tmp_path, _HUB, _DSNS | _ALERTS)
    return replace(found, state_dir=tmp_path / "state", sites=tuple(replace(site, node=()) for site in found.sites))


class _Overheard(FakeActors):
    """Also records the secrets in each component's calls."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, set[str]] = {}

    def call(self, name, method, *arguments, timeout_s=5.0):
        self.told.setdefault(name, set()).update(_secrets(arguments))
        return super().call(name, method, *arguments, timeout_s=timeout_s)


def _secrets(said: object) -> set[str]:
    record = pickle.dumps(said)
    return {name for name in ("hub", "a", "b", "mine", "alerts") if f"of-{name}".encode() in record}


def test_only_a_site_gets_its_own_connection_string(spec):
    actors = _Overheard()
    started(spec, actors, steps=10)
    assert {each.partition(":")[0] for each in actors.running} == {
        "site",
        "spark",
        "apply",
        "redo",
        "queue",
        "capture",
        "propagation",
    }
    wanted = {name: {name.partition(":")[2]} if name.startswith("site:") else set() for name in actors.running}
    assert {name: _secrets(record) for name, record in actors.running.items()} == wanted
    assert all(actors.told.get(name, set()) <= wanted[name] for name in wanted), actors.told
    assert actors.told["site:a"] == {"a"}, "preflight and prepare need no other site's secrets"


def test_component_that_adopts_an_edit_gets_no_more_secrets(spec):
    actors = _Overheard()
    started(spec, actors, steps=10)
    actors.told.clear()
    started(replace(spec, heartbeat_s=77.0), actors, steps=10)
    assert {name for name, method in actors.calls if method == "reconfigure"} >= {"site:hub", "site:mine"}
    assert all(found <= {name.partition(":")[2]} for name, found in actors.told.items()), actors.told


def test_changed_password_restarts_only_its_site_and_connected_components(spec):
    actors = _Overheard()
    started(spec, actors, steps=10)
    before = labels(actors)
    changed = replace(
        spec,
        sites=tuple(
            replace(site, database=replace(site.database, dsn=site.database.dsn + "-new")) if site.name == "b" else site
            for site in spec.sites
        ),
    )
    connecting = {f"apply:{each.name}" for each in spec.applies if "b" in (each.site, each.source)}
    assert {each.component for each in changes(spec, changed) if each.action != "same"} == {"site:b", *connecting}
    actors.told.clear()
    started(changed, actors, steps=10)
    after = labels(actors)
    assert {name for name in after if after[name] != before[name]} == {"site:b", *connecting}
    assert actors.running["site:b"]["spec"].site("b").database.dsn.endswith("-new")
    assert after.keys() == {each.name for each in components_of(changed)}
