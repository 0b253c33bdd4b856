"""What the container engines have in common: the image, and what is passed to it."""

import tarfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from deploy.artefacts.keys import Signer
from deploy.artefacts.labels import (
    ENVIRONMENT_LABEL,
    FLAVOUR_LABEL,
    PYTHON_LABEL,
    SERVER_LABEL,
    SERVING_LABEL,
    TRITON_DIGEST_LABEL,
    TRITON_LABEL,
)
from deploy.deployment.deployment import Ports, Tls
from deploy.deployment.plan import ContainerPlan, Mount, image_in_words
from deploy.deployment.state import DeploymentFolder
from deploy.engines.base import Engine
from deploy.engines.resolved import Resolved
from deploy.engines.site import Runtime
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.lock import PYTHON
from deploy.environment.serving import serving_digest
from deploy.host.command_line import quote
from deploy.host.console import Say
from deploy.host.errors import DeploymentError, KitError, LaunchError
from deploy.host.files import marks_of
from deploy.host.finding import Finding, Level, ok, wrong
from deploy.host.paths import ENVIRONMENT_SOURCE
from deploy.triton.command import (
    CONTAINER_LISTEN,
    CONTAINER_PORTS,
    IMAGE_HEALTH,
    TRITON_ROOT,
    server_arguments,
    thread_settings,
)
from deploy.triton.distribution import TritonDistribution, ensure_distribution
from deploy.triton.release import TritonRelease
from deploy.triton.site import places_in_container
from deploy.triton.stub import stub_of_wheel

# Where the kit's image has its models; a launch mounts its own over them.
IMAGE_MODELS = Path("/opt/numl/models/cpu")
IMAGE_GPU_MODELS = Path("/opt/numl/models/gpu")
# Where a container sees the packed environment, and the files for TLS.
ARCHIVE_PLACE = Path("/opt/numl/environment.tar.gz")
IMAGE_TLS = Path("/opt/numl/tls")
# What NVIDIA's images say about themselves.
STOCK_LABEL = "com.nvidia.tritonserver.version"


@dataclass(frozen=True)
class ImageInUse:
    """An image or a .sif on this host.

    Attributes:
        name: Its name, or its path.
        digest: Its id, or the sha256 of the .sif.
        release: The number that a release statement gives it, if one does.
        instead: Whether this checkout has built another image of that name, which is gone.
    """

    name: str
    digest: str
    labels: Mapping[str, str]
    release: int | None = None
    instead: bool = False

    @property
    def environment_digest(self) -> str:
        """Digest of the execution environment in it; empty if the kit did not build the image."""
        return self.labels.get(ENVIRONMENT_LABEL, "")

    @property
    def is_of_another_checkout(self) -> bool:
        """Whether it is known to serve with different code from this checkout's."""
        served = self.labels.get(SERVING_LABEL)
        return served is not None and served != serving_digest(ENVIRONMENT_SOURCE)


def image_in_use(
    name: str, digest: str, labels: Mapping[str, str], resolved: Resolved
) -> ImageInUse:
    """Return the image if its labels say that it can serve a deployment."""
    deployment, release = resolved.deployment, resolved.release
    if deployment.env == "packed":
        server, kits = labels.get(STOCK_LABEL), labels.get(TRITON_LABEL)
        if server not in (None, release.server):
            cause = f"{name} has Triton {server}; this deployment's stubs are for {release.server}"
            raise LaunchError(cause, f"an image of Triton {release.release}, or --triton {name}")
        if kits not in (None, release.release):
            raise LaunchError(f"{name} has Triton {kits}; this deployment needs {release.release}")
        if server is None and kits is None:
            cause = f"{name} does not say which Triton it has, and its server does not start"
            raise LaunchError(cause, "docker run it with tritonserver --help to see why")
        return ImageInUse(name, digest, labels)
    if not labels.get(ENVIRONMENT_LABEL):
        cause = f"{name} was not built by this kit: it has no label {ENVIRONMENT_LABEL}"
        raise LaunchError(cause, "--image with one that numlkit build made, or --env packed")
    flavours = resolved.fitting_flavours
    if deployment.image is not None and deployment.flavour == "cpu":
        # Too large to be chosen, but it has all that a CPU needs.
        flavours = (*flavours, "gpu")
    named = deployment.image is not None and "triton" not in deployment.model_fields_set
    for what, label, wanted in (
        ("flavour", FLAVOUR_LABEL, flavours),
        # An image that is named brings its own Triton, unless that is named too.
        ("Triton", TRITON_LABEL, (labels.get(TRITON_LABEL, ""),) if named else (release.release,)),
    ):
        if labels.get(label) not in wanted:
            needs = f"this deployment needs {' or '.join(wanted)}"
            cause = f"{name} was built for {what} {labels.get(label)}; {needs}"
            raise LaunchError(cause, f"numlkit build --flavour {flavours[0]}, or another --image")
    # A site may build the same release with a fault mended.
    there = labels.get(TRITON_DIGEST_LABEL)
    if not named and there and release.digest and there != release.digest:
        asked = str(deployment.triton)
        cause = f"{name} has a Triton {release.release} that was not made from {asked}"
        raise LaunchError(cause, f"numlkit build --triton {quote(asked)}, or another --image")
    return ImageInUse(name, digest, labels)


def unpack(stream: IO[bytes], folder: Path) -> None:
    """Unpack what an engine gives of an image as a tar."""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        # Python 3.11.2, Debian 12's own, has no argument for it.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)


def tls_in_container(tls: Tls | None) -> tuple[Tls | None, tuple[Mount, ...]]:
    """Return the TLS files as the container sees them, and the mounts that put them there."""
    if tls is None:
        return None, ()
    files = tls.model_dump(exclude_none=True)
    places = {use: IMAGE_TLS / f"{use}.pem" for use in files}
    mounts = (Mount(source=files[use], target=place) for use, place in places.items())
    return Tls(**places), tuple(mounts)


class ContainerEngine(Engine):
    """An engine that starts the kit's image, or a stock one with the packed environment."""

    contained = True

    def verified(self, signer: Signer) -> tuple[Engine, str]:
        if self.deployment.env == "packed":
            cause = "a packed environment is not signed, and a stock image is signed by others"
            raise DeploymentError(cause, "leave out --env packed")
        engine = self.with_verified_image(signer)
        return engine, engine.runs()

    @abstractmethod
    def with_verified_image(self, signer: Signer) -> "ContainerEngine":
        """Check the signature of the image that a launch starts; return the engine for it."""

    def started_as(self, folder: DeploymentFolder) -> str:
        """Return what names the image to the engine: always the same one, also after a crash."""
        return self.image.digest

    @property
    @abstractmethod
    def image(self) -> ImageInUse:
        """The image that a launch starts.

        Raises:
            LaunchError: If it is not here; with the command that makes it.
        """

    @abstractmethod
    def copy_out(self, paths: Sequence[Path], target: Path) -> None:
        """Copy folders of the image, which lie beside each other, into a new folder."""

    def runs(self) -> str:
        """Return in words which image a launch starts."""
        return image_in_words(self.image.name, self.image.digest, self.image.release)

    def artefact(self) -> str:
        runtime = self.image.digest
        if self.resolved.uses_archive:
            runtime += f" {marks_of(self.resolved.archive)}"
        return self.resolved.digest(runtime)

    def fetch(self, say: Say) -> None:
        """Check that the image is here; fetch the stub for a packed environment."""
        resolved = self.resolved
        if self.image.instead:
            another = "names another image than this checkout has built, which is gone"
            say(f"warning: {self.image.name} {another}; numlkit build makes a new one")
        if self.image.is_of_another_checkout:
            differs = "has a different numl_serving from this checkout"
            say(f"warning: {self.image.name} {differs}; numlkit build makes a new image")
        if resolved.uses_archive:
            assert resolved.packed.python is not None
            ensure_distribution(resolved.release, resolved.packed.python, say)
            say(f"packed environment: {resolved.packed.path}")

    @property
    def release(self) -> TritonRelease:
        """The Triton in the image: the deployment's, or what the kit's image says about itself."""
        wanted, labels = self.resolved.release, self.image.labels
        kits = labels.get(TRITON_LABEL, wanted.release)
        if kits == wanted.release:
            return wanted
        python = labels.get(PYTHON_LABEL, PYTHON)
        return TritonRelease(kits, labels.get(SERVER_LABEL, wanted.server), python, (0, 0), None)

    @cached_property
    def runtime(self) -> Runtime:
        resolved, digest, stub = self.resolved, self.image.environment_digest, None
        python = own = self.image.labels.get(PYTHON_LABEL, PYTHON)
        release = self.release
        if resolved.uses_archive:
            given = resolved.packed
            assert given.python is not None
            assert given.digest is not None
            python, digest = given.python, given.digest
            if python != release.own_python:
                distribution = TritonDistribution.in_cache(release, python)
                stub = stub_of_wheel(distribution, given.libpython)
        stock = resolved.deployment.env == "packed"
        return Runtime(
            environment=ARCHIVE_PLACE if stock else Path(IMAGE_PREFIX),
            digest=digest,
            python=python,
            stub=stub,
            server_python=release.python if stock else own,
            release=release,
            in_container=True,
            places=self._places,
        )

    @cached_property
    def _places(self) -> dict[Path, Path]:
        return places_in_container(self.resolved.site_environments)

    def process(
        self, folder: DeploymentFolder, ports: Ports, identity: str, prefix: str
    ) -> tuple[tuple[str, ...], dict[str, str], ContainerPlan]:
        resolved, deployment = self.resolved, self.deployment
        listen, http_listen, own_ports = deployment.listen, resolved.http_listen, ports
        if self.isolated:
            listen = http_listen = CONTAINER_LISTEN
            own_ports = CONTAINER_PORTS
        tls, tls_mounts = tls_in_container(deployment.tls)
        mounts = [Mount(source=folder.repository, target=IMAGE_MODELS), *tls_mounts]
        if resolved.uses_archive:
            mounts.append(Mount(source=resolved.archive.resolve(), target=ARCHIVE_PLACE))
        mounts += [Mount(source=path, target=place) for path, place in self._places.items()]
        arguments = server_arguments(
            distribution=TritonDistribution(root=TRITON_ROOT, stub_python=""),
            repository=IMAGE_MODELS,
            listen=listen,
            ports=own_ports,
            shm_prefix=prefix,
            identity=identity,
            http_listen=http_listen,
            tls=tls,
            complete=resolved.complete,
            shared_memory=deployment.shared_memory,
            repository_index=deployment.repository_index,
            cache=resolved.uses_cache,
            flags=self.release.flags or frozenset(),
        )
        variables = {**thread_settings(deployment.threads), **resolved.devices.variables}
        container = ContainerPlan(
            named=self.image.name,
            image=self.started_as(folder),
            name=prefix.rstrip("-"),
            mounts=tuple(mounts),
            # A stock image has no health command.
            health=IMAGE_HEALTH if deployment.env == "unpacked" else (),
            gpus=resolved.devices.uuids,
            extracted_bytes=resolved.extracted_bytes,
            digest=self.image.digest if deployment.env == "unpacked" else "",
            release=self.image.release,
        )
        return arguments, variables, container

    def absent(self, level: Level, remedy: str) -> Finding:
        """Report that it is not installed: a problem only if the deployment needs it."""
        detail = f"{self.name} is not installed"
        if level == "problem":
            return Finding("problem", self.subject, detail, remedy)
        return ok(self.subject, detail)

    def image_findings(self, level: Level) -> Iterator[Finding]:
        try:
            image = self.image
        except KitError as error:
            if level == "problem":
                yield wrong(self.subject, error)
            else:
                yield ok(self.subject, f"{error.cause} ({error.remedy})")
            return
        environment = image.environment_digest and f", environment {image.environment_digest[:12]}"
        yield ok(self.subject, f"serves {image.name}{environment}")


def has_state(folder: Path) -> bool:
    """Return whether a deployment's folder has a state file, if only a broken one."""
    try:
        return DeploymentFolder(folder.name, folder.parent).state() is not None
    except KitError:
        return True
