"""Which files hold a key, and which signatures are its own."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from numl_sync.errors import UsageError
from numl_sync.trust import read_trust

from tests.keys import new_key, public_pem, sign, write_key

OWNER = new_key()
PLACE = "s3://models"


def test_what_cosign_writes_is_verified(tmp_path):
    trust = read_trust(write_key(OWNER, tmp_path / "cosign.pub"), PLACE, 3)
    assert (trust.place, trust.least, len(trust.key)) == (PLACE, 3, 64)
    signature = sign(OWNER, b"content")
    assert trust.verify(b"content", signature)
    assert trust.verify(b"content", signature + b"\n")
    for wrong in (b"", b"\xff", b"AAAA", b"=", signature[:-4], sign(new_key(), b"content")):
        assert not trust.verify(b"content", wrong), wrong
    assert not trust.verify(b"another", signature)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a public key"),
        (
            OWNER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            "not a public key",
        ),
        (public_pem(generate_private_key(SECP384R1())), "not a key of ECDSA P-256"),
        (public_pem(ed25519.Ed25519PrivateKey.generate()), "not a key of ECDSA P-256"),
        (public_pem(rsa.generate_private_key(65537, 2048)), "not a key of ECDSA P-256"),
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
