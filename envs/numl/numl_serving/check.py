"""Check that model directories answer their golden events, in the interpreter that will serve.

``python -m numl_serving.check MODEL_DIR...`` prints one JSON line about the interpreter and one
per model directory (the version directory, with ``model.json``); exit code 1 if any model fails.
With ``--device`` the network runs there instead of on the CPU: ``cuda:0``, for one.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numl_formats.golden import difference, read_golden
from numl_formats.repository import GOLDEN_FILE
from numl_serving.errors import ServingError, of_model_files
from numl_serving.event import Event
from numl_serving.runtime import CPU, Runtime


def check_model(directory: Path, device: str = CPU) -> dict[str, Any]:
    """Load a model and compare its answer to the golden one.

    Args:
        directory: The model's.
        device: Where the network runs, as `Runtime.load` takes it.

    Returns:
        ``model``, ``ok`` and ``error`` (what is wrong, in one line, or None).
    """
    error = None
    try:
        with of_model_files():
            golden = read_golden(directory / GOLDEN_FILE)
        runtime = Runtime.load(directory, device=device)
        answer = runtime.infer(Event.from_tensors(golden.inputs, runtime.card.schema))
        fault = difference(golden, answer)
        error = f"wrong answer: {fault}" if fault is not None else None
    except ServingError as refused:
        error = str(refused)
    except Exception as failed:  # a checker reports anything that would stop a server
        error = f"{type(failed).__name__}: {' '.join(str(failed).split())}"
    return {"model": str(directory), "ok": error is None, "error": error}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_serving.check", description=__doc__)
    parser.add_argument("directories", nargs="*", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--device", default=CPU, metavar="NAME")
    options = parser.parse_args(arguments)
    directories: list[Path] = options.directories
    version = platform.python_version()
    _print_line({"python": version, "prefix": sys.prefix, "numpy": np.__version__})
    reports = [check_model(directory, options.device) for directory in directories]
    for report in reports:
        _print_line(report)
    return 0 if all(report["ok"] for report in reports) else 1


def _print_line(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
