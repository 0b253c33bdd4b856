"""The key to a server's admin endpoints: one per deployment, in a file that only its owner reads.

It opens loading of models, registration of shared memory, trace and log settings. A client
sends it in a header, see :func:`http_headers`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from deploy.errors import DeploymentError
from deploy.files import write_atomically
from deploy.server import keyed_start as launcher
from deploy.server.keyed_start import KEY_NAME


def make_key(path: Path) -> str:
    """Write a new key to ``path`` and return it; at no time can others read the file."""
    key = secrets.token_hex(launcher.KEY_BYTES)
    write_atomically(path, key + "\n", mode=0o600)
    return key


def keep_key(path: Path, text: str) -> str | None:
    """Write a key that was made elsewhere to ``path`` and return it; None if it is none."""
    key = text.strip()
    if not re.fullmatch(launcher.KEY_PATTERN, key):
        return None
    write_atomically(path, key + "\n", mode=0o600)
    return key


def read_key(path: Path) -> str:
    """Return the key that ``path`` holds.

    Raises:
        DeploymentError: If it cannot be read, or holds something else.
    """
    try:
        return launcher.read_key(str(path))
    except launcher.ClosedError as error:
        raise DeploymentError(
            str(error),
            "give the command as the user who started the deployment, or start it anew",
        ) from None


def http_headers(key: str) -> Mapping[str, str]:
    """Return the headers that open the admin endpoints to an HTTP request."""
    return {KEY_NAME: key}
