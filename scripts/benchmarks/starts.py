"""How soon a server is ready: from the .sif, from the image, from the packed environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import docker

from deploy.client.probe import Probe, smoke
from deploy.deployment.deployment import DEFAULT_MODELS, Ports
from deploy.deployment.gpus import ON_CPU
from deploy.host.console import Console
from deploy.host.errors import LaunchError
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.command import server_arguments, server_environment
from deploy.triton.distribution import ensure_distribution
from deploy.triton.golden import read_golden
from deploy.triton.release import find_release
from scripts.benchmarks.builds import Results, Series
from scripts.benchmarks.server import free_ports

READY_S = 300
LISTEN = "127.0.0.1"

# Starts a server, has it stopped when the stack is closed, and returns what tells whether it runs.
Start = Callable[[Ports, ExitStack], Callable[[], bool]]


def from_sif(sif: Path) -> Start:

    def start(ports: Ports, stack: ExitStack) -> Callable[[], bool]:
        variables = ",".join(f"{name}={value}" for name, value in _port_variables(ports).items())
        command = ["apptainer", "run", "--containall", "--env", variables, str(sif), "--cpu"]
        return stack.enter_context(_process(command, None))

    return start


def from_image(client: docker.DockerClient, image: str) -> Start:
    """Return a starter of a server from an image, with the restrictions of a cluster."""

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
    """Return a starter of a container-free Triton on a repository with the packed environment."""
    release = find_release("24.10")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    distribution = ensure_distribution(release, python, lambda _text: None)

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
            distribution=distribution,
            threads=1,
            inherited=dict(os.environ),
            devices=ON_CPU.variables,
        )
        return stack.enter_context(_process(command, variables))

    return start


def measure_starts(starts: Mapping[str, Start], rounds: int, console: Console) -> Results:
    """Measure from the start to the reference outputs of all models, in turn."""
    results: Results = {name: Series() for name in starts}
    for turn in range(rounds):
        for name, start in starts.items():
            ports = free_ports()
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
            raise LaunchError(f"{waiting[0]} was not ready after {READY_S} s: {result.error}")
        else:
            time.sleep(0.05)


def _port_variables(ports: Ports) -> dict[str, str]:
    return {f"NUML_{use.upper()}_PORT": str(port) for use, port in ports.model_dump().items()}


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str] | None
) -> Iterator[Callable[[], bool]]:
    """Run a server for the block; yield a function that tells whether it runs."""
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
