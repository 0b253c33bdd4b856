"""Which GPUs a launch uses, decided from what is asked for and what is there.

With every engine, a server gets its GPUs as UUIDs in CUDA_VISIBLE_DEVICES. It numbers only those,
from 0 on, as in its instance groups. Otherwise Triton would reserve memory on every GPU of the
host, CUDA would number them by speed, not as ``nvidia-smi`` does, and a MIG instance, which has no
number, could not be used at all.

Source: CUDA Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA Device
Enumeration".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deploy.deployment.deployment import DEVICE_PATTERN
from deploy.host.errors import GpuError
from deploy.host.gpu import Device, Gpu, GpuStack, MigInstance

# Expected for a model's process, not measured: its CUDA context takes about half of it.
PROCESS_BYTES = 1 << 30
_MIB = 1 << 20


class CudaFamily(NamedTuple):
    """The oldest driver and GPUs that run software built for a major release of CUDA."""

    driver: int
    compute_capability: tuple[int, int]


# Drivers: CUDA Compatibility, "Minor Version Compatibility", table 1
# (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
# GPUs: cuFFT, "Deprecated Functionality" (5.0 from CUDA 12.0 on); CUDA 12.9 release notes,
# "Deprecated Architectures" (Maxwell to Volta, below 7.5, end with CUDA 12). The locked torch
# for CUDA 13.0 says that it is built for 7.5 to 12.0.
CUDA_FAMILIES = {
    12: CudaFamily(driver=525, compute_capability=(5, 0)),
    13: CudaFamily(driver=580, compute_capability=(7, 5)),
}


@dataclass(frozen=True)
class GpuNeeds:
    """What a piece of software requires.

    Attributes:
        software: Its name and version, as in ``Triton 24.10``.
        cuda: The CUDA it is built for, as in ``12.6.2``.
        driver: The oldest driver release that its vendor names.
        compute_capability: The oldest GPUs it supports.
    """

    software: str
    cuda: str
    driver: int
    compute_capability: tuple[int, int]

    @property
    def oldest_driver(self) -> int:
        """The oldest driver release that it runs on at all: that of its CUDA family."""
        return CUDA_FAMILIES[int(self.cuda.partition(".")[0])].driver

    @property
    def wanted_driver(self) -> int:
        return max(self.driver, self.oldest_driver)


def cuda_needs(software: str, cuda: str) -> GpuNeeds:
    """Return the needs of software known only by its CUDA version; KeyError if that is unknown."""
    family = CUDA_FAMILIES[int(cuda.partition(".")[0])]
    return GpuNeeds(software, cuda, family.driver, family.compute_capability)


@dataclass(frozen=True)
class DevicePlan:
    """The devices of a launch, in the order in which the server counts them; none: CPUs."""

    devices: tuple[Device, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(device.uuid for device in self.devices)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables by which the server sees these devices and no others."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.uuids)}


ON_CPU = DevicePlan()


def plan_gpus(
    names: Sequence[str],
    found: GpuStack | GpuError,
    *,
    needs: Sequence[GpuNeeds],
    processes: int,
    visible: str | None,
) -> DevicePlan:
    """Choose the devices of a launch on GPUs.

    Args:
        names: Numbers and UUIDs of the devices asked for; none: those that CUDA_VISIBLE_DEVICES
            names, else every GPU that fits. MIG instances are taken as they are named.
        processes: Processes of models on each device.
        visible: The caller's CUDA_VISIBLE_DEVICES, by which a batch system says which devices
            a job has been given, or None if it is not set.
    """
    if isinstance(found, GpuError):
        raise found
    warnings = _check_driver(found, needs)
    given = _given(found, visible)
    if names or visible is not None:
        devices = [_named(name, found) for name in names] if names else given
        for device in devices:
            if visible is not None and device not in given:
                given_here = f"this shell has been given: CUDA_VISIBLE_DEVICES={visible!r}"
                cause = f"{device.label} is not among those that {given_here}"
                raise GpuError(cause, "leave it out of --gpu, or unset CUDA_VISIBLE_DEVICES")
            _check(device, given, needs)
    else:
        devices, left_out = _any(found, needs)
        warnings += left_out
    for number, device in enumerate(devices):
        if device in devices[:number]:
            raise GpuError(f"{device.label} is named twice", "name each device once")
    warnings += [w for device in devices for w in _memory_warnings(device, processes)]
    return DevicePlan(tuple(devices), tuple(warnings))


def _check_driver(found: GpuStack, needs: Sequence[GpuNeeds]) -> list[str]:
    """Return warnings; raise if the driver is too old for any of ``needs``."""
    driver, release = found.driver, found.driver_release
    unmet = [need for need in needs if release < need.oldest_driver]
    if unmet:
        most = max(unmet, key=lambda need: need.wanted_driver)
        wanted = f"driver {most.wanted_driver} or later"
        cause = f"NVIDIA driver {driver} is too old for {most.software}"
        remedy = f"install NVIDIA's {wanted}, or start with --cpu"
        raise GpuError(f"{cause}: CUDA {most.cuda} needs {wanted}", remedy)
    return [
        f"NVIDIA driver {driver} is older than {need.driver}, which NVIDIA specifies for "
        f"{need.software}; CUDA {need.cuda} works with {need.oldest_driver} or later"
        for need in needs
        if release < need.driver
    ]


def _given(found: GpuStack, visible: str | None) -> list[Device]:
    """Return the devices of CUDA_VISIBLE_DEVICES: by CUDA's rule, up to the first unknown one."""
    if visible is None:
        return [*found.gpus]
    given: list[Device] = []
    for name in map(str.strip, visible.split(",")):
        if not DEVICE_PATTERN.fullmatch(name):
            break
        _refuse_broken(name, found)
        matches = _matches(name, found)
        if len(matches) != 1:
            break
        given += matches
    if not given:
        cause = f"this shell has been given no GPU: CUDA_VISIBLE_DEVICES={visible!r}"
        remedy = "ask the batch system for one, unset CUDA_VISIBLE_DEVICES, or start with --cpu"
        raise GpuError(cause, remedy)
    return given


def _named(name: str, found: GpuStack) -> Device:
    matches = _matches(name, found)
    if len(matches) == 1:
        return matches[0]
    if matches:
        uuids = ", ".join(device.uuid for device in matches)
        raise GpuError(f"{name} matches {len(matches)} UUIDs", f"give more of it: {uuids}")
    _refuse_broken(name, found)
    what = f"GPU {name}" if name.isdecimal() else name
    there = ", ".join(device.label for device in found.gpus) or "no usable GPU"
    raise GpuError(f"there is no {what} here", f"available: {there}")


def _refuse_broken(name: str, found: GpuStack) -> None:
    for broken in found.broken:
        if name.isdecimal() and broken.index == int(name):
            raise GpuError(broken.cause, broken.remedy)


def _matches(name: str, found: GpuStack) -> list[Device]:
    if name.lower().startswith("mig-"):
        return [MigInstance(name)]
    if name.isdecimal():
        return [gpu for gpu in found.gpus if gpu.index == int(name)]
    return [gpu for gpu in found.gpus if gpu.uuid.lower().startswith(name.lower())]


def _any(found: GpuStack, needs: Sequence[GpuNeeds]) -> tuple[list[Device], list[str]]:
    """Return every GPU that fits, and why others are left out."""
    devices: list[Device] = []
    faults: list[GpuError] = []
    for gpu in found.gpus:
        try:
            _check(gpu, found.gpus, needs)
            devices.append(gpu)
        except GpuError as fault:
            faults.append(fault)
    faults += [GpuError(broken.cause, broken.remedy) for broken in found.broken]
    if devices:
        return devices, [f"left out: {fault.cause}" for fault in faults]
    raise faults[0]


def _check(device: Device, others: Sequence[Device], needs: Sequence[GpuNeeds]) -> None:
    """Raise if ``device`` by itself cannot be used; the remedy names those ``others`` that can."""
    if isinstance(device, MigInstance):
        return
    if device.divided:
        instances = "--gpu with UUIDs of its instances, as nvidia-smi -L lists them"
        remedy = f"{instances}, or switch MIG off (sudo nvidia-smi -i {device.index} -mig 0)"
        raise GpuError(f"{device.label} is divided by MIG and cannot be used whole", remedy)
    unmet = [need for need in needs if device.compute_capability < need.compute_capability]
    if unmet:
        most = max(unmet, key=lambda need: need.compute_capability)
        fits = [
            str(other.index)
            for other in others
            if isinstance(other, Gpu)
            and not other.divided
            and other.compute_capability >= most.compute_capability
        ]
        has = f"{device.label} has compute capability {_dotted(device.compute_capability)}"
        cause = f"{has}, {most.software} needs {_dotted(most.compute_capability)} or later"
        raise GpuError(cause, f"--gpu {','.join(fits)}" if fits else "start with --cpu")


def _memory_warnings(device: Device, processes: int) -> Iterator[str]:
    expected = processes * PROCESS_BYTES
    memory = device.memory if isinstance(device, Gpu) else None
    if memory is not None and memory.free < expected:
        yield (
            f"{device.label} has {memory.free // _MIB} MiB free of {memory.total // _MIB}: "
            f"its models' processes ({processes}) are expected to need {expected // _MIB}"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
