"""Files for TLS, checked before they are used."""

import os
import shlex
import ssl
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.checks.host import tls_findings
from deploy.client.tls import Role, check_authorities, check_pair, check_server_files
from deploy.deployment.deployment import Deployment, Tls
from deploy.host.errors import DeploymentError
from deploy.host.finding import Finding
from tests.certificates import FAR_AHEAD, LONG_AGO, Authority, Pair

CURVED = ec.generate_private_key(ec.SECP256R1())
NAMES = x509.SubjectAlternativeName([x509.DNSName("localhost")])


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "site")


def refusal(pair: Pair, role: Role = "server") -> DeploymentError:
    return refused(lambda: check_pair(pair.cert, pair.key, role=role))


def refused(check: Callable[[], object]) -> DeploymentError:
    with pytest.raises(DeploymentError) as caught:
        check()
    assert "\n" not in caught.value.cause
    return caught.value


@pytest.mark.parametrize(
    ("role", "key_type"), [("server", trustme.KeyType.RSA), ("client", trustme.KeyType.ECDSA)]
)
def test_what_a_good_certificate_says_is_told(authority, role, key_type):
    pair = authority.issue("triton.example.org", "10.0.0.5", key_type=key_type)
    certificate = check_pair(pair.cert, pair.key, role=role)
    assert certificate.names == ("triton.example.org", "10.0.0.5")
    assert certificate.issuer == "site, tests"
    assert certificate.not_before < certificate.not_after


def test_a_wildcard_stands_for_some_host(authority):
    pair = authority.issue("*.example.org")
    assert check_pair(pair.cert, pair.key, role="server").host == "any.example.org"


@pytest.mark.parametrize(("cert", "key", "cause", "remedy"), [
    ("site.a.2021.pem", "site.a.2021.key",
     "certificate {cert}: expired on 2021-01-01 00:00 UTC", "renew it"),
    ("site.a.2091.pem", "site.a.2091.key",
     "certificate {cert}: valid only from 2090-01-01 00:00 UTC", "check this host's clock (date)"),
    ("site.a.pem", "site.b.key", "certificate {cert}: does not match the private key {key}", None),
    ("chain.pem", "site.a.key",
     "certificate {cert}: the one of the private key {key} is not the first",
     "put it before those of the authorities, and each of them after what it signed"),
    ("site.a.key", "site.a.pem", "certificate {cert}: contains no certificate in PEM form", None),
    ("damaged", "site.a.key", "certificate {cert}: contains a damaged certificate in PEM form",
     None),
    ("site.a.pem", "site.a.pem",
     "private key {key}: contains a certificate but no private key in PEM form", None),
    ("site.a.pem", "empty", "private key {key}: contains no private key in PEM form", None),
    ("site.a.pem", "bytes", "private key {key}: contains no private key in PEM form", None),
    ("site.a.pem", "cut", "private key {key}: contains a damaged private key, or one of an unknown "
     "kind, in PEM form", None),
    ("none", "site.a.key", "certificate {cert}: no such file", "--tls-cert with a readable file"),
    ("site.a.pem", "none", "private key {key}: no such file", "--tls-key with a readable file"),
    (".", "site.a.key", "certificate {cert}: Is a directory", "--tls-cert with a readable file"),
    ("site.a.pem", "/dev/zero", "private key {key}: not a file", "--tls-key with a readable file"),
    ("site.a.pem", "pipe", "private key {key}: not a file", "--tls-key with a readable file"),
])  # fmt: skip
def test_a_file_that_is_of_no_use_is_named_with_what_it_is(
    authority, tmp_path, cert, key, cause, remedy
):
    for name, valid in (("a", None), ("b", None), ("a", LONG_AGO), ("a", FAR_AHEAD)):
        authority.issue(name, valid=valid)
    for name, content in {
        "chain.pem": authority.file.read_bytes() + (tmp_path / "site.a.pem").read_bytes(),
        "damaged": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "cut": b"-----BEGIN PRIVATE KEY-----\ncut",
        "bytes": b"\x00\xff",
        "empty": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    pair = Pair(tmp_path / cert, tmp_path / key)
    error = refusal(pair)
    assert (error.cause, error.remedy) == (cause.format(cert=pair.cert, key=pair.key), remedy)


def test_a_certificate_whose_key_is_of_an_unknown_kind_matches_no_other(authority, tmp_path):
    key, odd = authority.issue("a").key, tmp_path / "odd.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime239v1", "-nodes")
    words = ["openssl", "req", "-x509", *curve, "-subj", "/CN=a", "-keyout", "k", "-out", str(odd)]
    subprocess.run(words, check=True, capture_output=True, cwd=tmp_path)
    assert refusal(Pair(odd, key)).cause == (
        f"certificate {odd}: does not match the private key {key}"
    )


def test_a_key_that_comes_with_its_curve_is_read(tmp_path):
    pair = self_signed(tmp_path, CURVED)
    words = ["openssl", "ecparam", "-name", "prime256v1"]
    curve = subprocess.run(words, check=True, capture_output=True).stdout
    assert b"EC PARAMETERS" in curve
    own = CURVED.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    pair.key.write_bytes(curve + own)
    assert check_pair(pair.cert, pair.key, role="server").subject == "me"


def test_beside_a_clients_missing_file_stands_the_option_to_correct(authority, tmp_path):
    pair, none = authority.issue("a"), tmp_path / "none.pem"
    for wrong, option in ((Pair(none, pair.key), "--cert"), (Pair(pair.cert, none), "--key")):
        assert refusal(wrong, "client").remedy == f"{option} with a readable file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(authority):
    pair = authority.issue("a")
    pair.key.chmod(0)
    assert refusal(pair).cause == f"private key {pair.key}: Permission denied"


@pytest.mark.parametrize(
    ("form", "name"),
    [(PrivateFormat.PKCS8, "own.key"), (PrivateFormat.TraditionalOpenSSL, "my key; true.pem")],
)
def test_a_key_with_a_passphrase_is_refused_with_a_command_that_can_be_pasted(
    authority, tmp_path, form, name
):
    key = tmp_path / name
    key.write_bytes(CURVED.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"secret")))
    error = refusal(Pair(authority.issue("a").cert, key))
    assert error.cause == (
        f"private key {key}: needs a passphrase, which cannot be typed when a server starts"
    )
    shown = shlex.quote(str(key))
    assert error.remedy == f"openssl pkey -in {shown} -out PLAIN.key; chmod 600 PLAIN.key"


def self_signed(folder: Path, key: Any, *extensions: x509.ExtensionType) -> Pair:
    """Make a certificate whose subject is called me."""
    pair = Pair(folder / "c.pem", folder / "c.key")
    me = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "me")])
    now = datetime.now(timezone.utc)
    made = x509.CertificateBuilder(me, me, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    for extension in extensions:
        made = made.add_extension(extension, critical=False)
    ed25519 = isinstance(key, Ed25519PrivateKey)
    signed = made.sign(key, None if ed25519 else hashes.SHA256())
    pair.cert.write_bytes(signed.public_bytes(Encoding.PEM))
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pair


_ONE, _TWO = "1.2.3.4.5", "1.2.3.4.6"
_NULL = b"\x05\x00"


@pytest.mark.parametrize(
    "extensions",
    [
        {_ONE: _NULL, _TWO: _NULL},  # the second is given the first's name
        {"2.5.29.17": bytes.fromhex("3004a3023000")},  # alternative names, one of X.400
    ],
)
def test_a_certificate_whose_extensions_cannot_be_read_still_says_when_it_ends(
    tmp_path, extensions
):
    unknown = [
        x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value)
        for oid, value in extensions.items()
    ]
    pair = self_signed(tmp_path, CURVED, *unknown)
    stored = x509.load_pem_x509_certificate(pair.cert.read_bytes()).public_bytes(Encoding.DER)
    renamed = stored.replace(bytes.fromhex("06042a030406"), bytes.fromhex("06042a030405"))
    pair.cert.write_text(ssl.DER_cert_to_PEM_cert(renamed))
    found = check_pair(pair.cert, pair.key, role="server")
    assert (found.subject, found.names) == ("me", ())
    assert found.not_before < found.not_after


@pytest.mark.parametrize(
    ("key", "extension", "reason"),
    [
        (rsa.generate_private_key(65537, 1024), NAMES, "ee key too small"),
        (CURVED, x509.UnrecognizedExtension(NAMES.oid, b"\xff"), "invalid certificate"),
    ],
    ids=["a short key", "a damaged extension"],
)
def test_a_certificate_that_openssl_does_not_take_is_refused(tmp_path, key, extension, reason):
    pair = self_signed(tmp_path, key, extension)
    for role in ("server", "client"):
        assert refusal(pair, role).cause == f"certificate {pair.cert}: not usable: {reason}"


def test_a_certificate_for_clients_is_none_for_a_server(tmp_path):
    for_clients = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    pair = self_signed(tmp_path, CURVED, for_clients)
    assert refusal(pair).cause == f"certificate {pair.cert}: was not issued for a server"
    assert check_pair(pair.cert, pair.key, role="client").subject == "me"


def test_a_key_that_grpc_does_not_know_is_refused(tmp_path):
    pair = self_signed(tmp_path, Ed25519PrivateKey.generate(), NAMES)
    error = refused(lambda: check_server_files(Tls(cert=pair.cert, key=pair.key)))
    assert error.cause.startswith(f"certificate {pair.cert}: gRPC clients reject it: ")
    assert error.remedy == "use one with an RSA or ECDSA key, for the names clients ask for"


@pytest.mark.parametrize("hosts", [["10.0.0.5"], ["::1"], ["*.example.org"], ["a", "b"]])
def test_grpc_takes_a_certificate_for_any_host(authority, hosts):
    pair = authority.issue(*hosts)
    check_server_files(Tls(cert=pair.cert, key=pair.key))


def test_a_certificate_without_names_counts_for_its_subject_and_is_warned_of(tmp_path):
    pair = self_signed(tmp_path, CURVED)
    tls = Tls(cert=pair.cert, key=pair.key)
    assert check_server_files(tls).names == ()
    unnamed = list(tls_findings(Deployment(tls=tls)))[-1]
    assert unnamed == Finding(
        "warning",
        "TLS",
        f"{pair.cert} has no subject alternative names: clients that connect by address reject "
        "it, and so do some that connect by name",
        "make one that has them: openssl req -x509 ... -addext subjectAltName=DNS:HOST,IP:ADDRESS",
    )


def test_authorities_are_certificates(authority, tmp_path):
    check_authorities(authority.file, "--ca")
    empty = tmp_path / "empty.pem"
    empty.touch()
    error = refused(lambda: check_authorities(empty, "--ca"))
    assert error.cause == f"authority {empty}: contains no certificate in PEM form"


def test_all_files_of_a_server_are_checked(authority, tmp_path):
    pair, none = authority.issue("a"), tmp_path / "none.pem"
    check_server_files(Tls(cert=pair.cert, key=pair.key, ca=authority.file))
    error = refused(lambda: check_server_files(Tls(cert=pair.cert, key=pair.key, ca=none)))
    assert error.cause == f"authority {none}: no such file"
    assert error.remedy == "--tls-ca with a readable file"
