"""Stop a deployment and remove what it leaves behind."""

from __future__ import annotations

if __package__ in (None, ""):
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from deploy.bootstrap import ensure_kit

    ensure_kit()

import argparse
from collections.abc import Sequence

from deploy.cli import DEFAULT_NAME, Parser, make_parser, run
from deploy.console import Console
from deploy.engines.choose import engine_named
from deploy.state import DeploymentFolder, known_deployments


def parser() -> Parser:
    """Return the command's parser."""
    flags = make_parser("down", "Stop a deployment and remove what it leaves behind.")
    flags.add_argument("--all", action="store_true", help="stop every deployment of this user")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run(_down, parser(), argv)


def _down(options: argparse.Namespace, console: Console) -> int:
    names = known_deployments() if options.all else (options.name,)
    stopped = []
    for name in names:
        folder = DeploymentFolder(name)
        state = folder.state_here()
        if state is None:
            if name != DEFAULT_NAME and not folder.path.exists():
                folder.require_state()  # a mistyped name: says which there are
            # Stopping twice is no mistake.
            console.say(f"deployment {name} is not running")
            continue
        with console.step(f"stop {name}"):
            engine_named(state.engine).stop(folder=folder, state=state)
        stopped.append(name)
    console.answer({"ok": True, "stopped": stopped})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
