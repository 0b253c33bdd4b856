"""What the engines with a container have in common: the kit's image, and what it is given."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.console import Say
from deploy.deployment import Deployment, Ports, Tls
from deploy.engines.base import Engine
from deploy.engines.instances import choose_devices, count_instances, gpu_instances
from deploy.engines.own_weights import digest_served, ensure_own_weights, own_weights
from deploy.environment.standard import standard_environment
from deploy.errors import LaunchError
from deploy.images.labels import ENVIRONMENT_LABEL, FLAVOUR_LABEL, TRITON_LABEL
from deploy.paths import MODEL_REPOSITORY
from deploy.plan import ContainerPlan, LaunchPlan, Mount
from deploy.repository.config import LaunchSettings
from deploy.repository.stage import StagedModel, plan_models
from deploy.server.command import TRITON_ROOT, server_arguments, thread_settings
from deploy.server.distribution import TritonDistribution
from deploy.state import DeploymentFolder
from deploy.supervisor.leftovers import shm_prefix

# Where the kit's image has its environment and its models; a launch lays its own over them.
IMAGE_ENVIRONMENT = Path("/opt/numl/env")
IMAGE_MODELS = Path("/opt/numl/models/cpu")
IMAGE_HEALTH = ("/opt/numl/bin/health",)
# Where a container sees the files for TLS.
IMAGE_TLS = Path("/opt/numl/tls")


@dataclass(frozen=True)
class ImageInUse:
    """An image or a .sif that is here.

    Attributes:
        name: The image's name, or the path of the .sif.
        digest: Names its content.
        environment_digest: Names the execution environment in it.
    """

    name: str
    digest: str
    environment_digest: str


def image_in_use(
    name: str, digest: str, labels: Mapping[str, str], deployment: Deployment
) -> ImageInUse:
    """Return the image if its labels say that it can serve ``deployment``.

    Raises:
        LaunchError: If it is not one of the kit's, or another one than is wanted.
    """
    if not labels.get(ENVIRONMENT_LABEL):
        raise LaunchError(
            f"{name} is none of the kit's images: it has no label {ENVIRONMENT_LABEL}",
            "--image with one that deploy/build.py has made",
        )
    for label, wanted in ((FLAVOUR_LABEL, deployment.flavour), (TRITON_LABEL, deployment.triton)):
        if labels.get(label) != wanted:
            raise LaunchError(
                f"{name} is of {label.removeprefix('org.numlkit.')} {labels.get(label)!r}, "
                f"wanted is {wanted!r}",
                f"python3 deploy/build.py --flavour {deployment.flavour}, or another --image",
            )
    return ImageInUse(name=name, digest=digest, environment_digest=labels[ENVIRONMENT_LABEL])


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
    """An engine that starts the kit's image."""

    @abstractmethod
    def image(self, *, deployment: Deployment) -> ImageInUse:
        """Return the image that a launch would start.

        Args:
            deployment: What is wanted.

        Raises:
            LaunchError: If it is not here; with the command that makes it.
        """

    def artefact(self, *, deployment: Deployment) -> str:
        """Return the digest of image and model files."""
        return digest_served(deployment, self.image(deployment=deployment).digest)

    def prepare(self, *, deployment: Deployment, say: Say) -> None:
        """Check that the image is here; import a user's own checkpoints."""
        self.image(deployment=deployment)
        for warning in choose_devices(deployment).warnings:
            say(f"warning: {warning}")
        if deployment.checkpoints:
            # The import runs on the host; the server in the container never unpickles anything.
            environment = standard_environment(deployment.flavour).ensure(say)
            ensure_own_weights(deployment, environment, say)
        self.models(deployment=deployment)

    def models(self, *, deployment: Deployment) -> tuple[StagedModel, ...]:
        """Return the models, configured for the environment in the image."""
        image = self.image(deployment=deployment)
        settings = LaunchSettings(
            environment=IMAGE_ENVIRONMENT,
            parameters={
                "environment_digest": image.environment_digest,
                "threads": str(deployment.threads),
            },
            instances=deployment.instance_count(),
            gpus=gpu_instances(deployment, choose_devices(deployment)),
        )
        weights = own_weights(deployment)
        return plan_models(MODEL_REPOSITORY, deployment.models, settings, weights)

    def planned(
        self,
        deployment: Deployment,
        *,
        ports: Ports,
        listen: str,
        http_listen: str,
        inner_ports: Ports,
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
        container = ContainerPlan(
            image=self.image(deployment=deployment).name,
            name=prefix.rstrip("-"),
            user=user,
            mounts=(Mount(source=folder.repository, target=IMAGE_MODELS), *tls_mounts),
            limits=limits,
            health=IMAGE_HEALTH,
            gpus=devices.uuids,
        )
        return LaunchPlan(
            deployment=deployment,
            engine=self.name,
            ports=ports,
            arguments=server_arguments(
                distribution=TritonDistribution(root=TRITON_ROOT, stub_python=""),
                repository=IMAGE_MODELS,
                listen=listen,
                ports=inner_ports,
                shm_prefix=prefix,
                identity=identity,
                http_listen=http_listen,
                tls=tls,
            ),
            variables={**thread_settings(deployment.threads), **devices.variables},
            repository=folder.repository,
            instances=count_instances(deployment, devices),
            shm_prefix=prefix,
            identity=identity,
            artefact=self.artefact(deployment=deployment),
            log=folder.log,
            container=container,
        )
