"""The ``numlkit`` command: the modules in ``deploy/commands`` under one name."""

import argparse
import ast
import difflib
import importlib
import io
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
    _mend_streams()
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    try:
        status = _run(*((sys.argv[1:] if argv is None else argv) or [""]))
    except SystemExit as end:  # a parser's, after its help
        status = int(end.code or 0)
    return _written(status)


def _mend_streams() -> None:
    """Have output go nowhere where a parent has closed it, and take names of any bytes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, mode)))
    # As standard error does: a file's name need not be UTF-8.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _written(status: int) -> int:
    """Write what is left of the output; return the exit status."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Or Python would say at its end that it cannot be written, and change the status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if status == 0 and not isinstance(error, BrokenPipeError):
            from deploy.host.cli import describe_os_error
            from deploy.host.console import Console

            Console().error(describe_os_error(error))
            return 1
    return status


def _run(command: str, *words: str) -> int:
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


def _completion(words: Sequence[str]) -> int:
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
