"""The rooms of ``deploy`` and the floors they stand on, as the imports say."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path

KIT = Path(__file__).resolve().parents[2] / "deploy"
COMMANDS = "commands"
_PACKAGES = {folder.parent.name for folder in KIT.glob("*/__init__.py")}
ROOMS = sorted(_PACKAGES - {COMMANDS})

_WIDTH, _HEIGHT, _GAP, _MARGIN, _ASIDE = 150, 40, 34, 12, 20


def sentence(room: str) -> str | None:
    """Return a room's purpose: the docstring of its package."""
    return ast.get_docstring(ast.parse((KIT / room / "__init__.py").read_text(encoding="utf-8")))


def imports_by_room() -> dict[str, set[str]]:
    """Return, by room, the rooms that its modules import from, lazily or not."""
    found: dict[str, set[str]] = {room: set() for room in (*ROOMS, COMMANDS)}
    for path in KIT.rglob("*.py"):
        room = _room(".".join(path.relative_to(KIT.parent).with_suffix("").parts))
        found[room] |= {_room(module) for module in _imports(path)} - {room}
    return found


def floors(imports: Mapping[str, set[str]]) -> dict[str, int]:
    """Return each room's floor: one above the highest that it imports from.

    Raises:
        graphlib.CycleError: If rooms import from each other in a circle, which it names.
    """
    found: dict[str, int] = {}
    for room in TopologicalSorter(imports).static_order():
        found[room] = 1 + max((found[other] for other in imports[room]), default=0)
    return found


def picture() -> str:
    """Return the floors as SVG; lines lead from a room to those it imports from.

    A line that others already imply is left out: where a imports from b and c, and b from c,
    a has a line to b only.
    """
    imports = imports_by_room()
    by_floor = floors(imports)
    top = max(by_floor.values())
    rows = [sorted(r for r, floor in by_floor.items() if floor == n) for n in range(1, top + 1)]
    width = 2 * _MARGIN + max(map(len, rows)) * (_WIDTH + _GAP)
    height = 2 * _MARGIN + top * _HEIGHT + (top - 1) * _GAP
    places = {}
    for number, row in enumerate(rows):
        left = (width - len(row) * (_WIDTH + _GAP) + _GAP) // 2
        for place, room in enumerate(row):
            y = _MARGIN + (top - 1 - number) * (_HEIGHT + _GAP)
            places[room] = (left + place * (_WIDTH + _GAP), y)
    lines = [
        _line(places[room], places[other], aside=by_floor[room] - by_floor[other] - 1)
        for room, other in _direct(imports)
    ]
    boxes = [_box(room, *places[room]) for row in rows for room in row]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" role="img" aria-label="the rooms of deploy, floor by floor">\n'
        + "\n".join([*lines, *boxes])
        + "\n</svg>\n"
    )


def _direct(imports: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    reached: dict[str, set[str]] = {}
    for room in TopologicalSorter(imports).static_order():
        reached[room] = set(imports[room]).union(*(reached[other] for other in imports[room]))
    for room, others in sorted(imports.items()):
        for other in sorted(others):
            if not any(other in reached[between] for between in others - {other}):
                yield room, other


def _box(room: str, x: int, y: int) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" fill="#eef3f7" '
        f'stroke="#345"/><text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2 + 5}" font-size="14" '
        f'font-family="sans-serif" text-anchor="middle" fill="#123">{escape(room)}'
        f"<title>deploy/{room}/</title></text>"
    )


def _line(start: tuple[int, int], end: tuple[int, int], *, aside: int) -> str:
    """Return a line, shifted by ``aside``, the number of floors that it passes."""
    shift = _WIDTH // 2 - _ASIDE * aside
    x, y = start[0] + shift, start[1] + _HEIGHT
    return (
        f'<line x1="{x}" y1="{y}" x2="{end[0] + shift}" y2="{end[1]}" '
        'stroke="#89a" stroke-width="1.2"/>'
    )


def _room(module: str) -> str:
    """Return the room of a module below ``deploy``; the files at its top are the commands."""
    first, _, rest = module.removeprefix("deploy.").partition(".")
    return first if rest or first in ROOMS else COMMANDS


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deploy."):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("deploy."))
