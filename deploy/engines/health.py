"""The health of a deployment right now, as seen from outside."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from deploy.client.metrics import ModelCounts, fetch_counts
from deploy.client.probe import Probe, SmokeResult, smoke
from deploy.deployment.plan import Broken
from deploy.deployment.state import DeploymentFolder, DeploymentState, host_port
from deploy.engines.choose import engine_named
from deploy.engines.server import living_stubs, missing_stubs
from deploy.host.errors import LaunchError, RepositoryError
from deploy.host.failures import diagnose
from deploy.triton.golden import golden_of

# More than a server logs in its life, unless it serves for months.
_LAST_WORDS_BYTES = 10**6

# A deployment's flags are not kept: by its name alone up would start the kit's own models.
UP_AGAIN = "numlkit up, with the same file and flags, starts it again"


@dataclass(frozen=True)
class ModelHealth:
    """The health of one model: its stubs, its answer just now, its requests if they are known."""

    model: str
    alive: int
    wanted: int
    smoke: SmokeResult
    counts: ModelCounts | None = None

    @property
    def ok(self) -> bool:
        return self.alive >= self.wanted and self.smoke.ok


@dataclass(frozen=True)
class Health:
    """The health of a deployment, with a line for each problem; the remedy is for what failed.

    ``broken`` are the models that it keeps going without.
    """

    problems: tuple[str, ...]
    models: tuple[ModelHealth, ...]
    remedy: str | None = None
    broken: Mapping[str, Broken] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems and not self.broken


def examine(folder: DeploymentFolder, state: DeploymentState, *, timeout: float) -> Health:
    """Check processes, stubs and answers of a deployment; ``timeout`` (s) is per answer.

    The server's own word is not enough: it claims to be ready when a stub has died.
    """
    problems, remedy = [], state.remedy
    if state.phase == "stopping":
        remedy = f"numlkit down --name {state.name}"
    if state.supervisor.process() is None:
        problems.append("the supervisor is dead: failures will not be healed")
        remedy = UP_AGAIN
    elif not state.supervisor.is_running():
        problems.append("the supervisor is stopped: failures will not be healed")
        remedy = f"kill -CONT {state.supervisor.pid}"
    # A container may have been started again by its engine, while nobody noted its server.
    server = engine_named(state.engine).server(folder, state)
    if server is None:
        death = why_dead(state)
        # A cause known to the supervisor is shown with the phase.
        why = f": {death.cause}" if death is not None and state.cause is None else ""
        problems.append(f"the server is dead{why}")
        remedy = death.remedy if death else remedy or f"numlkit logs --name {state.name}"
    plan = folder.plan()
    planned = plan.instances if plan is not None else dict.fromkeys(state.models, 1)
    wanted = {model: planned[model] for model in state.models}
    url = state.url("http")
    identity = plan.identity if plan is not None else None
    plain = state.url("grpc") if state.tls is None else None
    probe = Probe(url, timeout=timeout, identity=identity, grpc=plain)
    stubs = living_stubs(server) if server is not None else ()
    missing = missing_stubs(stubs, wanted)
    problems += [f"model {m}: {n} of {wanted[m]} stubs dead" for m, n in missing.items()]
    counts = Counter(stub.model for stub in stubs)
    counted: dict[str, ModelCounts] = {}
    try:
        counted = fetch_counts(host_port(state.http_host, state.ports.metrics), timeout=timeout)
    except LaunchError as error:
        if server is not None:
            problems.append(error.cause)
    models = []
    for model in state.models:
        try:
            result = smoke(probe, model, golden_of(folder.repository / model))
        except RepositoryError as error:
            result = SmokeResult(model, ready=False, error=error.cause, seconds=None)
        alive = min(counts[model], wanted[model])
        models.append(ModelHealth(model, alive, wanted[model], result, counted.get(model)))
        if result.error is not None and server is not None:
            problems.append(f"model {model}: {result.error}")
    if state.phase != "ready":
        problems.append(f"the deployment is {state.phase}{f': {state.cause}' * bool(state.cause)}")
    return Health(tuple(problems), tuple(models), remedy, state.broken)


def why_dead(state: DeploymentState) -> LaunchError | None:
    """Return why a deployment's server is dead, if its state or its log says."""
    if state.cause is not None:
        return LaunchError(state.cause, state.remedy or f"read its log: {state.log}")
    try:
        with state.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(state.log_start, end - _LAST_WORDS_BYTES))
            return diagnose(log.read().decode(errors="replace"))
    except OSError:
        return None
