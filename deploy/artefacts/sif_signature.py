"""Apptainer's signatures: in the .sif itself, so that they go where it goes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploy.artefacts.cosign import PASSWORD, changed, password_of, unsigned
from deploy.artefacts.keys import Signer
from deploy.artefacts.tools import install_hint
from deploy.host.errors import SignatureError
from deploy.host.failures import complaint


def verify_sif(sif: Path, signer: Signer) -> None:
    """Check the signature over everything in a .sif; SignatureError if it does not hold."""
    words = ["verify", "--all"]
    if signer.kind == "pem":
        said = _apptainer([*words, "--key", str(signer.path), str(sif)])
    else:
        # In a private keyring, so that no other key counts, nor a key server.
        with tempfile.TemporaryDirectory() as ring:
            variables = {"APPTAINER_KEYSDIR": ring}
            said = _apptainer(["key", "import", str(signer.path)], variables)
            said = said or _apptainer([*words, "--local", str(sif)], variables)
    if said is None:
        return
    if "signature not found" in said:
        raise unsigned(str(sif))
    raise changed(str(sif), signer)


def sign_sif(sif: Path, key: Path) -> None:
    """Sign a .sif in place, with a private key in PEM: cosign's, or a plain one."""
    # Apptainer reads the password from its standard input, to the end.
    said = _apptainer(["sign", "--key", str(key), str(sif)], given=password_of(key))
    if said is not None:
        cause = f"Apptainer cannot sign {sif} with {key}: {said}"
        raise SignatureError(cause, f"use a private key in PEM, and set {PASSWORD} to its password")


def _apptainer(
    words: list[str], variables: Mapping[str, str] | None = None, given: str = ""
) -> str | None:
    """Run Apptainer; return in one line why it failed, or None if it did not."""
    program = shutil.which("apptainer")
    if program is None:
        raise SignatureError("apptainer is not installed", install_hint())
    done = subprocess.run(
        [program, *words],
        env={**os.environ, **(variables or {})},
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    return complaint(done.stderr) or f"exit status {done.returncode}"
