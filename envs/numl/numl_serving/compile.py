"""Compile the iterations of models ahead of time, with AOTInductor.

``python -m numl_serving.compile MODEL_DIR... --out FOLDER`` prints one JSON line per model
directory (with ``model.json`` and weights); exit code 1 if any could not be compiled. What is there
already is not compiled again, and models of one architecture share it. Needs a C++ compiler: g++,
or what CXX names. With ``--gpu`` it compiles for the first GPU that torch finds: the arithmetic
becomes kernels for its compute capability, which lie within the library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
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

from numl_serving.block_ops import SHIMS
from numl_serving.compiled import (
    FACTS_FILE,
    LIBRARY_FILE,
    CompiledError,
    CompiledNetwork,
    facts_of,
    folder_of,
)
from numl_serving.errors import ServingError
from numl_serving.event import Event
from numl_serving.golden import disagreements
from numl_serving.graph import build_graph
from numl_serving.iteration import (
    COMPANION,
    ON_CPU,
    PLAIN,
    Iteration,
    Network,
    iteration_of,
    weights_of,
)
from numl_serving.networks.common import GraphBatch, collate
from numl_serving.runtime import answer, load_network
from numl_serving.target import LEVELS, Target, targets_of
from numl_serving.toolchain import (
    KERNEL,
    build_kernel,
    cuda_home,
    placeless_compiler,
    run,
    variables,
)
from numl_serving.transfer import transfer_to

_CHECKED_HITS = (0, 1, 3, 40, 400)
_LARGEST_SIZE = 1 << 40  # of anything, beyond every memory
_REGISTER_BITS = {"x86-64-v4": 512, "x86-64-v3": 256}


def choose_target(device: str = "cpu", level: str | None = None) -> Target:
    """Return what is compiled for.

    Args:
        device: Of this machine, as torch names it.
        level: The level of instructions that may be used, of `levels`; None: the highest.

    Raises:
        CompiledError: There is no such device, or this processor does not have the level.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise CompiledError(f"torch {torch.__version__} finds no GPU that it can use")
    found = {target.processor: target for target in targets_of(place)}
    level = level or next(iter(found))
    if level not in found:
        raise CompiledError(f"this processor has no {level}, only {', '.join(found)}")
    return found[level]


def compile_network(network: Network, normalisation: Any, root: Path, target: Target) -> Path:
    """Compile a network's iteration, check its answers, and put it below a folder.

    Args:
        network: The network; is moved to the target's device.
        normalisation: Of the features, as `collate` takes it.
        root: Where compiled iterations are kept.
        target: What is compiled for.

    Returns:
        The folder with library and facts.

    Raises:
        CompiledError: There is no compiler, it fails, or the answers are wrong.
    """
    network = network.to(target.device)
    facts = facts_of(network, target)
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
        # Inductor and Triton keep what they make, by default in /tmp and at home, for ever.
        kept = {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(scratch, "inductor")),
            "TRITON_CACHE_DIR": str(Path(scratch, "triton")),
        }
        with variables(**kept):
            _build(network, normalisation, Path(scratch), library, target)
        run(["strip", "--strip-all", "--remove-section=.note.gnu.build-id", str(library)])
        _check(network, normalisation, library, target.device)
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

    def __init__(self, iteration: Iteration) -> None:
        super().__init__()
        self.__dict__["_iteration"] = iteration
        self._names = list(weights_of(iteration))

    def forward(self, *arguments: Tensor) -> Any:
        count = len(arguments) - len(self._names)
        weights = dict(zip(self._names, arguments[count:], strict=True))
        return torch.func.functional_call(
            self.__dict__["_iteration"], weights, tuple(arguments[:count])
        )


def settings(target: Target, compiler: str) -> dict[str, Any]:
    """Return Inductor's settings for a target, by their names in ``torch._inductor.config``.

    Args:
        target: What is compiled for.
        compiler: The C++ compiler.
    """
    of_host = {
        # One thread: instances of a model share the cores among them.
        "cpp.threads": 1,
        "cpp.cxx": (compiler,),
        "cpp.march": target.processor if target.processor in LEVELS else None,  # None: all it has
        "cpp.simdlen": _REGISTER_BITS.get(target.processor),
        # They lie in /tmp whatever its folder is: half a gigabyte, for two files.
        "aot_inductor.precompile_headers": False,
    }
    if target.gpu is not None:
        # Beside the library they would have to be looked for.
        return of_host | {"aot_inductor.embed_kernel_binary": True}
    return of_host | {
        "aot_inductor.custom_ops_to_c_shims": SHIMS,
        "aot_inductor.custom_op_libs": [KERNEL],
    }


def _build(
    network: Network, normalisation: Any, scratch: Path, library: Path, target: Target
) -> None:
    import torch._inductor

    iteration = iteration_of(network, ON_CPU if target.gpu is None else PLAIN)

    def arguments(*hits: int) -> tuple[Tensor, ...]:
        batch = _batch(normalisation, *hits).to(target.device)
        state = network.start(batch)
        return (*state, *iteration.inputs(batch), *weights_of(iteration).values())

    # Without a bound Inductor makes kernels that count in 32 bits, as if every event were small.
    size = Dim.DYNAMIC if target.gpu is None else Dim.DYNAMIC(max=_LARGEST_SIZE)
    # The sizes that differ between two batches are those that are free.
    example, other = arguments(90), arguments(50, 70)
    free = tuple(
        {
            dimension: size
            for dimension, sizes in enumerate(zip(one.shape, two.shape, strict=True))
            if sizes[0] != sizes[1]
        }
        for one, two in zip(example, other, strict=True)
    )
    package = scratch / "iteration.pt2"
    compiler = placeless_compiler(os.environ.get("CXX", "g++"), scratch)
    try:
        with torch.no_grad():
            program = export(_Call(iteration), example, dynamic_shapes=(free,))
        with _prepared(target, compiler, scratch):
            torch._inductor.aoti_compile_and_package(
                program,
                package_path=str(package),
                inductor_configs=settings(target, compiler),
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


@contextmanager
def _prepared(target: Target, compiler: str, scratch: Path) -> Iterator[None]:
    """Have what Inductor has no setting for."""
    if target.gpu is not None:
        from torch.utils import cpp_extension

        cpp_extension.CUDA_HOME = str(cuda_home(scratch))
        yield
        return
    march = target.processor if target.processor in LEVELS else "native"
    kernel = build_kernel(compiler, scratch, march)
    # Where the linker looks, too.
    places = filter(None, (str(kernel.parent), os.environ.get("LIBRARY_PATH")))
    with variables(LIBRARY_PATH=os.pathsep.join(places)):
        yield


def _check(network: Network, normalisation: Any, library: Path, device: torch.device) -> None:
    transfer = transfer_to(device)
    try:
        compiled = CompiledNetwork(network, library, device)
        for hits in _CHECKED_HITS:
            batch = _batch(normalisation, hits)
            expected, actual = answer(network, batch, transfer), answer(compiled, batch, transfer)
            if faults := disagreements(expected, actual):
                raise CompiledError(f"wrong answer to {hits} hits: {faults[0]}")
    except RuntimeError as error:
        line = str(error).strip().splitlines()[0]
        raise CompiledError(f"what was compiled fails ({line})") from None


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


def compile_model(directory: Path, root: Path, target: Target | None = None) -> Path:
    """Compile the iteration of the model in a directory; see `compile_network`.

    Args:
        directory: The model's.
        root: Where compiled iterations are kept.
        target: What is compiled for; None: this processor.

    Raises:
        CompiledError: As there.
        ModelFilesError: The model cannot be loaded.
    """
    card, network = load_network(directory)
    return compile_network(network.eval(), card.normalisation, root, target or choose_target())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_serving.compile", description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument(
        "--level", choices=LEVELS, help="instructions they may use (default: all there are)"
    )
    parser.add_argument("--gpu", action="store_true", help="for the first GPU that torch finds")
    options = parser.parse_args(arguments)
    directories: list[Path] = options.directories
    torch.set_num_threads(1)
    try:
        target = choose_target("cuda:0" if options.gpu else "cpu", options.level)
        if len(directories) == 1:
            return _compile_one(directories[0], options.out, target)
        first = {
            folder_of(options.out, facts_of(load_network(directory)[1], target)): directory
            for directory in reversed(directories)
        }
    except (CompiledError, ServingError) as error:
        _print_line({"error": str(error)})
        return 1
    leaders = list(dict.fromkeys(first.values()))
    same = ["--out", str(options.out)]
    same += ["--gpu"] if options.gpu else []
    same += ["--level", options.level] if options.level is not None else []
    with ThreadPoolExecutor(min(len(leaders), len(os.sched_getaffinity(0)))) as pool:
        codes = list(pool.map(lambda each: _compile_apart(each, same), leaders))
    return max(codes)


def _compile_apart(directory: Path, same: Sequence[str]) -> int:
    command = [sys.executable, "-P", "-m", "numl_serving.compile", str(directory), *same]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    return 0 if done.returncode == 0 else 1


def _compile_one(directory: Path, root: Path, target: Target) -> int:
    start = time.monotonic()
    folder, problem = None, None
    try:
        folder = str(compile_model(directory, root, target))
    except (CompiledError, ServingError, OSError, RuntimeError) as error:
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
    seconds = round(time.monotonic() - start, 1)
    _print_line({"model": str(directory), "compiled": folder, "error": problem, "seconds": seconds})
    return 0 if problem is None else 1


def _print_line(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
