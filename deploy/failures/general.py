"""What more than one program says."""

from __future__ import annotations

from deploy.failures.row import Failure, row

_FULL = "df -h shows which file systems are full; df -i, which have no room for more files"

GENERAL: tuple[Failure, ...] = (
    row(
        r"(?P<path>/[^\s:'\"]+)['\"]?: [Nn]o space left on device",
        "disk full: {path} cannot be written",
        f"free space there; {_FULL}",
    ),
    row(
        r"[Nn]o space left on device",
        "disk full: no space left on device",
        f"free space; {_FULL}",
    ),
    row(
        r"(?i)exec format error",
        "a program in the image or environment is for another processor than this host's",
        "uname -m names this host's; build the image on a host of the same kind",
    ),
)
