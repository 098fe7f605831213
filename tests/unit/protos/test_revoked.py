"""The list of revoked certificates: its format, when it is read, and that a mistake in it admits nobody."""

from __future__ import annotations

import datetime as dt
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from protos.wire import revoked as revoked_module
from protos.wire.revoked import LIST_BYTES_MAX, Revoked, fingerprint_of, fingerprints_of, printed_fingerprint, read_list
from tests.support.session.noted import noted
from tests.support.wire.certificates import Certificates, other_forms

A, B, C = "aa" * 32, "b0" * 32, "0c" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "revoked"


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_fingerprints_are_read_in_every_printed_form_without_comments(path: Path) -> None:
    text = (
        f"# laptops\n\n{printed_fingerprint(A)}\n  {B}  # of the hub\r\nsha256 Fingerprint={printed_fingerprint(C)}\n"
    )
    assert read_list(_written(path, text)) == (frozenset({A, B, C}), "")
    assert read_list(_written(path, "")) == (frozenset(), "")


def test_fingerprint_equals_that_of_the_certificate_library(tmp_path: Path) -> None:
    pem = Path(Certificates(tmp_path, "t", "a").of("a").certificate).read_bytes()
    assert fingerprint_of(pem.decode()) == x509.load_pem_x509_certificate(pem).fingerprint(SHA256()).hex()
    # In a chain the first certificate is the site's own; surrounding text is ignored.
    assert fingerprint_of(f"subject=a\n{pem.decode()}{(tmp_path / 'ca.pem').read_text()}") == fingerprint_of(
        pem.decode()
    )
    with pytest.raises(ValueError, match="no certificate"):
        fingerprint_of("-----END CERTIFICATE-----")


@pytest.mark.parametrize(
    "curve", [ec.SECP224R1(), ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name
)
def test_certificate_with_its_signature_in_the_other_form_is_the_same(
    curve: ec.EllipticCurve,
) -> None:
    key = ec.generate_private_key(curve)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a" * 60)])
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for _ in range(8):  # a number in DER is sometimes one byte longer or shorter
        certificate = x509.CertificateBuilder(name, name, key.public_key(), 7, at, at).sign(key, SHA256())
        pem = certificate.public_bytes(Encoding.PEM).decode()
        (other,) = (each for each in other_forms(pem) if _is_valid(each, key.public_key()))
        assert fingerprint_of(other) != fingerprint_of(pem)
        assert fingerprints_of(pem)[0] == fingerprint_of(pem)
        assert fingerprint_of(other) in fingerprints_of(pem)
        assert fingerprint_of(pem) in fingerprints_of(other)


def _is_valid(pem: str, key: ec.EllipticCurvePublicKey) -> bool:
    certificate = x509.load_pem_x509_certificate(pem.encode())
    try:
        key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def test_other_kinds_of_signature_have_one_form() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a" * 60)])
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    pem = (
        x509.CertificateBuilder(name, name, key.public_key(), 7, at, at)
        .sign(key, None)
        .public_bytes(Encoding.PEM)
        .decode()
    )
    assert fingerprints_of(pem) == (fingerprint_of(pem),)
    nothing = ssl.DER_cert_to_PEM_cert(b"\x30\x03\x02\x01")
    assert fingerprints_of(nothing) == (fingerprint_of(nothing),)


@pytest.mark.parametrize(
    "line",
    [
        A[:-1],
        A + "0",
        A.replace("a", "g"),
        ":".join([A[:2]] * 20),
        A[:32] + ":" + A[32:],
        "٠" * 64,
        "BEGIN PRIVATE KEY".join(["-----"] * 2),  # a line of a file of another kind
    ],
)
def test_invalid_line_is_named_by_its_number_and_never_shown(path: Path, line: str) -> None:
    found, problem = read_list(_written(path, f"# one\n{line}\n{B}\n"))
    assert found == {B}
    assert problem == f"{path}: no SHA-256 fingerprint stands in line 2"
    assert "lines 1, 2, 3, ..." in read_list(_written(path, f"{line}\n" * 50))[1]


def test_file_that_is_no_list_is_not_read_whole(path: Path) -> None:
    path.write_bytes(b"\0" * (LIST_BYTES_MAX + 1))
    assert read_list(str(path)) == (frozenset(), f"{path}: is longer than 1 MiB, and no list of fingerprints")


def test_faulty_list_keeps_earlier_entries_and_adds_valid_lines(path: Path) -> None:
    listed = Revoked(_written(path, A), must_exist=True)

    def look() -> tuple[list[str], str]:
        listed.look()
        return [each for each in (A, B, C) if listed.listed([each])], listed.problem

    assert look() == ([A], "")
    path.write_text(f"{B}\nnonsense\n")
    assert look() == ([A, B], f"{path}: no SHA-256 fingerprint stands in line 2")
    path.unlink()
    assert look() == ([A, B], f"{path}: there is no such file")
    path.mkdir()
    assert look()[0] == [A, B]
    assert "cannot be read" in look()[1]
    path.rmdir()
    os.mkfifo(path)  # opening it would wait for a writer
    assert look() == ([A, B], f"{path}: cannot be read: it is no file")
    path.unlink()
    path.write_text(C)
    os.utime(path, ns=(0, 0))
    assert look() == ([C], "")


def test_entry_missing_during_a_write_stays_in_force(path: Path) -> None:
    listed = Revoked(_written(path, f"{A}\n{B}\n"), must_exist=True)
    listed.look()
    for text in ("", f"{A}\n"):  # as an editor leaves it for a moment
        path.write_text(text)
        listed.look()
        assert (listed.listed([A]), listed.listed([B]), listed.problem) == (A, B, "")
    os.utime(path, ns=(0, 0))  # last written long ago
    listed.look()
    assert (listed.listed([A]), listed.listed([B])) == (A, "")


def test_missing_list_is_a_problem_if_the_operator_named_it(path: Path) -> None:
    for must_exist in (True, False):
        listed = Revoked(str(path), must_exist=must_exist)
        listed.look()
        assert bool(listed.problem) is must_exist
        assert not listed.listed([A])


def test_file_is_read_again_only_after_a_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    monkeypatch.setattr(revoked_module, "read_list", lambda name: (noted(reads, name), read_list(name))[1])
    listed = Revoked(_written(path, A), must_exist=True)
    os.utime(path, ns=(0, 0))  # long ago
    for _ in range(5):
        listed.look()
    assert len(reads) == 1
    # Same length and same time, within the clock's step.
    path.write_text(B)
    os.utime(path, ns=(0, 0))
    listed.look()
    assert (len(reads), listed.listed([A]), listed.listed([B])) == (2, "", B)
    # Just written: a second write can look the same, so the file is read again until it is old.
    path.write_text(A)
    for _ in range(2):
        listed.look()
    assert len(reads) == 4
