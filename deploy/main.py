"""The ``numlkit`` command: the modules in ``deploy/commands`` under one name."""

import argparse
import ast
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import __version__
from deploy.host.command_line import INTERRUPTED, Parser

COMMANDS = (
    *("prepare", "up", "exec", "infer", "merge", "evaluate", "status", "logs", "smoke", "doctor"),
    *("down", "build"),
    *("add", "check", "lock", "golden", "load"),
    *("publish", "published", "rollback"),
)
_SHELLS = ("bash", "zsh", "fish")


def main(argv: Sequence[str] | None = None) -> int:
    # Where a parent has it ignored, the system keeps no exit status, and each would be 0.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    command, *words = (sys.argv[1:] if argv is None else argv) or [""]
    if command in COMMANDS:
        try:
            return int(importlib.import_module(f"deploy.commands.{command}").main(words))
        except KeyboardInterrupt:  # while it was imported
            return INTERRUPTED
    if command == "completion":
        return _completion(words)
    if command in ("-V", "--version"):
        print(f"numlkit {__version__}")
        return 0
    if command in ("-h", "--help"):
        print(_help())
        return 0
    known = (*COMMANDS, "completion")
    near = difflib.get_close_matches(command, known, n=1)
    error = f"no command {command!r}" if command else "no command given"
    remedy = f"numlkit {near[0]}" if near else "numlkit --help"
    sys.stderr.write(f"error: {error}\n  try: {remedy}\n")
    return 2


def _help() -> str:
    rows = [(name, _summary(name)) for name in COMMANDS]
    rows.append(("completion", "Print the shell completion for " + ", ".join(_SHELLS) + "."))
    listed = "\n".join(f"  {name:<11} {sentence}" for name, sentence in rows)
    return (
        "usage: numlkit COMMAND ...\n\nServe NuGraph2 and NuGraph3 on NVIDIA Triton.\n\n"
        f"{listed}\n\nnumlkit COMMAND --help lists a command's options; numlkit --version, the "
        "version."
    )


def _summary(command: str) -> str:
    """Return a command's summary: the first line of its docstring, read without importing it."""
    path = Path(__file__).with_name("commands") / f"{command}.py"
    source = path.read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _completion(words: list[str]) -> int:
    from argcomplete.shell_integration import shellcode

    parser = Parser(prog="numlkit completion", description="Print the completion for a shell.")
    parser.add_argument(
        "shell", choices=_SHELLS, help='as in: eval "$(numlkit completion bash)", in ~/.bashrc'
    )
    shell = parser.parse_args(words).shell
    print(shellcode(["numlkit"], shell=shell))
    return 0


def _complete() -> None:
    """Answer a shell's request for completions, and exit."""
    import argcomplete

    parser = argparse.ArgumentParser(prog="numlkit")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    commands.add_parser("completion").add_argument("shell", choices=_SHELLS)
    typed = os.environ.get("COMP_LINE", "").split()[1:2]
    for name in COMMANDS:
        inherited = []
        if typed == [name]:  # importing them all would keep the person waiting
            inherited = [importlib.import_module(f"deploy.commands.{name}").parser()]
        commands.add_parser(name, parents=inherited, add_help=not inherited)
    argcomplete.autocomplete(parser)


if __name__ == "__main__":
    raise SystemExit(main())
