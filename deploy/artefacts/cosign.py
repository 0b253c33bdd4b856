"""Signatures by cosign: of images in a registry with their attestations, and of files.

With a key, and without the public transparency log: nothing leaves the site, and no network is
needed. The key's password comes from ``COSIGN_PASSWORD``, or is asked for. Or keyless, with
Sigstore's certificates and log. Registry passwords are where ``docker login`` puts them.
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
from functools import cache
from getpass import getpass
from pathlib import Path

from deploy.artefacts.keys import Keyless, Signer, SigningKey, same_key
from deploy.artefacts.reference import Reference
from deploy.host.errors import SignatureError
from deploy.host.failures import complaint

# What cosign calls the two kinds of statements, and what it finds them by.
SBOM, PROVENANCE = "cyclonedx", "slsaprovenance1"
_WHAT = {SBOM: "its SBOM", PROVENANCE: "its provenance"}
PASSWORD = "COSIGN_PASSWORD"
_INSTALL = "sudo scripts/install_container_tools --only cosign (Debian, Ubuntu)"
_KEYLESS = (
    "keyless signing needs a login (SIGSTORE_ID_TOKEN or a browser) and access to Fulcio and "
    "Rekor; without them, use --sign cosign.key"
)
_UNSIGNED = re.compile(r"no signatures found|no matching attestations: *$|manifest unknown", re.I)
_AWAY = re.compile(
    r"dial tcp|no such host|\b(timeout|EOF|UNAUTHORIZED|DENIED)\b"
    r"|\b5\d\d (Internal|Bad|Service|Gateway)",
    re.I,
)
_OTHERS = "got subjects"  # then come names that others have chosen
# What it prints of a login, on its standard output: the address with the code, and for how long.
_LOGIN = re.compile(r"(Enter the verification code|Code will be valid) ")
_PASSWORD = re.compile(r"decrypt|password", re.I)


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
    """
    words = [*_whose(signer, "an image"), *_http(reference), str(reference)]
    _verify(["verify", *words], f"{reference}", signer)
    for kind, what in _WHAT.items():
        attestation = ["verify-attestation", "--type", kind, *words]
        _verify(attestation, f"{what} at {reference}", signer)


def sign_image(reference: Reference, key: SigningKey, statements: Mapping[str, Path]) -> None:
    """Sign an image in a registry, and attach signed statements about it.

    Args:
        reference: By digest.
        statements: Files by kind; the provenance as the kit writes it.
    """
    words = [*_with(key), *_http(reference)]
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


@contextmanager
def signer_of(key: SigningKey, named: Signer | None) -> Iterator[Signer | None]:
    """Yield the signer that a key belongs to; keyless, the one named, or None: unknown.

    Raises:
        SignatureError: If whoever is named cannot have made it; if the private key cannot be read,
            or not with this password.
    """
    if named is not None:
        _require_kind(key, named)
    if isinstance(key, Keyless):
        yield named
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "cosign.pub")
        said = _sign(["public-key", "--key", str(key)], "read the public key of", key)
        path.write_text(said, encoding="utf-8")
        signer = Signer(path, "pem")
        if named is not None and not same_key(named, signer):
            cause = f"{named.path} is not the public key of {key}"
            raise SignatureError(cause, "--verify with the matching public key")
        yield signer


def _require_kind(key: SigningKey, named: Signer) -> None:
    if isinstance(key, Keyless):
        if named.kind != "keyless":
            cause = f"{named.path} is a key, but keyless signing uses none"
            raise SignatureError(cause, "--verify signer.toml, which names the signer")
    elif named.kind != "pem":
        what = "is a PGP key, but" if named.kind == "pgp" else "names a keyless signer, but"
        cause = f"{named.path} {what} {key} is a cosign key"
        raise SignatureError(cause, "--verify with the matching cosign.pub")


def sign_file(file: Path, signature: Path, key: SigningKey) -> None:
    """Write the signature of a file.

    With a key it is what ``openssl dgst -verify`` reads, in base64; keyless, cosign's bundle.
    """
    where = "--bundle" if isinstance(key, Keyless) else "--output-signature"
    words = [*_with(key), where, str(signature), str(file)]
    _sign(["sign-blob", *words], f"sign {file} with", key)


def verify_file(file: Path, signature: Path, signer: Signer) -> None:
    """Check the signature of a file.

    Raises:
        SignatureError: If it is not signed, not by this signer, or has changed since.
    """
    words = _whose(signer, "a list of checksums")
    if not signature.is_file():
        raise unsigned(str(file))
    where = "--bundle" if signer.kind == "keyless" else "--signature"
    _verify(["verify-blob", *words, where, str(signature), str(file)], str(file), signer)


def password_of(key: Path) -> str:
    """Return the password of a private key; empty if there is no terminal to ask at."""
    given = os.environ.get(PASSWORD)
    return given if given is not None else _asked(key)


@cache
def _asked(key: Path) -> str:
    return getpass(f"password of {key}: ") if sys.stdin.isatty() else ""


def changed(what: str, signer: Signer) -> SignatureError:
    """Return the error for a signature that does not match."""
    return SignatureError(
        f"{what} is not what {signer} signed: it has changed, or has a different signature",
        f"do not start it: ask its publisher, and check that {signer.path.name} is theirs",
    )


def unsigned(what: str) -> SignatureError:
    """Return the error for something that is not signed."""
    remedy = "have its builder run numlkit publish DEST --sign KEY"
    return SignatureError(f"{what} is not signed", remedy)


def _whose(signer: Signer, what: str) -> list[str]:
    """Return cosign's options for the expected signer."""
    if signer.kind == "pgp":
        cause = f"{signer.path} is a PGP key, but {what} is signed with cosign"
        raise SignatureError(cause, "--verify cosign.pub")
    if signer.kind == "pem":
        return ["--key", str(signer.path), "--insecure-ignore-tlog=true"]
    return [
        *("--certificate-identity", signer.identity),
        *("--certificate-oidc-issuer", signer.issuer),
    ]


def _with(key: SigningKey) -> list[str]:
    """Return cosign's options for what to sign with."""
    if isinstance(key, Keyless):
        return ["--yes"]
    return ["--yes", "--tlog-upload=false", "--key", str(key)]


def _http(reference: Reference) -> list[str]:
    return ["--allow-http-registry"] if reference.loopback else []


def _verify(words: list[str], what: str, signer: Signer) -> None:
    done = subprocess.run([require_cosign(), *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    reason = complaint(done.stderr)
    if _AWAY.search(reason.partition(_OTHERS)[0]):
        raise SignatureError(
            f"cannot check the signature of {what}: {reason}",
            "check the network and docker login, then run the command again",
        )
    raise unsigned(what) if _UNSIGNED.search(reason) else changed(what, signer)


def _sign(words: list[str], doing: str, key: SigningKey) -> str:
    done = _logged_in(words, key) if isinstance(key, Keyless) else _with_password(words, key)
    if done.returncode == 0:
        return done.stdout
    reason = complaint(done.stderr)
    remedy = "check the network and docker login, and that it is a cosign key"
    if isinstance(key, Keyless):
        doing, remedy = doing.removesuffix(" with"), _KEYLESS
    elif _PASSWORD.search(reason):
        remedy = f"set {PASSWORD} to its password"
    raise SignatureError(f"cosign cannot {doing} {key}: {reason}", remedy)


def _with_password(words: list[str], key: Path) -> subprocess.CompletedProcess[str]:
    if not key.is_file():
        raise SignatureError(f"private key {key}: no such file", "cosign generate-key-pair")
    return subprocess.run(
        [require_cosign(), *words], env={**os.environ, PASSWORD: password_of(key)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


def _logged_in(words: list[str], key: Keyless) -> subprocess.CompletedProcess[str]:
    """Run cosign; show where to log in as soon as it says so: it waits for the login."""
    said = ""
    with subprocess.Popen(
        [require_cosign(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as cosign:  # fmt: skip
        assert cosign.stdout is not None
        for line in cosign.stdout:
            said += line
            if _LOGIN.match(line):
                key.show(line.strip())
    return subprocess.CompletedProcess(words, cosign.returncode, stdout="", stderr=said)
