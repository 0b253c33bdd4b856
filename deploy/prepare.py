"""Make what a launch needs, without starting anything: Triton, environment, checks."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
from collections.abc import Sequence

from deploy.checks.launch import check_room
from deploy.cli import Parser, make_parser, run
from deploy.console import Console
from deploy.deployment import Deployment
from deploy.engines.local import LocalEngine
from deploy.environment.standard import standard_environment


def parser() -> Parser:
    """Return the command's parser."""
    return make_parser("prepare", "Make what a launch needs; print the environment's folder.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run(_prepare, parser(), argv)


def _prepare(options: argparse.Namespace, console: Console) -> int:
    engine, deployment = LocalEngine(), Deployment(name=options.name)
    check_room(deployment, engine.name)
    with console.step("prepare") as say:
        engine.prepare(deployment=deployment, say=say)
    environment = standard_environment(deployment.flavour).environment.folder
    console.line(str(environment))
    console.answer({"ok": True, "environment": str(environment)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
