"""Describe a model made elsewhere, so that it can be served by ``numl_serving.ported``.

``python -m numl_serving.porting FOLDER [--class MODULE:CLASS --weights FILE] [--example FILE]``
runs the model in the folder of its version once, writes its reference output there, and prints its
tensors as JSON; or what is wrong, and the remedy.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numl_formats.golden import GoldenEvent, difference, write_golden
from numl_formats.repository import GOLDEN_FILE
from numl_serving.errors import one_line
from numl_serving.ported import (
    WEIGHTS,
    Arrays,
    PortingError,
    for_triton,
    network_in,
    porting_errors,
)

_TYPES = {
    **{name: name.upper() for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")},
    **{"float16": "FP16", "float32": "FP32", "float64": "FP64", "bool": "BOOL", "object": "BYTES"},
}
_EXAMPLE = "--example FILE.npz, with arrays that the model takes"


def write_weights(source: Path, target: Path) -> None:
    """Write a state dictionary as safetensors; nothing in ``source`` is executed."""
    import torch
    from safetensors.torch import load_file, save_file

    remedy = "save them by torch.save(network.state_dict(), FILE), or as safetensors"
    with porting_errors(f"{source.name} has no state dictionary", remedy):
        if source.suffix == ".safetensors":
            found = load_file(source)
        else:
            found = torch.load(source, map_location="cpu", weights_only=True)
            found = found.get("state_dict", found)
        save_file({name: tensor.clone().contiguous() for name, tensor in found.items()}, target)


def describe(folder: Path, named: str | None, example: Path | None) -> dict[str, Any]:
    """Run a model once, write its reference output, and return its tensors."""
    if named is not None:
        _require_own(named.partition(":")[0], folder)
    network = network_in(folder, named)
    if example is not None:
        remedy = "numpy.savez writes it (docs/port.md)"
        with (
            porting_errors(f"{example.name} cannot be read", remedy),
            np.load(example, allow_pickle=False) as file,
        ):
            inputs = {name: file[name] for name in file.files}
    else:
        made = network.example()
        if made is None:
            raise PortingError("it has no example input", _EXAMPLE)
        inputs = made
    taken = network.inputs(inputs)
    if not taken:
        raise PortingError("it takes no tensor", "have the model take an array")
    if taken.keys() != inputs.keys():
        cause = f"it takes {', '.join(taken)}; the example has {', '.join(inputs)}"
        raise PortingError(cause, "name the example's arrays as its inputs")
    with porting_errors(f"it fails for {_in_words(inputs)}", _EXAMPLE):
        answer, again = (network(inputs) for _ in range(2))
    given = {name: (dtype, dims or [1]) for name, (dtype, dims) in network.outputs(answer).items()}
    sides = {"input": taken, "output": given}
    for kind, tensors in sides.items():
        for name, (dtype, dims) in tensors.items():
            if dtype not in _TYPES:
                cause = f"{kind} {name} is {dtype}, a type that Triton does not have"
                raise PortingError(cause, "convert it in the model")
            if not dims:
                cause = f"{kind} {name} has no dimensions; Triton wants one"
                remedy = "have the model take an array of one; if it takes any, --example FILE.npz"
                raise PortingError(cause, remedy)
    golden = GoldenEvent(inputs, for_triton(answer))
    apart = difference(golden, for_triton(again))
    if apart is not None:
        remedy = f"leave randomness out of it, or {_EXAMPLE} and answers in finite numbers"
        raise PortingError(f"it cannot be compared with its own answer: {apart}", remedy)
    with porting_errors("its reference output cannot be kept", _EXAMPLE):
        write_golden(folder / GOLDEN_FILE, golden)
    return {
        kind: [
            {"name": name, "datatype": _TYPES[dtype], "dims": dims}
            for name, (dtype, dims) in tensors.items()
        ]
        for kind, tensors in sides.items()
    }


def _require_own(module: str, folder: Path) -> None:
    """Refuse a module that is not found where Triton looks for it: last, in the model's folder."""
    found = importlib.util.find_spec(module)
    if found is not None and found.origin and not found.origin.startswith(f"{folder}/"):
        raise PortingError(f"its environment has another module {module}", "rename yours")


def _in_words(arrays: Arrays) -> str:
    return ", ".join(f"{name} {a.dtype.name} {list(a.shape)}" for name, a in arrays.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Describe a model; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_serving.porting", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--class", dest="named", metavar="MODULE:CLASS")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--example", type=Path)
    options = parser.parse_args(arguments)
    told: dict[str, Any]
    try:
        if options.weights is not None:
            write_weights(options.weights, options.folder / WEIGHTS)
        told = describe(options.folder, options.named, options.example)
    except PortingError as error:
        told = {"error": str(error), "remedy": error.remedy}
    except Exception as error:  # someone else's model
        told = {"error": one_line(error), "remedy": None}
    # On a line of its own, whatever the model has printed.
    sys.stdout.write(f"\n{json.dumps(told)}\n")
    return 1 if "error" in told else 0


if __name__ == "__main__":
    raise SystemExit(main())
