"""Run a build: each artefact from the one before it, timed, and written into the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import docker

from deploy.building.manifest import Artefact, Kind, read_manifest, record
from deploy.building.preflight import (
    Room,
    check_memory,
    check_room,
    check_temporary_folder,
    check_writable,
)
from deploy.building.request import MEMORY_BYTES, BuildRequest, Route, room_needed
from deploy.building.source import Source, find_source
from deploy.building.steps import Steps
from deploy.building.wire import check_target, wire, wired_settings
from deploy.console import Console
from deploy.deployment import DEFAULT_MODELS
from deploy.environment.lock import read_lock
from deploy.environment.serving import serving_digest
from deploy.errors import BuildError
from deploy.files import digest_of, locked, scratch_folder, sha256_of
from deploy.images.base import BaseImage, base_name, ensure_base
from deploy.images.build import BuiltImage, build_image
from deploy.images.context import INSTANCES, make_context
from deploy.images.engine import connect, storage_folder
from deploy.images.labels import ImageFacts, labels
from deploy.packing.archive import pack_archive
from deploy.packing.cache import clear_cache
from deploy.packing.plan import EnvironmentBuild, plan_build
from deploy.packing.prefix import Prefix, make_prefix
from deploy.packing.slimming import largest_parts
from deploy.packing.wheels import wheels_folder
from deploy.paths import CHECKOUT, ENVIRONMENT_SOURCE, MODEL_REPOSITORY, cache_folder
from deploy.server.distribution import TritonDistribution, ensure_distribution
from deploy.server.release import TritonRelease
from deploy.sif.build import build_sif_from_image, build_sif_without_docker
from deploy.sif.squashfs import COMPRESSIONS
from deploy.sif.tools import SifTools, check_folder, find_tools

_LARGEST = 12


@dataclass(frozen=True)
class Workplace:
    """What a build finds here, before anything is made.

    Attributes:
        client: The Docker engine, if the build uses it.
        route: What makes image or .sif; None if neither is wanted.
        without_docker: Why a .sif is made by Apptainer alone, if it is.
        tools: What a .sif needs, if one is wanted.
        needs: The disk that the build will use.
        source: The checkout.
    """

    client: docker.DockerClient | None
    route: Route | None
    without_docker: str | None
    tools: SifTools | None
    needs: Sequence[Room]
    source: Source


def look_around(request: BuildRequest) -> Workplace:
    """Find tools and check folders, room and memory, in less than a second.

    Raises:
        BuildError: If something is missing; with what is needed and what there is.
    """
    if request.wire is not None:
        check_target(request.wire)
    if "sif" in request.targets:
        check_folder(request.out)
    client, route, without_docker = _engine(request)
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", request.flavour)
    needs = room_needed(
        request,
        route=route,
        engine_folder=storage_folder(client) if client is not None else None,
        temporary=check_temporary_folder(),
        wheels_there=wheels_folder(cache_folder(), lock).exists(),
    )
    check_writable(needs)
    check_room(needs)
    check_memory(MEMORY_BYTES)
    read_manifest(request.out)
    tools = find_tools(COMPRESSIONS[request.compressor]) if "sif" in request.targets else None
    return Workplace(client, route, without_docker, tools, needs, find_source(CHECKOUT))


def _engine(
    request: BuildRequest,
) -> tuple[docker.DockerClient | None, Route | None, str | None]:
    """Return the Docker engine, what makes image or .sif, and why it is not Docker."""
    if "image" in request.targets:
        return connect(), "docker", None
    if "sif" not in request.targets:
        return None, None, None
    try:
        return connect(), "docker", None
    except BuildError as error:
        return None, "apptainer", error.cause


def build(request: BuildRequest, workplace: Workplace, console: Console) -> Sequence[Artefact]:
    """Make what was asked for; each artefact is in the manifest as soon as it is made.

    Args:
        request: What to make.
        workplace: As :func:`look_around` gave it.
        console: Where progress is shown.

    Raises:
        KitError: With the reason in one line; what was made before it stays.
    """

    def wait() -> None:
        console.say(f"another build writes to {request.out}: waiting for its end")

    request.out.mkdir(parents=True, exist_ok=True)
    with locked(request.out / ".lock", waiting=wait):
        made = _Run(request, workplace, console).run()
    removed = clear_cache(cache_folder())
    if removed.names:
        console.say(
            f"removed from {cache_folder()} what older builds left: "
            f"{removed.bytes / 1e9:.2f} GB ({', '.join(removed.names)})"
        )
    return made


class _Run:
    """One build, from the lock to the last artefact."""

    def __init__(self, request: BuildRequest, workplace: Workplace, console: Console) -> None:
        self._request = request
        self._workplace = workplace
        self._steps = Steps(console)
        self._say = console.say
        self._made: list[Artefact] = []

    def run(self) -> Sequence[Artefact]:
        request, steps = self._request, self._steps
        if self._workplace.without_docker is not None:
            self._say(f"{self._workplace.without_docker}: Apptainer makes the .sif alone")
        with steps.step("environment", cache_folder()) as say:
            build = plan_build(
                flavour=request.flavour, wheels=request.wheels, python=request.python
            )
            prefix = make_prefix(build, say)
        if request.base == "ngc" or request.wire is not None:
            check_libc(prefix, request.triton)
        with steps.step("Triton", cache_folder()) as say:
            distribution = ensure_distribution(
                cache_folder(), request.triton, build.lock.python, say
            )
        if "env" in request.targets:
            self._pack(build, prefix, distribution)
        if self._workplace.route is not None:
            lock = cache_folder() / "scratch.lock"
            with scratch_folder("numlkit-build-", lock=lock) as context:
                with steps.step("layers", context) as say:
                    make_context(
                        context, build=build, prefix=prefix, distribution=distribution,
                        base=request.base, say=say,
                    )  # fmt: skip
                self._image_and_sif(context, prefix)
        return self._made

    def _pack(
        self, build: EnvironmentBuild, prefix: Prefix, distribution: TritonDistribution
    ) -> None:
        request = self._request
        with self._steps.step("packed environment", request.out) as say:
            archive = pack_archive(prefix, build, request.out, say, self._workplace.source.epoch)
        self._record("env", archive.name, archive.stat().st_size, sha256_of(archive), prefix, {})
        if request.wire is not None:
            settings = wired_settings(
                archive, environment_digest=prefix.digest, instances=INSTANCES,
                gpu=request.flavour == "gpu",
            )  # fmt: skip
            with self._steps.step("wired repository", request.wire):
                wire(
                    request.wire, archive=archive, repository=MODEL_REPOSITORY,
                    models=DEFAULT_MODELS, settings=settings, distribution=distribution,
                    libpython=prefix.libpython,
                )  # fmt: skip

    def _image_and_sif(self, context: Path, prefix: Prefix) -> None:
        request, client = self._request, self._workplace.client
        if client is not None:
            image, base = self._image(client, context, prefix)
        if "sif" not in request.targets:
            return
        tools, epoch = self._workplace.tools, self._workplace.source.epoch
        assert tools is not None
        compression = COMPRESSIONS[request.compressor]
        with self._steps.step(".sif", request.out) as say:
            if client is not None:
                built = build_sif_from_image(
                    client, image.tag, request.sif, tools=tools, compression=compression,
                    epoch=epoch, say=say,
                )  # fmt: skip
            else:
                built, base = build_sif_without_docker(
                    context, request.sif, base=self._base_name, digest=request.base_digest,
                    labels=lambda base: labels(base, self._facts(prefix)), tools=tools,
                    compression=compression, epoch=epoch, say=say,
                )  # fmt: skip
        inputs = {
            "base": str(base),
            "files from": built.way,
            "compression": str(compression),
            "apptainer": str(tools.apptainer),
            "mksquashfs": str(tools.mksquashfs),
        }
        sif = built.path
        self._record("sif", sif.name, sif.stat().st_size, sha256_of(sif), prefix, inputs)

    def _image(
        self, client: docker.DockerClient, context: Path, prefix: Prefix
    ) -> tuple[BuiltImage, BaseImage]:
        request = self._request
        with self._steps.step("base image", cache_folder()) as say:
            base = ensure_base(
                client, name=self._base_name, digest=request.base_digest, cache=cache_folder(),
                say=say,
            )  # fmt: skip
        with self._steps.step("image", context) as say:
            image = build_image(
                client, context, base=base, facts=self._facts(prefix), tag=request.image_tag,
                say=say,
            )  # fmt: skip
        self._record("image", image.tag, image.size, image.id, prefix, {"base": str(base)})
        return image, base

    @property
    def _base_name(self) -> str:
        return base_name(self._request.base, self._request.triton.release)

    def _facts(self, prefix: Prefix) -> ImageFacts:
        source = self._workplace.source
        return ImageFacts(
            source=source.url,
            revision=source.revision,
            created=source.epoch,
            version=version("numlkit"),
            flavour=self._request.flavour,
            triton=self._request.triton.release,
            environment_digest=prefix.digest,
            serving_digest=serving_digest(ENVIRONMENT_SOURCE),
        )

    def _record(
        self,
        kind: Kind,
        name: str,
        size: int,
        sha256: str,
        prefix: Prefix,
        inputs: Mapping[str, str],
    ) -> None:
        request = self._request
        lock = read_lock(ENVIRONMENT_SOURCE / "locks", request.flavour)
        artefact = Artefact(
            kind=kind,
            name=name,
            bytes=size,
            sha256=sha256,
            created=self._workplace.source.epoch,
            inputs={
                "revision": self._workplace.source.revision,
                "lock": lock.digest,
                "environment": prefix.digest,
                "python": prefix.python_version,
                "triton": request.triton.server,
                "models": digest_of(_model_files(), base=MODEL_REPOSITORY),
                "glibc": ".".join(map(str, prefix.glibc)),
                **inputs,
            },
            largest=dict(largest_parts(prefix.folder, _LARGEST)),
            steps=self._steps.seconds,
        )
        record(request.out, [artefact])
        self._made.append(artefact)


def check_libc(prefix: Prefix, triton: TritonRelease) -> None:
    """Check that the environment starts in NVIDIA's image.

    Raises:
        BuildError: If its Python was built on a newer system than the image has.
    """
    if prefix.glibc > triton.image_libc:
        needed, there = (".".join(map(str, v)) for v in (prefix.glibc, triton.image_libc))
        raise BuildError(
            f"the environment's Python {prefix.python_version} needs glibc {needed}; "
            f"NVIDIA's image of Triton {triton.release} has {there}",
            "--python with one built on an older system: pyenv's, or conda-forge's",
        )


def _model_files() -> list[Path]:
    return [
        path
        for model in DEFAULT_MODELS
        for path in (MODEL_REPOSITORY / model).rglob("*")
        if path.is_file() and path.name != "__pycache__" and path.suffix != ".pyc"
    ]
