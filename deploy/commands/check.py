"""Check a model repository of your own without starting anything."""

import argparse
from functools import partial
from pathlib import Path

from deploy.checks.site import check_repository, models_of
from deploy.host.cli import Parser, make_parser, run
from deploy.host.console import Console


def parser() -> Parser:
    what = (
        "Check a model repository of your own without starting anything: names, types and dims of "
        "tensors, files, environments and imports, reference outputs, and whether the steps of "
        "ensembles fit."
    )
    flags = make_parser("check", what, deployment=False)
    flags.add_argument("repository", type=Path, metavar="DIR", help="as for up --models-dir")
    flags.add_argument("--models", help="models to check, comma separated (default: all)")
    return flags


def _check(options: argparse.Namespace, console: Console) -> int:
    repository = options.repository.absolute()
    models = options.models.split(",") if options.models else models_of(repository)
    findings = list(check_repository(repository, models))
    for finding in findings:
        console.line(f"{finding.level:<8} {finding.subject}: {finding.detail}")
        if finding.remedy is not None:
            console.line(f"{'':9}try: {finding.remedy}")
    good = all(finding.level != "problem" for finding in findings)
    listed = [
        {"level": f.level, "model": f.subject, "detail": f.detail, "remedy": f.remedy}
        for f in findings
    ]
    console.answer({"ok": good, "findings": listed})
    return 0 if good else 1


main = partial(run, _check, parser)
