"""The ``numlkit`` console command: the files in ``deploy/``, under one name."""

from __future__ import annotations

import importlib
import sys

COMMANDS = ("prepare", "build", "up", "down", "status", "logs", "smoke", "doctor")


def main() -> int:
    """Run ``numlkit COMMAND ...``; return its exit status."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        usage = f"usage: numlkit {{{','.join(COMMANDS)}}} ...\n"
        asked = len(sys.argv) > 1 and sys.argv[1] in ("-h", "--help")
        (sys.stdout if asked else sys.stderr).write(usage)
        return 0 if asked else 2
    module = importlib.import_module(f"deploy.{sys.argv[1]}")
    status: int = module.main(sys.argv[2:])
    return status


if __name__ == "__main__":
    raise SystemExit(main())
