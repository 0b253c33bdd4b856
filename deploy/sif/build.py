"""Build a .sif: from an image of the Docker engine, or without Docker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import docker
from docker.errors import ImageNotFound

from deploy.console import Say
from deploy.errors import BuildError
from deploy.files import work_folder
from deploy.images.base import BaseImage, base_name, debian_tar, imported_base
from deploy.images.build import reason
from deploy.images.tars import tar_chunks
from deploy.paths import cache_folder
from deploy.programs import run
from deploy.sif.assembly import Steps, records_of
from deploy.sif.exported_tar import fit
from deploy.sif.recipe import NOTHING, Origin, build_sandbox, describe, take_records
from deploy.sif.rootfs import exported, layers_of
from deploy.sif.sif_file import ROOM, write_header
from deploy.sif.squashfs import (
    Compression,
    can_lay_over,
    options,
    squash_folder,
    squash_layers,
    squash_tar,
)
from deploy.sif.tools import TAR_READER, MissingToolError, SifTools, Tool

Way = Literal["layers", "export", "sandbox"]


@dataclass(frozen=True)
class BuiltSif:
    """A .sif.

    Attributes:
        path: The file.
        way: How its files were read: from the layers in the engine's folders, from what the
            engine exports, or from a sandbox of Apptainer's.
        seconds: How long each step took.
    """

    path: Path
    way: Way
    seconds: Mapping[str, float]


def build_sif_from_image(
    client: docker.DockerClient,
    image: str,
    out: Path,
    *,
    tools: SifTools,
    compression: Compression,
    epoch: int,
    say: Say,
    way: Literal["layers", "export"] | None = None,
) -> BuiltSif:
    """Build ``out`` from an image, without a copy of its files on the way.

    The layers are read where they lie if this process may, else as the engine exports them.
    The same image gives the same bytes; the two ways take the files in a different order,
    so that their bytes differ and their content does not.

    Args:
        client: The engine.
        image: The image's name.
        out: The .sif to write, whole or not at all. Callers hold :func:`deploy.files.locked`
            on it: what an interrupted build left beside it is removed.
        tools: As :func:`deploy.sif.tools.find_tools` gives them.
        compression: How it is compressed.
        epoch: The time everything in it is given, in seconds since 1970.
        say: Is told what happens.
        way: How to read the files; None: the faster way that works here.

    Raises:
        BuildError: With the reason in one line.
    """
    try:
        attributes = client.images.get(image).attrs
    except ImageNotFound:
        raise BuildError(
            f"the Docker engine has no image {image}", "python3 deploy/build.py --target image"
        ) from None
    config = attributes["Config"]
    steps, out = Steps(say), out.absolute()
    with work_folder(out) as scratch:
        empty, own = scratch / "empty", scratch / "own"
        with steps.step("the container's own files"):
            build_sandbox(tools.apptainer, empty, NOTHING)
            describe(
                empty,
                Origin("docker-daemon", image),
                labels=config.get("Labels") or {},
                environment=config.get("Env") or (),
                epoch=epoch,
            )
            records = records_of(empty, scratch, config)
            take_records(empty, own)
        sif = scratch / "numl.sif"
        words = options(compression, epoch=epoch, room=ROOM)
        # Undermost the folders that Apptainer mounts on, should the image lack one.
        layers = (own, *layers_of(attributes), empty)
        if way is None:
            way = "layers" if len(layers) > 2 and can_lay_over(layers, scratch) else "export"
        with steps.step(f"file system from the image's {way}, {compression.name}"):
            if way == "layers":
                squash_layers(tools.mksquashfs.path, layers, sif, words)
            else:
                _check_tar_reader(tools.mksquashfs)
                *first, _end = tar_chunks(own)
                with exported(client, attributes["Id"]) as rest:
                    tar = chain(first, fit(rest))
                    squash_tar(tools.mksquashfs.path, tar, sif, words)
        with steps.step("the .sif around it"):
            write_header(tools.apptainer, sif, records, epoch=epoch)
            sif.replace(out)
    return BuiltSif(out, way, steps.seconds)


def build_sif_without_docker(
    context: Path,
    out: Path,
    *,
    base: str,
    digest: str | None,
    labels: Callable[[BaseImage], Mapping[str, str]],
    tools: SifTools,
    compression: Compression,
    epoch: int,
    say: Say,
) -> tuple[BuiltSif, BaseImage]:
    """Build ``out`` with Apptainer alone, from the layers that an image would be built from.

    Args:
        context: As :func:`deploy.images.context.make_context` has filled it.
        out: As for :func:`build_sif_from_image`.
        base: What it stands on, as :func:`deploy.images.base.base_name` gives it; a Debian
            that no registry has is made here.
        digest: ``sha256:...`` of the one that it must be, or None: the registry's newest.
        labels: Returns the labels, given the base.
        tools: As :func:`deploy.sif.tools.find_tools` gives them.
        compression: How it is compressed.
        epoch: The time everything in it is given, in seconds since 1970.
        say: Is told what happens.

    Returns:
        The .sif, and what it stands on.

    Raises:
        BuildError: With the reason in one line.
    """
    steps, out = Steps(say), out.absolute()
    with work_folder(out) as scratch:
        sandbox = scratch / "sandbox"
        with steps.step("files from the base and the layers"):
            found, agent = _fill(sandbox, context, base, digest, tools.apptainer, scratch, say)
        with steps.step("every model's known answer"):
            # An image is checked when it is built; here nothing has been yet.
            run(
                [tools.apptainer.path, "test", "--containall", sandbox],
                failed="the models do not work in the container",
                explain=lambda said: reason(said.splitlines()),
            )
        origin = Origin(agent, found.name)
        describe(sandbox, origin, labels=labels(found), environment=(), epoch=epoch)
        records = records_of(sandbox, scratch)
        sif = scratch / "numl.sif"
        with steps.step(f"file system from the sandbox, {compression.name}"):
            words = options(compression, epoch=epoch, room=ROOM)
            squash_folder(tools.mksquashfs.path, sandbox, sif, words)
        with steps.step("the .sif around it"):
            write_header(tools.apptainer, sif, records, epoch=epoch)
            sif.replace(out)
    return BuiltSif(out, "sandbox", steps.seconds), found


def _fill(
    sandbox: Path,
    context: Path,
    base: str,
    digest: str | None,
    apptainer: Tool,
    scratch: Path,
    say: Say,
) -> tuple[BaseImage, str]:
    """Make the tree; return what it stands on and the name of Apptainer's agent for that."""
    pinned = f"{base.rpartition(':')[0]}@{digest}" if digest else base
    try:
        build_sandbox(apptainer, sandbox, Origin("docker", pinned), context=context)
    except BuildError as error:
        # Apptainer's name for the part that fetches a base.
        if "conveyor failed to get" not in error.cause:
            raise
        if digest is not None or base != base_name("slim", ""):
            raise BuildError(
                error.cause,
                "build where that registry answers, or with Docker, into which it can be loaded",
            ) from None
    else:
        return BaseImage(reference=pinned, name=base, digest=digest or ""), "docker"
    say(f"no registry has {base}: a minimal Debian in its place")
    tar, folder = debian_tar(cache_folder(), say), scratch / "base"
    folder.mkdir()
    # Devices are not an ordinary user's to make, and Apptainer mounts its own.
    words = ["--extract", "--preserve-permissions", "--no-same-owner", "--exclude=./dev/*"]
    run(["tar", *words, "--directory", folder, "--file", tar], failed=f"cannot unpack {tar}")
    build_sandbox(apptainer, sandbox, Origin("localimage", folder.name), context=context)
    return imported_base(tar), "localimage"


def _check_tar_reader(mksquashfs: Tool) -> None:
    if mksquashfs.version < TAR_READER:
        raise MissingToolError(
            f"{mksquashfs} cannot read what the Docker engine exports; 4.5 is the first that can",
            "run this as root, who can do without, or install a newer squashfs-tools",
        )
