"""What the driver is asked and what is made of its answers.

There is no NVIDIA GPU here: `FakeNvml` stands for driver and GPUs. Its calls, constants and
errors are checked against the real module, so that only the answers are made up.
"""
# ruff: noqa: N802  (NVIDIA names its functions so)

import ctypes
import inspect
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from deploy.host.gpu import BrokenGpu, Gpu, GpuStack, Memory, find_gpus

GIB = 1 << 30


@dataclass
class Card:
    """A GPU that NVML will tell of; a number in place of an answer is the error it gives."""

    uuid: str = "GPU-5d5ba0d6"
    name: str = "NVIDIA A100-SXM4-40GB"
    capability: Any = (8, 0)
    memory: Any = (40 * GIB, 39 * GIB)
    mig: Any = (0, 0)


class FakeNvml:
    """The module ``pynvml`` over GPUs that are not there."""

    def __init__(self, *cards: Card | int, driver: Any = "580.65.06", init: int = 0) -> None:
        self._cards = cards
        self._driver = driver
        self._init = init
        self.users = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        _answer(self._init)
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(_answer(self._driver))

    def nvmlDeviceGetCount(self) -> int:
        return len(self._cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return _answer(self._cards[index])

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(handle.uuid)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return str(handle.name)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> Any:
        return _answer(handle.capability)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        total, free = _answer(handle.memory)
        return SimpleNamespace(total=total, free=free, used=total - free)

    def nvmlDeviceGetMigMode(self, device: Any) -> Any:
        return list(_answer(device.mig))


def _answer(given: Any) -> Any:
    if isinstance(given, int) and given != 0:
        raise pynvml.NVMLError(given)
    return given


def test_the_fake_is_called_as_the_real_module_is():
    calls = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert calls
    for name in calls:
        _, *given = inspect.signature(getattr(FakeNvml, name)).parameters.values()
        inspect.signature(getattr(pynvml, name)).bind(*given)


def test_the_gpus_are_told_as_the_driver_tells_them():
    nvml = FakeNvml(Card(), Card("GPU-0aa11ebd", "Tesla T4", (7, 5), (15 * GIB, GIB), mig=3))
    assert find_gpus(nvml) == GpuStack(
        driver="580.65.06",
        gpus=(
            Gpu(0, "GPU-5d5ba0d6", "NVIDIA A100-SXM4-40GB", (8, 0), Memory(40 * GIB, 39 * GIB)),
            Gpu(1, "GPU-0aa11ebd", "Tesla T4", (7, 5), Memory(15 * GIB, GIB)),
        ),
    )
    assert nvml.users == 0


def test_a_divided_gpu_is_told_even_if_its_memory_is_not():
    found = find_gpus(FakeNvml(Card(mig=(1, 1), memory=pynvml.NVML_ERROR_NO_PERMISSION)))
    assert [(gpu.divided, gpu.memory) for gpu in found.gpus] == [(True, None)]


@pytest.mark.parametrize(
    "mig",
    [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, (0, 1)],
    ids=["the GPU knows none", "the driver knows none", "it waits for a reset"],
)
def test_without_mig_in_use_a_gpu_is_not_divided(mig):
    found = find_gpus(FakeNvml(Card(mig=mig)))
    assert [gpu.divided for gpu in found.gpus] == [False]


@pytest.mark.parametrize(
    ("card", "cause", "remedy"),
    [
        (
            pynvml.NVML_ERROR_GPU_IS_LOST,
            "GPU 1 cannot be used: NVIDIA's driver says 'GPU is lost'",
            "restart the host; dmesg says why it fell off the bus",
        ),
        (
            Card(memory=pynvml.NVML_ERROR_RESET_REQUIRED),
            "GPU 1 cannot be used: NVIDIA's driver says 'GPU requires restart'",
            "sudo nvidia-smi --gpu-reset -i 1",
        ),
        (
            Card(capability=pynvml.NVML_ERROR_IRQ_ISSUE),
            "GPU 1 cannot be used: NVIDIA's driver says 'Interrupt Request Issue'",
            "nvidia-smi -q -i 1 and dmesg say more",
        ),
    ],
)
def test_a_gpu_that_fails_is_told_beside_those_that_work(card, cause, remedy):
    found = find_gpus(FakeNvml(Card(), card, Card("GPU-2")))
    assert [gpu.index for gpu in found.gpus] == [0, 2]
    assert found.broken == (BrokenGpu(1, cause, remedy),)


@pytest.mark.parametrize(
    ("driver", "cause", "remedy"),
    [
        (
            FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND),
            "no NVIDIA driver here: its library libnvidia-ml.so.1 cannot be loaded",
            "install NVIDIA's driver (nvidia-smi must then work), or start with --cpu",
        ),
        (
            FakeNvml(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
            "NVIDIA's driver library is installed, but its kernel driver is not loaded",
            "sudo modprobe nvidia (dmesg says why it fails), or start with --cpu",
        ),
        (
            FakeNvml(init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
            "NVIDIA's kernel driver and its libraries have different versions: they were updated, "
            "and the driver was not reloaded",
            "restart the host, or unload and load its nvidia modules, or start with --cpu",
        ),
        (
            FakeNvml(init=pynvml.NVML_ERROR_NO_PERMISSION),
            "no permission to use NVIDIA's driver: Insufficient Permissions",
            "ls -l /dev/nvidia* shows whom its devices are for, or start with --cpu",
        ),
        (
            FakeNvml(init=pynvml.NVML_ERROR_UNKNOWN),
            "NVIDIA's driver does not answer: Unknown Error",
            "restart the container if it has lost its devices; otherwise see dmesg, "
            "or start with --cpu",
        ),
        (
            FakeNvml(init=pynvml.NVML_ERROR_OPERATING_SYSTEM),
            "NVIDIA's driver does not answer: The operating system has blocked the request.",
            "nvidia-smi and dmesg may say more, or start with --cpu",
        ),
        (
            FakeNvml(Card(), driver=pynvml.NVML_ERROR_UNKNOWN),
            "NVIDIA's driver does not answer: Unknown Error",
            "restart the container if it has lost its devices; otherwise see dmesg, "
            "or start with --cpu",
        ),
        (
            FakeNvml(driver="550.54.15"),
            "NVIDIA driver 550.54.15 is loaded, but finds no GPU",
            "lspci -nn | grep -i nvidia shows whether the host has one, or start with --cpu",
        ),
    ],
)
def test_a_driver_that_cannot_be_used_is_told_with_its_reason_and_left(
    tmp_path, driver, cause, remedy
):
    found = find_gpus(driver, root=tmp_path)
    assert (found.cause, found.remedy) == (cause, remedy)
    assert driver.users == 0


def test_a_loaded_driver_without_its_device_file_is_told(tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    found = find_gpus(FakeNvml(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED), root=tmp_path)
    assert (found.cause, found.remedy) == (
        "NVIDIA's kernel driver is loaded, but there is no /dev/nvidiactl",
        "sudo nvidia-modprobe -u -c 0; in a container: give it the GPUs "
        "(docker run --gpus all, apptainer run --nv), or start with --cpu",
    )


def test_a_host_without_a_driver_is_told_by_the_real_module():
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        found = find_gpus()
        assert found.cause == (
            "no NVIDIA driver here: its library libnvidia-ml.so.1 cannot be loaded"
        )
    else:
        pytest.skip("this host has NVIDIA's driver")


def test_nothing_of_nvidia_is_loaded_until_a_gpu_is_asked_for():
    code = (
        "import sys, deploy.host.gpu, deploy.deployment.gpus, deploy.triton.release\n"
        "print('pynvml' in sys.modules, open('/proc/self/maps').read().count('libnvidia'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False 0\n"
