"""The models to publish: staged as in the kit's image, and asked for their reference output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf import text_format

from deploy.artefacts.context import INSTANCES
from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.environment.check import check_models_answer
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.environment import plan_environment
from deploy.host.console import Say
from deploy.host.errors import DeploymentError
from deploy.host.files import sha256_of
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.config import LaunchSettings, ModelConfig
from deploy.triton.stage import VERSION, StagedModel, plan_models, stage
from numl_formats.published import File, Model
from numl_formats.repository import CONFIG, DATA_FILES


@dataclass(frozen=True)
class LocalModel:
    """A model that was verified, and its files.

    Attributes:
        config: For a Triton that polls the bucket by itself.
        code: What else that Triton runs, except its configuration; None: neither is published.
    """

    config: ModelConfig
    folder: Path
    files: Mapping[str, File]
    code: Mapping[str, File] | None

    def as_version(self, number: int) -> Model:
        """Return it as published under a version number."""
        if self.code is None:
            return Model(number, self.files)
        content = self.config_of(number)
        config = File(sha256(content).hexdigest(), len(content))
        return Model(number, self.files, {CONFIG: config, **self.code})

    def config_of(self, number: int) -> bytes:
        """Return its ``config.pbtxt``: the version is the only one that a server loads."""
        config = type(self.config)()
        config.CopyFrom(self.config)
        config.version_policy.specific.versions[:] = [number]
        return str(text_format.MessageToString(config)).encode()

    def content(self, number: int, path: str) -> bytes:
        """Return a file of its version ``number``, by its path there."""
        return self.config_of(number) if path == CONFIG else (self.folder / path).read_bytes()


@contextmanager
def verified_models(
    resolved: Resolved, say: Say, *, with_code: bool
) -> Iterator[Mapping[str, LocalModel]]:
    """Yield the models of a deployment, by name; their files are private copies.

    Args:
        with_code: Whether they have what a Triton that polls a bucket by itself runs.

    Raises:
        KitError: If one cannot be served, or does not give its reference output from these files.
    """
    deployment = resolved.deployment
    if deployment.models_dir is not None:
        raise DeploymentError(
            "models_dir: only the kit's models are published, whose environment is the image's",
            "leave it out; a site's own models are copied by hand (docs/own-models.md)",
        )
    resolved.import_checkpoints(say)
    # Weights for a GPU give the same answer without one: publishing them needs no torch.
    made = plan_environment("serving").make(say)
    with TemporaryDirectory(prefix="numlkit-publish-") as scratch:
        staged = plan_models(
            MODEL_REPOSITORY, resolved.kit, _settings(deployment), resolved.own_weights
        )
        target = Path(scratch, "models")
        stage(staged, target)
        say("checking every model against its reference output")
        folders = [target / model.name / VERSION for model in staged]
        check_models_answer(made, folders, threads=1)
        yield {
            model.name: _local(model, target / model.name / VERSION, with_code) for model in staged
        }


def _settings(deployment: Deployment) -> LaunchSettings:
    """Return the settings of the models in an image, without the environment's digest.

    A bucket outlives an image: models that named its environment would not load in the next one.
    """
    count = deployment.instances or INSTANCES
    return LaunchSettings(
        environment=Path(IMAGE_PREFIX),
        parameters={},
        instances=deployment.limits.instances(count),
        gpu_instances=count if deployment.flavour == "gpu" else None,
        batch=deployment.batch,
        limits=deployment.limits,
    )


def _local(model: StagedModel, folder: Path, with_code: bool) -> LocalModel:
    names = sorted(path.removeprefix(f"{VERSION}/") for path in model.copies)
    files = {name: File(sha256_of(folder / name), (folder / name).stat().st_size) for name in names}
    data = {name: file for name, file in files.items() if name in DATA_FILES}
    code = {name: file for name, file in files.items() if name not in DATA_FILES}
    return LocalModel(model.config, folder, data, code if with_code else None)
