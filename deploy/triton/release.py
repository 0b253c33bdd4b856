"""Triton releases: what one is, and how they differ.

The default comes from a wheel. Any other is read from its own files (`deploy.artefacts.triton`), so
nothing here has to know it. How releases differ is in `deploy.triton.behaviours`.
"""

from dataclasses import dataclass
from pathlib import Path

from deploy.deployment.gpus import GpuNeeds
from deploy.host.errors import EnvironmentSetupError
from deploy.triton.behaviours import EXACT_SIZES, NUMPY_2, Behaviour

DEFAULT = "24.10"


@dataclass(frozen=True)
class Wheel:
    """A wheel with a complete tritonserver, and a stub for each of several Pythons."""

    requirement: str
    sha256: str


@dataclass(frozen=True)
class TritonRelease:
    """A Triton.

    Attributes:
        release: Its name: NVIDIA's number (``24.10``), else the server's version.
        server: Version of the server, as in ``2.51.0``.
        python: ``X.Y`` of the Python that its own stub, or that in NVIDIA's image, is built for.
        glibc: The oldest glibc that it runs on.
        gpu_needs: Which driver and GPUs it needs; None: it is not built for GPUs.
        wheel: What it is unpacked from, with a stub for the Python that is wanted.
        root: Else the folder that holds it, in NVIDIA's layout.
        origin: Where that was taken from, as ``HOST/REPOSITORY@sha256:...``.
        digest: sha256 of the image's manifest, or of what a folder holds.
        flags: What ``--help`` lists; None if it cannot run on this host.
        backends: The backends that are in it.
    """

    release: str
    server: str
    python: str
    glibc: tuple[int, int]
    gpu_needs: GpuNeeds | None
    wheel: Wheel | None = None
    root: Path | None = None
    origin: str = ""
    digest: str = ""
    flags: frozenset[str] | None = None
    backends: tuple[str, ...] = ("python",)

    def has(self, behaviour: Behaviour) -> bool:
        major, minor, *_ = (int(part) for part in self.server.split("."))
        return (major, minor) >= behaviour.server

    @property
    def own_python(self) -> str | None:
        """The only Python (``X.Y``) that it has a stub for; None: it has several."""
        return self.python if self.wheel is None else None

    @property
    def numpy_below(self) -> int | None:
        """The first major version of numpy whose arrays its stubs send as empty ones."""
        return None if self.has(NUMPY_2) else 2

    @property
    def model_parameters(self) -> dict[str, str]:
        """What the models' code has to know of it, as parameters of their configurations."""
        return {"guard_arrays": "off"} if self.has(EXACT_SIZES) else {}


RELEASES = {
    DEFAULT: TritonRelease(
        release=DEFAULT,
        server="2.51.0",
        python="3.10",
        glibc=(2, 35),  # of the wheel, and of Ubuntu 22.04, which NVIDIA's image is made from
        # docs.nvidia.com/deeplearning/triton-inference-server/release-notes/rel-24-10.html, "Driver
        # Requirements" and "GPU Requirements". On data centre GPUs NVIDIA also supports older
        # drivers by name; for them the CUDA family's oldest driver counts here.
        gpu_needs=GpuNeeds("Triton 24.10", "12.6.2", 560, (6, 0)),
        wheel=Wheel(
            "nvidia-pytriton==0.7.0",
            "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
        ),
    )
}


def find_release(release: str) -> TritonRelease:
    if release not in RELEASES:
        remedy = f"one of: {', '.join(sorted(RELEASES))}"
        raise EnvironmentSetupError(f"the kit does not know Triton {release}", remedy)
    return RELEASES[release]
