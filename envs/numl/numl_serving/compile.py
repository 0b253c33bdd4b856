"""Compile the iterations of models ahead of time, with AOTInductor.

``python -m numl_serving.compile MODEL_DIR... --out FOLDER`` prints one JSON line per model
directory (with ``model.json`` and weights); exit code 1 if any could not be compiled. What is there
already is not compiled again, and models of one architecture share it. Needs a C++ compiler: g++,
or what CXX names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from numl_serving.compiled import (
    FACTS_FILE,
    LEVELS,
    LIBRARY_FILE,
    CompiledError,
    CompiledNetwork,
    facts_of,
    folder_of,
    levels,
)
from numl_serving.errors import ServingError
from numl_serving.event import Event
from numl_serving.golden import disagreements
from numl_serving.graph import build_graph
from numl_serving.iteration import COMPANION, Network, iteration_of, weights_of
from numl_serving.networks.common import GraphBatch, collate
from numl_serving.runtime import load_network
from numl_serving.softmax_op import SHIM

_CHECKED_HITS = (0, 1, 3, 40, 400)
_REGISTER_BITS = {"x86-64-v4": 512, "x86-64-v3": 256}
_SOURCE, _KERNEL = "softmax_aggregate.cpp", "numl_softmax_aggregate"


def compile_network(
    network: Network, normalisation: Any, root: Path, level: str | None = None
) -> Path:
    """Compile a network's iteration, check its answers, and put it below a folder.

    Args:
        network: The network.
        normalisation: Of the features, as `collate` takes it.
        root: Where compiled iterations are kept.
        level: The level of instructions it may use, of `levels`; None: the highest.

    Returns:
        The folder with library and facts.

    Raises:
        CompiledError: There is no compiler, it fails, or the answers are wrong; or this processor
            does not have the level.
    """
    level = level or levels()[0]
    if level not in levels():
        raise CompiledError(f"this processor has no {level}, only {', '.join(levels())}")
    facts = facts_of(network, level)
    folder = folder_of(root, facts)
    if (folder / FACTS_FILE).exists():
        return folder
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise CompiledError(f"no C++ compiler: {compiler} is not installed")
    root.mkdir(parents=True, exist_ok=True)
    # Beside the folder it becomes, so that it gets its name, complete, in one step.
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=root) as scratch:
        staged = Path(scratch) / folder.name
        staged.mkdir()
        library = staged / LIBRARY_FILE
        # Inductor keeps what it makes, by default in /tmp and for ever.
        with _variables(TORCHINDUCTOR_CACHE_DIR=str(Path(scratch, "inductor"))):
            _build(network, normalisation, Path(scratch), library, level)
        _run(["strip", "--strip-all", "--remove-section=.note.gnu.build-id", str(library)])
        _check(network, normalisation, library)
        sha256 = hashlib.sha256(library.read_bytes()).hexdigest()
        content = json.dumps(facts | {"sha256": sha256}, indent=2)
        (staged / FACTS_FILE).write_text(content + "\n", encoding="utf-8")
        try:
            staged.rename(folder)
        except OSError as error:
            if not (folder / FACTS_FILE).exists():  # else another process was faster
                raise CompiledError(f"{folder} cannot be written ({error.strerror})") from None
    return folder


class _Call(nn.Module):
    """An iteration with its weights as arguments; hides it, lest they become constants."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        iteration = iteration_of(network)
        self.__dict__["_iteration"] = iteration
        self._names = list(weights_of(iteration))

    def forward(self, *arguments: Tensor) -> Any:
        count = len(arguments) - len(self._names)
        weights = dict(zip(self._names, arguments[count:], strict=True))
        return torch.func.functional_call(
            self.__dict__["_iteration"], weights, tuple(arguments[:count])
        )


def _build(network: Network, normalisation: Any, scratch: Path, library: Path, level: str) -> None:
    import torch._inductor
    import torch._inductor.fx_passes.post_grad as post_grad

    # A sum behind a matrix product is cheaper in the loop that follows; on a CPU Inductor would
    # make an addmm of the two, which first copies the term.
    if hasattr(post_grad, "should_prefer_unfused_addmm"):
        post_grad.should_prefer_unfused_addmm = lambda match: True

    def arguments(*hits: int) -> tuple[Tensor, ...]:
        batch = _batch(normalisation, *hits)
        iteration = iteration_of(network)
        state = network.start(batch)
        return (*state, *iteration.inputs(batch), *weights_of(iteration).values())

    # The sizes that differ between two batches are those that are free.
    example, other = arguments(90), arguments(50, 70)
    free = tuple(
        {
            dimension: Dim.DYNAMIC
            for dimension, sizes in enumerate(zip(one.shape, two.shape, strict=True))
            if sizes[0] != sizes[1]
        }
        for one, two in zip(example, other, strict=True)
    )
    package = scratch / "iteration.pt2"
    compiler = _placeless_compiler(os.environ.get("CXX", "g++"), scratch)
    march = level if level in LEVELS else None  # None: whatever the processor has
    try:
        with torch.no_grad():
            program = export(_Call(network), example, dynamic_shapes=(free,))
        kernel = build_kernel(compiler, scratch, march or "native")
        # Where the linker looks, too: Inductor has no setting for it.
        places = filter(None, (str(kernel.parent), os.environ.get("LIBRARY_PATH")))
        with _variables(LIBRARY_PATH=os.pathsep.join(places)):
            torch._inductor.aoti_compile_and_package(
                program,
                package_path=str(package),
                inductor_configs={
                    # One thread: instances of a model share the cores among them.
                    "cpp.threads": 1,
                    "cpp.cxx": (compiler,),
                    "cpp.march": march,
                    "cpp.simdlen": _REGISTER_BITS.get(level),
                    # They lie in /tmp whatever its folder is: half a gigabyte, for two files.
                    "aot_inductor.precompile_headers": False,
                    "aot_inductor.custom_ops_to_c_shims": {
                        torch.ops.numl.gated_softmax.default: [SHIM]
                    },
                    "aot_inductor.custom_op_libs": [_KERNEL],
                },
            )
    except CompiledError:
        raise
    except Exception as error:  # a compiler has many ways to fail, and all of them mean: without
        line = (str(error).strip().splitlines() or [""])[0]
        raise CompiledError(f"compilation failed: {type(error).__name__}: {line}") from error
    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        library.write_bytes(archive.read(name))
    library.chmod(0o755)


def build_kernel(compiler: str, folder: Path, march: str = "native") -> Path:
    """Compile the C++ of the softmax aggregation into an archive in a folder; returns its path.

    Args:
        compiler: g++, or another that knows its flags.
        folder: Where it is put.
        march: What instructions it may use, as the compiler names them.

    Raises:
        CompiledError: With what the compiler says.
    """
    source, compiled = Path(__file__).with_name(_SOURCE), folder / f"{_KERNEL}.o"
    archive = folder / f"lib{_KERNEL}.a"
    flags = ["-O3", f"-march={march}", "-std=c++17", "-fPIC", "-fno-math-errno", "-Wno-psabi"]
    include = Path(torch.__file__).parent / "include"
    _run([compiler, *flags, f"-I{include}", "-c", str(source), "-o", str(compiled)])
    _run(["ar", "rcs", str(archive), str(compiled)])
    return archive


def _placeless_compiler(compiler: str, folder: Path) -> str:
    """Return the path of a compiler that puts no names of files into what it makes.

    They lie in folders of this machine, and are others each time.
    """
    script = folder / "bin" / Path(compiler).name
    script.parent.mkdir()
    flags = ["-Wno-builtin-macro-redefined", '-D__FILE__="iteration"']
    script.write_text(f'#!/bin/sh\nexec {shlex.join([compiler, *flags])} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    return str(script)


def _run(command: Sequence[str]) -> None:
    """Run a program of the compiler's kind.

    Raises:
        CompiledError: With the first line of what it complains of.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompiledError(f"{command[0]} cannot be run ({error.strerror})") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CompiledError(f"{Path(command[0]).name} fails: {said[0]}")


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    """Give this process, and those that it starts, other environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _check(network: Network, normalisation: Any, library: Path) -> None:
    compiled = CompiledNetwork(network, library)
    with torch.inference_mode():
        for hits in _CHECKED_HITS:
            batch = _batch(normalisation, hits)
            expected = {name: value.numpy() for name, value in network(batch).items()}
            actual = {name: value.numpy() for name, value in compiled(batch).items()}
            if faults := disagreements(expected, actual):
                raise CompiledError(f"wrong answer to {hits} hits: {faults[0]}")


def _batch(normalisation: Any, *hits: int) -> GraphBatch:
    graphs = [build_graph(_scattered_event(count)) for count in hits]
    return collate([*graphs, COMPANION], normalisation)


def _scattered_event(hits: int) -> Event:
    rng = np.random.default_rng(hits)
    spacepoints = 2 * hits // 5
    ids = np.arange(hits, dtype=np.int32)
    named = {
        f"spacepoint_table_hit_id_{plane}": rng.integers(-1, max(hits, 1), spacepoints, np.int32)
        for plane in "uvy"
    }
    return Event.from_tensors(
        {
            "hit_table_hit_id": ids,
            "hit_table_local_plane": ids % 3,
            "hit_table_local_time": rng.uniform(0, 6400, hits).astype(np.float32),
            "hit_table_local_wire": rng.integers(0, 3456, hits, np.int32),
            "hit_table_integral": rng.uniform(20, 300, hits).astype(np.float32),
            "hit_table_rms": rng.uniform(2, 8, hits).astype(np.float32),
            "spacepoint_table_spacepoint_id": np.arange(spacepoints, dtype=np.int32),
            **named,
        }
    )


def compile_model(directory: Path, root: Path, level: str | None = None) -> Path:
    """Compile the iteration of the model in a directory; see `compile_network`.

    Raises:
        CompiledError: As there.
        ModelFilesError: The model cannot be loaded.
    """
    card, network = load_network(directory)
    return compile_network(network.eval(), card.normalisation, root, level)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_serving.compile", description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument(
        "--level", choices=LEVELS, help="instructions they may use (default: all there are)"
    )
    options = parser.parse_args(arguments)
    directories: list[Path] = options.directories
    torch.set_num_threads(1)
    if len(directories) == 1:
        return _compile_one(directories[0], options.out, options.level)
    try:
        first = {
            folder_of(options.out, facts_of(load_network(directory)[1], options.level)): directory
            for directory in reversed(directories)
        }
    except ServingError as error:
        _print_line({"error": str(error)})
        return 1
    leaders = list(dict.fromkeys(first.values()))
    with ThreadPoolExecutor(min(len(leaders), len(os.sched_getaffinity(0)))) as pool:
        codes = list(
            pool.map(lambda each: _compile_apart(each, options.out, options.level), leaders)
        )
    return max(codes)


def _compile_apart(directory: Path, root: Path, level: str | None) -> int:
    command = [sys.executable, "-P", "-m", "numl_serving.compile", str(directory)]
    command += ["--out", str(root)]
    if level is not None:
        command += ["--level", level]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    return 0 if done.returncode == 0 else 1


def _compile_one(directory: Path, root: Path, level: str | None) -> int:
    start = time.monotonic()
    folder, problem = None, None
    try:
        folder = str(compile_model(directory, root, level))
    except (CompiledError, ServingError, OSError) as error:
        problem = str(error)
    seconds = round(time.monotonic() - start, 1)
    _print_line({"model": str(directory), "compiled": folder, "error": problem, "seconds": seconds})
    return 0 if problem is None else 1


def _print_line(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
