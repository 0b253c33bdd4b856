"""Find what is wrong with this host, the kit or a deployment, and what to do about it."""

import argparse
import shutil
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from deploy.checks.all import examine_everything
from deploy.commands.up import fetch_triton
from deploy.deployment.deployment import load_deployment
from deploy.host.cli import Parser, make_parser, run
from deploy.host.command_line import for_this_user
from deploy.host.console import Console, counted
from deploy.host.errors import KitError
from deploy.host.finding import Finding


def parser() -> Parser:
    flags = make_parser("doctor", __doc__)
    flags.set_defaults(name=None)  # then the file's name counts
    flags.add_argument("file", nargs="?", type=Path, help="a deployment file (TOML), as for up")
    fix = "remove what dead servers and interrupted commands left behind, and nothing else"
    flags.add_argument("--fix", action="store_true", help=fix)
    return flags


def _doctor(options: argparse.Namespace, console: Console) -> int:
    deployment = load_deployment(options.file, {"name": options.name})
    with suppress(KitError):  # it is among the findings
        fetch_triton(deployment, console)
    with console.step("checking"):
        findings = examine_everything(deployment)
    fixes = []
    if options.fix:
        fixes = [_fixed(finding.fix) for finding in findings if finding.fix is not None]
        if fixes:
            with console.step("checking again"):
                findings = examine_everything(deployment)
    _show(console, findings, fixes)
    return 1 if _count(findings, "problem") else 0


def _fixed(fix: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"ok": True, "said": fix()}
    except KitError as error:
        return {"ok": False, "said": error.cause}
    except OSError as error:
        return {"ok": False, "said": f"{error.filename}: {error.strerror}"}


def _show(console: Console, findings: Sequence[Finding], fixes: Sequence[dict[str, Any]]) -> None:
    for finding in findings:
        for line in _lines(finding):
            console.line(line)
    for fixed in fixes:
        console.line(f"{'fixed' if fixed['ok'] else 'not fixed'}: {fixed['said']}")
    problems, warnings = _count(findings, "problem"), _count(findings, "warning")
    console.line(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    listed = [_document(finding) for finding in findings]
    console.answer({"ok": not problems, "findings": listed, "fixes": list(fixes)})


def _lines(finding: Finding) -> list[str]:
    """Return a finding as lines of text no wider than the terminal, or 100 columns."""
    width = max(80, min(100, shutil.get_terminal_size((100, 24)).columns))

    def wrapped(text: str, before: str) -> list[str]:
        return textwrap.wrap(
            text,
            width,
            initial_indent=before,
            subsequent_indent=" " * len(before),
            break_long_words=False,  # a path stays whole
            break_on_hyphens=False,
        )

    lines = wrapped(f"{finding.subject}: {finding.detail}", f"{finding.level:<8} ")
    remedy = for_this_user(finding.remedy)
    if remedy is not None:
        lines += wrapped(remedy, f"{'':9}try: ")
    return lines


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "level": finding.level,
        "finding": finding.subject,
        "detail": finding.detail,
        "remedy": for_this_user(finding.remedy),
        "fixable": finding.fix is not None,
    }


def _count(findings: Sequence[Finding], level: str) -> int:
    return sum(finding.level == level for finding in findings)


main = partial(run, _doctor, parser)
