"""Triton releases the kit knows, and where their files come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from deploy.deployment.gpus import GpuNeeds
from deploy.host.errors import EnvironmentSetupError

_T = TypeVar("_T")


@dataclass(frozen=True)
class TritonRelease:
    """An NVIDIA release of Triton.

    Attributes:
        release: NVIDIA's number, as in ``24.10``.
        server: Version of the server, as in ``2.51.0``.
        wheel: The requirement by which pip downloads a complete tritonserver.
        wheel_libc: The oldest glibc that it runs on.
        image_libc: The glibc in NVIDIA's image of it.
        image_python: ``X.Y`` of the Python that the stub in NVIDIA's image of it is built for.
        numpy_below: The first major version of numpy whose arrays its stubs send empty.
    """

    release: str
    server: str
    wheel: str
    wheel_sha256: str
    wheel_libc: tuple[int, int]
    image_libc: tuple[int, int]
    numpy_below: int
    image_python: str


RELEASES = {
    "24.10": TritonRelease(
        release="24.10",
        server="2.51.0",
        wheel="nvidia-pytriton==0.7.0",
        wheel_sha256="21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
        wheel_libc=(2, 35),
        image_libc=(2, 35),  # Ubuntu 22.04
        numpy_below=2,
        image_python="3.10",
    )
}


# Which driver and GPUs a release asks for, as its release notes say it
# (docs.nvidia.com/deeplearning/triton-inference-server/release-notes/rel-24-10.html and its
# neighbours, "Driver Requirements" and "GPU Requirements"). More than RELEASES has: a stock image
# may be of a release that the kit does not build. On data centre GPUs NVIDIA also supports older
# drivers by name; for them the CUDA family's oldest driver counts here.
GPU_NEEDS = {
    release: GpuNeeds(f"Triton {release}", cuda, driver, compute_capability)
    for release, cuda, driver, compute_capability in (
        ("24.05", "12.4", 545, (6, 0)),
        ("24.10", "12.6.2", 560, (6, 0)),
        ("25.03", "12.8.1", 560, (7, 5)),
        ("25.08", "13.0.0", 575, (7, 5)),
        ("25.10", "13.0.2", 575, (7, 5)),
    )
}


def find_release(release: str) -> TritonRelease:
    return _known(release, RELEASES)


def gpu_needs(release: str) -> GpuNeeds:
    return _known(release, GPU_NEEDS)


def _known(release: str, known: Mapping[str, _T]) -> _T:
    if release not in known:
        remedy = f"one of: {', '.join(sorted(known))}"
        raise EnvironmentSetupError(f"the kit does not know Triton {release}", remedy)
    return known[release]
