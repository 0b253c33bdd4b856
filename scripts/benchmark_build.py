#!/usr/bin/env python3
"""Measure how long a .sif takes, how large it is, and how soon a server is ready.

``python3 scripts/benchmark_build.py IMAGE`` builds the .sif from an image of the Docker engine
again and again, in turn with ``apptainer build`` (its defaults) and with ``docker export`` to
disk, which is the floor: nothing that takes the image from the engine can be faster. Then it
starts servers in turn. Other work on the machine disturbs all of them alike: trust the ratios.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from deploy.bootstrap import ensure_kit

ensure_kit()

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import docker

from deploy.arguments import Parser
from deploy.console import Console
from deploy.deployment import DEFAULT_MODELS, Ports
from deploy.errors import KitError, LaunchError
from deploy.images.engine import connect
from deploy.paths import MODEL_REPOSITORY, cache_folder
from deploy.server.command import server_arguments, server_environment
from deploy.server.distribution import ensure_distribution
from deploy.server.golden import read_golden
from deploy.server.probe import Probe, smoke
from deploy.server.release import find_release
from deploy.sif.build import build_sif_from_image
from deploy.sif.rootfs import exported
from deploy.sif.squashfs import COMPRESSIONS, Compression
from deploy.sif.tools import SifTools, find_tools

READY_S = 300
FLOOR, APPTAINER = "docker export to disk", "apptainer build, its defaults"
LISTEN = "127.0.0.1"


@dataclass
class Series:
    """What was measured for one thing, round by round.

    Attributes:
        seconds: How long it took.
        bytes: How large the result is; None if there is none.
    """

    seconds: list[float] = field(default_factory=list)
    bytes: int | None = None

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


Results = dict[str, Series]


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


# Starts a server, has it stopped when the stack is closed, and returns what tells whether it runs.
Start = Callable[[Ports, ExitStack], Callable[[], bool]]


def from_sif(sif: Path) -> Start:
    """Return what starts a server from a .sif."""

    def start(ports: Ports, stack: ExitStack) -> Callable[[], bool]:
        variables = ",".join(f"{name}={value}" for name, value in _port_variables(ports).items())
        command = ["apptainer", "run", "--containall", "--env", variables, str(sif), "--cpu"]
        return stack.enter_context(_process(command, None))

    return start


def from_image(client: docker.DockerClient, image: str) -> Start:
    """Return what starts a server from an image, with the restrictions of a cluster."""

    def start(ports: Ports, stack: ExitStack) -> Callable[[], bool]:
        container = client.containers.run(
            image,
            ["--cpu"],
            detach=True,
            network_mode="host",
            environment={"NUML_LISTEN": LISTEN, **_port_variables(ports)},
            user="12345:0",
            read_only=True,
            cap_drop=["ALL"],
            tmpfs={"/tmp": ""},
        )
        stack.callback(container.remove, force=True, v=True)
        stack.callback(container.stop, timeout=30)

        def runs() -> bool:
            container.reload()
            return bool(container.status == "running")

        return runs

    return start


def from_wired(repository: Path) -> Start:
    """Return what starts a container-free Triton on a repository with the packed environment."""
    release = find_release("24.10")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    distribution = ensure_distribution(cache_folder(), release, python, lambda _text: None)

    def start(ports: Ports, stack: ExitStack) -> Callable[[], bool]:
        command = server_arguments(
            distribution=distribution,
            repository=repository,
            listen=LISTEN,
            ports=ports,
            shm_prefix=f"numlkit-benchmark-{os.getpid()}-",
            identity="benchmark",
        )
        variables = server_environment(
            distribution=distribution, threads=1, inherited=dict(os.environ)
        )
        return stack.enter_context(_process(command, variables))

    return start


def measure_starts(starts: Mapping[str, Start], rounds: int, console: Console) -> Results:
    """Measure from the start to the golden answers of all models, in turn."""
    results: Results = {name: Series() for name in starts}
    for turn in range(rounds):
        for name, start in starts.items():
            ports = _free_ports()
            with console.step(f"round {turn + 1}: {name}"), ExitStack() as stack:
                started = time.monotonic()
                runs = start(ports, stack)
                _wait_for_answers(ports, runs, started + READY_S)
                results[name].seconds.append(round(time.monotonic() - started, 2))
    return results


def _wait_for_answers(ports: Ports, runs: Callable[[], bool], deadline: float) -> None:
    probe = Probe(f"http://{LISTEN}:{ports.http}")
    waiting = list(DEFAULT_MODELS)
    while waiting:
        golden = read_golden(MODEL_REPOSITORY / waiting[0] / "1" / "golden.npz")
        result = smoke(probe, waiting[0], golden)
        if not runs():
            raise LaunchError("the server has ended", "see why: apptainer run, or docker run")
        if result.ok:
            waiting.pop(0)
        elif time.monotonic() > deadline:
            raise LaunchError(f"{waiting[0]} is not ready after {READY_S} s: {result.error}")
        else:
            time.sleep(0.05)


def _free_ports() -> Ports:
    # Any free ones: those that deployments begin with are wanted by others too.
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for free in sockets:
            free.bind((LISTEN, 0))
        http, grpc, metrics = (free.getsockname()[1] for free in sockets)
    return Ports(http=http, grpc=grpc, metrics=metrics)


def _port_variables(ports: Ports) -> dict[str, str]:
    return {f"NUML_{use.upper()}_PORT": str(port) for use, port in ports.model_dump().items()}


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str] | None
) -> Iterator[Callable[[], bool]]:
    """Run a server for the length of the block; yield what tells whether it runs."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield lambda: process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def show(builds: Results, starts: Results, console: Console) -> None:
    """Print both tables."""
    rows = []
    for name, series in builds.items():
        compared = [name, *_times(series), f"{(series.bytes or 0) / 1e6:.0f}"]
        for other in (FLOOR, APPTAINER):
            if other in builds:
                compared.append(f"{series.median / builds[other].median:.2f}")
            else:
                compared.append("-")
        reference = builds[APPTAINER].bytes if APPTAINER in builds else None
        is_sif = name != FLOOR and series.bytes is not None and reference is not None
        compared.append(f"{series.bytes / reference:.3f}" if is_sif else "-")  # type: ignore[operator]
        rows.append(compared)
    columns = ("", "s", "spread", "MB", "of the floor", "of apptainer's", "of its size")
    console.table("build", columns, rows)
    if starts:
        rows = [[name, *_times(series)] for name, series in starts.items()]
        console.table("start until all models gave the right values", ("", "s", "spread"), rows)


def _times(series: Series) -> tuple[str, str]:
    spread = f"{min(series.seconds):.1f} to {max(series.seconds):.1f}"
    return f"{series.median:.1f}", spread


def document(builds: Results, starts: Results, routes: Routes) -> dict[str, object]:
    """Return everything that was measured, for other programs."""
    measured = {
        kind: {name: vars(series) for name, series in results.items()}
        for kind, results in (("build", builds), ("start", starts))
    }
    return {
        "image": routes.image,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "apptainer": str(routes.tools.apptainer),
        "mksquashfs": str(routes.tools.mksquashfs),
        "compression": vars(routes.compression),
        **measured,
    }


def parser() -> Parser:
    """Return the command's parser."""
    parser = Parser(
        prog="python3 scripts/benchmark_build.py",
        description="Measure how long a .sif takes, how large it is, how soon a server is ready.",
    )
    parser.add_argument(
        "image",
        nargs="?",
        default="numlkit/numl:24.10-cpu",
        help="an image of the Docker engine (default: numlkit/numl:24.10-cpu)",
    )
    parser.add_argument("--rounds", type=_rounds, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--apptainer-rounds",
        type=int,
        default=1,
        metavar="N",
        help="in how many of them apptainer build has its turn, which takes minutes (default: 1)",
    )
    parser.add_argument("--compressor", choices=tuple(COMPRESSIONS), default="zstd")
    parser.add_argument("--no-servers", action="store_true", help="builds only")
    parser.add_argument(
        "--wired",
        type=Path,
        metavar="DIR",
        help="also start a server from the packed environment in this repository, which "
        "deploy/build.py --target env --wire DIR makes",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="where the results are written, and removed afterwards",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    return parser


def _rounds(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one round is needed")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(argv)
    console = Console()
    # Ended by a signal, it removes what it has written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="numlkit-benchmark-", dir=options.folder))
    try:
        compression = COMPRESSIONS[options.compressor]
        tools = find_tools(compression)
        routes = Routes(connect(), options.image, tools, compression, folder)
        builds = measure_builds(routes, options.rounds, options.apptainer_rounds, console)
        starts: dict[str, Start] = {}
        if not options.no_servers:
            sif = next(
                path for path in (folder / "layers.sif", folder / "export.sif") if path.exists()
            )
            starts = {
                "from the .sif": from_sif(sif),
                "from the image": from_image(routes.client, options.image),
            }
            if options.wired is not None:
                starts["from the packed environment"] = from_wired(options.wired.absolute())
        ready = measure_starts(starts, options.rounds, console)
        show(builds, ready, console)
        if options.json is not None:
            text = json.dumps(document(builds, ready, routes), indent=2)
            options.json.write_text(text + "\n", encoding="utf-8")
    except KitError as error:
        console.error(error)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
