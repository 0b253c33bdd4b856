"""The parts of the site that are generated from the kit itself."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from deploy.host.failures import APPTAINER, DOCKER, GENERAL, TRITON, TRITON_LAST
from deploy.main import COMMANDS
from scripts.documentation.floors import floors, imports_by_room, picture, sentence

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
FAILURES = {
    "Triton": (*TRITON, *TRITON_LAST),
    "Docker": DOCKER,
    "Apptainer": APPTAINER,
    "Any of them": GENERAL,
}
LARGE = ("train_demo.py",)  # runs in the environment with torch, to say its help too
_COLUMNS = "96"  # of a help text: what a page has room for


def marked() -> dict[str, str]:
    """Return what replaces the comments ``<!-- NAME -->`` of the pages."""
    return {
        "floors": picture(),
        "rooms": rooms_table(),
        "failures": failures_tables(),
        "values": chart_values(),
    }


def made() -> dict[str, str]:
    """Return the pages that are not files in ``docs/``, by their path in the site."""
    return {
        "index.md": from_the_top("README.md"),
        "changelog.md": from_the_top("CHANGELOG.md"),
        **{f"reference/{name}.md": command_page(name) for name in COMMANDS},
        "reference/scripts.md": scripts_page(),
    }


def from_the_top(name: str) -> str:
    """Return a page from the repository's top, with links as the site has them.

    A link to a file that the site does not have becomes the file's name.
    """
    text = (CHECKOUT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    text = text.replace("](CHANGELOG.md)", "](changelog.md)")
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!http|#)([^)#]*)([^)]*)\)", _link, text)


def _link(found: re.Match[str]) -> str:
    there = found[2] == "changelog.md" or (DOCS / found[2]).exists()
    return found[0] if there else found[1]


def command_page(name: str) -> str:
    """Return a command's page of the reference: its own help."""
    parser = importlib.import_module(f"deploy.commands.{name}").parser()
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), _COLUMNS
    try:
        text = parser.format_help()
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return f"# numlkit {name}\n\n```text\n{text}```\n"


def scripts_page() -> str:
    """Return the page on the programs in ``scripts/`` that are Python: their own help."""
    pages = ["# scripts/\n"]
    for path in sorted((CHECKOUT / "scripts").glob("*.py")):
        if path.name in LARGE or not path.read_bytes().startswith(b"#!"):
            continue  # a module has no help
        done = subprocess.run(
            [sys.executable, path, "--help"],
            env={**os.environ, "COLUMNS": _COLUMNS},
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout.replace(f"{CHECKOUT}/", "")
        pages.append(f"## {path.name}\n\n```text\n{text}```\n")
    return "\n".join(pages)


def rooms_table() -> str:
    """Return the rooms, highest floor first, each with its sentence and what it imports from."""
    imports = imports_by_room()
    by_floor = floors(imports)
    lines = ["| floor | room | what it is for | imports from |", "|---|---|---|---|"]
    for room in sorted(by_floor, key=lambda room: (-by_floor[room], room)):
        what = sentence(room)
        below = ", ".join(sorted(imports[room]))
        lines.append(f"| {by_floor[room]} | {room} | {_code(what or '')} | {below} |")
    return "\n".join(lines)


def chart_values() -> str:
    """Return the Helm chart's values, which explain themselves."""
    text = (CHECKOUT / "containers" / "chart" / "values.yaml").read_text(encoding="utf-8")
    return f"```yaml\n{text}```"


def failures_tables() -> str:
    """Return the table of failures, program by program."""
    return "\n".join(line for title in FAILURES for line in _failures(title))


def _failures(title: str) -> Iterator[str]:
    yield from (f"## {title}", "", "| what is wrong | what to do |", "|---|---|")
    for pattern, cause, remedy in FAILURES[title]:
        names = {name: f"\0{name}\1" for name in re.compile(pattern).groupindex}
        yield f"| {_words(cause, names)} | {_words(remedy, names)} |"
    yield ""


def _words(text: str, names: Mapping[str, str]) -> str:
    """Return a text of the table with ``names`` in place of a message's own words."""
    shown = escape(text.format("\0message\1", **names), quote=False).replace("|", r"\|")
    return shown.replace("\0", "<em>").replace("\1", "</em>")


def _code(text: str) -> str:
    return re.sub(r"``([^`]*)``", r"`\1`", text.replace("\n", " "))
