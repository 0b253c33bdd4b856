"""Run a build: the environment, then its artefacts, each recorded in the manifest as it is done."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import docker

from deploy.artefacts.context import Packed, check_target, make_context, wire
from deploy.artefacts.docker_client import connect, storage_folder
from deploy.artefacts.image import BaseImage, BuiltImage, build_image, ensure_base
from deploy.artefacts.labels import Source, find_source, labels
from deploy.artefacts.manifest import Artefact, Kind, read_manifest, record
from deploy.artefacts.request import MEMORY_BYTES, BuildRequest, Route, room_needed
from deploy.artefacts.sbom import System, system_of_image
from deploy.artefacts.sif import SifBuilder
from deploy.artefacts.site import ENVIRONMENTS
from deploy.artefacts.statements import Ingredients, write_checksums, write_statements, write_vex
from deploy.artefacts.tools import SifTools, check_folder, check_reads_tars, find_tools
from deploy.environment.archive import pack_archive
from deploy.environment.cache import clear_cache
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.environment import Environment, plan_environment
from deploy.environment.lock import PYTHON
from deploy.environment.private_python import fetch_if_reachable
from deploy.environment.slimming import largest_parts
from deploy.host.console import Console, Say
from deploy.host.errors import BuildError, KitError
from deploy.host.files import locked, naming, sha256_of, work_folder
from deploy.host.paths import CHECKOUT, cache_folder
from deploy.host.room import Room, check_memory, check_room, check_temporary_folder, check_writable
from deploy.triton.distribution import TritonDistribution, ensure_distribution
from deploy.triton.release import TritonRelease

_LARGEST = 12
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Workplace:
    """What a build finds on this host before it starts; None for what it does not need.

    ``without_docker`` says why Apptainer builds the .sif by itself; ``problems`` are why the build
    would fail, in which case anything may be None.
    """

    environment: Environment | None
    client: docker.DockerClient | None
    route: Route | None
    without_docker: str | None
    tools: SifTools | None
    needs: Sequence[Room]
    source: Source
    problems: Sequence[KitError]


def survey(request: BuildRequest) -> Workplace:
    """Find the programs and the interpreter, and check folders, disk space and memory."""
    if request.wire is not None:
        check_target(request.wire)
    if "sif" in request.targets:
        check_folder(request.out)
    problems: list[KitError] = []

    def find(look: Callable[[], _Found]) -> _Found | None:
        try:
            return look()
        except KitError as error:
            problems.append(error)
            return None

    client: docker.DockerClient | None = None
    route: Route | None = None
    without_docker = None
    tools = find(lambda: find_tools(request.compressor)) if "sif" in request.targets else None
    if "image" in request.targets:
        client, route = find(connect), "docker"
        if tools is not None:
            find(partial(check_reads_tars, tools.mksquashfs))
    elif "sif" in request.targets:
        try:
            client, route = connect(), "docker"
            if tools is not None:
                check_reads_tars(tools.mksquashfs)
        except BuildError as error:
            client, route, without_docker = None, "apptainer", error.cause
    environment = find(lambda: _plan(request))
    needs = room_needed(
        request,
        route=route,
        engine_folder=storage_folder(client) if client is not None else None,
        packages_there=environment is not None and environment.packages.exists(),
    )
    find(check_temporary_folder)
    find(lambda: check_writable(needs))
    find(lambda: check_room(needs))
    find(lambda: check_memory(MEMORY_BYTES))
    if not problems:
        find(lambda: read_manifest(request.out))
    source = find_source(CHECKOUT)
    return Workplace(
        environment, client, route, without_docker, tools, needs, source, tuple(problems)
    )


def build(request: BuildRequest, workplace: Workplace, console: Console) -> Sequence[Artefact]:
    """Build what was asked for; return the manifest's entries.

    What was finished before an error is kept.
    """
    if workplace.problems:
        raise workplace.problems[0]

    def wait() -> None:
        console.say(f"another build is writing to {request.out}; waiting")

    request.out.mkdir(parents=True, exist_ok=True)
    with locked(request.out / ".lock", waiting=wait):
        made = _Build(request, workplace, console).run()
    names, freed = clear_cache(cache_folder())
    if names:
        left = f"leftovers of older builds from {cache_folder()}"
        console.say(f"removed {left}: {freed / 1e9:.2f} GB ({', '.join(names)})")
    return made


class _Build:
    def __init__(self, request: BuildRequest, workplace: Workplace, console: Console) -> None:
        self._request = request
        self._workplace = workplace
        self._steps = Steps(console)
        self._say = console.say
        self._made: list[Artefact] = []

    def run(self) -> Sequence[Artefact]:
        request, step = self._request, self._steps.step
        if self._workplace.without_docker is not None:
            self._say(f"{self._workplace.without_docker}; building with Apptainer only")
        with step("environment", cache_folder()) as say:
            if not request.site.models:  # else it was, before its environments were planned
                fetch_python(request, say)
            self._environment = environment = _plan(request).make(say)
            sites = tuple(request.site.environments.values())
            for each in sites:
                each.make(say)
        # Of another image is known what its server needs, not what the image has.
        if request.triton.wheel and (request.base == "ngc" or request.wire is not None):
            for each in (environment, *sites):
                check_libc(each, request.triton)
        if self._workplace.route is not None:
            self._base_name = request.base_name((environment, *sites))
        with step("Triton", cache_folder()) as say:
            python = environment.lock.python
            wheels = request.wheels
            distribution = ensure_distribution(request.triton, python, say, wheels=wheels)
        if "env" in request.targets:
            self._pack(distribution)
        if self._workplace.route is not None:
            with work_folder(request.out / "layers") as context:
                with step("layers", context) as say:
                    make_context(
                        context, environment=environment, release=request.triton,
                        distribution=distribution, base=request.base, say=say, site=request.site,
                    )  # fmt: skip
                client = self._workplace.client
                made = self._image(client, context) if client is not None else None
                if "sif" in request.targets:
                    self._sif(context, made)
        return self._made

    def _pack(self, distribution: TritonDistribution) -> None:
        request, environment = self._request, self._environment
        with self._steps.step("packed environment", request.out) as say:
            epoch = self._workplace.source.epoch
            archive = pack_archive(environment, request.out, say, epoch)
            packed = [Packed(archive, environment, Path(IMAGE_PREFIX))]
            for name, each in request.site.environments.items():
                archive = pack_archive(each, request.out, say, epoch)
                packed.append(Packed(archive, each, ENVIRONMENTS / name))
        for one in packed:
            size, sha256 = one.archive.stat().st_size, sha256_of(one.archive)
            self._record("env", one.archive.name, size, sha256, environment=one.environment)
        if request.wire is not None:
            with self._steps.step("wired repository", request.wire):
                wire(request.wire, packed, request.triton, distribution, request.site.models)

    def _image(
        self, client: docker.DockerClient, context: Path
    ) -> tuple[BuiltImage, tuple[BaseImage, System]]:
        request = self._request
        with self._steps.step("base image", cache_folder()) as say:
            name, digest = self._base_name, request.base_digest
            image = ensure_base(client, name=name, digest=digest, say=say)
            base = image, system_of_image(client, image.reference)
        with self._steps.step("image", context) as say:
            built = build_image(
                client, context, base=image, labels=self._labels(), tag=request.image_tag, say=say
            )  # fmt: skip
        tools = {"docker": str(client.version()["Version"])}
        self._record("image", built.tag, built.size, built.id, base, tools)
        return built, base

    def _sif(self, context: Path, made: tuple[BuiltImage, tuple[BaseImage, System]] | None) -> None:
        request, tools, client = self._request, self._workplace.tools, self._workplace.client
        assert tools is not None
        sif, epoch = request.sif, self._workplace.source.epoch
        with self._steps.step(".sif", request.out) as say:
            builder = SifBuilder(tools, epoch, say)
            if client is not None and made is not None:
                built, base = made
                builder.from_image(client, built.id, sif, named=built.tag)
            else:
                base = builder.without_docker(
                    context, sif, base=self._base_name, digest=request.base_digest,
                    labels=self._labels(),
                )  # fmt: skip
        used = {"apptainer": str(tools.apptainer), "mksquashfs": str(tools.mksquashfs)}
        self._record("sif", sif.name, sif.stat().st_size, sha256_of(sif), base, used)

    def _labels(self) -> dict[str, str]:
        found = labels(self._workplace.source, self._environment, self._request.triton)
        return found | self._request.site.labels

    def _record(
        self,
        kind: Kind,
        name: str,
        size: int,
        sha256: str,
        base: tuple[BaseImage, System] | None = None,
        tools: Mapping[str, str] = MappingProxyType({}),
        environment: Environment | None = None,
    ) -> None:
        out, source = self._request.out, self._workplace.source
        environment = environment or self._environment
        made = Ingredients(kind, self._request, environment, source, base, tools)
        artefact = Artefact(
            kind=kind,
            name=name,
            bytes=size,
            sha256=sha256,
            created=source.epoch,
            inputs=made.facts(),
            largest=dict(largest_parts(environment.folder, _LARGEST)),
            steps=dict(self._steps.seconds),
        )
        write_statements(out, artefact, made.parts(), made.build())
        if base is not None:
            write_vex(out, artefact, self._request.triton)
        record(out, artefact)
        write_checksums(out, artefact)
        self._made.append(artefact)


class Steps:
    """Runs the steps of a build; ``seconds`` holds how long each successful one took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, folder: Path) -> Iterator[Say]:
        """Run one step; yield a function that shows what it is doing.

        If a disk is full and the system names no file, ``folder`` is named.
        """
        started = time.monotonic()
        with self._console.step(name) as say, naming(folder):
            yield say
        self.seconds[name] = round(time.monotonic() - started, 1)


def fetch_python(request: BuildRequest, say: Say) -> None:
    """Fetch the kit's own Python if it can be had and nothing else is asked for.

    A plan takes it only once it is there.
    """
    own = request.triton.own_python
    if request.python is None and request.wheels is None and own in (None, PYTHON):
        fetch_if_reachable(say)


def _plan(request: BuildRequest) -> Environment:
    return plan_environment(
        request.flavour,
        source=request.source,
        relocatable=True,
        python=request.python,
        wheels=request.wheels,
        stub=request.triton.own_python,
    )


def check_libc(environment: Environment, triton: TritonRelease) -> None:
    """Check that the environment's Python is not built for a newer system than NVIDIA's image."""
    if environment.glibc > triton.glibc:
        needed, there = (".".join(map(str, v)) for v in (environment.glibc, triton.glibc))
        raise BuildError(
            f"the environment's Python {environment.interpreter.version} needs glibc {needed}; "
            f"NVIDIA's Triton {triton.release} image has {there}",
            "use --python with one built on an older system, such as pyenv's or conda-forge's",
        )
