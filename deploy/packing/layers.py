"""The environment as layers of an image, at the place where it lies there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.console import Say
from deploy.packing.packages import SERVING
from deploy.packing.plan import EnvironmentBuild
from deploy.packing.prefix import Prefix
from deploy.packing.tar_writer import write_tar

IMAGE_PREFIX = "/opt/numl/env"


@dataclass(frozen=True)
class Layers:
    """Two tar archives that together are the environment at :data:`IMAGE_PREFIX`.

    Attributes:
        packages: Interpreter and locked packages.
        serving: ``numl_serving``, and what identifies the environment: the only part
            that a change in our Python changes.
    """

    packages: Path
    serving: Path


def pack_layers(
    prefix: Prefix, build: EnvironmentBuild, folder: Path, say: Say, epoch: int
) -> Layers:
    """Write the layers; the same inputs give the same bytes.

    Args:
        prefix: The environment.
        build: What it is made of.
        folder: Where the archives go.
        say: Is told what happens.
        epoch: Time of all files in them, in seconds since 1970.

    Raises:
        BuildError: With conda-pack's reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ours = _files_of_serving(prefix.folder)
    layers = Layers(
        folder / f"{build.flavour}-packages.tar", folder / f"{build.flavour}-serving.tar"
    )
    say("writing the layer of the packages")
    _write(layers.packages, prefix, epoch, lambda path: path not in ours, scripts=True)
    say("writing the layer of numl_serving")
    _write(layers.serving, prefix, epoch, lambda path: path in ours, scripts=False)
    return layers


def _write(
    target: Path, prefix: Prefix, epoch: int, wanted: Callable[[str], bool], *, scripts: bool
) -> None:
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as stream:
            write_tar(
                stream, prefix.folder, root=IMAGE_PREFIX.lstrip("/"), destination=IMAGE_PREFIX,
                epoch=epoch, wanted=wanted, scripts=scripts,
            )  # fmt: skip
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _files_of_serving(prefix: Path) -> frozenset[str]:
    """Return the files that our own package has put into the prefix."""
    record = next((prefix / "conda-meta").glob(f"{SERVING}-*.json"))
    files = json.loads(record.read_text(encoding="utf-8"))["files"]
    return frozenset([*files, f"conda-meta/{record.name}"])
