"""Which GPUs a launch uses, decided from what is asked for and what is there.

A server is given its GPUs by their UUIDs in CUDA_VISIBLE_DEVICES, with every engine. It counts
those, and only those, from 0 on: these are the numbers in its instance groups. Without that
Triton would reserve memory on every GPU of the host, CUDA would number them by speed and not as
``nvidia-smi`` does, and a MIG instance, which has no number, could not be used at all.

Source: CUDA Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA Device
Enumeration".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.deployment import DEVICE_PATTERN
from deploy.errors import DeploymentError, GpuError
from deploy.hardware.gpu import Device, Gpu, GpuStack, MigInstance, NoGpus
from deploy.hardware.needs import GpuNeeds

# Expected of a model's process, not measured: its CUDA context takes about half of it.
PROCESS_BYTES = 1 << 30
# From this driver release on a process sees several MIG instances, and whole GPUs beside them.
_SEVERAL_INSTANCES_DRIVER = 570
_MIB = 1 << 20


@dataclass(frozen=True)
class DevicePlan:
    """The devices of a launch.

    Attributes:
        devices: In the order in which the server counts them; none: it runs on CPUs.
        warnings: What a person should know all the same, a line each.
    """

    devices: tuple[Device, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The devices' numbers as the server counts them, for its instance groups."""
        return tuple(range(len(self.devices)))

    @property
    def uuids(self) -> tuple[str, ...]:
        """The devices' UUIDs, as a container engine wants them."""
        return tuple(device.uuid for device in self.devices)

    @property
    def variables(self) -> dict[str, str]:
        """What the server's environment must hold: it sees these devices and no others."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.uuids)}


ON_CPU = DevicePlan()


def device_names(text: str) -> tuple[str, ...]:
    """Return the devices that a flag's value names.

    Args:
        text: Numbers and UUIDs, comma separated; a UUID may be cut short.

    Raises:
        DeploymentError: If that is not what it is.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not DEVICE_PATTERN.fullmatch(name):
            raise DeploymentError(
                f"--gpu {text!r}: {name!r} is neither the number nor the UUID of a GPU",
                "as in --gpu 0,1 or --gpu MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f "
                "(nvidia-smi -L lists them)",
            )
    return names


def plan_gpus(
    names: Sequence[str],
    found: GpuStack | NoGpus,
    *,
    needs: Sequence[GpuNeeds],
    processes: int,
    visible: str | None,
) -> DevicePlan:
    """Choose the devices of a launch that was asked to use GPUs.

    Args:
        names: Numbers and UUIDs of the devices asked for, as :func:`device_names` gives them;
            none: those that CUDA_VISIBLE_DEVICES names, else every whole GPU that fits, else
            the one MIG instance there is.
        found: What this host has.
        needs: What the software that will run there asks for.
        processes: Processes of models on each device.
        visible: The caller's CUDA_VISIBLE_DEVICES, by which a batch system says which devices
            a job has been given, or None if it is not set.

    Raises:
        GpuError: If they cannot be used: the first reason, and what to do.
    """
    if isinstance(found, NoGpus):
        raise GpuError(found.cause, found.remedy)
    warnings = _check_driver(found.driver, found.driver_release, needs)
    given = list(_all(found)) if visible is None else _given(found, visible)
    if names or visible is not None:
        devices = [_named(name, found) for name in names] if names else given
        for device in devices:
            if not any(_holds(other, device) for other in given):
                raise GpuError(
                    f"{device.label} is not among those that this shell has been given: "
                    f"CUDA_VISIBLE_DEVICES={visible!r}",
                    "leave it out of --gpu, or unset CUDA_VISIBLE_DEVICES",
                )
            _check(device, given, needs)
    else:
        devices, left_out = _any(found, needs)
        warnings += left_out
    _check_together(devices, found)
    warnings += [w for device in devices for w in _memory_warnings(device, processes)]
    return DevicePlan(tuple(devices), tuple(warnings))


def _check_driver(driver: str, release: int, needs: Sequence[GpuNeeds]) -> list[str]:
    """Return warnings; raise if the driver is too old for any of ``needs``."""
    unmet = [need for need in needs if release < need.oldest_driver]
    if unmet:
        most = max(unmet, key=lambda need: need.wanted_driver)
        raise GpuError(
            f"NVIDIA driver {driver} is too old for {most.software}: "
            f"CUDA {most.cuda} needs driver {most.wanted_driver} or later",
            f"install NVIDIA's driver {most.wanted_driver} or later, or start with --cpu",
        )
    return [
        f"NVIDIA driver {driver} is older than the {need.driver} that NVIDIA names for "
        f"{need.software}; CUDA {need.cuda} works from {need.oldest_driver} on"
        for need in needs
        if release < need.driver
    ]


def _given(found: GpuStack, visible: str) -> list[Device]:
    """Return the devices of CUDA_VISIBLE_DEVICES: by CUDA's rule, up to the first unknown one."""
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
        raise GpuError(
            f"this shell has been given no GPU: CUDA_VISIBLE_DEVICES={visible!r}",
            "ask the batch system for one, unset CUDA_VISIBLE_DEVICES, or start with --cpu",
        )
    return given


def _named(name: str, found: GpuStack) -> Device:
    matches = _matches(name, found)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise GpuError(
            f"{name} is the beginning of {len(matches)} UUIDs",
            f"write more of it: {', '.join(device.uuid for device in matches)}",
        )
    _refuse_broken(name, found)
    what = f"GPU {name}" if name.isdecimal() else name
    there = ", ".join(device.label for device in _all(found)) or "none that can be used"
    raise GpuError(f"{what} is not there", f"there are: {there}")


def _refuse_broken(name: str, found: GpuStack) -> None:
    for broken in found.broken:
        if name.isdecimal() and broken.index == int(name):
            raise GpuError(broken.cause, broken.remedy)


def _matches(name: str, found: GpuStack) -> list[Device]:
    if name.isdecimal():
        return [gpu for gpu in found.gpus if gpu.index == int(name)]
    return [d for d in _all(found) if d.uuid.lower().startswith(name.lower())]


def _all(found: GpuStack) -> Iterator[Device]:
    for gpu in found.gpus:
        yield gpu
        yield from gpu.instances


def _holds(given: Device, device: Device) -> bool:
    """Return whether whoever has been given ``given`` has ``device``."""
    parts = given.instances if isinstance(given, Gpu) else ()
    return device == given or device in parts


def _any(found: GpuStack, needs: Sequence[GpuNeeds]) -> tuple[list[Device], list[str]]:
    """Return every whole GPU that fits, else the only MIG instance; and what is left out, why."""
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
    parts = [part for gpu in found.gpus for part in gpu.instances]
    if len(parts) == 1:
        _check(parts[0], found.gpus, needs)
        return [parts[0]], []
    if parts:
        raise GpuError(
            f"the GPUs here are divided by MIG into {len(parts)} instances: name those to use",
            _instances_remedy(parts),
        )
    raise faults[0]


def _check(device: Device, others: Sequence[Device], needs: Sequence[GpuNeeds]) -> None:
    """Raise if ``device`` by itself cannot be used; the remedy names those ``others`` that can."""
    if isinstance(device, Gpu) and device.divided:
        i = device.index
        raise GpuError(
            f"{device.label} is divided by MIG and cannot be used whole",
            _instances_remedy(device.instances)
            if device.instances
            else f"make an instance of it (sudo nvidia-smi mig -i {i} -cgi PROFILE -C), or switch "
            f"MIG off (sudo nvidia-smi -i {i} -mig 0)",
        )
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
        raise GpuError(
            f"{device.label} has compute capability {_dotted(device.compute_capability)}, "
            f"{most.software} needs {_dotted(most.compute_capability)} or later",
            f"--gpu {','.join(fits)}" if fits else "start with --cpu",
        )


def _check_together(devices: Sequence[Device], found: GpuStack) -> None:
    """Raise if ``devices`` cannot be used by one server."""
    seen: dict[tuple[int, int], MigInstance] = {}
    for number, device in enumerate(devices):
        if device in devices[:number]:
            raise GpuError(f"{device.label} is named twice", "name each device once")
        if not isinstance(device, MigInstance):
            continue
        if len(devices) > 1 and found.driver_release < _SEVERAL_INSTANCES_DRIVER:
            raise GpuError(
                f"with NVIDIA driver {found.driver} a server uses one MIG instance and nothing "
                "beside it",
                f"--gpu {device.uuid}, and another deployment for each other device; "
                f"or driver {_SEVERAL_INSTANCES_DRIVER}",
            )
        other = seen.setdefault((device.gpu, device.gpu_instance), device)
        if other is not device:
            raise GpuError(
                f"{other.label} and {device.uuid} share a GPU instance, of which CUDA uses one",
                f"--gpu with one of the two, as in --gpu {other.uuid}",
            )


def _memory_warnings(device: Device, processes: int) -> Iterator[str]:
    memory, expected = device.memory, processes * PROCESS_BYTES
    if memory is not None and memory.free < expected:
        yield (
            f"{device.label} has {memory.free // _MIB} MiB free of {memory.total // _MIB}: "
            f"its models' processes ({processes}) are expected to take {expected // _MIB}"
        )


def _instances_remedy(instances: Sequence[MigInstance]) -> str:
    named = ", ".join(f"--gpu {part.uuid} ({part.name.rpartition(' ')[2]})" for part in instances)
    return f"one of: {named}"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
