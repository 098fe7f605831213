"""Certificates that a topology makes for itself: when they are renewed, and that running components can always use
them.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from actors.security.authority import AUTHORITY_DAYS, SITE_DAYS, make_certificates
from actors.security.examination import tls_findings
from actors.security.upkeep import keep_certificates
from headrace.base.errors import ConfigError
from protos.wire.revoked import fingerprint_of, printed_fingerprint
from tests.support.topologies.files import ONE_WAY, read
from topology.edits.stored import PREPARED_FILE, spec_to_json
from topology.links import CERTIFICATES, MADE_AUTHORITY, REVOKED
from topology.spec import TopologySpec

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
ALL = (MADE_AUTHORITY, "a", "b")


@pytest.fixture
def spec(tmp_path: Path) -> TopologySpec:
    return read(tmp_path, ONE_WAY)


@pytest.fixture
def folder(spec: TopologySpec) -> Path:
    return spec.state_dir / CERTIFICATES


def _verify(folder: Path, *sites: str) -> None:
    authority = x509.load_pem_x509_certificate((folder / f"{MADE_AUTHORITY}.pem").read_bytes())
    for site in sites:
        x509.load_pem_x509_certificate((folder / f"{site}.pem").read_bytes()).verify_directly_issued_by(authority)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_site_gets_a_certificate_that_only_this_user_can_read(spec: TopologySpec, folder: Path) -> None:
    assert keep_certificates(spec, now=NOW) == ALL
    _verify(folder, "a", "b")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(_contents(folder)) == sorted(f"{name}.{ending}" for name in ALL for ending in ("pem", "key"))
    assert tls_findings(spec, now=NOW) == ()


def test_certificates_are_kept_for_two_thirds_of_their_life(spec: TopologySpec, folder: Path) -> None:
    keep_certificates(spec, now=NOW)
    before = _contents(folder)
    assert keep_certificates(spec, now=NOW + dt.timedelta(days=SITE_DAYS * 2 // 3 - 1)) == ()
    assert _contents(folder) == before


def test_site_certificate_in_its_last_third_is_renewed_by_its_authority(spec: TopologySpec, folder: Path) -> None:
    keep_certificates(spec, now=NOW)
    before = _contents(folder)
    assert keep_certificates(spec, now=NOW + dt.timedelta(days=SITE_DAYS * 2 // 3 + 1)) == ("a", "b")
    after = _contents(folder)
    assert {name for name in after if after[name] == before[name]} == {f"{MADE_AUTHORITY}.pem", f"{MADE_AUTHORITY}.key"}
    _verify(folder, "a", "b")


def test_revoked_certificate_is_replaced_and_stays_revoked(spec: TopologySpec, folder: Path) -> None:
    keep_certificates(spec, now=NOW)
    before = _contents(folder)
    listed = spec.state_dir / REVOKED
    assert [site.tls and site.tls.revoked for site in spec.sites] == [listed, listed]
    listed.write_text(printed_fingerprint(fingerprint_of(before["a.pem"].decode())))
    (found,) = tls_findings(spec, now=NOW)
    assert (found.path, found.is_error) == ("sites.a.tls.certificate", False)
    assert keep_certificates(spec, now=NOW) == ("a",)
    _verify(folder, "a", "b")
    assert _contents(folder)["b.pem"] == before["b.pem"]
    assert keep_certificates(spec, now=NOW) == ()
    assert tls_findings(spec, now=NOW) == ()
    # A faulty line is refused, and does not disable the valid lines.
    listed.write_text(f"oops\n{fingerprint_of(before['b.pem'].decode())}\n")
    assert [(found.path, found.is_error) for found in tls_findings(spec, now=NOW)] == [
        ("sites.b.tls.certificate", False),
        ("sites.a.tls.revoked", True),
    ]
    assert keep_certificates(spec, now=NOW) == ("b",)


def test_authority_is_renewed_with_its_key_and_old_signatures_stay_valid(spec: TopologySpec, folder: Path) -> None:
    later = NOW + dt.timedelta(days=AUTHORITY_DAYS * 2 // 3 + 1)
    keep_certificates(spec, now=NOW)
    before = _contents(folder)
    (folder / f"{MADE_AUTHORITY}.pem").rename(folder / "old.pem")
    for name in ("a", "b"):  # as the daily checks in between leave them
        (folder / f"{name}.pem").unlink()
    (folder / "old.pem").rename(folder / f"{MADE_AUTHORITY}.pem")
    keep_certificates(spec, now=later - dt.timedelta(days=2))
    signed = _contents(folder)
    assert keep_certificates(spec, now=later) == (MADE_AUTHORITY,)
    after = _contents(folder)
    assert after[f"{MADE_AUTHORITY}.key"] == before[f"{MADE_AUTHORITY}.key"]
    assert after[f"{MADE_AUTHORITY}.pem"] != before[f"{MADE_AUTHORITY}.pem"]
    assert [after[f"{name}.pem"] for name in "ab"] == [signed[f"{name}.pem"] for name in "ab"]
    _verify(folder, "a", "b")
    assert tls_findings(spec, now=later) == ()


def _of_another_authority(folder: Path) -> None:
    make_certificates(folder / "other", "t", ["b"], now=NOW)
    for ending in ("pem", "key"):
        (folder / "other" / f"b.{ending}").replace(folder / f"b.{ending}")


def _of_another_site(folder: Path) -> None:
    for ending in ("pem", "key"):
        (folder / f"b.{ending}").write_bytes((folder / f"a.{ending}").read_bytes())


DAMAGE: list[tuple[str, Callable[[Path], object], tuple[str, ...]]] = [
    ("a certificate is gone", lambda folder: (folder / "b.pem").unlink(), ("b",)),
    ("a key is gone", lambda folder: (folder / "b.key").unlink(), ("b",)),
    ("a certificate is cut off", lambda folder: (folder / "b.pem").write_text("no"), ("b",)),
    (
        "a key is of another certificate",
        lambda folder: (folder / "b.key").write_bytes((folder / "a.key").read_bytes()),
        ("b",),
    ),
    ("others may read a key", lambda folder: (folder / "b.key").chmod(0o640), ("b",)),
    ("another authority signed it", _of_another_authority, ("b",)),
    ("it is another site's", _of_another_site, ("b",)),
    ("the authority's key is gone", lambda folder: (folder / f"{MADE_AUTHORITY}.key").unlink(), ALL),
    ("the authority's certificate is gone", lambda folder: (folder / f"{MADE_AUTHORITY}.pem").unlink(), ALL),
    ("the process that wrote them died", lambda folder: (folder / "b.key.new").write_text("half"), ()),
]


@pytest.mark.parametrize(("damage", "made"), [each[1:] for each in DAMAGE], ids=[each[0] for each in DAMAGE])
def test_only_unusable_certificates_are_replaced(
    spec: TopologySpec, folder: Path, damage: Callable[[Path], object], made: tuple[str, ...]
) -> None:
    keep_certificates(spec, now=NOW)
    damage(folder)
    found = tls_findings(spec, now=NOW)
    assert not [each for each in found if each.is_error]
    assert keep_certificates(spec, now=NOW) == made
    _verify(folder, "a", "b")
    assert tls_findings(spec, now=NOW) == ()
    assert keep_certificates(spec, now=NOW) == ()


def test_check_names_lost_certificates_of_prepared_sites_only(spec: TopologySpec, folder: Path, tmp_path: Path) -> None:
    spec.state_dir.mkdir(parents=True, exist_ok=True)
    assert tls_findings(spec, now=NOW) == ()
    keep_certificates(spec, now=NOW)
    (spec.state_dir / PREPARED_FILE).write_text(json.dumps({"spec": spec_to_json(spec)}))
    more = read(tmp_path, ONE_WAY.replace("  b:", "  ca: {database: {kind: embedded}}\n  b:"))
    assert tls_findings(more, now=NOW) == ()
    shutil.rmtree(folder)
    found = tls_findings(more, now=NOW)
    assert {each.path.split(".")[1] for each in found} == {"a", "b"}
    assert {(each.is_error, each.fix) for each in found} == {
        (False, "`headrace up` makes another one: it takes effect without a restart")
    }


def test_topology_that_ran_without_certificates_lacks_none(spec: TopologySpec) -> None:
    spec.state_dir.mkdir(parents=True, exist_ok=True)
    earlier = replace(spec, sites=tuple(replace(site, tls=None) for site in spec.sites))
    (spec.state_dir / PREPARED_FILE).write_text(json.dumps({"spec": spec_to_json(earlier)}))
    assert tls_findings(spec, now=NOW) == ()


def test_clock_set_back_gets_certificates_that_are_valid_then(spec: TopologySpec, folder: Path) -> None:
    keep_certificates(spec, now=NOW)
    earlier = NOW - dt.timedelta(days=30)
    assert keep_certificates(spec, now=earlier) == ALL
    assert tls_findings(spec, now=earlier) == ()
    _verify(folder, "a", "b")


def test_folder_open_to_others_is_closed_and_a_link_is_refused(
    spec: TopologySpec, folder: Path, tmp_path: Path
) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    keep_certificates(spec, now=NOW)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="no certificates for the links can be made"):
        keep_certificates(spec, now=NOW)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_folder_of_another_user_is_refused(spec: TopologySpec, folder: Path) -> None:
    folder.mkdir(parents=True)
    os.chown(folder, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        keep_certificates(spec, now=NOW)


def test_joining_site_gets_a_certificate_and_files_own_ones_are_left_alone(
    spec: TopologySpec, folder: Path, tmp_path: Path
) -> None:
    keep_certificates(spec, now=NOW)
    more = read(tmp_path, ONE_WAY.replace("  b:", "  ca: {database: {kind: embedded}}\n  b:"))
    assert keep_certificates(more, now=NOW) == ("ca",)
    _verify(folder, "a", "b", "ca")
    before = _contents(folder)
    for said in ("tls: none\n", 'tls: {authority: x, certificate: "{site}", key: z}\n'):
        assert keep_certificates(read(tmp_path, said + ONE_WAY.lstrip()), now=NOW + dt.timedelta(days=1000)) == ()
    assert _contents(folder) == before
