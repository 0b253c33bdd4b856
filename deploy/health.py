"""The health of a deployment, as far as it can be seen from outside right now."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from deploy.errors import LaunchError, RepositoryError
from deploy.failures.table import Diagnosis, diagnose
from deploy.server.golden import golden_of
from deploy.server.metrics import ModelCounts, fetch_counts
from deploy.server.probe import Probe, SmokeResult, smoke
from deploy.state import DeploymentFolder, DeploymentState, endpoint
from deploy.supervisor.stubs import living_stubs, missing_stubs

# More than a server says from its start to its end, unless it has served for months.
_LAST_WORDS_BYTES = 10**6


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
        remedy: What to do about what is dead or has failed, in one line; None if nothing has.
    """

    problems: tuple[str, ...]
    models: tuple[ModelHealth, ...]
    remedy: str | None = None


def examine(folder: DeploymentFolder, state: DeploymentState, *, timeout: float) -> Health:
    """Look at processes, stubs and answers of a deployment.

    The server's own word is not enough: it says it is ready when a stub has died.

    Args:
        folder: The deployment's folder.
        state: Its state.
        timeout: Seconds for an answer.
    """
    problems, remedy = [], state.remedy
    if state.supervisor.process() is None:
        problems.append("the supervisor is dead: nothing that fails will be healed")
        remedy = f"python3 deploy/up.py --name {state.name} starts it anew"
    server = state.server.process() if state.server is not None else None
    if server is None:
        death = why_dead(state)
        # A cause that the supervisor knows is told with the phase.
        why = f": {death.cause}" if death is not None and state.cause is None else ""
        problems.append(f"the server is dead{why}")
        remedy = f"python3 deploy/logs.py --name {state.name}"
        if death is not None:
            remedy = death.remedy
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
    return Health(problems=tuple(problems), models=tuple(models), remedy=remedy)


def why_dead(state: DeploymentState) -> Diagnosis | None:
    """Return why a deployment's server is dead, as far as its state or its log tells."""
    if state.cause is not None:
        return Diagnosis(state.cause, state.remedy or f"read its log: {state.log}")
    try:
        with state.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(state.log_start, end - _LAST_WORDS_BYTES))
            return diagnose(log.read().decode(errors="replace"))
    except OSError:
        return None


def _asked(folder: DeploymentFolder, probe: Probe, model: str, *, of_site: bool) -> SmokeResult:
    try:
        golden = golden_of(folder.repository / model)
        if golden is None and not of_site:
            raise RepositoryError(f"{folder.repository / model}: its golden event is gone")
    except RepositoryError as error:
        return SmokeResult(model, ready=False, error=error.cause, seconds=None)
    return smoke(probe, model, golden)
