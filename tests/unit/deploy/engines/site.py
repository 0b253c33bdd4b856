"""What a site's models run in, and a model of models, for tests."""

from dataclasses import replace
from pathlib import Path

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.engines.site import Runtime, stage_site_model
from deploy.triton.distribution import TritonDistribution
from deploy.triton.release import find_release
from deploy.triton.stage import StagedModel

IN_CONTAINER = Runtime(
    environment=Path("/opt/numl/env"),
    digest="abc",
    python="3.11",
    stub=None,
    server_python="3.11",
    release=find_release("24.10"),
    in_container=True,
)
FITTING = replace(IN_CONTAINER, server_python="3.10")
LABELS = {
    "org.numlkit.environment.digest": "abc",
    "org.numlkit.flavour": "cpu",
    "org.numlkit.triton.release": "24.10",
}
ENSEMBLE = """\
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
ensemble_scheduling {
  step { model_name: "m" input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
}
"""


def resolve(repository: Path, *models: str) -> Resolved:
    return Resolved(Deployment(models_dir=repository, models=models))


def write_distribution(python: str) -> Path:
    """Write the library of Triton 24.10 that stubs need; return where all of that is."""
    root = TritonDistribution.in_cache(find_release("24.10"), python).root
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "libcudart-0.so").touch()
    return root


def staged(repository: Path, runtime: Runtime = IN_CONTAINER) -> StagedModel:
    """Return what is staged of model m; what was read of it stays as it was."""
    resolved = resolve(repository, "m")
    (model,) = resolved.site
    before = str(model.config)
    found = stage_site_model(resolved, model, runtime)
    assert str(model.config) == before
    return found
