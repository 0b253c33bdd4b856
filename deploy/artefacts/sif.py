"""Build a .sif: from an image of the Docker engine, or without Docker.

Either way a tree is filled, described, compressed and wrapped. Apptainer makes the tree from
``containers/numl.def``: an empty one that the image's files are laid over, or one with the base
image and the layers that the Docker image would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import docker
from docker.errors import ImageNotFound

from deploy.artefacts.base_image import BaseImage, base_name, debian_tar, imported_base
from deploy.artefacts.docker_client import exported
from deploy.artefacts.image import reason
from deploy.artefacts.recipe import NOTHING, Origin, build_sandbox, describe
from deploy.artefacts.sif_file import FULL_DISK, Records, fit, squash, write_sif
from deploy.artefacts.system import System, system_of_tree
from deploy.artefacts.tools import SifTools
from deploy.environment.tars import tar_chunks
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.files import work_folder
from deploy.host.paths import cache_folder
from deploy.host.programs import run


@dataclass(frozen=True)
class SifBuilder:
    """Builds a .sif, written whole or not at all; all in it has the time ``epoch`` (Unix, s).

    Callers hold a lock: what an interrupted build of the same file left is removed.
    """

    tools: SifTools
    epoch: int
    say: Say

    def from_image(self, client: docker.DockerClient, image: str, out: Path) -> None:
        """Build ``out`` from what the engine exports; the same image gives the same bytes."""
        try:
            attributes = client.images.get(image).attrs
        except ImageNotFound:
            raise BuildError(
                f"the Docker engine has no image {image}", "numlkit build --target image"
            ) from None
        config = attributes["Config"]
        with work_folder(out.absolute()) as scratch:
            sandbox = scratch / "sandbox"
            self.say("the container's own files")
            build_sandbox(self.tools.apptainer.path, sandbox, NOTHING)
            origin, labels = Origin("docker-daemon", image), config.get("Labels") or {}
            records = describe(sandbox, origin, labels=labels, epoch=self.epoch, image=config)
            with exported(client, attributes["Id"]) as tar:
                # The image's files come first and hide those of the tree.
                self._finish(chain(fit(tar), tar_chunks(sandbox)), records, out, scratch)

    def without_docker(
        self, context: Path, out: Path, *, base: str, digest: str | None, labels: Mapping[str, str]
    ) -> tuple[BaseImage, System]:
        """Build ``out`` with Apptainer only, from an image's layers; return its base.

        :func:`deploy.artefacts.context.make_context` fills the context. A Debian that no registry
        has is made here. With a ``digest`` (``sha256:...``), the base must have that one; it adds
        its labels.
        """
        with work_folder(out.absolute()) as scratch:
            sandbox = scratch / "sandbox"
            self.say("the base image and the layers")
            found, agent = self._fill(sandbox, context, base, digest)
            self.say("checking the reference output of every model")
            run(
                [self.tools.apptainer.path, "test", "--containall", sandbox],
                failed="the models do not work in the container",
                explain=lambda said: reason(said.splitlines()),
            )
            origin, labels = Origin(agent, found.name), {**labels, **found.labels}
            records = describe(sandbox, origin, labels=labels, epoch=self.epoch)
            system = system_of_tree(sandbox)
            self._finish(sandbox, records, out, scratch)
        return found, system

    def _fill(
        self, sandbox: Path, context: Path, base: str, digest: str | None
    ) -> tuple[BaseImage, str]:
        """Build the tree; return its base and the name of Apptainer's agent for it."""
        apptainer = self.tools.apptainer.path
        pinned = f"{base.rpartition(':')[0]}@{digest}" if digest else base
        try:
            build_sandbox(apptainer, sandbox, Origin("docker", pinned), context=context)
        except BuildError as error:
            # Apptainer calls the part that fetches a base the conveyor.
            if "conveyor failed to get" not in error.cause:
                raise
            if digest is not None or base != base_name("slim", ""):
                raise BuildError(
                    error.cause,
                    "build where that registry answers, or load the image into a Docker engine",
                ) from None
        else:
            return BaseImage(reference=pinned, name=base, digest=digest or ""), "docker"
        self.say(f"no registry offers {base}; using a minimal Debian made here")
        tar, folder = debian_tar(cache_folder(), self.say), sandbox.with_name("base")
        folder.mkdir()
        # Only root could make devices, and there are none in a .sif.
        words = ("--preserve-permissions", "--no-same-owner", "--exclude=./dev/*")
        command = ["tar", "--extract", *words, "--directory", str(folder), "--file", str(tar)]
        run(command, failed=f"cannot unpack {tar}", remedy=FULL_DISK)
        build_sandbox(apptainer, sandbox, Origin("localimage", folder.name), context=context)
        return imported_base(tar), "localimage"

    def _finish(
        self, files: Path | Iterator[bytes], records: Records, out: Path, scratch: Path
    ) -> None:
        tools, squashfs, sif = self.tools, scratch / "numl.squashfs", scratch / "numl.sif"
        self.say(f"compressing the file system ({tools.compressor})")
        squash(tools.mksquashfs.path, files, squashfs, tools.compressor, self.epoch)
        self.say("writing the .sif")
        write_sif(tools.apptainer.path, squashfs, records, sif, epoch=self.epoch)
        sif.replace(out)
