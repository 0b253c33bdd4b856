"""Signatures by cosign: of images in a registry with what is said of them, and of files.

With a key, and without the public transparency log: nothing of a site goes to others, and it works
where there is no network. The password of a private key comes from ``COSIGN_PASSWORD``, else it is
asked for; those of registries are where ``docker login`` puts them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from getpass import getpass
from pathlib import Path

from deploy.artefacts.keys import PublicKey
from deploy.artefacts.reference import Reference
from deploy.host.errors import SignatureError

# What cosign calls the two kinds of statements, and what it finds them by.
SBOM, PROVENANCE = "cyclonedx", "slsaprovenance1"
_WHAT = {SBOM: "the list of its parts", PROVENANCE: "its provenance"}
PASSWORD = "COSIGN_PASSWORD"
_INSTALL = "sudo scripts/install_container_tools --only cosign (Debian, Ubuntu)"
_UNSIGNED = re.compile(r"no signatures found|no matching attestations: *$|manifest unknown", re.I)
_AWAY = re.compile(r"dial tcp|no such host|timeout|EOF|UNAUTHORIZED|DENIED|5\d\d ", re.I)
_PASSWORD = re.compile(r"decrypt|password", re.I)


def require_cosign() -> str:
    """Return the path of cosign.

    Raises:
        SignatureError: If it is not installed.
    """
    program = shutil.which("cosign")
    if program is None:
        raise SignatureError("cosign is not installed, which signs and verifies", _INSTALL)
    return program


def verify_image(reference: Reference, key: PublicKey) -> None:
    """Check that an image in a registry, its parts' list and its provenance are signed.

    Args:
        reference: By digest.

    Raises:
        SignatureError: If one is not signed, not with this key, or has changed since.
    """
    _require_pem(key, "an image")
    words = ["--key", str(key.path), "--insecure-ignore-tlog=true", *_http(reference)]
    _verify(["verify", *words, str(reference)], f"{reference}", key)
    for kind, what in _WHAT.items():
        command = ["verify-attestation", "--type", kind, *words, str(reference)]
        _verify(command, f"{what} at {reference}", key)


def sign_image(reference: Reference, key: Path, statements: Mapping[str, Path]) -> None:
    """Sign an image in a registry, and put signed statements about it beside it.

    Args:
        reference: By digest.
        key: cosign's private key.
        statements: Files by kind; the provenance as the kit writes it.
    """
    words = ["--yes", "--tlog-upload=false", "--key", str(key), *_http(reference)]
    _sign(["sign", *words, str(reference)], f"sign {reference} with", key)
    with tempfile.TemporaryDirectory() as scratch:
        for kind, file in statements.items():
            # cosign makes a statement itself, about the image's digest in the registry.
            document = json.loads(file.read_text(encoding="utf-8"))
            predicate = Path(scratch, kind)
            content = document["predicate"] if kind == PROVENANCE else document
            predicate.write_text(json.dumps(content), encoding="utf-8")
            attest = ["attest", *words, "--type", kind, "--replace"]
            attest += ["--predicate", str(predicate), str(reference)]
            _sign(attest, f"sign {_WHAT[kind]} at {reference} with", key)


def public_key_of(key: Path, folder: Path) -> PublicKey:
    """Write the public key of cosign's private one into a folder; return it.

    Raises:
        SignatureError: If the private key cannot be read, or not with this password.
    """
    path = folder / "cosign.pub"
    path.write_text(_sign(["public-key", "--key", str(key)], "read", key), encoding="utf-8")
    return PublicKey(path, "pem")


def sign_file(file: Path, signature: Path, key: Path) -> None:
    """Write the signature of a file, as cosign and ``openssl dgst -verify`` (in base64) read it."""
    words = ["--yes", "--tlog-upload=false", "--key", str(key)]
    _sign(
        ["sign-blob", *words, "--output-signature", str(signature), str(file)],
        f"sign {file} with",
        key,
    )


def verify_file(file: Path, signature: Path, key: PublicKey) -> None:
    """Check the signature of a file.

    Raises:
        SignatureError: If it is not signed, not with this key, or has changed since.
    """
    _require_pem(key, "a list of checksums")
    if not signature.is_file():
        raise _unsigned(str(file))
    words = ["--key", str(key.path), "--insecure-ignore-tlog=true", "--signature", str(signature)]
    _verify(["verify-blob", *words, str(file)], str(file), key)


def password_of(key: Path) -> str:
    """Return the password of a private key; empty if nobody is there to be asked."""
    given = os.environ.get(PASSWORD)
    return given if given is not None else _asked(key)


@cache
def _asked(key: Path) -> str:
    return getpass(f"password of {key}: ") if sys.stdin.isatty() else ""


def changed(what: str, key: PublicKey) -> SignatureError:
    """Return the error for a signature that does not match."""
    return SignatureError(
        f"{what} is not what the owner of {key.path} signed: it has changed, or has another "
        "signature",
        "do not start it; ask who published it, and check that the key is theirs",
    )


def _unsigned(what: str) -> SignatureError:
    return SignatureError(
        f"{what} is not signed", "numlkit publish DEST --sign KEY, by whoever built it"
    )


def _require_pem(key: PublicKey, what: str) -> None:
    if key.kind != "pem":
        raise SignatureError(
            f"{key.path} is a PGP key, and {what} is signed by cosign", "--verify cosign.pub"
        )


def _http(reference: Reference) -> list[str]:
    return ["--allow-http-registry"] if reference.loopback else []


def _verify(words: list[str], what: str, key: PublicKey) -> None:
    done = subprocess.run([require_cosign(), *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    reason = _reason(done.stderr)
    if _AWAY.search(reason):
        raise SignatureError(
            f"cannot check the signature of {what}: {reason}",
            "check the network and docker login, then repeat the command",
        )
    raise _unsigned(what) if _UNSIGNED.search(reason) else changed(what, key)


def _sign(words: list[str], doing: str, key: Path) -> str:
    if not key.is_file():
        raise SignatureError(f"private key {key}: no such file", "cosign generate-key-pair")
    done = subprocess.run(
        [require_cosign(), *words],
        env={**os.environ, PASSWORD: password_of(key)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = _reason(done.stderr)
        remedy = "check network and docker login, and that it is a key of cosign's"
        if _PASSWORD.search(reason):
            remedy = f"set {PASSWORD} to its password"
        raise SignatureError(f"cosign cannot {doing} {key}: {reason}", remedy)
    return done.stdout


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = next((line for line in lines if line.startswith("Error: ")), lines[-1] if lines else "")
    return found.removeprefix("Error: ")[:300]
