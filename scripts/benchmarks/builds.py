"""Ways to make a .sif from an image: the kit's, Apptainer's own, and a lower bound for both."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import docker

from deploy.artefacts.docker_client import exported
from deploy.artefacts.sif import SifBuilder
from deploy.artefacts.tools import SifTools
from deploy.host.console import Console
from deploy.host.errors import KitError

FLOOR, APPTAINER = "docker export to disk", "apptainer build, its defaults"
OURS = "ours"


@dataclass
class Series:
    """What was measured, round by round, and the size of the result, if any."""

    seconds: list[float] = field(default_factory=list)
    bytes: int | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


Results = dict[str, Series]


@dataclass(frozen=True)
class Routes:
    """The ways that are compared; results go to ``folder``."""

    client: docker.DockerClient
    image: str
    tools: SifTools
    folder: Path

    @property
    def sif(self) -> Path:
        """The .sif as the kit builds it, after `ours`."""
        return self.folder / "ours.sif"

    def ours(self) -> Path:
        builder = SifBuilder(self.tools, epoch=0, say=lambda _text: None)
        builder.from_image(self.client, self.image, self.sif)
        return self.sif

    def apptainers(self) -> Path:
        out = self.folder / "apptainer.sif"
        command = ["apptainer", "build", "--force", str(out), f"docker-daemon:{self.image}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KitError(f"apptainer build failed: {done.stderr.strip().splitlines()[-1]}")
        return out

    def floor(self) -> Path:
        out = self.folder / "export.tar"
        with exported(self.client, self.image) as tar, out.open("wb") as stream:
            for piece in tar:
                stream.write(piece)
        return out


def measure_builds(routes: Routes, rounds: int, apptainer_rounds: int, console: Console) -> Results:
    """Measure the routes in turn, with the image's files in the page cache."""
    named: dict[str, Callable[[], Path]] = {OURS: routes.ours, FLOOR: routes.floor}
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
