"""Signatures of what lies in a folder: what has changed, or is another's, is refused in a line."""

import shutil
import subprocess

import pytest

from deploy.artefacts.keys import read_signer
from deploy.artefacts.manifest import read_manifest
from deploy.artefacts.sif_signature import sign_sif, verify_sif
from deploy.artefacts.signing import sign_built, verify_built, would_sign
from deploy.artefacts.statements import CHECKSUMS, SIGNATURE, provenance_of, sbom_of
from deploy.host.errors import SignatureError
from tests.containers.failures.tiny import make_sif


@pytest.fixture
def small(tmp_path):
    """A .sif of a few kilobytes."""
    return make_sif(tmp_path / "small.sif")


def test_a_sif_signed_with_the_key_is_accepted(small, keys):
    with pytest.raises(SignatureError, match=r"small.*\.sif is not signed$"):
        verify_sif(small, keys.public)
    sign_sif(small, keys.private)
    verify_sif(small, keys.public)


def test_one_signed_with_another_key_is_refused(small, keys, others):
    sign_sif(small, others.private)
    with pytest.raises(SignatureError, match=r"is not what the owner of .* signed") as caught:
        verify_sif(small, keys.public)
    assert caught.value.remedy
    assert "\n" not in caught.value.cause


def test_one_changed_byte_of_its_files_is_refused(small, keys):
    sign_sif(small, keys.private)
    content = bytearray(small.read_bytes())
    for at in (content.index(b"hsqs") + 100, len(content) - 200):  # its file system, its signature
        changed = bytearray(content)
        changed[at] ^= 1
        small.write_bytes(changed)
        with pytest.raises(SignatureError, match=r"is not what the owner of .* signed"):
            verify_sif(small, keys.public)


def test_a_sif_signed_with_a_pgp_key_is_accepted_by_that_key_only(
    small, tmp_path, monkeypatch, keys
):
    public = []
    for name in ("first", "second"):
        monkeypatch.setenv("APPTAINER_KEYSDIR", str(tmp_path / name))
        (tmp_path / name).mkdir(mode=0o700)
        words = ["--name", name, "--email", "a@example.org", "--comment", "", "--password", ""]
        key = ["apptainer", "key"]
        subprocess.run(
            [*key, "newpair", *words, "--push=false", "--bit-length", "2048"],
            check=True, capture_output=True,
        )  # fmt: skip
        file = tmp_path / f"{name}.asc"
        subprocess.run(
            [*key, "export", "--armor", file], input=b"0\n", check=True, capture_output=True
        )
        public.append(read_signer(file))
    subprocess.run(["apptainer", "sign", "--keyidx", "0", small], check=True, capture_output=True)
    monkeypatch.delenv("APPTAINER_KEYSDIR")
    verify_sif(small, public[1])
    for other in (public[0], keys.public):
        with pytest.raises(SignatureError, match=r"is not what the owner of .* signed"):
            verify_sif(small, other)


def test_what_is_no_public_key_is_named(tmp_path, keys):
    with pytest.raises(SignatureError, match=r"cosign\.key is a private key$"):
        read_signer(keys.private)
    with pytest.raises(SignatureError, match=r"nothing: No such file or directory$"):
        read_signer(tmp_path / "nothing")


def test_a_signed_folder_has_right_checksums_and_is_signed_once(copy, keys):
    signed = sign_built(copy.folder, copy.sif, keys.private)
    assert signed in read_manifest(copy.folder).artefacts
    assert signed.unsigned == copy.sif.sha256 != signed.sha256
    check = ["sha256sum", "--check", "--strict", "--quiet", CHECKSUMS]
    subprocess.run(check, cwd=copy.folder, check=True)
    statement = (copy.folder / provenance_of(signed)).read_text()
    assert copy.sif.sha256 in statement
    assert signed.sha256 in statement
    for artefact in (signed, copy.image):
        verify_built(copy.folder, artefact, keys.public)
    before = {path: path.read_bytes() for path in copy.folder.iterdir()}
    assert sign_built(copy.folder, signed, keys.private) == signed
    sign_built(copy.folder, copy.image, keys.private)
    assert {path: path.read_bytes() for path in copy.folder.iterdir()} == before


def test_another_key_does_not_sign_over_the_first(copy, keys, others):
    signed = sign_built(copy.folder, copy.sif, keys.private)
    with pytest.raises(SignatureError, match="is already signed, but not with"):
        sign_built(copy.folder, signed, others.private)


@pytest.mark.parametrize("sign", [sign_built, would_sign])
def test_with_a_public_key_of_another_nothing_is_signed(copy, keys, others, sign):
    before = {path: path.read_bytes() for path in copy.folder.iterdir()}
    for artefact in (copy.sif, copy.image):
        with pytest.raises(SignatureError, match="is not the public key of"):
            sign(copy.folder, artefact, keys.private, others.public)
    assert {path: path.read_bytes() for path in copy.folder.iterdir() if path in before} == before
    assert not (copy.folder / SIGNATURE).exists()


@pytest.fixture(scope="module")
def signed(dist, keys, tmp_path_factory):
    """A copy of the folder in which what is said of the image is signed."""
    folder = shutil.copytree(dist.folder, tmp_path_factory.mktemp("signed") / "dist")
    sign_built(folder, dist.image, keys.private)
    return folder


@pytest.mark.parametrize("what", ["parts", "provenance", "checksums", "signature", "image"])
def test_whatever_is_changed_in_a_signed_folder_is_refused(dist, signed, keys, tmp_path, what):
    folder, artefact = shutil.copytree(signed, tmp_path / "dist"), dist.image
    verify_built(folder, artefact, keys.public)
    if what == "image":
        artefact = artefact.model_copy(update={"sha256": f"sha256:{'0' * 64}"})
    else:
        names = {
            "parts": sbom_of(artefact),
            "provenance": provenance_of(artefact),
            "checksums": CHECKSUMS,
            "signature": SIGNATURE,
        }
        path = folder / names[what]
        text = path.read_text()
        path.write_text(text.replace(text[20], "A" if text[20] != "A" else "B"))
    with pytest.raises(SignatureError, match=r"is not what the owner of .* signed") as caught:
        verify_built(folder, artefact, keys.public)
    assert "\n" not in caught.value.cause


def test_a_key_without_its_password_is_a_line(copy, keys, monkeypatch):
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    with pytest.raises(SignatureError, match=r"cosign cannot .*decrypt") as caught:
        sign_built(copy.folder, copy.image, keys.private)
    assert caught.value.remedy == "set COSIGN_PASSWORD to its password"


def test_without_cosign_one_line_says_how_to_get_it(copy, keys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SignatureError, match=r"^cosign, .* is not installed") as caught:
        sign_built(copy.folder, copy.image, keys.private)
    assert "scripts/install_container_tools --only cosign" in str(caught.value.remedy)
