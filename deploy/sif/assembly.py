"""What every way to a .sif shares: the steps, what a .sif says of itself."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.console import Say
from deploy.sif.recipe import RECORDED_DEFINITION, inspect_metadata
from deploy.sif.sif_file import DEFINITION, JSON, Record

# What the OCI image specification keeps of a container's configuration.
_OCI_CONFIG = (
    "User",
    "ExposedPorts",
    "Env",
    "Entrypoint",
    "Cmd",
    "Volumes",
    "WorkingDir",
    "Labels",
    "StopSignal",
)


class Steps:
    """Says what happens and keeps how long each step took.

    Args:
        say: Is told each step as it begins.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run one step."""
        self._say(name)
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)


def records_of(
    sandbox: Path, scratch: Path, config: Mapping[str, Any] | None = None
) -> tuple[Record, ...]:
    """Return what a .sif says of its content, as Apptainer itself puts it in.

    Args:
        sandbox: The tree, described.
        scratch: Where the records are written.
        config: The configuration of the image it was made from, if it was.
    """
    definition, metadata = scratch / "definition", scratch / "metadata"
    shutil.copyfile(sandbox / RECORDED_DEFINITION, definition)
    metadata.write_text(inspect_metadata(sandbox), encoding="utf-8")
    parts = (Record(DEFINITION, "", definition), Record(JSON, "inspect-metadata.json", metadata))
    if config is None:
        return parts
    kept = {name: config[name] for name in _OCI_CONFIG if config.get(name)}
    oci = scratch / "config"
    oci.write_text(json.dumps(kept, sort_keys=True), encoding="utf-8")
    return (*parts, Record(JSON, "oci-config.json", oci))
