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
from deploy.artefacts.keys import Keyless, Signer, parse_signing_key, read_signer
from deploy.artefacts.reference import parse_reference
from deploy.host.errors import SignatureError
from tests.cosign import Cosign

REFERENCE = parse_reference(f"registry.example.org/lab/numl@sha256:{'ab' * 32}")
IDENTITY, ISSUER = "release@example.org", "https://accounts.example.org"
SILENT = Keyless(lambda _line: None)
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
    sign_image(REFERENCE, SILENT, statements)
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
    sign_file(sums, bundle, SILENT)
    verify_file(sums, bundle, signer)
    assert cosign.asked == [
        ["sign-blob", "--yes", "--bundle", str(bundle), str(sums)],
        ["verify-blob", *KEYLESS, "--bundle", str(bundle), str(sums)],
    ]


def test_another_identity_is_refused_in_a_line(cosign: Cosign, signer: Signer) -> None:
    said = "none of the expected identities matched what was in the certificate"
    whose = "got subjects [ci-build-512 on denied@timeout: EOF] with issuer https://a"
    cosign.refuse({"verify": f"Error: no matching signatures: {said}, {whose}\nmain.go:74: error"})
    with pytest.raises(SignatureError) as caught:
        verify_image(REFERENCE, signer)
    assert caught.value.cause.startswith(f"{REFERENCE} is not what {IDENTITY} ({ISSUER}) signed")


@pytest.mark.parametrize(
    "reason",
    [
        'Get "https://registry.example.org/v2/": dial tcp: lookup: no such host',
        'Get "https://registry.example.org/v2/": EOF',
        "GET https://registry.example.org/v2/: unexpected status code 503 Service Unavailable",
        "GET https://registry.example.org/token: UNAUTHORIZED: authentication required",
    ],
)
def test_a_registry_that_does_not_answer_is_no_wrong_signature(
    cosign: Cosign, signer: Signer, reason: str
) -> None:
    cosign.refuse({"verify": f"Error: {reason}\nmain.go:74: error"})
    with pytest.raises(SignatureError, match=r"^cannot check the signature of") as caught:
        verify_image(REFERENCE, signer)
    assert "network" in str(caught.value.remedy)


def test_where_to_log_in_is_shown_while_cosign_waits_and_nothing_else_of_what_it_says(
    cosign: Cosign, statements: dict[str, Path]
) -> None:
    where = "Enter the verification code ABCD in your browser at: https://login.example.org"
    until = "Code will be valid for 300 seconds"
    cosign.ask_to_log_in(f"the terms are at https://sigstore.dev\n{where}\n{until}")
    shown = []

    def show(line: str) -> None:
        shown.append(line)
        cosign.log_in()

    sign_image(REFERENCE, Keyless(show), dict(list(statements.items())[:1]))
    assert shown == [where, until] * 2


def test_a_network_that_is_missing_is_a_line(cosign: Cosign, statements: dict[str, Path]) -> None:
    reason = "getting key from Fulcio: dial tcp: lookup fulcio.sigstore.dev: no such host"
    cosign.refuse({"sign": f"Generating ephemeral keys...\nError: {reason}"})
    with pytest.raises(SignatureError) as caught:
        sign_image(REFERENCE, SILENT, statements)
    assert caught.value.cause == f"cosign cannot sign {REFERENCE} keyless: {reason}"
    assert "Fulcio and Rekor; without them, use --sign cosign.key" in str(caught.value.remedy)


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private key, to which the stand-in's public one belongs."""
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    (tmp_path / "cosign.key").touch()
    return tmp_path / "cosign.key"


def test_whose_signature_it_is_only_a_key_or_a_named_signer_tells(
    cosign: Cosign, signer: Signer, private: Path
) -> None:
    for named in (None, read_signer(cosign.key)):
        with signer_of(private, named) as found:
            assert found is not None
            assert found.path.read_bytes() == cosign.key.read_bytes()
    for each in (None, signer):
        with signer_of(SILENT, each) as found:
            assert found == each


def test_a_public_key_is_the_same_however_it_is_written(cosign: Cosign, private: Path) -> None:
    written = cosign.folder / "written.pub"
    written.write_bytes(b"of the lab\r\n" + cosign.key.read_bytes().replace(b"\n", b"\r\n"))
    with signer_of(private, read_signer(written)):
        pass


def test_a_signer_who_cannot_have_signed_is_refused_before_anything_is_signed(
    cosign: Cosign, signer: Signer, private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pgp = tmp_path / "key.asc"
    pgp.write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    another = read_signer(Cosign.install(tmp_path / "another", monkeypatch).key)
    monkeypatch.setenv("PATH", str(cosign.folder), prepend=":")
    for key, named, cause, remedy in (
        (SILENT, read_signer(cosign.key), "is a key, but keyless signing uses none", "signer.toml"),
        (SILENT, read_signer(pgp), "is a key, but keyless signing uses none", "signer.toml"),
        (private, signer, "names a keyless signer, but .*cosign.key is a cosign key", "cosign.pub"),
        (private, read_signer(pgp), "is a PGP key, but .*cosign.key is a cosign key", "cosign.pub"),
        (private, another, "is not the public key of .*cosign.key$", "the matching public key"),
    ):
        with pytest.raises(SignatureError, match=cause) as caught, signer_of(key, named):
            pass
        assert remedy in str(caught.value.remedy)
    assert {words[0] for words in cosign.asked} == {"public-key"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('identity = "a@b"\n', "names no signer"),
        ('identity = "a@b"\nissuer = ""\n', "names no signer"),
        ('identity = "a@b"\nissuer = 1\n', "names no signer"),
        ('identity = " "\nissuer = "https://a"\n', "names no signer"),
        ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "is a private key"),
        ("what is this?", "has neither a public key nor a signer"),
    ],
)
def test_a_file_that_says_nobody_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "signer.toml"
    file.write_text(text)
    with pytest.raises(SignatureError, match=f"signer.toml {said}$"):
        read_signer(file)


def test_a_file_that_is_neither_a_key_nor_a_signer_is_told_both_forms(tmp_path: Path) -> None:
    file = tmp_path / "signer.toml"
    file.write_text('identity = "a@b\nissuer = "https://a"\n')
    with pytest.raises(SignatureError) as caught:
        read_signer(file)
    assert all(form in str(caught.value.remedy) for form in ("cosign.pub", "identity = "))


def test_keyless_is_a_word_of_its_own() -> None:
    assert parse_signing_key("keyless", SILENT.show) == SILENT
    assert parse_signing_key("./cosign.key", SILENT.show) == Path("cosign.key")
