"""Files that people write in TOML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from deploy.host.errors import DeploymentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 1 << 15  # the parser's time grows with the square


def read_toml(file: Path, what: str, remedy: str) -> dict[str, Any]:
    """Return a file's tables; DeploymentError begins with ``what`` it is.

    ``remedy`` is for a file that cannot be read.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise DeploymentError(f"{what} {file}: {error.strerror}", remedy) from None
    if len(content) > _MOST_BYTES:
        raise DeploymentError(f"{what} {file}: larger than {_MOST_BYTES >> 10} KiB")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise DeploymentError(f"{what} {file}: not TOML: {why}") from None
