"""A stock image of Triton with the packed environment beside it: nothing is derived."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deploy.console import Say
from deploy.deployment import Deployment
from deploy.engines.site import fit_flavours
from deploy.environment.given import GivenEnvironment, check_usable, look_into
from deploy.errors import EnvironmentSetupError, LaunchError
from deploy.images.labels import TRITON_LABEL
from deploy.paths import CHECKOUT, cache_folder
from deploy.server.release import find_release

# Where a container sees the packed environment.
ARCHIVE_PLACE = Path("/opt/numl/environment.tar.gz")
# What NVIDIA's images say of themselves.
STOCK_LABEL = "com.nvidia.tritonserver.version"


def find_archive(deployment: Deployment) -> Path:
    """Return the packed environment: the one that is named, else the newest that was built.

    Raises:
        EnvironmentSetupError: If there is none; with the command that makes it.
    """
    if deployment.archive is not None:
        if not deployment.archive.is_file():
            raise EnvironmentSetupError(f"{deployment.archive}: no such file", "--archive PATH")
        return deployment.archive
    folder = CHECKOUT / "dist"
    flavours = fit_flavours(deployment)
    found = [path for each in flavours for path in folder.glob(f"numl-{each}-py*.tar.gz")]
    if not found:
        raise EnvironmentSetupError(
            f"no packed environment in {folder}",
            f"python3 deploy/build.py --target env --flavour {flavours[0]}, or --archive PATH",
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def packed_environment(deployment: Deployment, say: Say = lambda _text: None) -> GivenEnvironment:
    """Return what is known of the packed environment.

    Raises:
        EnvironmentSetupError: If there is none, or it is not one that serves the kit's models.
    """
    archive = find_archive(deployment).resolve()
    given = look_into(archive, cache_folder(), say)
    check_usable(given, numpy_below=find_release(deployment.triton).numpy_below, in_container=True)
    if given.digest is None or given.python is None:
        raise EnvironmentSetupError(
            f"{archive} is none of the kit's packed environments",
            "--archive with one that deploy/build.py --target env has made",
        )
    return given


def digest_archive(deployment: Deployment) -> str:
    """Return what tells the packed environment from another one, without reading it."""
    archive = find_archive(deployment)
    facts = archive.stat()
    return f"{archive} {facts.st_size} {facts.st_mtime_ns}"


def check_stock_image(name: str, labels: Mapping[str, str], deployment: Deployment) -> None:
    """Check that an image has the Triton that the stub beside the models belongs to.

    Args:
        name: The image's name, or the path of a .sif.
        labels: Its labels. One that does not say which Triton it has is taken at its word.
        deployment: What is wanted.

    Raises:
        LaunchError: If it is another one.
    """
    release = find_release(deployment.triton)
    server, kits = labels.get(STOCK_LABEL), labels.get(TRITON_LABEL)
    if server not in (None, release.server):
        raise LaunchError(
            f"{name} has Triton {server}, the stubs are those of {release.server}",
            f"an image of NVIDIA's release {release.release}",
        )
    if kits not in (None, release.release):
        raise LaunchError(f"{name} has Triton {kits}, wanted is {release.release}")
