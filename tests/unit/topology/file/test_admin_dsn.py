"""A site's `admin_dsn`: where it is accepted, its absence from records of a topology, and its resolution on use."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.databases.ports.operator import LEFT_TO_ADMIN
from headrace.deployment.removal import Removal
from topology.edits.stored import entrusted, spec_to_json
from topology.file.admin import admin_dsn
from topology.file.reading import examine, read_topology

FILE = """
topology: t
state_dir: state
sites:
  a: {{database: {{kind: postgres, dsn: "host=a user=runs password=${{RUNS}}"{of_source}}}}}
  b: {{database: {{kind: postgres, dsn: "host=b user=runs password=${{RUNS}}", admin_dsn: "{admin}"}}}}
  c: {{database: {{kind: embedded{of_embedded}}}}}
replicate:
  - {{tables: [public.t], from: a, to: [b, c]}}
"""
ENVIRONMENT = {"RUNS": "planted-one", "ADMIN": "planted-two"}
DSN = "host=b user=admin password=${ADMIN}"


def _file(folder: Path, admin: str = DSN, of_source: str = "", of_embedded: str = "") -> Path:
    file = folder / "t.yaml"
    file.write_text(FILE.format(admin=admin, of_source=of_source, of_embedded=of_embedded))
    return file


def _problems(file: Path) -> list[str]:
    return [f"{found.path}: {found.problem}" for found in examine(file, ENVIRONMENT).findings if found.is_error]


def test_topology_flags_an_admin_dsn_without_containing_it(tmp_path: Path) -> None:
    spec = read_topology(_file(tmp_path), ENVIRONMENT)
    assert [site.database.has_admin for site in spec.sites] == [False, True, False]
    # The forms for a component, for storage and for transport. The other secret shows that the search would find one.
    for form in (pickle.dumps(spec), pickle.dumps(entrusted(spec, "site:b")), json.dumps(spec_to_json(spec)).encode()):
        assert b"planted-two" not in form
        assert b"user=admin" not in form
    assert b"planted-one" in pickle.dumps(entrusted(spec, "site:b"))
    # Processes that are started do not inherit the variable.
    assert spec.site("b").database.environment == ("RUNS", "ADMIN")
    assert admin_dsn(spec, spec.site("b"), ENVIRONMENT) == "host=b user=admin password='planted-two'"


def test_admin_dsn_is_resolved_on_use_and_a_missing_value_is_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    spec = read_topology(_file(tmp_path, f"host=b user=admin password=${{file:{secret}}}"), ENVIRONMENT)
    with pytest.raises(ConfigError, match=r"sites\.b\.database\.admin_dsn"):
        admin_dsn(spec, spec.site("b"), ENVIRONMENT)
    secret.write_text("one\n")
    assert admin_dsn(spec, spec.site("b"), ENVIRONMENT).endswith("password='one'")
    secret.write_text("two\n")
    assert admin_dsn(spec, spec.site("b"), ENVIRONMENT).endswith("password='two'")
    _file(tmp_path)
    spec.file.write_text(spec.file.read_text().replace("admin_dsn", "dsn2"))
    with pytest.raises(ConfigError, match="no longer exists"):
        admin_dsn(spec, spec.site("b"), ENVIRONMENT)


def test_admin_password_in_the_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    (problem,) = _problems(_file(tmp_path, "host=b user=admin password=hunter2"))
    assert problem.startswith("sites.b.database.admin_dsn")
    assert "has a password in the file" in problem
    assert "hunter2" not in problem


def test_source_accepts_an_admin_dsn_and_an_embedded_server_refuses_it(tmp_path: Path) -> None:
    spec = read_topology(_file(tmp_path, of_source=f', admin_dsn: "{DSN}"'), ENVIRONMENT)
    assert [site.database.has_admin for site in spec.sites] == [True, True, False]
    (problem,) = _problems(_file(tmp_path, of_embedded=f', admin_dsn: "{DSN}"'))
    assert "kind: embedded takes no admin_dsn" in problem


def test_purge_without_the_former_admin_dsn_reports_remaining_objects(tmp_path: Path) -> None:
    # The running topology was started with an admin_dsn and leaves the schema to the administrator.
    file = _file(tmp_path)
    file.write_text(file.read_text().replace(f', admin_dsn: "{DSN}"', ""))
    spec = read_topology(file, ENVIRONMENT)
    lines = ("DELETE FROM headrace.apply_process", LEFT_TO_ADMIN)
    assert Removal(spec, print).with_admin(spec.site("b"), lines) == lines
