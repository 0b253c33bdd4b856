"""Starts of a real Triton that are to fail: a model repository to spoil, and what is said of it."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from deploy.client.probe import Probe
from deploy.deployment.deployment import Deployment
from deploy.deployment.state import LaunchPlan
from deploy.engines.local import LocalEngine, ProcessServer
from deploy.engines.resolved import Resolved
from deploy.engines.server import start_until_ready
from deploy.environment.environment import Environment
from deploy.host.errors import LaunchError
from numl_formats.golden import GoldenEvent
from tests.environments import numpy_1
from tests.kit import SOON_S, free_ports, leftovers
from tests.plans import refusal

GOOD_MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy())
        ]) for r in requests]
"""
CONFIG = """
name: "echo"
backend: "python"
input {{ name: "x" data_type: TYPE_FP32 dims: -1 }}
output {{ name: "y" data_type: TYPE_FP32 dims: -1 }}
instance_group {{ kind: {kind} count: 1 }}
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}
"""
GOLDEN = {"echo": GoldenEvent({"x": np.ones(3, np.float32)}, {"y": np.ones(3, np.float32)})}


class Numpy1Engine(LocalEngine):
    """Engine local with the environment in which a model that asks for arrays gets right ones."""

    @cached_property
    def environment_here(self) -> Environment:
        return numpy_1()


@dataclass
class Bench:
    """A scratch model repository and a plan to serve it.

    Attributes:
        said: What the last server wrote: on a busy host it may be the second of a start.
    """

    folder: Path
    environment: Path
    said: str = ""

    def plan(self, *, environment: Path | str, code: str, kind: str = "KIND_CPU") -> LaunchPlan:
        version = self.folder / "repository" / "echo" / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.py").write_text(code)
        text = CONFIG.format(kind=kind, environment=environment)
        (version.parent / "config.pbtxt").write_text(text)
        return self.plan_to_serve(version.parents[1])

    def plan_to_serve(self, served: Path) -> LaunchPlan:
        # Planned for a model that there is, and then served from the scratch repository.
        # By a name of its own: a server's end removes all shared memory of its name.
        name = f"failing-{os.getpid()}"
        deployment = Deployment(name=name, models=("nugraph3",), ports=free_ports())
        plan = Numpy1Engine(Resolved(deployment)).plan()
        return serving(plan, served, self.folder / "log")

    def start(
        self,
        plan: LaunchPlan,
        deadline: float = SOON_S,
        golden: Mapping[str, GoldenEvent] = GOLDEN,
        once: bool = False,
    ) -> None:
        """Wait until a server is ready, and stop it, as a supervisor does."""
        servers: list[ProcessServer] = []
        started = time.monotonic()

        def start() -> ProcessServer:
            servers.append(ProcessServer(plan, lambda **_changes: None))
            return servers[-1]

        def wait(server: ProcessServer, patient: bool) -> None:
            server.wait_ready(
                Probe(f"http://127.0.0.1:{plan.ports.http}"),
                golden,
                deadline=started + deadline,
                stopped=lambda: False,
                patient=patient,
            )

        try:
            if once:
                wait(start(), False)
            else:
                start_until_ready(start, wait)
        finally:
            assert time.monotonic() - started < deadline + SOON_S
            servers[-1].stop()
            self.said = servers[-1].output()
            left = leftovers(plan.shm_prefix, servers[-1].scratch)
            assert not left, "a failed start leaves nothing"

    def failure(self, plan: LaunchPlan, **start: Any) -> LaunchError:
        return refusal(lambda: self.start(plan, **start))


def serving(plan: LaunchPlan, served: Path, log: Path) -> LaunchPlan:
    """Return the plan with another model repository, and a log of its own."""
    repository = str(plan.repository)
    arguments = tuple(a.replace(repository, str(served)) for a in plan.arguments)
    return plan.model_copy(update={"arguments": arguments, "log": log})
