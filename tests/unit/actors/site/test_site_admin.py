"""What a command does as the administrators of several sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.site.admin import finish_as_admin, publish_as_admin
from headrace.base.errors import DatabaseError
from tests.support.databases.administered_source import AdministeredSource, administer, record
from tests.support.topologies.files import read
from topology.spec import TopologySpec

TWO_SOURCES = """
topology: t
sites:
  one: {database: {kind: postgres, dsn: "${RUNS}", admin_dsn: "${ADMIN}"}}
  two: {database: {kind: postgres, dsn: "${RUNS2}", admin_dsn: "${ADMIN}"}}
  dst: {database: {kind: embedded}}
replicate:
  - {tables: [public.*], from: one, to: [dst]}
  - {tables: [public.*], from: two, to: [dst]}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TopologySpec:
    monkeypatch.setenv("ADMIN", "postgresql://admin@127.0.0.1/x")
    return read(
        tmp_path,
        TWO_SOURCES,
        {"RUNS": "postgresql://runs@127.0.0.1/x", "RUNS2": "postgresql://runs@127.0.0.1/y", "ADMIN": ""},
    )


def test_publication_at_one_source_is_undone_when_another_source_refuses(
    spec: TopologySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = AdministeredSource(["t", "new"], ["t"]), AdministeredSource(["u"])
    two.refuses = DatabaseError("site two: the role may not", hint="GRANT it")
    administer(monkeypatch, {"one": one, "two": two})
    record(spec, {"one": ["t"]})
    with pytest.raises(DatabaseError, match="site two: the role may not") as refused:
        publish_as_admin(spec, spec)
    assert one.published == {"t"}
    assert refused.value.hint == "GRANT it"
    # Another `up` has taken it up meanwhile, so it stays.
    record(spec, {"one": ["t", "new"]})
    with pytest.raises(DatabaseError):
        publish_as_admin(spec, spec)
    assert one.published == {"t", "new"}


def test_failed_undo_is_reported_with_the_refusal(spec: TopologySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = AdministeredSource(["new"]), AdministeredSource(["u"])
    two.refuses = DatabaseError("site two: the role may not", hint="GRANT it")
    administer(monkeypatch, {"one": one, "two": two})

    def lost(*_: object, **__: object) -> tuple[str, ...]:
        raise DatabaseError("the connection broke")

    monkeypatch.setattr(one, "take_out", lost)
    with pytest.raises(DatabaseError, match="site two: the role may not") as refused:
        publish_as_admin(spec, None)
    said = refused.value.hint
    assert said.startswith("GRANT it; ")
    assert "the connection broke" in said
    assert "ADD TABLE new" in said


def test_tables_missing_from_the_log_are_named_once_with_the_command(
    spec: TopologySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = AdministeredSource(["t", "late", "later"], ["t"]), AdministeredSource(["u"], ["u"])
    administer(monkeypatch, {"one": one, "two": two})
    record(spec, {"one": ["t"], "two": ["u"]})
    (found,) = finish_as_admin(spec)
    assert (found.path, found.is_error, found.fix) == ("sites.one.database.admin_dsn", False, "headrace up FILE")
    assert "public.late, public.later" in found.problem
    # The error about the unreachable administrator names them, too.
    one.is_admin_away = True
    told, made = publish_as_admin(spec, spec)
    assert (len(told), made) == (1, {})
    assert finish_as_admin(spec, told=told) == ()
    one.is_away = True
    assert finish_as_admin(spec) == (), "the site's own status reports its absence"


def test_ddl_is_recorded_no_longer_when_no_rule_takes_it(spec: TopologySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = AdministeredSource(["t"], ["t"]), AdministeredSource(["u"], ["u"])
    one.has_ddl = two.is_admin_away = True
    administer(monkeypatch, {"one": one, "two": two})
    record(spec, {"one": ["t"], "two": ["u"]})
    assert finish_as_admin(spec) == (), "nothing is to do at the other source, and its administrator is not asked"
    assert not one.has_ddl
