"""What is to be built, and what a build of it will use: known before anything is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.building.preflight import Room
from deploy.environment.lock import Flavour
from deploy.paths import cache_folder
from deploy.server.release import TritonRelease

Target = Literal["env", "image", "sif"]
Base = Literal["slim", "ngc"]
Route = Literal["docker", "apptainer"]
Compressor = Literal["zstd", "gzip"]

TARGETS: tuple[Target, ...] = ("env", "image", "sif")
_GB = 10**9


@dataclass(frozen=True)
class Sizes:
    """What things take, in bytes, rounded up from what was seen.

    Attributes:
        wheels: The wheels that are downloaded.
        environment: The environment, unpacked.
        packed: The environment as tar.gz, or as the largest part of a .sif.
    """

    wheels: int
    environment: int
    packed: int


SIZES: dict[Flavour, Sizes] = {
    "serving": Sizes(wheels=_GB // 20, environment=_GB // 5, packed=_GB // 20),
    "cpu": Sizes(wheels=_GB // 2, environment=_GB, packed=_GB * 4 // 10),
    "gpu": Sizes(wheels=3 * _GB, environment=9 * _GB // 2, packed=3 * _GB),
}
BASE_BYTES: dict[Base, int] = {"slim": _GB * 3 // 10, "ngc": 16 * _GB}
MEMORY_BYTES = 2 * _GB


def image_name(release: str, flavour: Flavour, base: Base = "slim") -> str:
    """Return the name in the Docker engine of the image that a build makes."""
    return f"numlkit/numl:{_variant(release, flavour, base)}"


def sif_name(release: str, flavour: Flavour, base: Base = "slim") -> str:
    """Return the name of the .sif that a build makes."""
    return f"numl-{_variant(release, flavour, base)}.sif"


def _variant(release: str, flavour: Flavour, base: Base) -> str:
    # The slim base is the usual one, and not named.
    return "-".join([release, flavour, *([] if base == "slim" else [base])])


@dataclass(frozen=True)
class BuildRequest:
    """What a person asked for.

    Attributes:
        targets: What to make, in order.
        flavour: What the environment is for, and which lock it is made from.
        base: What the image stands on.
        base_digest: ``sha256:...`` of the base, or None: what its tag names.
        triton: NVIDIA's release of Triton.
        wheels: A folder with the locked wheels, or None: they are downloaded.
        python: The interpreter to repack, or None: from conda-forge, else found here.
        out: Where files go.
        wire: Where a model repository for a stock Triton image goes, or None.
        compressor: How the .sif is compressed.
    """

    targets: tuple[Target, ...]
    flavour: Flavour
    base: Base
    base_digest: str | None
    triton: TritonRelease
    wheels: Path | None
    python: Path | None
    out: Path
    wire: Path | None
    compressor: Compressor

    @property
    def image_tag(self) -> str:
        """The image's name in the Docker engine."""
        return image_name(self.triton.release, self.flavour, self.base)

    @property
    def sif(self) -> Path:
        """Where the .sif goes."""
        return self.out / sif_name(self.triton.release, self.flavour, self.base)


def room_needed(
    request: BuildRequest,
    *,
    route: Route | None,
    engine_folder: Path | None,
    temporary: Path,
    wheels_there: bool,
) -> Sequence[Room]:
    """Return the disk that the build will use.

    Args:
        request: What is built.
        route: What makes image or .sif; None if neither is wanted.
        engine_folder: Where the Docker engine keeps its images; None if it is not used, or
            on another host.
        temporary: The folder for temporary files.
        wheels_there: Whether the locked wheels are in the cache, and what is made of them.
    """
    sizes, base = SIZES[request.flavour], BASE_BYTES[request.base]
    out = "name another --out"
    # Beside the environment: wheels (which pip keeps, too), the packages made of them, and
    # these unpacked.
    making = 0 if wheels_there else 3 * sizes.wheels + sizes.environment
    wanted = sizes.environment + making
    needs = [Room(cache_folder(), wanted, "the environment", "set XDG_CACHE_HOME")]
    if "env" in request.targets:
        needs.append(Room(request.out, sizes.packed, "the packed environment", out))
        needs.append(Room(request.out, sizes.environment, "its check", out))
    if request.wire is not None:
        needs.append(
            Room(request.wire, sizes.packed, "the wired repository", "name another --wire")
        )
    if route is not None:
        content = sizes.environment + base
        needs.append(Room(temporary, sizes.environment + _GB // 2, "the layers", "set TMPDIR"))
        if route == "apptainer":
            needs.append(Room(request.out, 2 * content, "the unpacked image", out))
        elif engine_folder is not None:
            setting = "set data-root in /etc/docker/daemon.json"
            wanted = content + sizes.environment
            needs.append(Room(engine_folder, wanted, "the image", setting, ours=False))
    if "sif" in request.targets:
        needs.append(Room(request.out, sizes.packed + base // 2, "the .sif", out))
    return needs
