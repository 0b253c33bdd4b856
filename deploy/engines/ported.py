"""Make a served model of one that was made elsewhere: ONNX, torch.export, a class of PyTorch."""

import json
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.deployment.deployment import check_model_name
from deploy.environment.environment import Environment, plan_environment
from deploy.environment.sources import find_source
from deploy.host.console import Say
from deploy.host.errors import DeploymentError, RepositoryError
from deploy.host.failures import complaint
from deploy.host.files import new_folder, refuse_existing
from deploy.host.programs import run, without_python_variables
from deploy.triton.config import ModelConfig, model_config_pb2, write_config
from deploy.triton.site import ENVIRONMENT_NAME, KITS_OWN
from numl_formats.golden import read_inputs
from numl_formats.repository import CODE, CONFIG, GOLDEN_FILE

ONNX, EXPORTED = ".onnx", ".pt2"
_ONNX_ENVIRONMENT = "onnx"
_CLASS = "PORTED_CLASS"
# A module of such a name would not be found: Triton's own file, or a package, comes before it.
_TAKEN = {"model", "golden", "numpy", "torch", "triton_python_backend_utils"}
_CODE = '''\
"""Serves {what} beside it; the code is in numl_serving, in the model's environment."""

from numl_serving.ported import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''
_CLIENT = '''\
"""A client to copy: asks the model, and prints its answer."""

import argparse
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).with_name("example.npz")


def inputs(file: Path = EXAMPLE) -> dict[str, np.ndarray]:
    """Return a request; numlkit golden asks the model for the answer to it."""
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


def main() -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException, np_to_triton_dtype

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: 127.0.0.1:8001)")
    parser.add_argument("--example", type=Path, default=EXAMPLE, help="another request (npz)")
    options = parser.parse_args()
    request = []
    try:
        for name, array in inputs(options.example).items():
            tensor = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            request.append(tensor)
        with triton.InferenceServerClient(options.url) as client:
            answer = client.infer("{name}", request)
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    for output in answer.get_response().outputs:
        print(output.name, answer.as_numpy(output.name))


if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True)
class Origin:
    """What a model is made from.

    Attributes:
        file: An ONNX file, an exported program, or the module of a class: a file or a package.
        named: The class, as ``module:Class``; None for the others.
        weights: The state dictionary of the class.
        example: A request (npz), where the model has none of its own.
    """

    file: Path
    named: str | None
    weights: Path | None
    example: Path | None

    @classmethod
    def of(cls, text: str, weights: Path | None, example: Path | None) -> "Origin":
        """Read what a person names; raises DeploymentError, with what is missing."""
        place, _, made = text.rpartition(":")
        is_class = bool(place) and made.isidentifier()
        path = Path(place if is_class else text)
        if is_class and path.suffix != ".py":
            path = Path(*place.split("."))
            path = path if path.is_dir() else path.with_suffix(".py")
        elif not is_class and path.suffix not in (ONNX, EXPORTED):
            remedy = f"FILE{ONNX}, FILE{EXPORTED}, or MODULE:CLASS with --weights FILE"
            raise DeploymentError(f"--from {text}: neither ONNX, torch.export nor a class", remedy)
        for flag, file in (("--from", path), ("--weights", weights), ("--example", example)):
            if file is not None and not file.exists():
                raise DeploymentError(f"{flag} {file}: no such file", "correct the path")
        if is_class and (weights is None or example is None):
            missing = "--weights FILE" if weights is None else "--example FILE.npz"
            what = "its state dictionary" if weights is None else "an array for each argument"
            raise DeploymentError(f"a class needs {missing}, {what}", "docs/port.md has an example")
        if not is_class and weights is not None:
            raise DeploymentError("--weights is for a class: the file has its own")
        if is_class and path.stem in _TAKEN | sys.stdlib_module_names:
            whose = "Triton's own file has" if path.stem == "model" else "another module has"
            cause = f"--from {text}: {path.name} cannot be served beside model.py"
            raise DeploymentError(cause, f"rename it: {whose} that name")
        named = f"{path.stem}:{made}" if is_class else None
        return cls(path.absolute(), named, weights, example)


def port(origin: Origin, repository: Path, name: str, say: Say) -> Path:
    """Write a model to a repository, with its configuration and its reference output.

    It is run once, in the environment that it will be served in, on its example.

    Raises:
        KitError: It cannot be, or the model fails; nothing is left behind then.
    """
    target = repository / name
    check_model_name(name)
    refuse_existing(target)
    is_onnx = origin.file.suffix == ONNX
    if is_onnx:
        source = find_source(_ONNX_ENVIRONMENT, repository)
        environment = plan_environment("cpu", source=source, relocatable=True)
    else:
        environment = plan_environment("cpu")
    environment.make(say)
    with new_folder(target) as folder:
        version = folder / "1"
        version.mkdir()
        served = version / (origin.file.name if origin.named else f"model{origin.file.suffix}")
        if origin.file.is_dir():
            shutil.copytree(origin.file, served, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(origin.file, served)
            # Where torch.onnx.export puts the weights; the file refers to them by this name.
            beside = origin.file.with_name(f"{origin.file.name}.data")
            if is_onnx and beside.is_file():
                shutil.copyfile(beside, version / beside.name)
        say("running it once")
        tensors = _describe(environment, version, origin)
        what = origin.named or served.name
        (version / CODE).write_text(_CODE.format(what=what), encoding="utf-8")
        (folder / "client.py").write_text(_CLIENT.replace("{name}", name), encoding="utf-8")
        _write_example(folder / "example.npz", read_inputs(version / GOLDEN_FILE))
        named = _ONNX_ENVIRONMENT if is_onnx else KITS_OWN
        write_config(_config(tensors, named, origin.named), folder / CONFIG)
    return target


def _write_example(path: Path, request: Mapping[str, Any]) -> None:
    # numpy.savez takes an array only by a name that none of its own arguments has.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in request.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _describe(
    environment: Environment, version: Path, origin: Origin
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the tensors that a model turns out to have; its reference output is written."""
    words: list[str | Path] = [environment.python, "-m", "numl_serving.porting", version]
    for flag, value in (
        ("--class", origin.named), ("--weights", origin.weights), ("--example", origin.example)
    ):  # fmt: skip
        words += [flag, value.absolute() if isinstance(value, Path) else value] if value else []
    failed = f"{origin.file.name} cannot be served"
    # As on the server, where nothing is imported from the folder in which this was typed.
    variables = {
        **without_python_variables(), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"
    }  # fmt: skip

    def reason(said: str) -> str:
        for line in said.splitlines():
            if line.startswith('{"error"'):
                told = json.loads(line)
                why = told["error"].replace(f"{version}/", "")
                raise RepositoryError(f"{failed}: {why}", told["remedy"])
        return complaint(said)

    said = run(
        words, failed=failed, cwd=version, environment=variables, explain=reason,
        error=RepositoryError,
    )  # fmt: skip
    line = next(line for line in said.splitlines() if line.startswith('{"input"'))
    found: dict[str, list[dict[str, Any]]] = json.loads(line)
    return found


def _config(
    tensors: Mapping[str, Sequence[Mapping[str, Any]]], environment: str, named: str | None
) -> ModelConfig:
    config = model_config_pb2.ModelConfig(backend="python")
    for kind, there in (("input", config.input), ("output", config.output)):
        for tensor in tensors[kind]:
            datatype = tensor["datatype"].replace("BYTES", "STRING")
            data_type = model_config_pb2.DataType.Value(f"TYPE_{datatype}")
            there.add(name=tensor["name"], data_type=data_type, dims=tensor["dims"])
    config.instance_group.add(kind=model_config_pb2.ModelInstanceGroup.KIND_CPU, count=1)
    config.parameters[ENVIRONMENT_NAME].string_value = environment
    if named is not None:
        config.parameters[_CLASS].string_value = named
    return config
