"""What a compiled iteration is made for: a kind of processor and, for those of a GPU, its kind.

The processor counts for both: on a GPU it runs the code that starts the kernels.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

# x86-64-v3 and -v4 of the psABI, under the names of /proc/cpuinfo: what a compiler may use that
# is told the level. And VNNI, which Inductor adds to the latter where it finds it.
_LEVEL_3 = frozenset(("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
_LEVEL_4 = _LEVEL_3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}
LEVELS: Mapping[str, frozenset[str]] = {"x86-64-v4": _LEVEL_4, "x86-64-v3": _LEVEL_3}
"""Levels of instructions, the highest first, and the flags of a processor that has them."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device, and what tells whether something compiled runs on it.

    Attributes:
        device: Where the tensors are.
        processor: The level of instructions, of `levels`, of what the processor runs.
        gpu: The GPU's compute capability, as in ``sm_90``; None: there is no GPU in it.
        cuda: The CUDA that torch is built for, as in ``13.0``, if there is a GPU.
    """

    device: torch.device
    processor: str
    gpu: str | None = None
    cuda: str | None = None

    @property
    def facts(self) -> dict[str, str | None]:
        """What something compiled depends on; which of several such devices it is, does not."""
        return {"processor": self.processor, "gpu": self.gpu, "cuda": self.cuda}


def targets_of(device: torch.device) -> tuple[Target, ...]:
    """Return what may have been compiled for what runs on a device here, the best first.

    Args:
        device: A CPU, or a GPU that torch can use.
    """
    gpu, cuda = None, None
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        gpu, cuda = f"sm_{major}{minor}", torch.version.cuda
    return tuple(Target(device, level, gpu, cuda) for level in levels())


def levels(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Return the levels of instructions that this processor has, the highest first.

    Another kind of processor has one, which is all of its own.

    Args:
        cpuinfo: Where the kernel describes the processor.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features")
    # Flags of the kernel's own making come and go with it, their order, too.
    kinds = {line.split(":", 1)[0].strip(): sorted(line.split(":", 1)[-1].split())
             for line in lines if line.split("\t")[0].strip() in wanted}  # fmt: skip
    found = tuple(name for name, flags in LEVELS.items() if flags <= set(kinds.get("flags", ())))
    if found:
        return found
    text = json.dumps([platform.machine(), kinds])
    return (hashlib.sha256(text.encode()).hexdigest()[:16],)
