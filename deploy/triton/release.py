"""Triton releases the kit knows, and where their files come from."""

from dataclasses import dataclass

from deploy.deployment.gpus import GpuNeeds
from deploy.host.errors import EnvironmentSetupError


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
        numpy_below: The first major version of numpy whose arrays its stubs send as empty ones.
        http_attack: What one HTTP request can do to a server; None: nothing of that kind is known.
        gpu_needs: Which driver and GPUs it needs, according to its release notes.
    """

    release: str
    server: str
    wheel: str
    wheel_sha256: str
    wheel_libc: tuple[int, int]
    image_libc: tuple[int, int]
    numpy_below: int
    image_python: str
    http_attack: str | None
    gpu_needs: GpuNeeds


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
        # Seen; tests/integration/test_front_door.py sends such requests.
        http_attack="one crafted request can crash this Triton or fill its memory",
        # docs.nvidia.com/deeplearning/triton-inference-server/release-notes/rel-24-10.html, "Driver
        # Requirements" and "GPU Requirements". On data centre GPUs NVIDIA also supports older
        # drivers by name; for them the CUDA family's oldest driver counts here.
        gpu_needs=GpuNeeds("Triton 24.10", "12.6.2", 560, (6, 0)),
    )
}


def find_release(release: str) -> TritonRelease:
    if release not in RELEASES:
        remedy = f"one of: {', '.join(sorted(RELEASES))}"
        raise EnvironmentSetupError(f"the kit does not know Triton {release}", remedy)
    return RELEASES[release]
