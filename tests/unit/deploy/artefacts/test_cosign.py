"""What cosign is asked; that it takes these words is tested in tests/containers/supply."""

import base64
import json
import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from deploy.artefacts.cosign import (
    PROVENANCE,
    SBOM,
    Signed,
    sign_image,
    signed_of,
    signer_of,
    verify_image,
)
from deploy.artefacts.keys import read_signer, verifier
from deploy.artefacts.reference import parse_reference
from deploy.host.errors import SignatureError, UncheckedError
from tests.cosign import Cosign
from tests.keys import new_key, sign, write_key

REFERENCE = parse_reference(f"registry.example.org/lab/numl@sha256:{'ab' * 32}")
SIGNED = Signed("prod", "one", 3, datetime(2026, 11, 23, 2, 27, tzinfo=timezone.utc))
FACTS = {"tag": "prod", "line": "one", "sequence": "3", "created": "2026-11-23T02:27:00Z"}


@pytest.fixture
def statements(tmp_path):
    documents = {SBOM: {"bomFormat": "CycloneDX"}, PROVENANCE: {"predicate": {"by": "us"}}}
    for kind, document in documents.items():
        (tmp_path / kind).write_text(json.dumps(document))
    return {kind: tmp_path / kind for kind in documents}


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A private key, to which the stand-in's public one belongs."""
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    (tmp_path / "cosign.key").touch()
    return tmp_path / "cosign.key"


def test_with_a_key_nothing_goes_to_a_public_log(cosign, statements, private):
    sign_image(REFERENCE, private, statements, SIGNED)
    with_key = ["--yes", "--tlog-upload=false", "--key", str(private)]
    assert [words[1:5] for words in cosign.asked] == [with_key] * 3
    facts = ("tag=prod", "line=one", "sequence=3", "created=2026-11-23T02:27:00Z")
    said = [f"--annotations={each}" for each in facts]
    assert cosign.asked[0] == ["sign", *with_key, *said, str(REFERENCE)]


def test_an_image_is_verified_with_its_statements(cosign, signer):
    verify_image(REFERENCE, signer)
    with_key = ["--key", str(signer.path), "--insecure-ignore-tlog=true", str(REFERENCE)]
    assert cosign.asked == [
        ["verify", *with_key],
        *(["verify-attestation", "--type", kind, *with_key] for kind in (SBOM, PROVENANCE)),
    ]


@pytest.mark.parametrize(("optional", "found"), [
    ([], ()),
    ([None, FACTS | {"sequence": "x"}, FACTS | {"created": "y"}, {}], ()),
    ([FACTS | {"sequence": number} for number in ("2", "3")],
     (replace(SIGNED, sequence=2), SIGNED)),
])  # fmt: skip
def test_what_is_signed_with_an_image_is_read_of_each_signature(cosign, signer, optional, found):
    cosign.answer(json.dumps([{}, *({"optional": each} for each in optional)]))
    assert signed_of(REFERENCE, signer) == found


@pytest.mark.parametrize(
    "reason",
    [
        'Get "https://registry.example.org/v2/": dial tcp: lookup: no such host',
        'Get "https://registry.example.org/v2/": EOF',
        "GET https://registry.example.org/v2/: unexpected status code 503 Service Unavailable",
        "GET https://registry.example.org/token: UNAUTHORIZED: authentication required",
        "GET https://registry.example.org/v2/: TOOMANYREQUESTS: slow down",
        'Get "https://registry.example.org/v2/": tls: failed to verify certificate: x509: '
        "certificate signed by unknown authority",
        'Get "https://registry.example.org/v2/": read tcp 10.0.0.1:5->10.0.0.2:443: connection '
        "reset by peer",
        'Get "https://registry.example.org/v2/": context deadline exceeded',
    ],
)
def test_a_registry_that_does_not_answer_is_no_wrong_signature(cosign, signer, reason):
    cosign.refuse({"verify": f"Error: {reason}\nmain.go:74: error"})
    with pytest.raises(UncheckedError, match=r"^cannot check the signature of") as caught:
        verify_image(REFERENCE, signer)
    assert "network" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("no signatures found", "is not signed"),
        ("no matching signatures: invalid signature", "is not what the owner of .* signed: it has"),
    ],
)
def test_an_image_without_a_signature_is_told_from_one_that_has_changed(
    cosign, signer, said, cause
):
    cosign.refuse({"verify": f"Error: {said}"})
    with pytest.raises(SignatureError, match=f"^{REFERENCE} {cause}"):
        verify_image(REFERENCE, signer)


def test_a_key_that_does_not_belong_to_the_one_named_is_refused(
    cosign, private, tmp_path, monkeypatch
):
    pgp = tmp_path / "key.asc"
    pgp.write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    another = read_signer(Cosign.install(tmp_path / "another", monkeypatch).key)
    monkeypatch.setenv("PATH", str(cosign.folder), prepend=":")
    for named, cause, remedy in (
        (read_signer(pgp), "is a PGP key, but .*cosign.key is a cosign key", "cosign.pub"),
        (another, "is not the public key of .*cosign.key$", "the matching public key"),
    ):
        with pytest.raises(SignatureError, match=cause) as caught, signer_of(private, named):
            pass
        assert remedy in str(caught.value.remedy)
    assert {words[0] for words in cosign.asked} == {"public-key"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "is a private key"),
        ("what is this?", "is not a public key"),
        ("", "is not a public key"),
    ],
)
def test_a_file_that_is_no_public_key_is_refused(tmp_path, text, said):
    file = tmp_path / "cosign.pub"
    file.write_text(text)
    with pytest.raises(SignatureError, match=f"cosign.pub {said}$"):
        read_signer(file)


def test_what_never_ends_is_no_public_key(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for endless in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(SignatureError, match=f"^public key {endless}: not a file$"):
            read_signer(endless)


def test_a_signature_is_of_one_key_and_one_content(tmp_path):
    signers = []
    for name in ("ours", "others"):
        private = new_key()
        signers.append((private, read_signer(write_key(private, tmp_path / name))))
    (ours, signer), (others, _) = signers
    content = b"a statement"
    signed = [sign(key, content) for key in (ours, others)]
    assert [verifier(signer)(content, each) for each in signed] == [True, False]
    assert verifier(signer)(content, signed[0] + b"\n")
    for wrong in (b"", b"?", b"\xff", signed[0][:-8], base64.b64encode(b"x")):
        assert not verifier(signer)(content, wrong)
    assert not verifier(signer)(content + b" ", signed[0])


def test_a_public_key_is_the_same_however_it_is_written(cosign, private):
    written = cosign.folder / "written.pub"
    written.write_bytes(b"of the lab\r\n" + cosign.key.read_bytes().replace(b"\n", b"\r\n"))
    with signer_of(private, read_signer(written)):
        pass
