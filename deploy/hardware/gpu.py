"""The GPUs of this host, as NVIDIA's management library (NVML) tells them.

NVML comes with the driver, ``nvidia-ml-py`` only asks it: without a driver nothing is loaded.
What a launch makes of the answer is decided in :mod:`deploy.hardware.plan`.

Source of the calls and their errors: NVML API reference, "Device Queries" and "Initialization".
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

_ROOT = Path("/")
_OR_CPU = "or start with --cpu"


@dataclass(frozen=True)
class Memory:
    """A device's memory.

    Attributes:
        total: Bytes it has.
        free: Bytes that nobody uses at this moment.
    """

    total: int
    free: int


@dataclass(frozen=True)
class MigInstance:
    """A part of a GPU that is divided by MIG: a compute instance, which CUDA takes for a device.

    Attributes:
        uuid: ``MIG-...``.
        name: As in ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``.
        gpu: Number of the GPU it is a part of.
        gpu_instance: The GPU instance it lies in; CUDA uses one compute instance of each.
        compute_capability: Of the GPU: major and minor.
        memory: Its memory, or None if that is not told.
    """

    uuid: str
    name: str
    gpu: int
    gpu_instance: int
    compute_capability: tuple[int, int]
    memory: Memory | None

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.uuid} ({self.name})"


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        index: Its number, by the order on the PCI bus, as ``nvidia-smi`` shows it.
        uuid: ``GPU-...``.
        name: As in ``NVIDIA A100-SXM4-40GB``.
        compute_capability: Major and minor.
        memory: Its memory, or None if that is not told.
        divided: Whether MIG mode is on; such a GPU is used by its instances only.
        instances: The MIG instances that were made on it and that this user may see.
    """

    index: int
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    memory: Memory | None
    divided: bool = False
    instances: tuple[MigInstance, ...] = ()

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"GPU {self.index} ({self.name})"


Device: TypeAlias = Gpu | MigInstance


@dataclass(frozen=True)
class BrokenGpu:
    """A GPU that the driver counts and that cannot be used.

    Attributes:
        index: Its number.
        cause: What is wrong, in one line.
        remedy: What to do, in one line.
    """

    index: int
    cause: str
    remedy: str


@dataclass(frozen=True)
class GpuStack:
    """Driver and GPUs.

    Attributes:
        driver: Version of the driver, as in ``580.65.06``.
        gpus: The GPUs, in the order of their numbers.
        broken: Those that cannot be used.
    """

    driver: str
    gpus: tuple[Gpu, ...]
    broken: tuple[BrokenGpu, ...] = ()

    @property
    def driver_release(self) -> int:
        """The driver's release, which requirements are told in: 580 of ``580.65.06``."""
        return int(self.driver.partition(".")[0])


@dataclass(frozen=True)
class NoGpus:
    """Why there is nothing to choose from.

    Attributes:
        cause: What is wrong, in one line.
        remedy: What to do, in one line.
    """

    cause: str
    remedy: str


def find_gpus(nvml: Any = None, *, root: Path = _ROOT) -> GpuStack | NoGpus:
    """Ask the driver for its GPUs.

    Args:
        nvml: The module to ask, None: ``pynvml``.
        root: Where ``dev`` and ``proc`` are, which say more about a driver that does not answer.
    """
    if nvml is None:
        nvml = importlib.import_module("pynvml")  # 25 ms that only asking for a GPU costs
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _why_no_answer(nvml, error, root)
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        gpus, broken = [], []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(nvml, index))
            except nvml.NVMLError as error:
                broken.append(_broken(nvml, error, index))
    except nvml.NVMLError as error:
        return _why_no_answer(nvml, error, root)
    finally:
        nvml.nvmlShutdown()
    if not gpus and not broken:
        return NoGpus(
            f"NVIDIA driver {driver} is loaded, but it has no GPU",
            f"lspci -nn | grep -i nvidia shows whether the host has one, {_OR_CPU}",
        )
    return GpuStack(driver=driver, gpus=tuple(gpus), broken=tuple(broken))


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    gpu = Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        compute_capability=(major, minor),
        memory=_memory(nvml, handle),
        divided=_is_divided(nvml, handle),
    )
    if not gpu.divided:
        return gpu
    return replace(gpu, instances=_instances(nvml, handle, gpu))


def _memory(nvml: Any, handle: Any) -> Memory | None:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        # A GPU that shares the host's memory has none of its own; a GPU divided by MIG may
        # tell its own only to root.
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION):
            return None
        raise
    return Memory(total=int(memory.total), free=int(memory.free))


def _is_divided(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        # The GPU, or a driver from before MIG, does not know it.
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return False
        raise
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _instances(nvml: Any, handle: Any, gpu: Gpu) -> tuple[MigInstance, ...]:
    found = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except nvml.NVMLError as error:
            # An empty slot, or an instance that was given to somebody else.
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION):
                continue
            raise
        found.append(
            MigInstance(
                uuid=nvml.nvmlDeviceGetUUID(part),
                name=nvml.nvmlDeviceGetName(part),
                gpu=gpu.index,
                gpu_instance=nvml.nvmlDeviceGetGpuInstanceId(part),
                compute_capability=gpu.compute_capability,
                memory=_memory(nvml, part),
            )
        )
    return tuple(found)


def _broken(nvml: Any, error: Any, index: int) -> BrokenGpu:
    remedies = {
        nvml.NVML_ERROR_GPU_IS_LOST: "it has dropped off the bus: see dmesg, restart the host",
        nvml.NVML_ERROR_RESET_REQUIRED: f"sudo nvidia-smi --gpu-reset -i {index}",
        nvml.NVML_ERROR_NO_PERMISSION: f"ls -l /dev/nvidia{index}: this user may not open it",
        nvml.NVML_ERROR_INSUFFICIENT_POWER: "its extra power cables are not plugged in",
    }
    return BrokenGpu(
        index=index,
        cause=f"GPU {index} cannot be used: NVIDIA's driver says {str(error)!r}",
        remedy=remedies.get(error.value, f"nvidia-smi -q -i {index}, and dmesg, say more"),
    )


def _why_no_answer(nvml: Any, error: Any, root: Path) -> NoGpus:
    if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return NoGpus(
            "no NVIDIA driver here: its library libnvidia-ml.so.1 cannot be loaded",
            f"install NVIDIA's driver, until nvidia-smi works, {_OR_CPU}",
        )
    if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return _not_loaded(root)
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        loaded = _loaded_version(root)
        return NoGpus(
            f"NVIDIA's kernel driver{f' is {loaded}, ' if loaded else ' and '}its libraries are of "
            "another version: they were updated, and the driver was not loaded anew",
            f"restart the host, or unload and load its nvidia modules, {_OR_CPU}",
        )
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return _not_permitted(root)
    if error.value == nvml.NVML_ERROR_UNKNOWN:
        return NoGpus(
            "NVIDIA's driver does not answer: Unknown Error",
            f"in a container that has lost its devices: start it anew; else see dmesg, {_OR_CPU}",
        )
    return NoGpus(
        f"NVIDIA's driver does not answer: {error}",
        f"nvidia-smi and dmesg may say more, {_OR_CPU}",
    )


def _not_loaded(root: Path) -> NoGpus:
    loaded = _loaded_version(root)
    if loaded is not None and not (root / "dev" / "nvidiactl").exists():
        return NoGpus(
            f"NVIDIA's kernel driver {loaded} is loaded, but /dev/nvidiactl is not there",
            "sudo nvidia-modprobe -u -c 0; in a container: give it the GPUs "
            f"(docker run --gpus all, apptainer run --nv), {_OR_CPU}",
        )
    return NoGpus(
        "NVIDIA's driver library is here, but its kernel driver is not loaded",
        f"sudo modprobe nvidia (dmesg tells why it fails), {_OR_CPU}",
    )


def _not_permitted(root: Path) -> NoGpus:
    for node in sorted((root / "dev").glob("nvidia*")):
        if node.is_dir() or os.access(node, os.R_OK | os.W_OK):
            continue
        place = f"/{node.relative_to(root)}"
        mode = node.stat().st_mode & 0o777
        group = _group(node)
        remedy = f"sudo chmod 666 {place} (the mode that NVIDIA gives it)"
        if mode & 0o060 == 0o060 and group != "root":
            remedy = f'sudo usermod -aG {group} "$USER", and log in again'
        return NoGpus(
            f"no permission to use {place} (group {group}, mode {mode:04o})",
            f"{remedy}, {_OR_CPU}",
        )
    return NoGpus(
        "no permission to use NVIDIA's driver: Insufficient Permissions",
        f"ask the administrator for access to /dev/nvidia*, {_OR_CPU}",
    )


def _group(path: Path) -> str:
    try:
        return path.group()
    except KeyError:
        return str(path.stat().st_gid)


def _loaded_version(root: Path) -> str | None:
    """Return the version of the kernel driver that is loaded, as the kernel tells it."""
    try:
        text = (root / "proc" / "driver" / "nvidia" / "version").read_text(encoding="utf-8")
    except OSError:
        return None
    words = text.partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)
