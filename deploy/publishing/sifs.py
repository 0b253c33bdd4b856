"""The .sif files in a registry, pushed by Apptainer."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.artefacts.manifest import Artefact
from deploy.artefacts.registry import Manifest
from deploy.host.console import Say
from deploy.host.errors import PublishError
from deploy.host.programs import run
from deploy.publishing.built import built_sif, check_sif
from deploy.publishing.place import Order, Outcome
from deploy.publishing.registry import RegistryPlace


class SifPlace(RegistryPlace):
    """The .sif files, pushed by Apptainer."""

    def _publish(self, order: Order, say: Say) -> Outcome:
        sif, artefact = built_sif(order)
        say("checking its models against their reference outputs")
        check_sif(sif)
        return self.bring(
            order,
            artefact,
            folder=sif.parent,
            default_tag=sif.stem.removeprefix("numl-"),
            push=lambda tag: self._push(sif, artefact, tag, say),
            say=say,
        )

    def _push(self, sif: Path, artefact: Artefact, release: str, say: Say) -> None:
        name = f"oras://{self.at.name}:{release}"
        say(f"pushing {artefact.bytes / 1e6:.0f} MB")
        options = ["--no-https"] if self.at.loopback else []
        if "DOCKER_CONFIG" in os.environ:  # which Apptainer does not know
            options += ["--authfile", str(Path(os.environ["DOCKER_CONFIG"], "config.json"))]
        run(
            ["apptainer", "push", *options, sif, name],
            failed=f"cannot push {name}",
            remedy=f"docker login {self.at.host}, then run the command again",
            error=PublishError,
        )

    def _holds(self, manifest: Manifest, artefact: Artefact) -> bool:
        layers = [layer["digest"] for layer in manifest.content.get("layers", ())]
        return layers == [f"sha256:{artefact.sha256}"]
