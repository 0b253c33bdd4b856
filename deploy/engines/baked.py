"""A site's models in an image: what is put there, and what a launch finds there."""

import re
from dataclasses import replace
from pathlib import Path

from deploy.artefacts.keys import Signer
from deploy.artefacts.labels import FLAVOUR_LABEL
from deploy.artefacts.site import ENVIRONMENTS, SiteContent, environments_in, models_in
from deploy.deployment.deployment import DEFAULT_MODELS, Deployment, find_site_models
from deploy.deployment.plan import LaunchPlan
from deploy.engines.base import Engine
from deploy.engines.choose import engine_named
from deploy.engines.container import IMAGE_GPU_MODELS, IMAGE_MODELS, ContainerEngine
from deploy.engines.resolved import Resolved
from deploy.engines.site import Runtime, check_site, stage_site_model
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.lock import PYTHON, Flavour
from deploy.host.console import Say
from deploy.host.errors import RepositoryError
from deploy.host.files import built_folder, locked
from deploy.host.paths import cache_folder
from deploy.triton.config import config_of, is_complete, on_cpu, write_config
from deploy.triton.release import TritonRelease
from deploy.triton.site import ENVIRONMENT_PARAMETER
from numl_formats.repository import CONFIG

_NOT_IN_NAME = re.compile(r"[^a-z0-9]+")


def site_content(
    repository: Path,
    *,
    flavour: Flavour,
    named: str,
    triton: TritonRelease,
    say: Say,
    wheels: Path | None = None,
    python: Path | None = None,
) -> SiteContent:
    """Return what an image of a flavour has of a site's repository.

    ``named`` is what a deployment calls the Triton; environments are made of ``wheels`` and
    ``python``, as `plan_environment` takes them.

    Raises:
        KitError: Naming the first model that could not be served there, and why.
    """
    own = find_site_models(repository)
    models = (*own, *(model for model in DEFAULT_MODELS if model not in own))
    device = "gpu" if flavour == "gpu" else "cpu"
    resolved = Resolved(
        Deployment(models_dir=repository, models=models, flavour=device, triton=named),
        wheels=wheels,
        python=python,
    )
    without_gpu = on_cpu({model.name: model.config for model in resolved.site})
    for model in resolved.site:
        if device == "cpu" and model.name not in without_gpu:
            cause = f"model {model.name}, or one that it calls, is of KIND_GPU"
            raise RepositoryError(cause, f"--flavour gpu, or KIND_CPU in its {CONFIG}")
        if model.environment is not None:
            cause = f"model {model.name} names its environment by a path of this host"
            raise RepositoryError(cause, "name one by NUMLKIT_ENV: docs/own-models.md")
        if model.runs_in_kits and flavour == "serving":
            cause = f"model {model.name} runs in NuGraph's full environment"
            raise RepositoryError(cause, "--flavour cpu, or name another by NUMLKIT_ENV")
        if not is_complete(model.config):
            cause = f"model {model.name}: its {CONFIG} lacks inputs or outputs"
            raise RepositoryError(cause, "declare them: a server in an image asks no model")
    environments = resolved.made_environments
    served_by = triton.own_python or PYTHON
    runtime = Runtime(
        environment=Path(IMAGE_PREFIX),
        digest="",
        python=served_by,
        stub=None,
        server_python=served_by,
        release=triton,
        in_container=True,
        places={each.folder: ENVIRONMENTS / name for name, each in environments.items()},
    )
    check_site(resolved, runtime, say)
    return SiteContent(
        name=_NOT_IN_NAME.sub("-", repository.name.lower()).strip("-") or "site",
        models=tuple(stage_site_model(resolved, model, runtime) for model in resolved.site),
        environments=environments,
    )


def with_models_of_image(engine: Engine) -> Engine:
    """Return the engine that also serves the site's models in its image, if there are any.

    They are copied out of it, as a launch may serve some of them only, or with other settings.
    Their environments stay where they are.
    """
    deployment = engine.deployment
    if not isinstance(engine, ContainerEngine) or deployment.models_dir is not None:
        return engine
    if deployment.image is None or deployment.env == "packed":
        return engine
    models = models_in(engine.image.labels)
    if not models:
        return engine
    folder = _copies() / engine.image.digest.removeprefix("sha256:")
    repository = folder / "models"
    there = IMAGE_MODELS
    if engine.image.labels.get(FLAVOUR_LABEL) == "gpu":
        there = IMAGE_GPU_MODELS  # where those are, too, that need one
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            with built_folder(folder) as partial:
                engine.copy_out([there / model for model in models], partial / "models")
                for model in models:
                    _unset_environment(partial / "models" / model)
    if deployment.flavour == "cpu":
        models = on_cpu({model: config_of(repository / model) for model in models})
    named = "models" in deployment.model_fields_set
    served = deployment.models if named else (*deployment.models, *models)
    deployment = deployment.model_copy(
        update={"models_dir": repository, "models": tuple(dict.fromkeys(served))}
    )
    return engine.serving(Resolved.of(deployment, environments_in(engine.image.labels)))


def as_started(plan: LaunchPlan, signer: Signer) -> Engine:
    """Return the engine that made a plan, with what it starts found to be signed.

    Raises:
        SignatureError: It is not signed by this signer, or has changed since.
    """
    deployment, container = plan.deployment, plan.container
    if container is not None:
        # What runs, whatever its name stands for by now; a release is found by its number.
        image = container.image if container.release is None else container.named
        deployment = deployment.model_copy(update={"image": image})
        if deployment.models_dir is not None and is_of_image(deployment.models_dir):
            deployment = deployment.model_copy(update={"models_dir": None})
        deployment.model_fields_set.discard("triton")  # its own, which fitted when it was started
    engine, _ = engine_named(plan.engine)(Resolved(deployment)).verified(signer)
    engine = with_models_of_image(engine)
    return engine.serving(replace(engine.resolved, broken=plan.broken))


def is_of_image(repository: Path) -> bool:
    """Return whether a deployment's repository is the copy of the models in its image."""
    return repository.is_relative_to(_copies())


def _copies() -> Path:
    return cache_folder() / "baked"


def _unset_environment(folder: Path) -> None:
    config = config_of(folder)
    config.parameters.pop(ENVIRONMENT_PARAMETER, None)
    write_config(config, folder / CONFIG)
