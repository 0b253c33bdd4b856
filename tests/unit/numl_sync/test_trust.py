"""Which files hold a key, and which signatures are its own."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    SECP384R1,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from numl_sync.errors import UsageError
from numl_sync.trust import read_trust

OWNER = generate_private_key(SECP256R1())
PLACE = "s3://models"


def pem(key: object) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_what_cosign_writes_is_verified(tmp_path):
    key = tmp_path / "cosign.pub"
    key.write_bytes(pem(OWNER.public_key()))
    trust = read_trust(key, PLACE, 3)
    assert trust.verify is not None
    assert (trust.place, trust.least, len(trust.key)) == (PLACE, 3, 64)
    signature = base64.b64encode(OWNER.sign(b"content", ECDSA(SHA256())))
    assert trust.verify(b"content", signature)
    assert trust.verify(b"content", signature + b"\n")
    others = generate_private_key(SECP256R1()).sign(b"content", ECDSA(SHA256()))
    for wrong in (b"", b"\xff", b"AAAA", b"=", signature[:-4], base64.b64encode(others)):
        assert not trust.verify(b"content", wrong), wrong
    assert not trust.verify(b"another", signature)


def test_without_a_key_nothing_is_verified():
    assert read_trust(None, PLACE, 0).verify is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a public key"),
        (
            OWNER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            "not a public key",
        ),
        (pem(generate_private_key(SECP384R1()).public_key()), "not a key of ECDSA P-256"),
        (pem(ed25519.Ed25519PrivateKey.generate().public_key()), "not a key of ECDSA P-256"),
        (pem(rsa.generate_private_key(65537, 2048).public_key()), "not a key of ECDSA P-256"),
    ],
    ids=["empty", "private", "P-384", "Ed25519", "RSA"],
)
def test_another_kind_of_file_is_refused(tmp_path, content, words):
    key = tmp_path / "key"
    key.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_trust(key, PLACE, 0)


def test_a_key_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="none: No such file or directory"):
        read_trust(tmp_path / "none", PLACE, 0)
