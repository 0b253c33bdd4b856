"""The container's own files: what Apptainer makes of ``containers/numl.def``.

Apptainer builds a tree without content from the definition; into its ``/.singularity.d`` go
the facts of this build: which image or base it has, the labels, the image's environment.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deploy.paths import CHECKOUT
from deploy.programs import run
from deploy.sif.tools import Tool

DEFINITION = CHECKOUT / "containers" / "numl.def"
RECORDS = Path(".singularity.d")
_LABELS = RECORDS / "labels.json"
RECORDED_DEFINITION = RECORDS / "Singularity"
# The name that Apptainer itself gives to an image's environment.
_IMAGE_ENVIRONMENT = RECORDS / "env" / "10-docker2singularity.sh"
# Set by Apptainer (the home folder) and by the definition (the network is the host's).
_NOT_FROM_IMAGE = {"HOME", "NUML_LISTEN"}
_LINKS = (".exec", ".run", ".shell", ".test", "environment", "singularity")


@dataclass(frozen=True)
class Origin:
    """Where the content of a .sif comes from, in the words of a definition file.

    Attributes:
        bootstrap: The agent, as in ``docker-daemon``.
        source: What it is given, as in ``numlkit:latest``.
    """

    bootstrap: str
    source: str


NOTHING = Origin("scratch", "-")


def build_sandbox(
    apptainer: Tool, folder: Path, origin: Origin, *, context: Path | None = None
) -> None:
    """Have Apptainer build ``folder`` from ``containers/numl.def``.

    Args:
        apptainer: The program.
        folder: The folder to make.
        origin: What it stands on; a relative path is one beside ``folder``.
        context: The folder with the layers to put in, or None: none.

    Raises:
        BuildError: With Apptainer's reason.
    """
    # Its test needs the content and, of root, all capabilities: it is run afterwards.
    words = ["--notest", "--sandbox"]
    if os.geteuid() != 0:
        # Files of a subordinate id could not be read, nor removed, by this user.
        words.append("--ignore-subuid")
    values = {"bootstrap": origin.bootstrap, "from": origin.source}
    # By the environment: in the definition's text a quote in the folder's name would be a quote.
    variables = {**os.environ, "NUML_CONTEXT": str(context or "")}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as arguments:
        arguments.writelines(f"{name}={value}\n" for name, value in values.items())
        arguments.flush()
        words += ["--build-arg-file", arguments.name, str(folder), str(DEFINITION)]
        run(
            [apptainer.path, "build", *words],
            failed=f"Apptainer cannot build from {origin.bootstrap} {origin.source}",
            cwd=folder.parent,
            environment=variables,
        )


def describe(
    sandbox: Path,
    origin: Origin,
    *,
    labels: Mapping[str, str],
    environment: Sequence[str],
    epoch: int,
) -> None:
    """Write the facts of this build into a tree that Apptainer made.

    Args:
        sandbox: The tree.
        origin: What the .sif is said to stand on.
        labels: The image's labels.
        environment: The image's environment, ``NAME=value`` each.
        epoch: The time of the build, in seconds since 1970.
    """
    (sandbox / RECORDED_DEFINITION).write_text(rendered(origin), encoding="utf-8")
    (sandbox / _IMAGE_ENVIRONMENT).write_text(environment_script(environment), encoding="utf-8")
    (sandbox / _IMAGE_ENVIRONMENT).chmod(0o755)
    all_labels = json.loads((sandbox / _LABELS).read_text(encoding="utf-8")) | {
        "org.label-schema.build-date": datetime.fromtimestamp(epoch, UTC).isoformat(),
        "org.label-schema.usage.singularity.deffile.bootstrap": origin.bootstrap,
        "org.label-schema.usage.singularity.deffile.from": origin.source,
        **labels,
    }
    text = json.dumps(all_labels, indent="\t", sort_keys=True)
    (sandbox / _LABELS).write_text(text, encoding="utf-8")


def rendered(origin: Origin) -> str:
    """Return the definition with its arguments filled in, from the header on."""
    text = DEFINITION.read_text(encoding="utf-8")
    values = {"bootstrap": origin.bootstrap, "from": origin.source}
    for name, value in values.items():
        text = text.replace(f"{{{{ {name} }}}}", value)
    return text[text.index("Bootstrap:") :]


def environment_script(environment: Sequence[str]) -> str:
    """Return the script that sets an image's environment, where the user has not.

    Args:
        environment: ``NAME=value`` each.
    """
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


def take_records(sandbox: Path, records: Path) -> None:
    """Move the container's own files from ``sandbox``, which keeps the usual empty folders."""
    records.mkdir()
    records.chmod(0o755)  # it becomes the root folder, whatever the umask
    for name in (RECORDS.name, *_LINKS):
        (sandbox / name).rename(records / name)


def inspect_metadata(sandbox: Path) -> str:
    """Return what ``apptainer inspect`` shows, in the form it looks for in a .sif."""
    records = sandbox / RECORDS
    scripts = {
        "runscript": "runscript",
        "startscript": "startscript",
        "test": "test",
        "helpfile": "runscript.help",
        "deffile": "Singularity",
    }
    attributes: dict[str, object] = {
        name: (records / file).read_text(encoding="utf-8").rstrip()
        for name, file in scripts.items()
    }
    attributes["environment"] = {
        f"/{path.relative_to(sandbox)}": path.read_text(encoding="utf-8").rstrip()
        for path in (sandbox / _IMAGE_ENVIRONMENT, records / "env" / "90-environment.sh")
    }
    attributes["labels"] = json.loads((sandbox / _LABELS).read_text(encoding="utf-8"))
    document = {"data": {"attributes": attributes}, "type": "container"}
    return json.dumps(document, sort_keys=True)
