"""A site's own models in a launch: which they are, and what each of them runs in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from deploy.console import Say
from deploy.deployment import Deployment
from deploy.environment.given import GivenEnvironment, check_usable, look_into
from deploy.environment.lock import Flavour
from deploy.errors import EnvironmentSetupError, RepositoryError
from deploy.paths import MODEL_REPOSITORY, cache_folder
from deploy.repository.config import ModelConfig
from deploy.repository.served import ENSEMBLE, is_complete, skipped_warmups, uses_stubs
from deploy.repository.site import (
    CONFIG,
    ENVIRONMENT_PARAMETER,
    SiteModel,
    find_site_models,
    read_site_model,
)
from deploy.repository.stage import StagedModel
from deploy.repository.view import View
from deploy.server.command import require_plain
from deploy.server.distribution import TritonDistribution, distribution_folder, ensure_distribution
from deploy.server.golden import read_golden
from deploy.server.release import find_release
from deploy.server.stub import StubFiles, python_of_stub, stub_of_wheel

GOLDEN = "golden.npz"


@dataclass(frozen=True)
class Runtime:
    """What a server brings for models that name no environment of their own.

    Attributes:
        environment: The kit's environment, as the server sees it.
        python: ``X.Y`` of its Python.
        stub: The stub that its models need beside them; None: the server's own fits.
        server_python: ``X.Y`` of the Python that the server's own stub is built for.
        in_container: Whether the server runs in a container.
        backends: The backends that it has; None if that is not known before it runs.
    """

    environment: Path
    python: str
    stub: StubFiles | None
    server_python: str
    in_container: bool
    backends: frozenset[str] | None = None


def kit_models(deployment: Deployment) -> tuple[str, ...]:
    """Return the models of a deployment that are the kit's."""
    return tuple(model for model in deployment.models if not _is_of_site(deployment, model))


def site_models(deployment: Deployment) -> tuple[SiteModel, ...]:
    """Return the models of a deployment that are a site's own.

    Raises:
        RepositoryError: If one is not usable; or if a model is nobody's.
    """
    if deployment.models_dir is None:
        return ()
    for model in kit_models(deployment):
        if not (MODEL_REPOSITORY / model).is_dir():
            there = ", ".join(find_site_models(deployment.models_dir))
            raise RepositoryError(
                f"no model {model!r}, neither in {deployment.models_dir} nor among the kit's",
                f"{deployment.models_dir} has {there}",
            )
    return tuple(
        read_site_model(deployment.models_dir, model)
        for model in deployment.models
        if _is_of_site(deployment, model)
    )


def _is_of_site(deployment: Deployment, model: str) -> bool:
    folder = deployment.models_dir
    return folder is not None and (folder / model / CONFIG).is_file()


def site_environments(
    models: Iterable[SiteModel], say: Say = lambda _text: None
) -> tuple[GivenEnvironment, ...]:
    """Return what is known of the environments that models of a site name, each once.

    Raises:
        EnvironmentSetupError: If one is not to be read.
    """
    paths = dict.fromkeys(model.environment for model in models)
    return tuple(look_into(path, cache_folder(), say) for path in paths if path is not None)


def check_site(
    deployment: Deployment, models: Iterable[SiteModel], runtime: Runtime, say: Say
) -> None:
    """Check a site's models before anything is started; fetch the stubs that they lack.

    Args:
        deployment: What is wanted.
        models: Its models.
        runtime: What the server brings.
        say: Is told what happens, and what a person should know all the same.

    Raises:
        KitError: Naming the first model that would not be served rightly, and why not.
    """
    release = find_release(deployment.triton)
    for model in models:
        backend = model.config.backend or model.config.platform
        if runtime.backends is not None and backend not in {*runtime.backends, ENSEMBLE, ""}:
            raise RepositoryError(
                f"model {model.name} needs backend {backend}, this Triton has: "
                f"{', '.join(sorted(runtime.backends))}",
                "--env packed --image with NVIDIA's image, which has it",
            )
        for step in model.config.ensemble_scheduling.step:
            if step.model_name not in deployment.models:
                raise RepositoryError(
                    f"model {model.name} is an ensemble of {step.model_name}, which is not served",
                    f"--models {','.join((*deployment.models, step.model_name))}",
                )
        golden = model.files.get(f"{model.versions[-1]}/{GOLDEN}")
        if golden is not None:
            read_golden(golden)
        for name in skipped_warmups(model.config):
            say(f"warning: model {model.name}: Triton skips warm-up {name!r}: batch_size is 0")
        if not uses_stubs(model.config):
            continue
        given = _given(model, say)
        if given is not None:
            check_usable(given, numpy_below=release.numpy_below, in_container=runtime.in_container)
            if not (given.packed or runtime.in_container):
                require_plain(given.path, "move the environment to a folder with a plain name")
        python = runtime.python if given is None else given.python
        if python is None:
            say(f"warning: model {model.name}: the Python of {model.environment} is not to be told")
        elif model.stub is not None:
            built_for = python_of_stub(model.stub)
            if built_for != python:
                what = model.environment or "the kit's environment, in which it is to run,"
                raise EnvironmentSetupError(
                    f"model {model.name}: its stub is built for Python {built_for}, "
                    f"{what} has Python {python}",
                    f"a stub for Python {python}, or none: the kit has stubs of its own",
                )
        elif given is not None and python != runtime.server_python:
            ensure_distribution(cache_folder(), release, python, say)


def stage_site_model(
    deployment: Deployment, model: SiteModel, runtime: Runtime, view: View
) -> StagedModel:
    """Return a model of a site as it is served: its files are linked, not copied.

    Args:
        deployment: What is wanted.
        model: The model.
        runtime: What the server brings.
        view: How the server sees the host's files.
    """
    last = str(model.versions[-1])
    golden = {path: file for path, file in model.files.items() if path == f"{last}/{GOLDEN}"}
    return StagedModel(
        name=model.name,
        config=_config(model, runtime, view),
        versions=tuple(map(str, model.versions)),
        copies=golden,
        links={path: view.of(file) for path, file in model.files.items() if path not in golden},
        stub=_stub(deployment, model, runtime),
    )


def digest_site(models: Iterable[SiteModel]) -> str:
    """Return a digest of a site's models: of what they are called, how large and how old."""
    # Their weights may be large, and are none of the kit's.
    total = hashlib.sha256()
    for model in models:
        total.update(model.config.SerializeToString(deterministic=True))
        files = [*model.files.items(), ("stub", model.stub), ("environment", model.environment)]
        for name, file in files:
            if file is not None:
                facts = file.stat()
                text = f"{model.name}\0{name}\0{file}\0{facts.st_size}\0{facts.st_mtime_ns}\0"
                total.update(os.fsencode(text))
    return total.hexdigest()


def runs_in_kits(model: SiteModel) -> bool:
    """Return whether a model of a site runs in the kit's environment, having none of its own."""
    return uses_stubs(model.config) and model.environment is None


def kits_flavour(deployment: Deployment) -> Flavour:
    """Return which of the kit's environments the models run in that have none of their own.

    A site's may need more than serves the kit's models on CPUs.
    """
    if deployment.flavour == "gpu":
        return "gpu"
    return "cpu" if any(runs_in_kits(model) for model in site_models(deployment)) else "serving"


def fit_flavours(deployment: Deployment) -> tuple[Flavour, ...]:
    """Return the flavours of images that have what the models need, the smallest first."""
    needed = kits_flavour(deployment)
    return ("serving", "cpu") if needed == "serving" else (needed,)


def all_complete(models: Iterable[SiteModel]) -> bool:
    """Return whether every model's configuration says all that a server needs to know."""
    return all(is_complete(model.config) for model in models)


def _given(model: SiteModel, say: Say = lambda _text: None) -> GivenEnvironment | None:
    found = site_environments([model], say)
    return found[0] if found else None


def _config(model: SiteModel, runtime: Runtime, view: View) -> ModelConfig:
    """Return the configuration as it stands there, with the environment's place for the server."""
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(model.config)
    if uses_stubs(config):
        place = runtime.environment
        if model.environment is not None:
            place = view.of(model.environment)
        config.parameters[ENVIRONMENT_PARAMETER].string_value = str(place)
    return config


def _stub(deployment: Deployment, model: SiteModel, runtime: Runtime) -> StubFiles | None:
    """Return the stub to put beside a model, or None: the server's own fits."""
    if not uses_stubs(model.config):
        return None
    given = _given(model)
    if given is None:
        return runtime.stub
    if model.stub is not None:
        # A copy of it: a server may change the permissions of what lies there.
        return StubFiles(model.stub, (given.libpython,) if given.libpython is not None else ())
    if given.python is None or given.python == runtime.server_python:
        return None
    root = distribution_folder(cache_folder(), find_release(deployment.triton), given.python)
    return stub_of_wheel(TritonDistribution(root, given.python), given.libpython)
