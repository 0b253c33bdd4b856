"""Build a .sif: from an image of the Docker engine, or without Docker.

Either way a tree is filled, described, compressed and wrapped. Apptainer makes the tree from
``containers/numl.def``: an empty one that the image's files are laid over, or one with the base
image and the layers that the Docker image would have. What it was built from, the labels and the
image's environment are then written into its ``/.singularity.d``.
"""

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

import docker
from docker.errors import ImageNotFound

from deploy.artefacts.docker_client import exported
from deploy.artefacts.image import BaseImage, debian_tar, imported_base, reason, suite_of
from deploy.artefacts.registry import digest_of_tag
from deploy.artefacts.sbom import System, system_of_tree
from deploy.artefacts.sif_file import FULL_DISK, Records, fit, squash, write_sif
from deploy.artefacts.tools import SifTools
from deploy.environment.tars import tar_chunks
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.files import work_folder
from deploy.host.paths import CHECKOUT
from deploy.host.programs import run

DEFINITION = CHECKOUT / "containers" / "numl.def"
_RECORDS = Path(".singularity.d")
_LABELS = _RECORDS / "labels.json"
# The name that Apptainer itself gives to an image's environment.
_IMAGE_ENVIRONMENT = _RECORDS / "env" / "10-docker2singularity.sh"
# Apptainer sets the home folder; the network is the host's, so the definition chooses there.
_NOT_FROM_IMAGE = {"HOME", "NUML_LISTEN", "NUML_OWN_NETWORK"}
# What apptainer inspect looks for, and the file that it is in.
_INSPECTED = {
    "runscript": "runscript",
    "startscript": "startscript",
    "test": "test",
    "helpfile": "runscript.help",
    "deffile": "Singularity",
}
# What the OCI image specification keeps of a container's configuration.
_OCI_CONFIG = ["User", "ExposedPorts", "Env", "Entrypoint", "Cmd"]
_OCI_CONFIG += ["Volumes", "WorkingDir", "Labels", "StopSignal"]


@dataclass(frozen=True)
class Origin:
    """What a .sif is built from: ``Bootstrap:`` and ``From:`` of a definition file."""

    bootstrap: str
    source: str


def build_sandbox(
    apptainer: Path, folder: Path, origin: Origin, *, context: Path | None = None
) -> None:
    """Have Apptainer build ``folder`` from ``containers/numl.def``, with the layers in ``context``.

    A path in ``origin`` is relative to the parent of ``folder``.
    """
    # Its test needs the content and, of root, all capabilities: it runs later.
    words = ["--notest", "--sandbox"]
    if os.geteuid() != 0:
        # This user could neither read nor remove files of a subordinate id.
        words.append("--ignore-subuid")
    # Through the environment: inside the definition a quote in the path would end a string.
    variables = {**os.environ, "NUML_CONTEXT": str(context or "")}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as arguments:
        arguments.write(f"bootstrap={origin.bootstrap}\nfrom={origin.source}\n")
        arguments.flush()
        words += ["--build-arg-file", arguments.name, str(folder), str(DEFINITION)]
        run(
            [apptainer, "build", *words],
            failed=f"Apptainer cannot build from {origin.bootstrap} {origin.source}",
            cwd=folder.parent,
            environment=variables,
        )
    folder.chmod(0o755)  # it becomes the root folder, whatever the umask


def describe(
    sandbox: Path,
    origin: Origin,
    *,
    labels: Mapping[str, str],
    epoch: int,
    image: Mapping[str, Any] | None = None,
) -> Records:
    """Record in a tree what it is built from; return the same records for the .sif's own header.

    The labels are added to Apptainer's own; ``epoch`` is the time of the build (Unix, s), ``image``
    the configuration of the image that it is built from, if any.
    """
    definition = rendered(origin)
    (sandbox / _RECORDS / "Singularity").write_text(definition, encoding="utf-8")
    script = environment_script((image or {}).get("Env") or ())
    (sandbox / _IMAGE_ENVIRONMENT).write_text(script, encoding="utf-8")
    (sandbox / _IMAGE_ENVIRONMENT).chmod(0o755)
    all_labels = json.loads((sandbox / _LABELS).read_text(encoding="utf-8")) | {
        "org.label-schema.build-date": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
        "org.label-schema.usage.singularity.deffile.bootstrap": origin.bootstrap,
        "org.label-schema.usage.singularity.deffile.from": origin.source,
        **labels,
    }
    text = json.dumps(all_labels, indent="\t", sort_keys=True)
    (sandbox / _LABELS).write_text(text, encoding="utf-8")
    documents = {"inspect-metadata.json": _inspect_metadata(sandbox, all_labels)}
    if image is not None:
        kept = {name: image[name] for name in _OCI_CONFIG if image.get(name)}
        documents["oci-config.json"] = json.dumps(kept, sort_keys=True)
    return Records(definition, documents)


def rendered(origin: Origin) -> str:
    text = DEFINITION.read_text(encoding="utf-8")
    text = text.replace("{{ bootstrap }}", origin.bootstrap).replace("{{ from }}", origin.source)
    return text[text.index("Bootstrap:") :]


def environment_script(environment: Sequence[str]) -> str:
    """Return the script that sets an image's environment (``NAME=value``) if the user has not."""
    lines = ["#!/bin/sh"]
    for variable in environment:
        name, _, value = variable.partition("=")
        if name == "PATH":
            # The host's names folders that the container does not have.
            lines.append(f"export PATH={shlex.quote(value)}")
        elif name not in _NOT_FROM_IMAGE:
            lines.append(f'[ -n "${{{name}:-}}" ] || {name}={shlex.quote(value)}')
            lines.append(f"export {name}")
    return "\n".join(lines) + "\n"


def _inspect_metadata(sandbox: Path, labels: Mapping[str, str]) -> str:
    """Return what ``apptainer inspect`` shows, in the form that it looks for in a .sif."""

    def content(path: Path) -> str:
        return (sandbox / path).read_text(encoding="utf-8").rstrip()

    environment = (_IMAGE_ENVIRONMENT, _RECORDS / "env" / "90-environment.sh")
    attributes = {
        **{name: content(_RECORDS / file) for name, file in _INSPECTED.items()},
        "environment": {f"/{path}": content(path) for path in environment},
        "labels": labels,
    }
    document = {"data": {"attributes": attributes}, "type": "container"}
    return json.dumps(document, sort_keys=True)


@dataclass(frozen=True)
class SifBuilder:
    """Builds a .sif, completely or not at all; everything in it has the time ``epoch`` (Unix, s).

    Callers hold a lock: what an interrupted build of the same file left is removed.
    """

    tools: SifTools
    epoch: int
    say: Say

    def from_image(
        self, client: docker.DockerClient, image: str, out: Path, *, named: str = ""
    ) -> None:
        """Build ``out`` from what the engine exports; the same image gives the same bytes.

        ``named`` is what the .sif says it is built from, where ``image`` is an id.
        """
        try:
            attributes = client.images.get(image).attrs
        except ImageNotFound:
            cause = f"the Docker engine has no image {image}"
            raise BuildError(cause, "numlkit build --target image") from None
        config = attributes["Config"]
        with work_folder(out.absolute()) as scratch:
            sandbox = scratch / "sandbox"
            self.say("the container's own files")
            build_sandbox(self.tools.apptainer.path, sandbox, Origin("scratch", "-"))
            origin, labels = Origin("docker-daemon", named or image), config.get("Labels") or {}
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
                explain=reason,
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
        # Of a tag, Apptainer does not say which image it got.
        known = digest or digest_of_tag(base)
        pinned = f"{base.rpartition(':')[0]}@{known}" if known else base
        try:
            build_sandbox(apptainer, sandbox, Origin("docker", pinned), context=context)
        except BuildError as error:
            # Apptainer calls the part that fetches a base the conveyor.
            if "conveyor failed to get" not in error.cause:
                raise
            suite = suite_of(base)
            if digest is not None or suite is None:
                raise BuildError(
                    error.cause,
                    "build where that registry answers, or load the image into a Docker engine",
                ) from None
        else:
            return BaseImage(reference=pinned, name=base, digest=known), "docker"
        self.say(f"no registry offers {base}; using a minimal Debian made here")
        tar, folder = debian_tar(suite, self.say), sandbox.with_name("base")
        folder.mkdir()
        # Only root could make devices, and there are none in a .sif.
        words = ("--preserve-permissions", "--no-same-owner", "--exclude=./dev/*")
        command = ["tar", "--extract", *words, "--directory", str(folder), "--file", str(tar)]
        run(command, failed=f"cannot unpack {tar}", remedy=FULL_DISK)
        build_sandbox(apptainer, sandbox, Origin("localimage", folder.name), context=context)
        return imported_base(suite, tar), "localimage"

    def _finish(
        self, files: Path | Iterator[bytes], records: Records, out: Path, scratch: Path
    ) -> None:
        tools, squashfs, sif = self.tools, scratch / "numl.squashfs", scratch / "numl.sif"
        self.say(f"compressing the file system ({tools.compressor})")
        squash(tools.mksquashfs.path, files, squashfs, tools.compressor, self.epoch)
        self.say("writing the .sif")
        write_sif(tools.apptainer.path, squashfs, records, sif, epoch=self.epoch)
        sif.replace(out)
