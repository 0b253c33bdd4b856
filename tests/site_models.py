"""A site's own repository for real servers: an environment of its own beside NuGraph's."""

import shutil
import tarfile
from pathlib import Path

import numpy as np

from deploy.environment.cpython import lay_out
from tests.environments import ignore, numpy_1

WEIGHTS = np.array([[1, 0, 2], [0, 3, 0]], np.float32)
PIXELS = np.array([1, 2], np.float32)
CLASSIFIER = """
import importlib.util
import pathlib
import numpy as np
import triton_python_backend_utils as pb
from tools.labels import LABELS

class TritonPythonModel:
    def initialize(self, args):
        assert importlib.util.find_spec("torch") is None, "this is the kit's environment"
        folder = pathlib.Path(args["model_repository"], args["model_version"])
        self.weights = np.load(folder / "weights.npy")
        self.seen = 0

    def execute(self, requests):
        answers = []
        for request in requests:
            scores = pb.get_input_tensor_by_name(request, "pixels").as_numpy() @ self.weights
            label = np.array([LABELS[scores.argmax()]], np.object_)
            seen = np.array([self.seen], np.int32)
            self.seen += 1
            answers.append(pb.InferenceResponse([
                pb.Tensor("scores", scores), pb.Tensor("label", label), pb.Tensor("seen", seen),
            ]))
        return answers
"""
PLAIN = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def initialize(self, args):
        import os
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = args["model_repository"]  # else one in /tmp
        import mpi4py
        mpi4py.rc.initialize = False  # MPI leaves shared memory behind if it is killed
        import nugraph, pynuml, pytorch_lightning, torch_geometric

    def execute(self, requests):
        import torch
        return [pb.InferenceResponse([
            pb.Tensor("y", torch.cos(torch.from_numpy(
                pb.get_input_tensor_by_name(request, "x").as_numpy())).numpy())
        ]) for request in requests]
"""
TENSORS = """
input { name: "pixels" data_type: TYPE_FP32 dims: 2 }
output { name: "scores" data_type: TYPE_FP32 dims: 3 }
output { name: "label" data_type: TYPE_STRING dims: 1 }
output { name: "seen" data_type: TYPE_INT32 dims: 1 }
"""
CLASSIFIER_CONFIG = """
name: "classifier"
backend: "python"
{tensors}
instance_group {{ kind: KIND_CPU count: 2 }}
model_warmup {{
  name: "zeros" batch_size: 1
  inputs {{ key: "pixels" value {{ data_type: TYPE_FP32 dims: 2 zero_data: true }} }}
}}
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}
"""
# All else Triton has to ask the model for.
PLAIN_CONFIG = 'backend: "python"'
ENSEMBLE_CONFIG = f"""
platform: "ensemble"
{TENSORS}
ensemble_scheduling {{ step {{
  model_name: "classifier" model_version: -1
  input_map {{ key: "pixels" value: "pixels" }}
  output_map {{ key: "scores" value: "scores" }}
  output_map {{ key: "label" value: "label" }}
  output_map {{ key: "seen" value: "seen" }}
}} }}
"""
BEGINNING = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        {statement}

    def execute(self, requests):
        return [pb.InferenceResponse([]) for _ in requests]
"""
BEGINNING_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
instance_group { kind: KIND_CPU count: 1 }
"""
ACTIVATE = """
_here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export CONDA_PREFIX="$_here" PATH="$_here/bin:$PATH"
"""

# Debian's Python looks elsewhere.
WHERE = """\
import os, site
site.addsitedir(os.path.join(os.path.dirname(__file__), "site-packages"))
"""


def write_environment(archive: Path) -> Path:
    """Pack a Python with numpy, and nothing else, as conda-pack would."""
    prefix = archive.with_suffix(".prefix")
    prefix.mkdir()
    serving = numpy_1().make(ignore)
    lay_out(serving.interpreter, prefix)
    packages = serving.packages / "lib" / "python3.11" / "site-packages"
    target = prefix / "lib" / "python3.11" / "site-packages"
    for path in packages.glob("numpy*"):
        shutil.copytree(path, target / path.name, ignore=shutil.ignore_patterns("tests"))
    (target.parent / "sitecustomize.py").write_text(WHERE)
    (prefix / "bin" / "activate").write_text(ACTIVATE)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for path in sorted(prefix.iterdir()):
            tar.add(path, path.name)
    shutil.rmtree(prefix)
    return archive


def write_site(folder: Path, environment: Path) -> Path:
    """Write the repository; return its folder.

    ``classifier`` has an environment of its own, a golden event, weights that are a link to a
    release elsewhere, and is warmed up; ``plain`` has not even its tensors in its configuration;
    ``pair`` is an ensemble.
    """
    repository = folder / "model repository"
    version = repository / "classifier" / "1"
    (version / "tools").mkdir(parents=True)
    (version / "model.py").write_text(CLASSIFIER)
    (version / "tools" / "labels.py").write_text('LABELS = (b"cat", b"dog", b"ibex")\n')
    release = folder / "releases" / "v7"
    release.mkdir(parents=True)
    np.save(release / "weights.npy", WEIGHTS)
    (version / "weights.npy").symlink_to(release / "weights.npy")
    write_golden(version / "golden.npz")
    (repository / "classifier" / "config.pbtxt").write_text(
        CLASSIFIER_CONFIG.format(tensors=TENSORS, environment=environment)
    )
    (repository / "plain" / "3").mkdir(parents=True)
    (repository / "plain" / "3" / "model.py").write_text(PLAIN)
    (repository / "plain" / "config.pbtxt").write_text(PLAIN_CONFIG)
    (repository / "pair" / "1").mkdir(parents=True)
    (repository / "pair" / "config.pbtxt").write_text(ENSEMBLE_CONFIG)
    return repository


def write_beginning(repository: Path, name: str, statement: str) -> None:
    """Write a model that begins with this, and answers nothing."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(BEGINNING.format(statement=statement))
    (version.parent / "config.pbtxt").write_text(BEGINNING_CONFIG)


def write_golden(path: Path, label: bytes = b"dog") -> None:
    """Write what the classifier must answer."""
    np.savez(
        path,
        **{
            "input/pixels": PIXELS,
            "output/scores": PIXELS @ WEIGHTS,
            "output/label": np.array([label]),
        },
    )
