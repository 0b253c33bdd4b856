"""The .sif files in a registry, pushed by Apptainer."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deploy.artefacts.manifest import Artefact
from deploy.artefacts.registry import Manifest
from deploy.host.console import Say
from deploy.host.errors import PublishError
from deploy.host.programs import run
from deploy.publishing.built import built_sif, check_sif
from deploy.publishing.place import Order, Outcome
from deploy.publishing.registry import CREATED, REVISION, RegistryPlace


class SifPlace(RegistryPlace):
    """The .sif files, pushed by Apptainer."""

    what = ".sif"

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
        pushed = self.registry.manifest(release)
        if pushed is not None:
            # Apptainer writes no time and no revision.
            when = datetime.fromtimestamp(artefact.created, timezone.utc)
            facts = {
                CREATED: when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                REVISION: artefact.inputs.get("revision", ""),
            }
            self.registry.put({**pushed.content, "annotations": facts}, release)

    def _holds(self, manifest: Manifest, artefact: Artefact) -> bool:
        layers = [layer["digest"] for layer in manifest.content.get("layers", ())]
        return layers == [f"sha256:{artefact.sha256}"]

    def _facts(self, manifest: Manifest) -> dict[str, Any]:
        return manifest.content.get("annotations") or {}
