"""Images in a registry, pushed by the Docker engine."""

from __future__ import annotations

from contextlib import closing, suppress

import docker
from docker.errors import APIError, DockerException

from deploy.artefacts.docker_client import connect, first_line
from deploy.artefacts.manifest import Artefact
from deploy.artefacts.registry import Manifest
from deploy.host.console import Say
from deploy.host.errors import DeploymentError, PublishError
from deploy.publishing.built import built_image, check_image
from deploy.publishing.place import Order, Outcome
from deploy.publishing.registry import RegistryPlace


class ImagePlace(RegistryPlace):
    """Images, pushed by the Docker engine."""

    def _publish(self, order: Order, say: Say) -> Outcome:
        if order.artefact is not None:
            raise DeploymentError("--image FILE.sif is for a folder or oras://")
        with closing(connect()) as client:
            artefact = built_image(order, client)
            check_image(client, artefact, say)
            return self.bring(
                order,
                artefact,
                folder=order.built,
                default_tag=artefact.name.rpartition(":")[2],
                push=lambda tag: self._push(client, artefact.sha256, tag, say),
                say=say,
            )

    def _push(self, client: docker.DockerClient, image: str, tag: str, say: Say) -> None:
        name = self.at.name
        found = client.images.get(image)
        own = f"{name}:{tag}" not in found.tags
        try:
            found.tag(name, tag)
            for message in client.images.push(name, tag, stream=True, decode=True):
                if "error" in message:
                    raise APIError(message["error"], explanation=message["error"])
                if message.get("status") in ("Pushed", "Layer already exists"):
                    say(f"layer {message.get('id')}: {message['status'].lower()}")
        except DockerException as error:
            raise PublishError(
                f"cannot push {name}:{tag}: {first_line(error)}",
                f"docker login {self.at.host}, then run the command again: it resumes",
            ) from None
        finally:
            if own:  # the image keeps the name that build gave it
                with suppress(APIError):
                    client.images.remove(f"{name}:{tag}", noprune=True)

    def _holds(self, manifest: Manifest, artefact: Artefact) -> bool:
        # Newer engines call an image by its manifest's digest, older ones by its configuration's.
        config = manifest.content.get("config", {}).get("digest")
        return artefact.sha256 in (config, manifest.digest)
