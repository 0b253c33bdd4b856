"""What to build, under which names, and the disk space that it takes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.artefacts.image import Base, debian_name, stock_name
from deploy.artefacts.manifest import Kind
from deploy.artefacts.sif_file import Compressor
from deploy.artefacts.site import KIT_ALONE, KITS, SiteContent
from deploy.environment.environment import Environment
from deploy.environment.lock import SIZES, Flavour
from deploy.host.paths import cache_folder
from deploy.host.room import Room
from deploy.triton.release import TritonRelease

Route = Literal["docker", "apptainer"]

TARGETS: tuple[Kind, ...] = ("env", "image", "sif")
_GB = 10**9
BASE_BYTES: dict[Base, int] = {"slim": _GB * 3 // 10, "ngc": 16 * _GB}
MEMORY_BYTES = 2 * _GB


def image_name(release: str, flavour: Flavour, base: Base = "slim", name: str = KITS) -> str:
    return f"numlkit/{name}:{_variant(release, flavour, base)}"


def sif_name(release: str, flavour: Flavour, base: Base = "slim", name: str = KITS) -> str:
    return f"{name}-{_variant(release, flavour, base)}.sif"


def _variant(release: str, flavour: Flavour, base: Base) -> str:
    # The slim base is the usual one and goes without saying.
    return "-".join([release, flavour, *([] if base == "slim" else [base])])


@dataclass(frozen=True)
class BuildRequest:
    """What was asked for: the options of ``numlkit build``.

    ``source`` is the folder of another environment than NuGraph's; ``site`` has the models of a
    site that are served beside the kit's.
    """

    targets: tuple[Kind, ...]
    flavour: Flavour
    triton: TritonRelease
    out: Path
    base: Base = "slim"
    base_digest: str | None = None
    wheels: Path | None = None
    python: Path | None = None
    source: Path | None = None
    site: SiteContent = KIT_ALONE
    wire: Path | None = None
    compressor: Compressor = "zstd"

    def base_name(self, environments: Iterable[Environment]) -> str:
        """Return the base's name: of Debians, the oldest on which all of it runs."""
        if self.base == "ngc":
            return stock_name(self.triton.release)
        return debian_name(max(self.triton.glibc, *(each.glibc for each in environments)))

    @property
    def image_tag(self) -> str:
        return image_name(self.triton.release, self.flavour, self.base, self.site.name)

    @property
    def sif(self) -> Path:
        return self.out / sif_name(self.triton.release, self.flavour, self.base, self.site.name)


def room_needed(
    request: BuildRequest, *, route: Route | None, engine_folder: Path | None, packages_there: bool
) -> Sequence[Room]:
    """Return the disk space that the build will use.

    No ``route`` makes neither image nor .sif. ``engine_folder`` is where the Docker engine keeps
    its images, if on this host; with ``packages_there``, little is missing from the environment.
    """
    sizes, base = SIZES[request.flavour], BASE_BYTES[request.base]
    out, content = "choose another --out", sizes.environment + base
    # With the packages there, the rest is hard links.
    cache = 0 if packages_there else sizes.making
    needs = [Room(cache_folder(), cache, "the environment", "set XDG_CACHE_HOME")]
    if "env" in request.targets:
        needs.append(Room(request.out, sizes.packed, "the packed environment", out))
        needs.append(Room(request.out, sizes.environment, "checking it", out))
    if request.wire is not None:
        wire = "choose another --wire"
        needs.append(Room(request.wire, sizes.packed, "the wired repository", wire))
    if route is not None:
        needs.append(Room(request.out, sizes.environment + _GB // 2, "the layers", out))
    if route == "docker" and engine_folder is not None:
        setting = "set data-root in /etc/docker/daemon.json"
        image = content + sizes.environment
        needs.append(Room(engine_folder, image, "the image", setting, ours=False))
    if route == "apptainer":
        needs.append(Room(request.out, 2 * content, "the unpacked image", out))
    if "sif" in request.targets:
        # Once as a file system, once with the header.
        needs.append(Room(request.out, 2 * (sizes.packed + base // 2), "the .sif", out))
    return needs
