"""A requirement file with exact versions and hashes. Standard library only: scripts read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy.host.errors import EnvironmentSetupError


def render(packages: Sequence[dict[str, Any]], heading: str, maker: str) -> str:
    """Return a requirement file of what a report of pip's lists, with exact versions.

    Raises:
        EnvironmentSetupError: One is not from an index or a folder of wheels: where it is from
            would be lost.
    """
    lines = [f"# {heading}", f"# Made by {maker}; do not edit."]
    for package in sorted(packages, key=lambda p: str(p["metadata"]["name"]).lower()):
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        if package.get("is_direct"):
            place = package["download_info"]["url"]
            cause = f"{name} is named by its place, which a lock cannot hold: {place}"
            remedy = "name the package alone, with PIP_FIND_LINKS=FOLDER where its wheel lies"
            raise EnvironmentSetupError(cause, remedy)
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        lines += [f"{name}=={version} \\", f"    --hash=sha256:{digest}"]
    return "\n".join(lines) + "\n"
