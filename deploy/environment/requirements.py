"""A requirement file with exact versions and hashes. Standard library only: scripts read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def render(packages: Sequence[dict[str, Any]], heading: str, maker: str) -> str:
    """Return a requirement file of what a report of pip's lists, with exact versions."""
    lines = [f"# {heading}", f"# Made by {maker}; do not edit."]
    for package in sorted(packages, key=lambda p: str(p["metadata"]["name"]).lower()):
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        lines += [f"{name}=={version} \\", f"    --hash=sha256:{digest}"]
    return "\n".join(lines) + "\n"
