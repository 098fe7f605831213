"""Certificates: what `headrace certs` makes, and which faults `check` finds in the files of a topology."""

from __future__ import annotations

import datetime as dt
import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from actors.security.authority import AUTHORITY_DAYS, SITE_DAYS, make_certificates
from actors.security.examination import tls_findings
from actors.security.wire import identity_of
from headrace.base.errors import ConfigError
from headrace.deployment.inspection import check_topology
from protos.wire.identity import principal_of
from tests.support.clusters.command_line import run
from tests.support.wire.attackers import NOBODY
from topology.file.reading import read_topology
from topology.problems import TopologyError
from topology.spec import TopologySpec

TOPOLOGY = """
topology: hr_net
tls: {{authority: certs/ca.pem, certificate: "certs/{{site}}.pem", key: "certs/{{site}}.key"}}
sites:
  dbs1: {{database: {{kind: embedded}}}}
  dbs2: {{database: {{kind: embedded}}, {of_site}}}
replicate:
  - {{schemas: [hr], from: dbs1, to: [dbs2]}}
"""
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)


def _file(folder: Path, of_site: str = "node: {}") -> Path:
    file = folder / "net.yaml"
    file.write_text(TOPOLOGY.format(of_site=of_site))
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "certs", "hr_net", ["dbs1", "dbs2"], now=NOW)
    return _file(tmp_path)


def _problems(file: Path, now: dt.datetime = NOW) -> dict[str, tuple[str, bool]]:
    return {found.path: (found.problem, found.is_error) for found in tls_findings(read_topology(file), now=now)}


def test_new_certificates_name_their_site_and_hide_their_keys(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "certs"
    made = make_certificates(folder, "hr_net", ["dbs1", "dbs2"], now=NOW)
    assert sorted(path.name for path in made.made) == [
        "ca.key",
        "ca.pem",
        "dbs1.key",
        "dbs1.pem",
        "dbs2.key",
        "dbs2.pem",
    ]
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.key")] == [0o600] * 3
    authority, site = (x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.pem", "dbs1.pem"))
    site.verify_directly_issued_by(authority)
    names = site.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert names == ["dbs1.hr-net.headrace.internal"]
    assert site.not_valid_after_utc - NOW == dt.timedelta(days=SITE_DAYS)
    assert authority.not_valid_after_utc - NOW == dt.timedelta(days=AUTHORITY_DAYS)
    assert site.not_valid_before_utc < NOW
    permitted = authority.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees
    assert permitted == [x509.DNSName("headrace.internal")]


def test_new_site_gets_a_certificate_and_no_file_is_overwritten(tmp_path: Path) -> None:
    make_certificates(tmp_path, "hr_net", ["dbs1"], now=NOW)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    made = make_certificates(tmp_path, "hr_net", ["dbs1", "dbs3"], now=NOW)
    assert ({path.name for path in made.made}, made.kept) == ({"dbs3.pem", "dbs3.key"}, ("dbs1",))
    assert {path: path.read_bytes() for path in before} == before
    (tmp_path / "ca.key").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"ca\.pem is there without ca\.key"):
        make_certificates(tmp_path, "hr_net", ["dbs4"], now=NOW)
    (tmp_path / "elsewhere").rename(tmp_path / "ca.key")
    (tmp_path / "dbs1.pem").unlink()
    with pytest.raises(ConfigError, match=r"dbs1\.key is there without dbs1\.pem"):
        make_certificates(tmp_path, "hr_net", ["dbs1"], now=NOW)
    assert (tmp_path / "dbs1.key").read_bytes() == before[tmp_path / "dbs1.key"]


def test_new_certificates_have_no_finding(file: Path) -> None:
    assert _problems(file) == {}


def _copy(source: str, target: str) -> Callable[[Path], object]:
    return lambda folder: (folder / target).write_bytes((folder / source).read_bytes())


def _foreign(folder: Path) -> None:
    make_certificates(folder / "foreign", "hr_net", ["dbs2"], now=NOW)
    for name in ("dbs2.pem", "dbs2.key"):
        (folder / name).write_bytes((folder / "foreign" / name).read_bytes())


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (lambda folder: (folder / "dbs2.pem").unlink(), "certificate", "cannot be read: No such file"),
        (lambda folder: (folder / "dbs2.key").unlink(), "key", "cannot be read: No such file"),
        (lambda folder: (folder / "dbs2.pem").write_text("no"), "certificate", "no certificate in PEM form"),
        (lambda folder: (folder / "dbs2.key").write_text("no"), "key", "no private key in PEM form"),
        (lambda folder: (folder / "dbs2.key").chmod(0o640), "key", "other users may read it (mode 0640)"),
        (_copy("dbs1.key", "dbs2.key"), "key", "is not the key of"),
        (_foreign, "certificate", "is not signed by"),
    ],
)
def test_each_fault_of_a_file_is_found_and_named(
    file: Path, change: Callable[[Path], object], key: str, words: str
) -> None:
    change(file.parent / "certs")
    found = _problems(file)
    assert list(found) == [f"sites.dbs2.tls.{key}"]
    problem, is_error = found[f"sites.dbs2.tls.{key}"]
    assert is_error
    assert words in problem
    assert str(file.parent / "certs") in problem


def _signed_by_authority(folder: Path, key: Any) -> None:
    """Write a certificate for dbs2 as the operator's own authority could make it."""
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    signer: Any = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dbs2")])
    made = (
        x509.CertificateBuilder(authority.subject, name, key.public_key(), 1, NOW, NOW + dt.timedelta(days=90))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(principal_of("hr_net", "dbs2"))]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / "dbs2.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "dbs2.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rsa.generate_private_key(65537, 1024), "has a key of 1024 bits (RSA)"),
        (lambda: ec.generate_private_key(ec.SECP192R1()), "has a key of 192 bits (EC)"),
        (lambda: rsa.generate_private_key(65537, 2048), ""),
        (ed25519.Ed25519PrivateKey.generate, ""),
    ],
)
def test_weak_key_of_a_site_is_a_warning(file: Path, make: Callable[[], Any], words: str) -> None:
    _signed_by_authority(file.parent / "certs", make())
    found = tls_findings(read_topology(file), now=NOW)
    assert [(each.path, each.is_error) for each in found] == [("sites.dbs2.tls.certificate", False)] * bool(words)
    assert all(words in each.problem for each in found)


def test_weak_key_of_an_authority_is_a_warning(file: Path) -> None:
    folder, key = file.parent / "certs", rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weak")])
    weak = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + dt.timedelta(days=90))
    with (folder / "ca.pem").open("ab") as authorities:  # next to the signing one: both are trusted
        authorities.write(weak.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    found = tls_findings(read_topology(file), now=NOW)
    assert {(each.path, each.is_error) for each in found} == {
        ("sites.dbs1.tls.authority", False),
        ("sites.dbs2.tls.authority", False),
    }
    assert all("has a key of 1024 bits (RSA)" in each.problem for each in found)


def test_printed_command_closes_a_key_in_a_folder_with_a_blank_in_its_name(file: Path) -> None:
    moved = (file.parent / "my certs").absolute()
    (file.parent / "certs").rename(moved)
    file.write_text(file.read_text().replace("certs/", "my certs/"))
    (moved / "dbs2.key").chmod(0o640)
    (found,) = tls_findings(read_topology(file), now=NOW)
    subprocess.run(["/bin/sh", "-c", found.fix], check=True)
    assert _problems(file) == {}


def _lists(file: Path, text: str | None) -> TopologySpec:
    """The topology with a list of revoked certificates. If `text` is None, the file does not exist."""
    file.write_text(file.read_text().replace("tls: {", 'tls: {revoked: "certs/revoked of {site}", '))
    if text is not None:
        for site in ("dbs1", "dbs2"):
            (file.parent / "certs" / f"revoked of {site}").write_text(text)
    return read_topology(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "there is no such file"), ("# ok\nAB:CD\n", "no SHA-256 fingerprint stands in line 2"), ("# empty\n", "")],
)
def test_check_refuses_an_invalid_or_missing_list_of_revoked_certificates(
    file: Path, text: str | None, words: str
) -> None:
    spec = _lists(file, text)
    found = {finding.path: (finding.problem, finding.is_error) for finding in tls_findings(spec, now=NOW)}
    folder = file.parent / "certs"
    assert found == (
        {}
        if not words
        else {
            f"sites.{site}.tls.revoked": (f"{folder.resolve()}/revoked of {site}: {words}", True)
            for site in ("dbs1", "dbs2")
        }
    )
    assert all(identity.must_list for site in ("dbs1", "dbs2") if (identity := identity_of(spec, site)) is not None)


def test_check_refuses_a_site_with_a_revoked_certificate(file: Path) -> None:
    spec = _lists(file, "")
    shown: dict[str, str] = {}

    def show() -> None:
        code, told, _ = run("certs", "--topology", str(file), "--json")
        assert code == 0
        shown.update(json.loads(told)["fingerprints"])

    show()
    (file.parent / "certs" / "revoked of dbs2").write_text(f"{shown['dbs2']}  # the line that it prints\n")
    (found,) = tls_findings(spec, now=NOW)
    assert found.path == "sites.dbs2.tls.certificate"
    assert found.is_error
    assert "is revoked by" in found.problem
    for ending in ("pem", "key"):
        (file.parent / "certs" / f"dbs2.{ending}").unlink()
    revoked = shown["dbs2"]
    code, told, _ = run("certs", str(file.parent / "certs"), "--topology", str(file))
    assert code == 0
    show()
    assert shown["dbs2"] != revoked
    assert f"{shown['dbs2']}  # dbs2" in told
    assert [found for found in tls_findings(spec, now=NOW) if "revoked" in found.problem] == []


def test_certificate_of_another_site_is_found_by_its_name(file: Path) -> None:
    folder = file.parent / "certs"
    for ending in ("pem", "key"):
        _copy(f"dbs1.{ending}", f"dbs2.{ending}")(folder)
    ((problem, is_error),) = _problems(file).values()
    assert is_error
    assert "is not for dbs2.hr-net.headrace.internal, but for dbs1.hr-net.headrace.internal" in problem


@pytest.mark.parametrize(
    ("days", "words", "is_error"),
    [
        (SITE_DAYS - 31, "", False),
        (SITE_DAYS - 29, "expires on 2027-06-01", False),
        (SITE_DAYS + 1, "expired on 2027-06-01", True),
        (-1, "is not valid before", True),
    ],
)
def test_expiry_warns_a_month_before_and_is_an_error_afterwards(
    file: Path, days: int, words: str, is_error: bool
) -> None:
    found = _problems(file, NOW + dt.timedelta(days=days))
    of_sites = {path: each for path, each in found.items() if path.endswith("certificate")}
    assert bool(of_sites) == bool(words)
    for problem, found_error in of_sites.values():
        assert words in problem
        assert found_error == is_error


def test_replacement_authority_is_trusted_together_with_the_old_one(file: Path) -> None:
    folder = file.parent / "certs"
    _foreign(folder)
    both = (folder / "ca.pem").read_bytes() + (folder / "foreign" / "ca.pem").read_bytes()
    (folder / "ca.pem").write_bytes(both)
    assert _problems(file) == {}


def test_missing_files_of_a_site_with_its_own_node_are_only_a_warning(file: Path) -> None:
    _file(file.parent, "node: {site_dbs2: 1}")
    for ending in ("pem", "key"):
        (file.parent / "certs" / f"dbs2.{ending}").unlink()
    assert {is_error for _, is_error in _problems(file).values()} == {False}


@pytest.mark.parametrize("name", ["ca.pem", "dbs1.pem", "", "shared"])
def test_file_that_others_could_write_or_replace_is_named_with_the_fix(file: Path, name: str) -> None:
    """The owner of the authority's certificate can impersonate any site."""
    certs = file.parent / "certs"
    if name == "shared":  # the target of a link
        (certs / "shared").mkdir()
        (certs / "ca.pem").rename(certs / "shared" / "ca.pem")
        (certs / "ca.pem").symlink_to("shared/ca.pem")
    (certs / name).chmod(0o777)
    found = tls_findings(read_topology(file), now=NOW)
    assert found
    for each in found:
        assert not each.is_error
        assert f"other users may write {certs / name}" in each.problem
        subprocess.run(["bash", "-c", each.fix.partition(",")[0]], check=True)
    assert _problems(file) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_named(file: Path) -> None:
    authority = file.parent / "certs" / "ca.pem"
    os.chown(authority, NOBODY, -1)
    ((path, (problem, is_error)),) = _problems(file).items()
    assert (path, is_error) == ("sites.dbs1.tls.authority", False)
    assert f"{authority} belongs to user {NOBODY}" in problem


def test_missing_certificate_stops_check_and_not_status(file: Path) -> None:
    (file.parent / "certs" / "dbs2.pem").unlink()
    errors = [finding for finding in check_topology(file, ask_databases=False).findings if finding.is_error]
    assert [finding.path for finding in errors] == ["sites.dbs2.tls.certificate"]
    assert read_topology(file, to_start=False).site("dbs2").tls is not None


def test_site_overrides_single_keys_and_every_site_needs_a_certificate(tmp_path: Path) -> None:
    spec = read_topology(_file(tmp_path, "tls: {key: /keys/own.key}"))
    tls = spec.site("dbs2").tls
    assert tls is not None
    assert (tls.authority, tls.certificate, tls.key) == (
        tmp_path / "certs/ca.pem",
        tmp_path / "certs/dbs2.pem",
        Path("/keys/own.key"),
    )
    file = _file(tmp_path)
    file.write_text(file.read_text().replace("tls: {authority", "tls: none # {authority"))
    assert all(site.tls is None for site in read_topology(file).sites)
    file = _file(tmp_path, "tls: {authority: ca.pem, certificate: a.pem, key: a.key}")
    file.write_text(file.read_text().replace("tls: {authority: certs", "# {authority: certs"))
    with pytest.raises(TopologyError, match="has no tls, and dbs2 has"):
        read_topology(file)
    file = _file(tmp_path)
    file.write_text(file.read_text().replace("authority: certs/ca.pem, ", ""))
    with pytest.raises(TopologyError, match=r"tls\.authority.*is missing"):
        read_topology(file)
    file.write_text(file.read_text().replace("certificate:", "certifcate:"))
    with pytest.raises(TopologyError, match="did you mean 'certificate'"):
        read_topology(file)
