"""What the driver is asked and what is made of its answers.

There is no NVIDIA GPU here: `played_nvml` stands for driver and GPUs. Only its answers are made up:
its calls are checked against the real module, whose constants and errors it has.
"""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pynvml
import pytest

from deploy.host.gpu import BrokenGpu, Gpu, GpuStack, Memory, find_gpus

GIB = 1 << 30
MEMORY = Memory(40 * GIB, 39 * GIB)


@dataclass
class Card:
    """A GPU that NVML will tell of; a number in place of an answer is the error it gives."""

    uuid: str = "GPU-5d5ba0d6"
    name: str = "NVIDIA A100-SXM4-40GB"
    capability: Any = (8, 0)
    memory: Any = MEMORY
    mig: Any = (0, 0)


def played_nvml(*cards: Card | int, driver: Any = "580.65.06", init: int = 0) -> Any:
    """Return the module ``pynvml`` over GPUs that are not there."""
    answers: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: _answer(init),
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: _answer(driver),
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": lambda index: _answer(cards[index]),
        "nvmlDeviceGetUUID": lambda card: card.uuid,
        "nvmlDeviceGetName": lambda card: card.name,
        "nvmlDeviceGetCudaComputeCapability": lambda card: _answer(card.capability),
        "nvmlDeviceGetMemoryInfo": lambda card: _answer(card.memory),
        "nvmlDeviceGetMigMode": lambda card: list(_answer(card.mig)),
    }
    calls = {
        name: create_autospec(getattr(pynvml, name), side_effect=answer)
        for name, answer in answers.items()
    }
    return SimpleNamespace(**vars(pynvml) | calls)


def _answer(given: Any) -> Any:
    if isinstance(given, int) and given != 0:
        raise pynvml.NVMLError(given)
    return given


def test_the_gpus_are_told_as_the_driver_tells_them():
    other = Card("GPU-0aa11ebd", "Tesla T4", (7, 5), Memory(15 * GIB, GIB), mig=3)
    nvml = played_nvml(Card(), other)
    assert find_gpus(nvml) == GpuStack(
        driver="580.65.06",
        gpus=(
            Gpu(0, "GPU-5d5ba0d6", "NVIDIA A100-SXM4-40GB", (8, 0), MEMORY),
            Gpu(1, "GPU-0aa11ebd", "Tesla T4", (7, 5), Memory(15 * GIB, GIB)),
        ),
    )
    nvml.nvmlShutdown.assert_called_once_with()


def test_a_divided_gpu_is_told_even_if_its_memory_is_not():
    found = find_gpus(played_nvml(Card(mig=(1, 1), memory=pynvml.NVML_ERROR_NO_PERMISSION)))
    assert [(gpu.divided, gpu.memory) for gpu in found.gpus] == [(True, None)]


@pytest.mark.parametrize(
    "mig",
    [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, (0, 1)],
    ids=["the GPU knows none", "the driver knows none", "it waits for a reset"],
)
def test_without_mig_in_use_a_gpu_is_not_divided(mig):
    found = find_gpus(played_nvml(Card(mig=mig)))
    assert [gpu.divided for gpu in found.gpus] == [False]


@pytest.mark.parametrize(("card", "said", "remedy"), [
    (pynvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost",
     "restart the host; dmesg says why it fell off the bus"),
    (Card(memory=pynvml.NVML_ERROR_RESET_REQUIRED), "GPU requires restart",
     "sudo nvidia-smi --gpu-reset -i 1"),
    (Card(capability=pynvml.NVML_ERROR_IRQ_ISSUE), "Interrupt Request Issue",
     "nvidia-smi -q -i 1 and dmesg say more"),
])  # fmt: skip
def test_a_gpu_that_fails_is_told_beside_those_that_work(card, said, remedy):
    found = find_gpus(played_nvml(Card(), card, Card("GPU-2")))
    assert [gpu.index for gpu in found.gpus] == [0, 2]
    cause = f"GPU 1 cannot be used: NVIDIA's driver says {said!r}"
    assert found.broken == (BrokenGpu(1, cause, remedy),)


UNKNOWN = (
    "NVIDIA's driver does not answer: Unknown Error",
    "restart the container if it has lost its devices; otherwise see dmesg, or start with --cpu",
)


@pytest.mark.parametrize(("told", "said"), [
    ({"init": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND},
     ("no NVIDIA driver here: its library libnvidia-ml.so.1 cannot be loaded",
      "install NVIDIA's driver (nvidia-smi must then work), or start with --cpu")),
    ({"init": pynvml.NVML_ERROR_DRIVER_NOT_LOADED},
     ("NVIDIA's driver library is installed, but its kernel driver is not loaded",
      "sudo modprobe nvidia (dmesg says why it fails), or start with --cpu")),
    ({"init": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH},
     ("NVIDIA's kernel driver and its libraries have different versions: they were updated, "
      "and the driver was not reloaded",
      "restart the host, or unload and load its nvidia modules, or start with --cpu")),
    ({"init": pynvml.NVML_ERROR_NO_PERMISSION},
     ("no permission to use NVIDIA's driver: Insufficient Permissions",
      "ls -l /dev/nvidia* shows whom its devices are for, or start with --cpu")),
    ({"init": pynvml.NVML_ERROR_OPERATING_SYSTEM},
     ("NVIDIA's driver does not answer: The operating system has blocked the request.",
      "nvidia-smi and dmesg may say more, or start with --cpu")),
    ({"init": pynvml.NVML_ERROR_UNKNOWN}, UNKNOWN),
    ({"driver": pynvml.NVML_ERROR_UNKNOWN}, UNKNOWN),
    ({"driver": "550.54.15"},
     ("NVIDIA driver 550.54.15 is loaded, but finds no GPU",
      "lspci -nn | grep -i nvidia shows whether the host has one, or start with --cpu")),
])  # fmt: skip
def test_a_driver_that_cannot_be_used_is_told_with_its_reason_and_left(tmp_path, told, said):
    nvml = played_nvml(**told)
    found = find_gpus(nvml, root=tmp_path)
    assert (found.cause, found.remedy) == said
    assert nvml.nvmlShutdown.called == ("init" not in told)


def test_a_loaded_driver_without_its_device_file_is_told(tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    found = find_gpus(played_nvml(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED), root=tmp_path)
    assert (found.cause, found.remedy) == (
        "NVIDIA's kernel driver is loaded, but there is no /dev/nvidiactl",
        "sudo nvidia-modprobe -u -c 0; in a container: give it the GPUs "
        "(docker run --gpus all, apptainer run --nv), or start with --cpu",
    )


def test_a_host_without_a_driver_is_told_by_the_real_module():
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        cause = "no NVIDIA driver here: its library libnvidia-ml.so.1 cannot be loaded"
        assert find_gpus().cause == cause
    else:
        pytest.skip("this host has NVIDIA's driver")


def test_nothing_of_nvidia_is_loaded_until_a_gpu_is_asked_for():
    code = (
        "import sys, deploy.host.gpu, deploy.deployment.gpus, deploy.triton.release\n"
        "print('pynvml' in sys.modules, open('/proc/self/maps').read().count('libnvidia'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False 0\n"
