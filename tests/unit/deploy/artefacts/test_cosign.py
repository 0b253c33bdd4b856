"""What cosign is asked: with a key, and keyless, which no test can see through to its end.

Fulcio and Rekor, which make the certificates and the log of keyless signatures, cannot be reached
from here. That cosign itself takes these words is tested in tests/containers/supply.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.artefacts.cosign import (
    PROVENANCE,
    SBOM,
    sign_file,
    sign_image,
    signer_of,
    verify_file,
    verify_image,
)
from deploy.artefacts.keys import Signer, parse_signing_key, read_signer
from deploy.artefacts.reference import parse_reference
from deploy.host.errors import SignatureError
from tests.cosign import Cosign

REFERENCE = parse_reference(f"registry.example.org/lab/numl@sha256:{'ab' * 32}")
IDENTITY, ISSUER = "release@example.org", "https://accounts.example.org"
KEYLESS = ["--certificate-identity", IDENTITY, "--certificate-oidc-issuer", ISSUER]


@pytest.fixture
def cosign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cosign:
    return Cosign.install(tmp_path / "bin", monkeypatch)


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    file = tmp_path / "signer.toml"
    file.write_text(f'identity = "{IDENTITY}"\nissuer = "{ISSUER}"\n')
    return read_signer(file)


@pytest.fixture
def statements(tmp_path: Path) -> dict[str, Path]:
    documents = {SBOM: {"bomFormat": "CycloneDX"}, PROVENANCE: {"predicate": {"by": "us"}}}
    for kind, document in documents.items():
        (tmp_path / kind).write_text(json.dumps(document))
    return {kind: tmp_path / kind for kind in documents}


def test_an_image_is_signed_keyless_with_its_statements(
    cosign: Cosign, statements: dict[str, Path]
) -> None:
    sign_image(REFERENCE, "keyless", statements)
    sign, *attests = cosign.asked
    assert sign == ["sign", "--yes", str(REFERENCE)]
    for kind, words in zip(statements, attests, strict=True):
        before = ["attest", "--yes", "--type", kind, "--replace", "--predicate"]
        assert (words[:6], words[-1]) == (before, str(REFERENCE))


def test_with_a_key_nothing_goes_to_a_public_log(
    cosign: Cosign, statements: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    key = tmp_path / "cosign.key"
    key.touch()
    sign_image(REFERENCE, key, statements)
    with_key = ["--yes", "--tlog-upload=false", "--key", str(key)]
    assert [words[1:5] for words in cosign.asked] == [with_key] * 3


def test_an_image_is_verified_by_whom_its_certificate_names(cosign: Cosign, signer: Signer) -> None:
    verify_image(REFERENCE, signer)
    assert cosign.asked == [
        ["verify", *KEYLESS, str(REFERENCE)],
        *(
            ["verify-attestation", "--type", kind, *KEYLESS, str(REFERENCE)]
            for kind in (SBOM, PROVENANCE)
        ),
    ]


def test_checksums_have_a_bundle_with_the_certificate(
    cosign: Cosign, signer: Signer, tmp_path: Path
) -> None:
    sums, bundle = tmp_path / "SHA256SUMS", tmp_path / "SHA256SUMS.bundle"
    sign_file(sums, bundle, "keyless")
    verify_file(sums, bundle, signer)
    assert cosign.asked == [
        ["sign-blob", "--yes", "--bundle", str(bundle), str(sums)],
        ["verify-blob", *KEYLESS, "--bundle", str(bundle), str(sums)],
    ]


def test_another_identity_is_refused_in_a_line(cosign: Cosign, signer: Signer) -> None:
    said = "none of the expected identities matched what was in the certificate"
    cosign.refuse({"verify": f"Error: no matching signatures: {said}\nmain.go:74: error"})
    with pytest.raises(SignatureError) as caught:
        verify_image(REFERENCE, signer)
    assert caught.value.cause.startswith(f"{REFERENCE} is not what {IDENTITY} ({ISSUER}) signed")


def test_where_to_log_in_is_shown_and_a_network_that_is_missing_is_a_line(
    cosign: Cosign, statements: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    log_in = "Enter the verification code ABCD in your browser at: https://login.example.org"
    reason = "getting key from Fulcio: dial tcp: lookup fulcio.sigstore.dev: no such host"
    cosign.refuse({"sign": f"Generating ephemeral keys...\n{log_in}\nError: {reason}"})
    with pytest.raises(SignatureError) as caught:
        sign_image(REFERENCE, "keyless", statements)
    assert capsys.readouterr().err == f"{log_in}\n"
    assert caught.value.cause == f"cosign cannot sign {REFERENCE} keyless: {reason}"
    assert "Fulcio and Rekor; without them --sign cosign.key" in str(caught.value.remedy)


def test_whose_signature_it_is_only_a_key_or_a_named_signer_tells(
    cosign: Cosign, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    (tmp_path / "cosign.key").touch()
    with signer_of(tmp_path / "cosign.key", signer) as found:
        assert found is not None
        assert found.path.read_bytes() == cosign.key.read_bytes()
    with signer_of("keyless", signer) as found:
        assert found == signer
    for other in (None, read_signer(cosign.key)):
        with signer_of("keyless", other) as found:
            assert found is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('identity = "a@b"\n', "names no signer"),
        ('identity = "a@b"\nissuer = ""\n', "names no signer"),
        ('identity = "a@b"\nissuer = 1\n', "names no signer"),
        ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "is a private key"),
        ("what is this?", "is no public key"),
    ],
)
def test_a_file_that_says_nobody_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "signer.toml"
    file.write_text(text)
    with pytest.raises(SignatureError, match=f"signer.toml {said}"):
        read_signer(file)


def test_keyless_is_a_word_of_its_own() -> None:
    assert parse_signing_key("keyless") == "keyless"
    assert parse_signing_key("./cosign.key") == Path("cosign.key")
