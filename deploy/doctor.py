"""Say what is wrong with this host, the installation and the deployments, and what to do."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.checks.all import examine_everything
from deploy.checks.finding import Finding
from deploy.cli import Parser, make_parser, run
from deploy.console import Console
from deploy.deployment import load_deployment
from deploy.errors import KitError


def parser() -> Parser:
    """Return the command's parser."""
    flags = make_parser("doctor", "Say what is wrong here, and what to do about it.")
    flags.set_defaults(name=None)  # so that the file's name counts where none is given
    flags.add_argument("file", nargs="?", type=Path, help="a deployment file (TOML), as for up")
    flags.add_argument(
        "--fix",
        action="store_true",
        help="remove what dead servers and interrupted commands have left; nothing else",
    )
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if nothing is wrong, warnings aside."""
    return run(_doctor, parser(), argv)


def _doctor(options: argparse.Namespace, console: Console) -> int:
    deployment = load_deployment(options.file, {"name": options.name})
    with console.step("look around"):
        findings = examine_everything(deployment)
    fixes = []
    if options.fix:
        fixes = [_fixed(finding) for finding in findings if finding.fix is not None]
        if fixes:
            with console.step("look again"):
                findings = examine_everything(deployment)
    _show(console, findings, fixes)
    return 1 if _count(findings, "problem") else 0


@dataclasses.dataclass(frozen=True)
class _Fixed:
    """What became of a finding that could be mended.

    Attributes:
        ok: Whether it was.
        said: What was done, or why not.
    """

    ok: bool
    said: str


def _fixed(finding: Finding) -> _Fixed:
    assert finding.fix is not None
    try:
        return _Fixed(True, finding.fix.apply())
    except KitError as error:
        return _Fixed(False, error.cause)
    except OSError as error:
        return _Fixed(False, f"{error.filename}: {error.strerror}")


def _show(console: Console, findings: Sequence[Finding], fixes: Sequence[_Fixed]) -> None:
    rows = [[f.level, f.subject, f.detail, f.remedy or ""] for f in findings]
    console.table("doctor", ("", "finding", "detail", "remedy"), rows)
    for fixed in fixes:
        console.line(f"{'fixed' if fixed.ok else 'not fixed'}: {fixed.said}")
    problems, warnings = _count(findings, "problem"), _count(findings, "warning")
    console.line(f"{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}")
    console.answer(
        {
            "ok": not problems,
            "findings": [_document(finding) for finding in findings],
            "fixes": [dataclasses.asdict(fixed) for fixed in fixes],
        }
    )


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "level": finding.level,
        "finding": finding.subject,
        "detail": finding.detail,
        "remedy": finding.remedy,
        "fixable": finding.fix is not None,
    }


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _count(findings: Sequence[Finding], level: str) -> int:
    return sum(finding.level == level for finding in findings)


if __name__ == "__main__":
    raise SystemExit(main())
