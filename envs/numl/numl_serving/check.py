"""Check that model directories answer their golden events, in the interpreter that will serve.

``python -m numl_serving.check MODEL_DIR...`` prints one JSON line about the interpreter and one
per model directory (the version directory, with ``model.json``); exit code 1 if any model fails.
With ``--compiled`` models answer as they would with that folder of compiled iterations.
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
import torch

from numl_serving.errors import ServingError
from numl_serving.golden import disagreements, read_golden
from numl_serving.modelcard import GOLDEN_FILE
from numl_serving.runtime import Runtime


def check_model(directory: Path, compiled: Path | None = None) -> str | None:
    """Load a model and compare its answer to the golden one.

    Args:
        directory: The model's.
        compiled: Folder of compiled iterations, to be used where it has the model's.

    Returns:
        What is wrong, in one line, or None.
    """
    try:
        golden = read_golden(directory / GOLDEN_FILE)
        outputs = Runtime.load(directory, compiled=compiled).infer(golden.event)
    except ServingError as error:
        return str(error)
    except Exception as error:  # a checker tells of anything that would stop a server
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    faults = disagreements(golden.outputs, outputs)
    return f"wrong answer: {'; '.join(faults)}" if faults else None


def interpreter() -> dict[str, str]:
    """Return version and place of this interpreter, and the versions that matter."""
    return {
        "python": platform.python_version(),
        "prefix": sys.prefix,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_serving.check", description=__doc__)
    parser.add_argument("directories", nargs="*", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    directories: list[Path] = options.directories
    _print_line(interpreter())
    errors = [check_model(directory, options.compiled) for directory in directories]
    for directory, error in zip(directories, errors, strict=True):
        _print_line({"model": str(directory), "ok": error is None, "error": error})
    return 0 if all(error is None for error in errors) else 1


def _print_line(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
