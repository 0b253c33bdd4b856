"""What the engines with a container have in common: the image, and what it is given."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.console import Say
from deploy.deployment import Deployment, Ports, Tls
from deploy.engines.base import Engine
from deploy.engines.instances import choose_devices, count_instances, gpu_instances
from deploy.engines.own_weights import digest_served, ensure_own_weights, own_weights
from deploy.engines.packed import (
    ARCHIVE_PLACE,
    check_stock_image,
    digest_archive,
    find_archive,
    packed_environment,
)
from deploy.engines.site import (
    Runtime,
    all_complete,
    check_site,
    fit_flavours,
    kit_models,
    runs_in_kits,
    site_environments,
    site_models,
    stage_site_model,
)
from deploy.environment.lock import read_lock
from deploy.environment.serving import serving_digest
from deploy.errors import LaunchError
from deploy.images.labels import ENVIRONMENT_LABEL, FLAVOUR_LABEL, SERVING_LABEL, TRITON_LABEL
from deploy.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY, cache_folder
from deploy.plan import ContainerPlan, LaunchPlan, Mount
from deploy.repository.config import LaunchSettings
from deploy.repository.stage import StagedModel, plan_models
from deploy.repository.view import View, mounted
from deploy.server.command import (
    LAUNCHER,
    TOLERANT_LAUNCHER,
    TRITON_ROOT,
    keyed_command,
    server_arguments,
    thread_settings,
)
from deploy.server.distribution import TritonDistribution, distribution_folder, ensure_distribution
from deploy.server.release import find_release
from deploy.server.stub import stub_of_wheel
from deploy.state import DeploymentFolder
from deploy.supervisor.leftovers import shm_prefix

# Where the kit's image has its environment and its models; a launch lays its own over them.
IMAGE_ENVIRONMENT = Path("/opt/numl/env")
IMAGE_USER = 1000  # in group 0: containers/Dockerfile
IMAGE_PYTHON = IMAGE_ENVIRONMENT / "bin" / "python"
IMAGE_MODELS = Path("/opt/numl/models/cpu")
IMAGE_HEALTH = ("/opt/numl/bin/health",)
# Where a container sees the files for TLS.
IMAGE_TLS = Path("/opt/numl/tls")
# The Python that NVIDIA's images bring.
STOCK_PYTHON = Path("/usr/bin/python3")
# What starts the server in a container, and the key that an Apptainer instance is given.
IMAGE_LAUNCHER = Path("/opt/numl/keyed_start.py")
IMAGE_TOLERANT_LAUNCHER = Path("/opt/numl/with_or_without_key.sh")
IMAGE_KEY = Path("/opt/numl/admin.key")


@dataclass(frozen=True)
class ImageInUse:
    """An image or a .sif that is here.

    Attributes:
        name: The image's name, or the path of the .sif.
        digest: Names its content.
        labels: What it says about itself.
    """

    name: str
    digest: str
    labels: Mapping[str, str]

    @property
    def environment_digest(self) -> str:
        """Names the execution environment in it; empty if it is none of the kit's images."""
        return self.labels.get(ENVIRONMENT_LABEL, "")

    def is_of_another_checkout(self) -> bool:
        """Return whether what serves in it is known to be other code than this checkout's."""
        served = self.labels.get(SERVING_LABEL)
        return served is not None and served != serving_digest(ENVIRONMENT_SOURCE)


def image_in_use(
    name: str, digest: str, labels: Mapping[str, str], deployment: Deployment
) -> ImageInUse:
    """Return the image if its labels say that it can serve ``deployment``.

    Raises:
        LaunchError: If it is not one of the kit's, or another one than is wanted.
    """
    if deployment.env == "packed":
        check_stock_image(name, labels, deployment)
        return ImageInUse(name, digest, labels)
    if not labels.get(ENVIRONMENT_LABEL):
        raise LaunchError(
            f"{name} is none of the kit's images: it has no label {ENVIRONMENT_LABEL}",
            "--image with one that deploy/build.py has made, or --env packed",
        )
    flavours = fit_flavours(deployment)
    for label, wanted in ((FLAVOUR_LABEL, flavours), (TRITON_LABEL, (deployment.triton,))):
        if labels.get(label) not in wanted:
            raise LaunchError(
                f"{name} is of {label.removeprefix('org.numlkit.')} {labels.get(label)!r}, "
                f"wanted is {' or '.join(map(repr, wanted))}",
                f"python3 deploy/build.py --flavour {flavours[0]}, or another --image",
            )
    return ImageInUse(name, digest, labels)


def tls_in_container(tls: Tls | None) -> tuple[Tls | None, tuple[Mount, ...]]:
    """Return where a container sees the files for TLS, and the mounts that put them there."""
    if tls is None:
        return None, ()
    files = {"cert": tls.cert, "key": tls.key, "ca": tls.ca}
    mounts = {
        use: Mount(source=path, target=IMAGE_TLS / f"{use}.pem")
        for use, path in files.items()
        if path is not None
    }
    return Tls(**{use: mount.target for use, mount in mounts.items()}), tuple(mounts.values())


class ContainerEngine(Engine):
    """An engine that starts the kit's image, or a stock one with the packed environment."""

    @abstractmethod
    def image(self, *, deployment: Deployment) -> ImageInUse:
        """Return the image that a launch would start.

        Args:
            deployment: What is wanted.

        Raises:
            LaunchError: If it is not here; with the command that makes it.
        """

    def artefact(self, *, deployment: Deployment) -> str:
        """Return the digest of image, packed environment and model files."""
        runtime = self.image(deployment=deployment).digest
        if uses_archive(deployment):
            runtime = f"{runtime} {digest_archive(deployment)}"
        return digest_served(deployment, runtime)

    def prepare(self, *, deployment: Deployment, say: Say) -> None:
        """Check that image and environments are here; import a user's own checkpoints."""
        image = self.image(deployment=deployment)
        if image.is_of_another_checkout():
            say(
                f"warning: {image.name} has another numl_serving than this checkout: "
                "python3 deploy/build.py makes one that has the same"
            )
        for warning in choose_devices(deployment).warnings:
            say(f"warning: {warning}")
        if uses_archive(deployment):
            given = packed_environment(deployment, say)
            assert given.python is not None
            release = find_release(deployment.triton)
            ensure_distribution(cache_folder(), release, given.python, say)
            say(f"packed environment: {given.path}")
        runtime = self._runtime(deployment)
        check_site(deployment, site_models(deployment), runtime, say)
        self.require_room(deployment, extracted_bytes(deployment))
        if deployment.checkpoints:
            # The import runs on the host; the server in the container never unpickles anything.
            ensure_own_weights(deployment, say)
        self.models(deployment=deployment)

    @abstractmethod
    def require_room(self, deployment: Deployment, extracted: int) -> None:
        """Check that there is room for what the server extracts.

        Args:
            deployment: What is wanted.
            extracted: Bytes.

        Raises:
            KitError: If there is not.
        """

    def models(self, *, deployment: Deployment) -> tuple[StagedModel, ...]:
        """Return the models, configured for the environment that the container has."""
        runtime, site = self._runtime(deployment), site_models(deployment)
        digest = self.image(deployment=deployment).environment_digest
        if uses_archive(deployment):
            digest = packed_environment(deployment).digest or ""
        settings = LaunchSettings(
            environment=runtime.environment,
            parameters={"environment_digest": digest},
            instances=deployment.instance_count(),
            gpus=gpu_instances(deployment, choose_devices(deployment)),
            batch=deployment.batch,
        )
        models, weights = kit_models(deployment), own_weights(deployment)
        view = site_view(deployment)
        return (
            *(
                replace(model, stub=runtime.stub)
                for model in plan_models(MODEL_REPOSITORY, models, settings, weights)
            ),
            *(stage_site_model(deployment, model, runtime, view) for model in site),
        )

    def _runtime(self, deployment: Deployment) -> Runtime:
        """Return what the container has; of a packed environment after it was prepared."""
        python = read_lock(ENVIRONMENT_SOURCE / "locks", deployment.flavour).python
        release = find_release(deployment.triton)
        if deployment.env == "unpacked":
            return Runtime(IMAGE_ENVIRONMENT, python, None, python, in_container=True)
        if not uses_archive(deployment):
            return Runtime(ARCHIVE_PLACE, python, None, release.image_python, in_container=True)
        given = packed_environment(deployment)
        assert given.python is not None
        root = distribution_folder(cache_folder(), release, given.python)
        stub = stub_of_wheel(TritonDistribution(root, given.python), given.libpython)
        return Runtime(ARCHIVE_PLACE, given.python, stub, release.image_python, in_container=True)

    def planned(
        self,
        deployment: Deployment,
        *,
        ports: Ports,
        listen: str,
        http_listen: str,
        inner_ports: Ports,
        new_key: Path | None = None,
        user: str | None = None,
        limits: tuple[tuple[str, int], ...] = (),
    ) -> LaunchPlan:
        """Return the plan of a launch.

        Args:
            deployment: What is wanted.
            ports: The ports on this host.
            listen: Where the server listens, as the container sees it.
            http_listen: The same for HTTP and metrics.
            inner_ports: Its ports, as the container sees them.
            new_key: Where the launcher in the container makes the key; None: it is given one.
            user: ``uid:gid`` of its processes, where that is not the image's.
            limits: Limits of resources.

        Raises:
            KitError: If it cannot be launched as described.
        """
        devices = choose_devices(deployment)
        folder = DeploymentFolder(deployment.name)
        prefix = shm_prefix(folder.path)
        identity = f"numlkit-{deployment.name}-{secrets.token_hex(4)}"
        tls, tls_mounts = tls_in_container(deployment.tls)
        site = site_models(deployment)
        mounts = [
            Mount(source=folder.repository, target=IMAGE_MODELS),
            Mount(source=LAUNCHER, target=IMAGE_LAUNCHER),
            *([] if new_key else [Mount(source=folder.key_file, target=IMAGE_KEY)]),
            *tls_mounts,
        ]
        packed = deployment.env == "packed"
        if packed:
            mounts.append(Mount(source=TOLERANT_LAUNCHER, target=IMAGE_TOLERANT_LAUNCHER))
        if uses_archive(deployment):
            mounts.append(Mount(source=find_archive(deployment).resolve(), target=ARCHIVE_PLACE))
        view = site_view(deployment)
        mounts += [Mount(source=path, target=place) for path, place in view.places or ()]
        container = ContainerPlan(
            image=self.image(deployment=deployment).name,
            name=prefix.rstrip("-"),
            user=user,
            mounts=tuple(mounts),
            limits=limits,
            # A stock image has nothing that could look after it.
            health=IMAGE_HEALTH if deployment.env == "unpacked" else (),
            gpus=devices.uuids,
            extracted_bytes=extracted_bytes(deployment),
        )
        command = keyed_command(
            server_arguments(
                distribution=TritonDistribution(root=TRITON_ROOT, stub_python=""),
                repository=IMAGE_MODELS,
                listen=listen,
                ports=inner_ports,
                shm_prefix=prefix,
                identity=identity,
                http_listen=http_listen,
                tls=tls,
                complete=all_complete(site),
            ),
            python=STOCK_PYTHON if packed else IMAGE_PYTHON,
            launcher=IMAGE_LAUNCHER,
            key_file=new_key or IMAGE_KEY,
            new=new_key is not None,
        )
        return LaunchPlan(
            deployment=deployment,
            engine=self.name,
            ports=ports,
            # A file, since what Apptainer makes of an image evaluates the words it is given.
            arguments=("/bin/sh", str(IMAGE_TOLERANT_LAUNCHER), *command) if packed else command,
            variables={**thread_settings(deployment.threads), **devices.variables},
            repository=folder.repository,
            instances=count_instances(deployment, devices),
            shm_prefix=prefix,
            identity=identity,
            artefact=self.artefact(deployment=deployment),
            log=folder.log,
            key_file=folder.key_file,
            container=container,
            site_models=tuple(model.name for model in site),
        )


def uses_archive(deployment: Deployment) -> bool:
    """Return whether a model of the deployment runs in the kit's packed environment."""
    return deployment.env == "packed" and (
        bool(kit_models(deployment)) or any(runs_in_kits(m) for m in site_models(deployment))
    )


def site_view(deployment: Deployment) -> View:
    """Return what a container sees of a site's own repository: nothing, if there is none."""
    site = site_models(deployment)
    if deployment.models_dir is None or not site:
        return View(())
    return mounted(
        deployment.models_dir,
        linked=(path for model in site for path in model.linked),
        environments=(model.environment for model in site if model.environment is not None),
    )


def extracted_bytes(deployment: Deployment) -> int:
    """Return what the packed environments of a deployment take when they are extracted."""
    given = [*site_environments(site_models(deployment))]
    if uses_archive(deployment):
        given.append(packed_environment(deployment))
    # Models that name the same archive share what is extracted of it.
    return sum({one.path: one.unpacked_bytes for one in given}.values())
