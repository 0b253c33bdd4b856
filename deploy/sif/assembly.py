"""What every way to a .sif shares: a place to work in, the steps, what a .sif says of itself."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
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


@contextmanager
def partial(out: Path) -> Iterator[Path]:
    """Yield a folder beside ``out`` to work in, which is removed in the end.

    What an interrupted earlier build of the same file left is removed first; callers hold
    :func:`deploy.files.locked` on the file, so no live build is disturbed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    for stale in out.parent.glob(f".{out.name}.*.partial"):
        _remove(stale)
    scratch = tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".partial")
    try:
        yield Path(scratch)
    finally:
        _remove(Path(scratch))


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


def _remove(folder: Path) -> None:
    # An image may have folders that are closed to their owner.
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)
