"""Sections of pages that are made from stored runs: each stands between two comments."""

from __future__ import annotations

from pathlib import Path

from deploy.host.errors import KitError
from deploy.host.files import write_atomically


def replace_section(page: str, section: str, begin: str, end: str) -> str:
    """Return a page with the section between two comments replaced; KitError if it has none."""
    before, begins, rest = page.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise KitError("the page has no section for this run", f"put {begin} and {end} into it")
    return f"{before}{begin}\n\n{section}\n{end}{after}"


def write_section(path: Path, section: str, begin: str, end: str) -> None:
    """Replace the section of a page in its file."""
    page = path.read_text(encoding="utf-8")
    write_atomically(path, replace_section(page, section, begin, end))
