"""Findings of `check` about connections that a third party could read or impersonate."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.deployment.inspection import check_topology

FILE = """
topology: t
sites:
  a: {database: {kind: postgres, dsn: "${A_DSN}"}}
  b: {database: {kind: embedded}}
replicate: [{tables: [public.t], from: a, to: [b]}]
"""


def findings_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, **variables: str
) -> dict[str, tuple[str, str]]:
    for name in ("PGHOST", "PGSERVICE", "PGSSLMODE", "PGSSLROOTCERT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "t.yaml"
    file.write_text(text)
    checked = check_topology(file, ask_databases=False).findings
    assert not [each for each in checked if each.is_error]
    return {each.path: (each.problem, each.fix) for each in checked}


@pytest.mark.parametrize(
    "dsn",
    [
        "host=db.example.com dbname=x",
        "postgresql://u@10.1.2.3/x",
        "host=/run/postgresql,db dbname=x",
        "hostaddr=10.0.0.1 host=localhost",
        "host=db sslmode=require",
        "postgresql://u@db/x?sslmode=prefer",
        "host=db sslmode=require sslrootcert=system",
        "service=main",
        "service=main sslrootcert=system",
    ],
)
def test_unauthenticated_server_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str):
    found = findings_of(tmp_path, monkeypatch, FILE, A_DSN=dsn)
    problem, fix = found.pop("sites.a")
    assert not found
    assert "nothing proves that" in problem
    assert fix.startswith("in ${A_DSN}: sslmode=verify-full sslrootcert=")
    mended = dsn.replace(" sslmode=require", "").replace(" sslrootcert=system", "").replace("?sslmode=prefer", "")
    mended += (
        "?sslmode=verify-full&sslrootcert=ca.pem"
        if mended.startswith("postgresql")
        else " sslmode=verify-full sslrootcert=ca.pem"
    )
    assert findings_of(tmp_path, monkeypatch, FILE, A_DSN=mended) == {}


@pytest.mark.parametrize(
    "dsn",
    [
        "host=/run/postgresql dbname=x",
        "host=localhost dbname=x",
        "dbname=x",
        "hostaddr=127.0.0.5 host=db",
        "postgresql://[::1]/x",
        "host=db sslmode=verify-ca",
        "host=db sslrootcert=system",
        "service=main sslmode=verify-full",
        "service=main host=localhost",
    ],
)
def test_local_and_authenticated_servers_are_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str):
    assert findings_of(tmp_path, monkeypatch, FILE, A_DSN=dsn) == {}


@pytest.mark.parametrize(
    "dsn", ["host=db", "host=db sslmode=disable", "host=db sslmode=require", "service=main", "hostaddr=192.0.2.1"]
)
@pytest.mark.parametrize(
    "variables", [{"PGSSLMODE": "verify-full"}, {"PGSSLROOTCERT": "system"}, {"PGSERVICE": "main"}]
)
def test_shell_variables_and_service_files_do_not_authenticate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str, variables: dict[str, str]
):
    """Ray's processes connect, and can have other variables."""
    found = findings_of(tmp_path, monkeypatch, FILE, A_DSN=dsn, **variables)
    assert "PGSSLMODE, PGSSLROOTCERT and service files do not count" in str(found["sites.a"])


def test_service_variable_of_the_shell_makes_a_local_dsn_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "sites.a" in findings_of(tmp_path, monkeypatch, FILE, A_DSN="dbname=x", PGSERVICE="main")


@pytest.mark.parametrize(
    ("url", "is_named"),
    [
        ("http://alerts.example.com/x", True),
        ("http://10.0.0.1:9000/x", True),
        ("https://alerts.example.com/x", False),
        ("http://127.0.0.1:9000/x", False),
        ("http://localhost/x", False),
        ("http://[::1]:9000/x", False),
    ],
)
def test_token_over_unencrypted_http_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, is_named: bool
):
    text = FILE + "alerts: {to: [{webhook: '" + url + "', token: '${T}'}]}\n"
    found = findings_of(tmp_path, monkeypatch, text, A_DSN="dbname=x", T="secret-token")
    assert bool(found) is is_named
    for problem, fix in found.values():
        assert "travels over http://" in problem
        assert "https://" in fix
        assert "secret-token" not in problem + fix
    assert findings_of(tmp_path, monkeypatch, text.replace(", token: '${T}'", ""), A_DSN="dbname=x", T="x") == {}
