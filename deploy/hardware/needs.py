"""What software that uses CUDA asks of NVIDIA's driver and of the GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CudaFamily:
    """All CUDA releases with one major number.

    Attributes:
        driver: The oldest driver release that runs software built for any of them.
        compute_capability: The oldest GPUs that their libraries are built for.
    """

    driver: int
    compute_capability: tuple[int, int]


# Drivers: CUDA Compatibility, "Minor Version Compatibility", table 1
# (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
# GPUs: cuFFT, "Deprecated Functionality" (5.0 from CUDA 12.0 on); CUDA 12.9 release notes,
# "Deprecated Architectures" (Maxwell to Volta, below 7.5, end with CUDA 12). The locked torch
# for CUDA 13.0 says of itself that it is built for 7.5 to 12.0.
CUDA_FAMILIES = {
    12: CudaFamily(driver=525, compute_capability=(5, 0)),
    13: CudaFamily(driver=580, compute_capability=(7, 5)),
}


@dataclass(frozen=True)
class GpuNeeds:
    """What a piece of software asks for.

    Attributes:
        software: Its name and version, as in ``Triton 24.10``.
        cuda: The CUDA it is built for, as in ``12.6.2``.
        driver: The oldest driver release that its maker names.
        compute_capability: The oldest GPUs it supports.
    """

    software: str
    cuda: str
    driver: int
    compute_capability: tuple[int, int]

    @property
    def oldest_driver(self) -> int:
        """The driver release below which it cannot run: that of its CUDA family."""
        return CUDA_FAMILIES[int(self.cuda.partition(".")[0])].driver

    @property
    def wanted_driver(self) -> int:
        """The driver release to install for it."""
        return max(self.driver, self.oldest_driver)


def cuda_needs(software: str, cuda: str) -> GpuNeeds:
    """Return the needs of software whose maker names nothing but its CUDA.

    Raises:
        KeyError: If the kit does not know that CUDA.
    """
    family = CUDA_FAMILIES[int(cuda.partition(".")[0])]
    return GpuNeeds(software, cuda, family.driver, family.compute_capability)
