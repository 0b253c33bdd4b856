"""The GPUs of this host, as NVIDIA's management library (NVML) reports them.

NVML comes with the driver; ``nvidia-ml-py`` only calls it. :mod:`deploy.deployment.gpus`
decides what a launch does with them.

Source of the calls and their errors: NVML API reference, "Device Queries" and "Initialization".
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from deploy.host.errors import GpuError

_ROOT = Path("/")
_OR_CPU = "or start with --cpu"


@dataclass(frozen=True)
class Memory:
    """A device's memory in bytes, and how much of it is free now."""

    total: int
    free: int


@dataclass(frozen=True)
class MigInstance:
    """A part of a GPU that MIG divides, as CUDA takes it; the driver is not asked about it."""

    uuid: str

    @property
    def label(self) -> str:
        return self.uuid


@dataclass(frozen=True)
class Gpu:
    """A GPU, numbered in the order of the PCI bus, as ``nvidia-smi`` shows it.

    ``divided``: MIG mode is on, and only its instances can be used. Memory is None if the driver
    does not say.
    """

    index: int
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    memory: Memory | None
    divided: bool = False

    @property
    def label(self) -> str:
        return f"GPU {self.index} ({self.name})"


Device: TypeAlias = Gpu | MigInstance


@dataclass(frozen=True)
class BrokenGpu:
    """A GPU that the driver lists but that cannot be used: why, and what to do."""

    index: int
    cause: str
    remedy: str


@dataclass(frozen=True)
class GpuStack:
    """The driver's version, like ``580.65.06``, and the GPUs in the order of their numbers."""

    driver: str
    gpus: tuple[Gpu, ...]
    broken: tuple[BrokenGpu, ...] = ()

    @property
    def driver_release(self) -> int:
        """The driver's release, as requirements name it: 580 for ``580.65.06``."""
        return int(self.driver.partition(".")[0])


def find_gpus(nvml: Any = None, *, root: Path = _ROOT) -> GpuStack | GpuError:
    """Ask the driver for its GPUs; ``dev`` and ``proc`` in ``root`` tell why it does not answer."""
    if nvml is None:
        nvml = importlib.import_module("pynvml")  # 25 ms that only launches on GPUs pay
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
        return GpuError(
            f"NVIDIA driver {driver} is loaded, but finds no GPU",
            f"lspci -nn | grep -i nvidia shows whether the host has one, {_OR_CPU}",
        )
    return GpuStack(driver=driver, gpus=tuple(gpus), broken=tuple(broken))


def _unless(nvml: Any, errors: tuple[str, ...], call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of ``call``, or None if it fails with one of these errors."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in [getattr(nvml, f"NVML_ERROR_{name}") for name in errors]:
            return None
        raise


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    # A GPU, or a driver from before MIG, may not know the mode.
    unknown = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")
    mode = _unless(nvml, unknown, nvml.nvmlDeviceGetMigMode, handle)
    divided = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
    # A GPU may share the host's memory; one divided by MIG may tell its own to root only.
    untold = ("NOT_SUPPORTED", "NO_PERMISSION")
    memory = _unless(nvml, untold, nvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        compute_capability=tuple(capability),
        memory=memory and Memory(total=int(memory.total), free=int(memory.free)),
        divided=divided,
    )


def _broken(nvml: Any, error: Any, index: int) -> BrokenGpu:
    remedies = {
        nvml.NVML_ERROR_GPU_IS_LOST: "restart the host; dmesg says why it fell off the bus",
        nvml.NVML_ERROR_RESET_REQUIRED: f"sudo nvidia-smi --gpu-reset -i {index}",
    }
    return BrokenGpu(
        index=index,
        cause=f"GPU {index} cannot be used: NVIDIA's driver says {str(error)!r}",
        remedy=remedies.get(error.value, f"nvidia-smi -q -i {index} and dmesg say more"),
    )


def _why_no_answer(nvml: Any, error: Any, root: Path) -> GpuError:
    loaded = (root / "proc/driver/nvidia/version").exists()
    cause, remedy = f"NVIDIA's driver does not answer: {error}", "nvidia-smi and dmesg may say more"
    match error.value:
        case nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            cause = "no NVIDIA driver here: its library libnvidia-ml.so.1 cannot be loaded"
            remedy = "install NVIDIA's driver (nvidia-smi must then work)"
        case nvml.NVML_ERROR_DRIVER_NOT_LOADED if loaded and not (root / "dev/nvidiactl").exists():
            cause = "NVIDIA's kernel driver is loaded, but there is no /dev/nvidiactl"
            remedy = (
                "sudo nvidia-modprobe -u -c 0; in a container: give it the GPUs "
                "(docker run --gpus all, apptainer run --nv)"
            )
        case nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            cause = "NVIDIA's driver library is installed, but its kernel driver is not loaded"
            remedy = "sudo modprobe nvidia (dmesg says why it fails)"
        case nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            cause = (
                "NVIDIA's kernel driver and its libraries have different versions: they were "
                "updated, and the driver was not reloaded"
            )
            remedy = "restart the host, or unload and load its nvidia modules"
        case nvml.NVML_ERROR_NO_PERMISSION:
            cause = f"no permission to use NVIDIA's driver: {error}"
            remedy = "ls -l /dev/nvidia* shows whom its devices are for"
        case nvml.NVML_ERROR_UNKNOWN:
            cause = "NVIDIA's driver does not answer: Unknown Error"
            remedy = "restart the container if it has lost its devices; otherwise see dmesg"
    return GpuError(cause, f"{remedy}, {_OR_CPU}")
