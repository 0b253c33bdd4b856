"""The container's own files, which Apptainer builds from ``containers/numl.def``.

Apptainer builds a tree from the definition. What it was built from, the labels and the image's
environment are then written into its ``/.singularity.d``.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deploy.artefacts.sif_file import Records
from deploy.host.paths import CHECKOUT
from deploy.host.programs import run

DEFINITION = CHECKOUT / "containers" / "numl.def"
_RECORDS = Path(".singularity.d")
_LABELS = _RECORDS / "labels.json"
# The name that Apptainer itself gives to an image's environment.
_IMAGE_ENVIRONMENT = _RECORDS / "env" / "10-docker2singularity.sh"
# Apptainer sets the home folder; the network is the host's, so the definition chooses there.
_NOT_FROM_IMAGE = {"HOME", "NUML_LISTEN"}
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


NOTHING = Origin("scratch", "-")


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
    """Write what it is built from into a tree; return the same as a .sif has it outside the tree.

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
