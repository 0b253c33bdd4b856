"""The health of a deployment, as far as it can be seen from outside right now."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from deploy.errors import LaunchError, RepositoryError
from deploy.server.golden import golden_of
from deploy.server.metrics import ModelCounts, fetch_counts
from deploy.server.probe import Probe, SmokeResult, smoke
from deploy.state import DeploymentFolder, DeploymentState, endpoint
from deploy.supervisor.stubs import living_stubs, missing_stubs


@dataclass(frozen=True)
class ModelHealth:
    """The health of one model.

    Attributes:
        model: Its name.
        alive: Its living stubs.
        wanted: How many it should have.
        smoke: What a smoke inference gave just now.
        counts: What the server has counted of it; None if it does not say.
    """

    model: str
    alive: int
    wanted: int
    smoke: SmokeResult
    counts: ModelCounts | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.alive >= self.wanted and self.smoke.ok


@dataclass(frozen=True)
class Health:
    """The health of a deployment.

    Attributes:
        problems: What is wrong, a line each; empty if nothing is.
        models: The health of each model.
    """

    problems: tuple[str, ...]
    models: tuple[ModelHealth, ...]


def examine(folder: DeploymentFolder, state: DeploymentState, *, timeout: float) -> Health:
    """Look at processes, stubs and answers of a deployment.

    The server's own word is not enough: it says it is ready when a stub has died.

    Args:
        folder: The deployment's folder.
        state: Its state.
        timeout: Seconds for an answer.
    """
    problems = []
    if state.supervisor.process() is None:
        problems.append("the supervisor is dead: nothing that fails will be healed")
    server = state.server.process() if state.server is not None else None
    if server is None:
        problems.append("the server is dead")
    plan = folder.plan()
    wanted = plan.instances if plan is not None else dict.fromkeys(state.models, 1)
    url = state.url("http")
    probe = Probe(url, timeout=timeout, identity=plan.identity if plan is not None else None)
    stubs = living_stubs(server) if server is not None else ()
    missing = missing_stubs(stubs, wanted)
    problems += [f"model {m}: {n} of {wanted[m]} stubs dead" for m, n in missing.items()]
    counts = Counter(stub.model for stub in stubs)
    counted: dict[str, ModelCounts] = {}
    try:
        counted = fetch_counts(endpoint(state.http_host, state.ports.metrics), timeout=timeout)
    except LaunchError as error:
        if server is not None:
            problems.append(error.cause)
    models = []
    for model in state.models:
        of_site = plan is not None and model in plan.site_models
        result = _asked(folder, probe, model, of_site=of_site)
        alive = min(counts[model], wanted[model])
        models.append(ModelHealth(model, alive, wanted[model], result, counted.get(model)))
        if result.error is not None and server is not None:
            problems.append(f"model {model}: {result.error}")
    if state.phase != "ready":
        problems.append(f"the deployment is {state.phase}{f': {state.cause}' * bool(state.cause)}")
    return Health(problems=tuple(problems), models=tuple(models))


def _asked(folder: DeploymentFolder, probe: Probe, model: str, *, of_site: bool) -> SmokeResult:
    try:
        golden = golden_of(folder.repository / model)
        if golden is None and not of_site:
            raise RepositoryError(f"{folder.repository / model}: its golden event is gone")
    except RepositoryError as error:
        return SmokeResult(model, ready=False, error=error.cause, seconds=None)
    return smoke(probe, model, golden)
