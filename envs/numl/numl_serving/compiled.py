"""A network's compiled iteration: where it is kept, what it is for, and its loader.

A compiled iteration is a shared library that `numl_serving.compile` makes with AOTInductor. It
belongs to an architecture (names and shapes of weights), a version of torch, this package's code, a
level of the processor's instructions and, if it is for GPUs, a compute capability; a digest of
these names its folder, so that what was made for anything else is never looked at. Whatever is
wrong with it, the network runs without it.

Loading a library executes what is in it. It is therefore never taken from beside the weights,
which may come from anywhere: only from the environment itself, or from the folder that the launch
names, into which nobody but the user who compiled writes. Nothing is unpickled: torch's loader of
``.pt2`` packages is not used, only the library that it would unpack.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numl_serving.iteration import Iteration, Network, iteration_of, weights_of
from numl_serving.networks.common import GraphBatch
from numl_serving.target import Target, targets_of

OWN_FOLDER = "lib/numl_serving/compiled"
"""Where an environment may have compiled iterations of its own, below its prefix."""
LIBRARY_FILE = "iteration.so"
FACTS_FILE = "facts.json"
FORMAT = 3

_CODE = ("iteration.py", "compile.py", "toolchain.py", "blocks.cpp", "block_ops.py",
         "networks/common.py", "networks/nugraph2.py", "networks/nugraph3.py")  # fmt: skip


class CompiledError(Exception):
    """There is no usable compiled iteration; says why in one line."""


def own_folder() -> Path | None:
    """Return the folder of compiled iterations that came with this environment, or None."""
    folder = Path(sys.prefix, OWN_FOLDER)
    return folder if folder.is_dir() else None


def facts_of(network: Network, target: Target) -> dict[str, Any]:
    """Return everything that a compiled iteration depends on, as JSON can hold it."""
    package = Path(__file__).parent
    code = hashlib.sha256()
    for name in _CODE:
        code.update((package / name).read_bytes())
    weights = weights_of(iteration_of(network))
    return {
        "format": FORMAT,
        "architecture": network.spec.architecture,
        "variant": network.spec.variant,
        "weights": {name: list(tensor.shape) for name, tensor in weights.items()},
        "torch": torch.__version__,
        "code": code.hexdigest(),
        **target.facts,
    }


def folder_of(root: Path, facts: dict[str, Any]) -> Path:
    """Return the folder of the compiled iteration with these facts, made or not yet made."""
    text = json.dumps(facts, sort_keys=True)
    return root / hashlib.sha256(text.encode()).hexdigest()[:16]


class CompiledNetwork:
    """A network whose iterations run compiled.

    Args:
        network: The network, on the device; it encodes and decodes.
        library: The compiled iteration's shared library.
        device: Where it runs.
    """

    def __init__(self, network: Network, library: Path, device: torch.device) -> None:
        self._network = network
        self._iteration: Iteration = iteration_of(network)
        self._weights = list(weights_of(self._iteration).values())
        self._runner = _runner(library, device)

    @classmethod
    def load(cls, network: Network, root: Path, device: torch.device) -> CompiledNetwork:
        """Find a network's compiled iteration below a folder.

        Args:
            network: The network, on the device.
            root: Where compiled iterations are kept.
            device: Where it is to run.

        Raises:
            CompiledError: There is none for this network, torch, code and device, or it is
                damaged, or somebody else may have written it.
        """
        known = [facts_of(network, target) for target in targets_of(device)]
        there = (each for each in known if folder_of(root, each).is_dir())
        facts = next(there, known[0])
        folder = folder_of(root, facts)
        library = folder / LIBRARY_FILE
        try:
            found = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
            _check_owner(folder, library)
            content = library.read_bytes()
        except FileNotFoundError:
            raise CompiledError(f"{folder} is missing") from None
        except (OSError, ValueError) as error:
            raise CompiledError(f"{folder} cannot be read ({error})") from None
        sha256 = hashlib.sha256(content).hexdigest()
        if found != facts | {"sha256": sha256}:
            raise CompiledError(f"{folder} is damaged: remove it")
        try:
            return cls(network, library, device)
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0]
            raise CompiledError(f"{library} cannot be loaded ({line})") from None

    def __call__(self, batch: GraphBatch) -> dict[str, Tensor]:
        """Answer a batch whose last event is the `COMPANION`; the network's `forward` says how.

        On a GPU everything is done on the current stream.
        """
        network = self._network
        fixed = [*self._iteration.inputs(batch), *self._weights]
        state: Any = network.start(batch)
        for _ in range(network.iterations):
            state = type(state)(*self._runner.run([*state, *fixed]))
        return network.decode(state, batch)


def _runner(library: Path, device: torch.device) -> Any:
    # The runner of the library itself: a .pt2 package would be unpacked to /tmp at each start.
    runners: Any = torch._C._aoti
    if device.type == "cpu":
        return runners.AOTIModelContainerRunnerCpu(str(library), 1)
    # Kernels lie in the library: no folder of them. And one thread alone runs it: else each
    # iteration would wait for the GPU to be done with the one before.
    return runners.AOTIModelContainerRunnerCuda(str(library), 1, str(device), "", True)


def _check_owner(*paths: Path) -> None:
    for path in paths:
        status = path.stat()
        ours = status.st_uid in (0, os.getuid()) and not status.st_mode & stat.S_IWOTH
        # In an Apptainer image root's files may seem to be nobody's, but nobody can write them.
        if not ours and not os.statvfs(path).f_flag & os.ST_RDONLY:
            raise CompiledError(f"{path} belongs to somebody else or is writable by all: remove it")
