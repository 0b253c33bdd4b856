"""What a site's models run in, and a model of models, for tests."""

from dataclasses import replace
from pathlib import Path

from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.engines.site import Runtime
from deploy.triton.release import find_release

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
