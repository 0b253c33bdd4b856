"""The benchmark's server: the kit's container-free Triton, with its endpoints open on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from deploy.client.endpoint import Endpoint
from deploy.client.probe import Probe
from deploy.client.transport import ServedModel, TritonTransport
from deploy.deployment.deployment import Deployment, Ports, load_deployment
from deploy.deployment.plan import LaunchPlan
from deploy.deployment.state import DeploymentFolder
from deploy.engines.local import LocalEngine, ProcessServer
from deploy.engines.resolved import Resolved
from deploy.engines.server import Stub, start_until_ready
from deploy.environment.environment import Environment, plan_environment
from deploy.environment.private_python import ensure_private_python
from deploy.host.console import Say
from deploy.host.cores import usable_cores
from deploy.host.paths import ENVIRONMENT_SOURCE
from deploy.triton.golden import read_golden
from deploy.triton.release import DEFAULT
from deploy.triton.site import ENVIRONMENT_PARAMETER
from deploy.triton.stage import VERSION, StagedModel, stage
from scripts.benchmarks.cells import Server
from scripts.benchmarks.counters import Counters, read_counters
from scripts.nugraph25 import nugraph25

LISTEN = "127.0.0.1"
START_S = 300.0
REQUEST_S = 120.0
_SETTLE_S = 1.0
REFERENCE_MODEL = ENVIRONMENT_SOURCE / "numl_bench" / "reference_model.py"
FIXED_ANSWER = Path(__file__).with_name("fixed_answer.py")


class BenchmarkEngine(LocalEngine):
    """Engine local with the Python of NuGraph's own code: models of one server share its stub.

    A Triton with a stub of its own has that one's Python, and serves no code of NuGraph's own.
    """

    @cached_property
    def environment_here(self) -> Environment:
        if self.resolved.release.own_python is not None:
            return plan_environment("serving", stub=self.resolved.release.own_python)
        python = plan_environment("cpu").interpreter
        ensure_private_python(python, lambda _text: None)
        return plan_environment("serving", python=python.executable)


@dataclass(frozen=True)
class BenchmarkServer:
    """A running server; it was ready when every model had given its reference output."""

    plan: LaunchPlan
    process: ProcessServer
    seconds_to_ready: float

    @property
    def addresses(self) -> Mapping[str, str]:
        """``host:port`` by protocol."""
        ports = self.plan.ports
        return {"http": f"{LISTEN}:{ports.http}", "grpc": f"{LISTEN}:{ports.grpc}"}

    def describe(self, model: str) -> ServedModel:
        endpoint = Endpoint.parse(f"grpc://{self.addresses['grpc']}")
        transport = TritonTransport(endpoint, timeout=REQUEST_S)
        try:
            return transport.describe(model)
        finally:
            transport.close()

    def counters(self, model: str, requests: float = 0) -> Counters:
        """Return the server's counters of a model, which must be idle.

        ``requests`` is how many it has been sent since it was loaded, if that is known.
        """
        deadline = time.monotonic() + _SETTLE_S
        while True:
            counters = self._read_counters(model)
            # Triton counts a request a moment after its answer, and the model a moment later.
            if counters.events >= counters.requests >= requests or time.monotonic() > deadline:
                return counters
            time.sleep(0.02)

    def _read_counters(self, model: str) -> Counters:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"http://{LISTEN}:{self.plan.ports.metrics}/metrics"
        with opener.open(url, timeout=REQUEST_S) as answer:
            return read_counters(answer.read().decode(), model)

    def stubs(self) -> tuple[Stub, ...]:
        return self.process.living_stubs()

    def log(self) -> str:
        return self.process.output()


def served_name(model: str, server: Server) -> str:
    return model if server == "ours" else f"{model}_{server}"


@contextmanager
def benchmark_server(
    deployment: Deployment, servers: Sequence[Server], say: Say
) -> Iterator[BenchmarkServer]:
    """Run a server for the length of the block, given a deployment that is prepared.

    What the references among ``servers`` need is made; ``fixed`` needs nothing.
    """
    engine = BenchmarkEngine(Resolved(deployment))
    folder = DeploymentFolder(deployment.name)
    plan = engine.plan()
    # Where NuGraph's own code may leave files.
    variables = plan.variables | {"TMPDIR": str(folder.path)}
    plan = plan.model_copy(update={"variables": variables})
    ours = engine.models()
    staged = [*ours, *(fixed_answer(model) for model in ours if "fixed" in servers)]
    references = [server for server in servers if server not in ("ours", "fixed")]
    if references:
        full = plan_environment("cpu").make(say)  # NuGraph's own code needs torch
        beside = nugraph25()
        staged += [
            reference_model(model, server, usable_cores(), full.folder, beside)
            for model in ours
            for server in references
        ]
    folder.path.mkdir(parents=True, exist_ok=True)
    golden = {model.name: read_golden(model.copies[f"{VERSION}/golden.npz"]) for model in staged}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder.path, ignore_errors=True)
        stage(staged, plan.repository)
        say(f"starting a server with {len(staged)} models")
        started = time.monotonic()
        url = f"http://{LISTEN}:{plan.ports.http}"
        probe = Probe(url, timeout=REQUEST_S, identity=plan.identity)

        def start() -> ProcessServer:
            process = ProcessServer(plan, lambda **_changes: None)
            stack.callback(process.stop)
            return process

        def wait(process: ProcessServer, patient: bool) -> None:
            process.wait_ready(
                probe, golden, deadline=started + START_S, stopped=lambda: False, patient=patient
            )

        process = start_until_ready(start, wait)
        yield BenchmarkServer(plan, process, time.monotonic() - started)


def benchmark_deployment(
    models: Sequence[str],
    *,
    checkpoints: Mapping[str, Path] | None = None,
    norms: Mapping[str, Path] | None = None,
    triton: str = DEFAULT,
    number: int = 0,
) -> Deployment:
    """Return a deployment with a name of its own, the ``number``-th of this process."""
    given = {
        "name": f"benchmark-{os.getpid()}" + (f"-{number}" if number else ""),
        "triton": triton,
        "engine": "local",
        "models": models,
        "checkpoints": checkpoints,
        "norms": norms,
        "listen": LISTEN,
        "ports": free_ports(),
        "shared_memory": True,
        # A closed loop has as many requests as clients: how long they wait is what is measured.
        "limits": {"wait_s": 600},
    }
    return load_deployment(None, given)


def weights_of(deployment: Deployment) -> dict[str, Path]:
    """Return the folders with ``model.json`` and weights, by model, once prepared."""
    resolved = Resolved(deployment)
    return {model: resolved.weights(model) for model in deployment.models}


def reference_model(
    model: StagedModel, server: Server, instances: int, environment: Path, beside: Path
) -> StagedModel:
    """Return a model that answers with NuGraph's own code, which ``environment`` has.

    Its weights are those of ours. ``beside`` is where nugraph 25.4.0 is unpacked.
    """
    config = type(model.config)()
    config.CopyFrom(model.config)
    config.name = served_name(model.name, server)
    today = server == "today"
    parameters = {
        ENVIRONMENT_PARAMETER: str(environment),
        "numl_bench": str(ENVIRONMENT_SOURCE),
        "nugraph25": str(beside),
        "threads": "0" if today else "1",
        "gradients": "on" if today else "off",
    }
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    config.ClearField("dynamic_batching")  # as NuGraph is served: without bounds
    for group in config.instance_group:
        group.count = 1 if today else instances
    copies = {**model.copies, f"{VERSION}/model.py": REFERENCE_MODEL}
    return replace(model, name=config.name, config=config, copies=copies)


def fixed_answer(model: StagedModel) -> StagedModel:
    """Return a model with the tensors and instances of ours that computes nothing."""
    config = type(model.config)()
    config.CopyFrom(model.config)
    config.name = served_name(model.name, "fixed")
    copies = {**model.copies, f"{VERSION}/model.py": FIXED_ANSWER}
    return replace(model, name=config.name, config=config, copies=copies)


def free_ports() -> Ports:
    """Return three ports that are free now, away from those that deployments try first."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for free in sockets:
            free.bind((LISTEN, 0))
        http, grpc, metrics = (free.getsockname()[1] for free in sockets)
    return Ports(http=http, grpc=grpc, metrics=metrics)
