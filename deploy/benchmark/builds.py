"""The ways from an image to a .sif: the kit's, Apptainer's own, and the floor below both."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import docker

from deploy.benchmark.series import Results, Series
from deploy.console import Console
from deploy.errors import KitError
from deploy.sif.build import build_sif_from_image
from deploy.sif.rootfs import exported
from deploy.sif.squashfs import Compression
from deploy.sif.tools import SifTools

FLOOR, APPTAINER = "docker export to disk", "apptainer build, its defaults"


@dataclass(frozen=True)
class Routes:
    """The ways to a file that are compared.

    Args:
        client: The engine.
        image: The image.
        tools: What builds a .sif.
        compression: How the kit's are compressed.
        folder: Where the results go.
    """

    client: docker.DockerClient
    image: str
    tools: SifTools
    compression: Compression
    folder: Path

    def ours(self, way: str) -> Path:
        """Build the .sif as the kit does."""
        out = self.folder / f"{way}.sif"
        build_sif_from_image(
            self.client,
            self.image,
            out,
            tools=self.tools,
            compression=self.compression,
            epoch=0,
            say=lambda _text: None,
            way=way,  # type: ignore[arg-type]
        )
        return out

    def apptainers(self) -> Path:
        """Build the .sif as Apptainer does if it is told nothing."""
        out = self.folder / "apptainer.sif"
        command = ["apptainer", "build", "--force", str(out), f"docker-daemon:{self.image}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KitError(f"apptainer build failed: {done.stderr.strip().splitlines()[-1]}")
        return out

    def floor(self) -> Path:
        """Write what the engine exports to disk."""
        out = self.folder / "export.tar"
        with exported(self.client, self.image) as tar, out.open("wb") as stream:
            for piece in tar:
                stream.write(piece)
        return out


def measure_builds(routes: Routes, rounds: int, apptainer_rounds: int, console: Console) -> Results:
    """Measure the routes in turn; what the layers of the image are read from is warm."""
    named: dict[str, Callable[[], Path]] = {"ours, from the export": lambda: routes.ours("export")}
    if os.geteuid() == 0:
        named = {"ours, from the layers": lambda: routes.ours("layers"), **named}
    named[FLOOR] = routes.floor
    results: Results = {name: Series() for name in named}
    with console.step("reading the image once"):
        routes.floor()
    for turn in range(rounds):
        if turn < apptainer_rounds:
            named[APPTAINER] = routes.apptainers
        else:
            named.pop(APPTAINER, None)
        for name, build in named.items():
            with console.step(f"round {turn + 1}: {name}"):
                started = time.monotonic()
                made = build()
                series = results.setdefault(name, Series())
                series.seconds.append(round(time.monotonic() - started, 2))
                series.bytes = made.stat().st_size
    return results
