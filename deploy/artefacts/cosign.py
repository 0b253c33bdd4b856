"""Signatures by cosign: of images in a registry with their attestations, and of files.

With a key, and without the public transparency log: nothing leaves the site, and no network is
needed. The key's password comes from ``COSIGN_PASSWORD``, or is asked for. Registry passwords are
where ``docker login`` puts them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from getpass import getpass
from pathlib import Path
from typing import Any

from deploy.artefacts.keys import Signer, fingerprint
from deploy.artefacts.reference import Reference
from deploy.host.errors import SignatureError, UncheckedError
from deploy.host.failures import complaint
from numl_formats.statement import as_time

# What cosign calls the two kinds of statements, and what it finds them by.
SBOM, PROVENANCE = "cyclonedx", "slsaprovenance1"
_WHAT = {SBOM: "its SBOM", PROVENANCE: "its provenance"}
PASSWORD = "COSIGN_PASSWORD"
_INSTALL = "sudo scripts/install_container_tools --only cosign (Debian, Ubuntu)"
_UNSIGNED = re.compile(r"no signatures found|no matching attestations: *$|manifest unknown", re.I)
_AWAY = re.compile(
    r"dial tcp|read tcp|no such host|connection reset|tls:|x509:|deadline exceeded"
    r"|\b(timeout|EOF|UNAUTHORIZED|DENIED|TOOMANYREQUESTS)\b"
    r"|\b(429|5\d\d) (Too|Internal|Bad|Service|Gateway)",
    re.I,
)


def require_cosign() -> str:
    """Return the path of cosign.

    Raises:
        SignatureError: If it is not installed.
    """
    program = shutil.which("cosign")
    if program is None:
        raise SignatureError("cosign, which signs and verifies, is not installed", _INSTALL)
    return program


def verify_image(reference: Reference, signer: Signer) -> None:
    """Check that an image in a registry, its bill of materials and its provenance are signed.

    Args:
        reference: By digest.

    Raises:
        SignatureError: If one is not signed, not by this signer, or has changed since.
        UncheckedError: If the registry cannot be asked.
    """
    words = [*_whose(signer, "an image"), *_http(reference), str(reference)]
    _verify(["verify", *words], f"{reference}", signer)
    for kind, what in _WHAT.items():
        attestation = ["verify-attestation", "--type", kind, *words]
        _verify(attestation, f"{what} at {reference}", signer)


@dataclass(frozen=True)
class Signed:
    """What is signed together with an image's digest.

    Attributes:
        tag: The tag that it is signed for.
        line: Identifies that tag in its repository, among all that the same key signs.
        sequence: Grows with every image that is signed for a tag: a tag that names one with a
            smaller number than before has been set back by somebody without the key.
    """

    tag: str
    line: str
    sequence: int
    created: datetime


def sign_image(
    reference: Reference, key: Path, statements: Mapping[str, Path], signed: Signed
) -> None:
    """Sign an image in a registry, and attach signed statements about it.

    Args:
        reference: By digest.
        statements: Files by kind; the provenance as the kit writes it.
    """
    words = [*_with(key), *_http(reference)]
    facts = {**asdict(signed), "created": as_time(signed.created)}
    said = [f"--annotations={name}={value}" for name, value in facts.items()]
    _sign(["sign", *words, *said, str(reference)], f"sign {reference} with", key)
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


def signed_of(reference: Reference, signer: Signer) -> tuple[Signed, ...]:
    """Return all that a signer has signed with an image; nothing: signed, but without a number.

    Args:
        reference: By digest.

    Raises:
        SignatureError: If the image is not signed, not by this signer, or has changed since.
    """
    words = ["verify", "--output=json", *_whose(signer, "an image"), *_http(reference)]
    said = _verify([*words, str(reference)], f"{reference}", signer)
    return tuple(each for each in map(_signed, json.loads(said)) if each is not None)


def _signed(payload: Any) -> Signed | None:
    facts = payload.get("optional") or {}
    try:
        created = datetime.fromisoformat(re.sub(r"Z$", "+00:00", facts["created"]))
        return Signed(str(facts["tag"]), str(facts["line"]), int(facts["sequence"]), created)
    except (KeyError, TypeError, ValueError):
        return None


@contextmanager
def signer_of(key: Path, named: Signer | None) -> Iterator[Signer]:
    """Yield the signer that a private key belongs to.

    Raises:
        SignatureError: If whoever is named cannot have made it; if the private key cannot be read,
            or not with this password.
    """
    if named is not None and named.kind != "pem":
        cause = f"{named.path} is a PGP key, but {key} is a cosign key"
        raise SignatureError(cause, "--verify with the matching cosign.pub")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "cosign.pub")
        said = _sign(["public-key", "--key", str(key)], "read the public key of", key)
        path.write_text(said, encoding="utf-8")
        signer = Signer(path, "pem")
        if named is not None and fingerprint(named) != fingerprint(signer):
            cause = f"{named.path} is not the public key of {key}"
            raise SignatureError(cause, "--verify with the matching public key")
        yield signer


def sign_file(file: Path, signature: Path, key: Path) -> None:
    """Write the signature of a file: what ``openssl dgst -verify`` reads, in base64."""
    words = [*_with(key), "--output-signature", str(signature), str(file)]
    _sign(["sign-blob", *words], f"sign {file} with", key)


def sign_bytes(content: bytes, key: Path) -> bytes:
    """Return the signature of a small content, as :func:`sign_file` writes it."""
    with tempfile.TemporaryDirectory() as scratch:
        file, signature = Path(scratch, "content"), Path(scratch, "signature")
        file.write_bytes(content)
        sign_file(file, signature, key)
        return signature.read_bytes()


def verify_file(file: Path, signature: Path, signer: Signer) -> None:
    """Check the signature of a file.

    Raises:
        SignatureError: If it is not signed, not by this signer, or has changed since.
    """
    words = _whose(signer, "a list of checksums")
    if not signature.is_file():
        raise unsigned(str(file))
    _verify(["verify-blob", *words, "--signature", str(signature), str(file)], str(file), signer)


def password_of(key: Path) -> str:
    """Return the password of a private key; empty if there is no terminal to ask at."""
    given = os.environ.get(PASSWORD)
    return given if given is not None else _asked(key)


@cache
def _asked(key: Path) -> str:
    return getpass(f"password of {key}: ") if sys.stdin.isatty() else ""


def changed(what: str, signer: Signer) -> SignatureError:
    return SignatureError(
        f"{what} is not what {signer} signed: it has changed, or has a different signature",
        f"do not start it: ask its publisher, and check that {signer.path.name} is theirs",
    )


def unsigned(what: str) -> SignatureError:
    remedy = "have its builder run numlkit publish DEST --sign KEY"
    return SignatureError(f"{what} is not signed", remedy)


def _whose(signer: Signer, what: str) -> list[str]:
    """Return cosign's options for the expected signer."""
    if signer.kind == "pgp":
        cause = f"{signer.path} is a PGP key, but {what} is signed with cosign"
        raise SignatureError(cause, "--verify cosign.pub")
    return ["--key", str(signer.path), "--insecure-ignore-tlog=true"]


def _with(key: Path) -> list[str]:
    """Return cosign's options for what to sign with."""
    return ["--yes", "--tlog-upload=false", "--key", str(key)]


def _http(reference: Reference) -> list[str]:
    return ["--allow-http-registry"] if reference.loopback else []


def _verify(words: list[str], what: str, signer: Signer) -> str:
    done = subprocess.run([require_cosign(), *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    reason = complaint(done.stderr)
    if _AWAY.search(reason):
        raise UncheckedError(
            f"cannot check the signature of {what}: {reason}",
            "check the network, the registry's certificate and docker login, then try again",
        )
    raise unsigned(what) if _UNSIGNED.search(reason) else changed(what, signer)


def _sign(words: list[str], doing: str, key: Path) -> str:
    if not key.is_file():
        raise SignatureError(f"private key {key}: no such file", "cosign generate-key-pair")
    done = subprocess.run(
        [require_cosign(), *words], env={**os.environ, PASSWORD: password_of(key)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return done.stdout
    reason = complaint(done.stderr)
    remedy = "check the network and docker login, and that it is a cosign key"
    if re.search("decrypt|password", reason, re.I):
        remedy = f"set {PASSWORD} to its password"
    raise SignatureError(f"cosign cannot {doing} {key}: {reason}", remedy)
