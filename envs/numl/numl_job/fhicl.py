"""A job's FHiCL file: which of its producers ask a Triton, and where it is.

The syntax: https://github.com/art-framework-suite/fhicl-cpp. A later assignment overrides an
earlier one, so an address is appended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_TOKEN = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*|@protect_\w+)
      | (?P<string>"(?:\\.|[^"\\])*"|'[^']*')
      | (?P<word>@\w+::[\w.]+|[\w.]+)
      | (?P<mark>[{}:])""",
    re.VERBOSE | re.DOTALL,
)
_PRODUCERS = ["physics", "producers"]
_REFERENCE = re.compile(r"@\w+::.*nugraph.*(?:triton|sonic)", re.IGNORECASE)
_MODULE = re.compile(r"\w*NuGraph\w*Triton\w*")


def producers_of(text: str) -> list[str]:
    """Return the labels of the producers that ask a Triton, as far as the file itself shows.

    Those have a ``TritonConfig``, or a ``module_type`` of NuGraph's Triton modules, or are such a
    module's table by its name (``@local::nugraph_triton``). What is included is not read.
    """
    found: dict[str, None] = {}
    for path, value in _assignments(text):
        if path[:2] != _PRODUCERS or len(path) < 3:
            continue
        rest = path[3:]
        if (
            rest[:1] == ["TritonConfig"]
            or (rest == ["module_type"] and _MODULE.fullmatch((value or "").strip("\"'")))
            or (not rest and _REFERENCE.match(value or ""))
        ):
            found[path[2]] = None
    return list(found)


def with_server(text: str, producers: Iterable[str], address: str, *, ssl: bool) -> str:
    """Return the file for a server at ``address`` (``host:port`` of gRPC)."""
    lines = [text.rstrip("\n")]
    for label in producers:
        config = f"physics.producers.{label}.TritonConfig"
        lines.append(f'{config}.serverURL: "{address}"')
        lines.append(f"{config}.ssl: {str(ssl).lower()}")
    return "\n".join(lines) + "\n"


def _assignments(text: str) -> Iterator[tuple[list[str], str | None]]:
    """Yield each name in full, with its value; None for a table."""
    tables: list[list[str]] = []
    name, before, in_prolog = None, None, False
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        if kind == "comment":
            continue
        if token in ("BEGIN_PROLOG", "END_PROLOG"):
            in_prolog = token == "BEGIN_PROLOG"
        elif token == "{":
            tables.append((tables[-1] if tables else []) + (name or []))
            if name and not in_prolog:
                yield tables[-1], None
            name = None
        elif token == "}":
            tables, name = tables[:-1], None
        elif token == ":":
            name = before.split(".") if before is not None else None
        elif name is not None:
            if not in_prolog:
                yield (tables[-1] if tables else []) + name, token
            name = None
        before = token if kind == "word" else None
