"""A site's model repository, checked without a server: would its models load, and fit together?"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.deployment.deployment import Deployment, find_site_models
from deploy.engines.resolved import Resolved
from deploy.environment.environment import Environment, plan_environment
from deploy.environment.given import check_usable
from deploy.host.errors import EnvironmentSetupError, KitError, ModelError, RepositoryError
from deploy.host.finding import Finding, ok, wrong
from deploy.host.paths import MODEL_REPOSITORY
from deploy.host.programs import run
from deploy.triton.config import (
    ENSEMBLE,
    ModelConfig,
    config_of,
    datatype,
    uses_stubs,
)
from deploy.triton.golden import read_golden
from deploy.triton.site import CALLS, ENVIRONMENT_NAME, SiteModel, called_by, parameter
from numl_formats.repository import CODE, CONFIG, GOLDEN_FILE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BY_TRITON = {"triton_python_backend_utils", "triton_python_backend"}
_MISSING = """
import importlib.util, json, sys
names = json.loads(sys.argv[1])
print(json.dumps([name for name in names if importlib.util.find_spec(name) is None]))
"""


def check_repository(repository: Path, models: Iterable[str]) -> Iterator[Finding]:
    """Return what is wrong with the models of a repository, each as a subject of its own."""
    there = find_site_models(repository)
    for model in models:
        try:
            if model not in there:
                cause = f"no model {model!r} in {repository}"
                raise RepositoryError(cause, f"one of: {', '.join(there)}")
            found = list(_check(repository, model))
        except KitError as error:
            # The finding names the model already.
            plain = error.__cause__ if isinstance(error, ModelError) else error
            assert isinstance(plain, KitError)
            found = [wrong(model, plain)]
        yield from found or [ok(model, "complete, and fits together")]


def _check(repository: Path, name: str) -> Iterator[Finding]:
    resolved = Resolved(Deployment(models_dir=repository, models=(name,)))
    (model,) = resolved.site
    problems = [*_tensors(model.config), *_steps(repository, model), *_callees(repository, model)]
    if uses_stubs(model.config):
        problems += _code(resolved, model)
        given = resolved.environment_of(model)
        if given is not None:
            check_usable(given, numpy_below=resolved.release.numpy_below, in_container=False)
    elif model.config.backend not in ("", ENSEMBLE) and model.config.platform != ENSEMBLE:
        detail = f"needs backend {model.config.backend}, which is not checked"
        yield Finding("warning", name, detail, "NVIDIA's image has it: --env packed --image")
    golden = model.files.get(f"{model.versions[-1]}/{GOLDEN_FILE}")
    if golden is not None:
        problems += _reference(model.config, golden)
    for problem in problems:
        yield Finding("problem", name, problem)


def _tensors(config: ModelConfig) -> Iterator[str]:
    """Yield what is wrong with the names, types and dims of a model's tensors."""
    for kind, tensors in (("input", config.input), ("output", config.output)):
        names = [tensor.name for tensor in tensors]
        yield from (f"{kind} {name!r} is there twice" for name in {*names} if names.count(name) > 1)
        for tensor in tensors:
            if not tensor.name:
                yield f"an {kind} has no name"
            elif datatype(tensor) == "INVALID":
                yield f"{kind} {tensor.name} has no data_type"
            elif not tensor.dims:
                yield f"{kind} {tensor.name} has no dims: dims: [ 1 ] for a single value"
            elif any(dim == 0 or dim < -1 for dim in tensor.dims):
                yield f"{kind} {tensor.name} has dims {list(tensor.dims)}: -1 is for any size"


def _callees(repository: Path, model: SiteModel) -> Iterator[str]:
    for callee in called_by(model.config):
        if _config(repository, callee) is None:
            what = "has a step" if model.config.ensemble_scheduling.step else f"{CALLS} names"
            yield f"{what} {callee!r}, which is neither in {repository} nor one of the kit's models"


def _steps(repository: Path, model: SiteModel) -> Iterator[str]:
    """Yield where the tensors of an ensemble's steps do not fit."""
    config = model.config
    if config.platform == ENSEMBLE and not config.ensemble_scheduling.step:
        yield "is an ensemble without steps"
    flowing = {tensor.name: _form(config, tensor) for tensor in config.input}
    for step in config.ensemble_scheduling.step:
        called = _config(repository, step.model_name)
        if called is None:
            continue  # reported as a callee
        inputs = {tensor.name: tensor for tensor in called.input}
        outputs = {tensor.name: tensor for tensor in called.output}
        for name in (name for name in step.input_map if name not in inputs):
            yield f"step {step.model_name} has no input {name}"
        for name, tensor in inputs.items():
            if name not in step.input_map:
                if not tensor.optional:
                    yield f"step {step.model_name}: nothing is its input {name}"
                continue
            source, wanted = step.input_map[name], _form(called, tensor)
            if source not in flowing:
                yield f"step {step.model_name}: no earlier step makes {source}, its input {name}"
            elif not _fit(flowing[source], wanted):
                made = _words(flowing[source])
                yield f"step {step.model_name}: {source} is {made}; {name} is {_words(wanted)}"
        for name, target in step.output_map.items():
            if name not in outputs:
                yield f"step {step.model_name} has no output {name}"
            else:
                flowing[target] = _form(called, outputs[name])
    for tensor in config.output if config.ensemble_scheduling.step else ():
        if tensor.name not in flowing:
            yield f"no step makes output {tensor.name}"
        elif not _fit(flowing[tensor.name], _form(config, tensor)):
            made, declared = _words(flowing[tensor.name]), _words(_form(config, tensor))
            yield f"output {tensor.name} is {declared}; the step that makes it has {made}"


def _config(repository: Path, model: str) -> ModelConfig | None:
    for folder in (repository / model, MODEL_REPOSITORY / model):
        if (folder / CONFIG).is_file():
            return config_of(folder)
    return None


_Form = tuple[str, tuple[int, ...]]


def _form(config: ModelConfig, tensor: Any) -> _Form:
    """Return a tensor's type and its shape as a client sees it; -1 is any size."""
    batch = [-1] if config.max_batch_size else []
    return datatype(tensor), (*batch, *tensor.dims)


def _fit(made: _Form, wanted: _Form) -> bool:
    same = made[0] == wanted[0] and len(made[1]) == len(wanted[1])
    return same and all(-1 in (a, b) or a == b for a, b in zip(made[1], wanted[1], strict=True))


def _words(form: _Form) -> str:
    return f"{form[0]} {list(form[1])}"


def _reference(config: ModelConfig, path: Path) -> Iterator[str]:
    """Yield where a reference output differs from the tensors that are declared."""
    from tritonclient.utils import np_to_triton_dtype

    golden = read_golden(path)
    sides: tuple[tuple[str, Any, Mapping[str, NDArray[Any]]], ...] = (
        ("input", config.input, golden.inputs),
        ("output", config.output, golden.outputs),
    )
    for kind, tensors, arrays in sides:
        declared = {tensor.name: tensor for tensor in tensors}
        if not declared:
            continue  # Triton asks the model
        for numbered_name, array in arrays.items():
            name = numbered_name.rpartition("/")[2]
            if name not in declared:
                yield f"{path}: {kind} {name} is not in {CONFIG}"
                continue
            wanted = _form(config, declared[name])
            has = (str(np_to_triton_dtype(array.dtype)), array.shape)
            if not _fit(has, wanted):
                yield f"{path}: {kind} {name} is {_words(has)}; {CONFIG} says {_words(wanted)}"
        needed = {name for name, tensor in declared.items() if kind == "input"}
        optional = {name for name in needed if declared[name].optional}
        there = {name.rpartition("/")[2] for name in arrays}
        for name in sorted(needed - optional - there):
            yield f"{path}: it has no input {name}"


def _code(resolved: Resolved, model: SiteModel) -> Iterator[str]:
    """Yield what is wrong with a model's Python files, and what its environment lacks."""
    wanted: set[str] = set()
    for version in model.versions:
        path = model.files.get(f"{version}/{CODE}")
        if path is None:
            yield f"version {version} has no {CODE}"
            continue
        beside = (Path(name).parts for name in model.files)
        own = {parts[1].partition(".")[0] for parts in beside if parts[0] == str(version)}
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError) as error:
            yield f"{path}: not Python: {error}"
            continue
        if "TritonPythonModel" not in set(_defined(tree)):
            yield f"{path} has no class TritonPythonModel"
        wanted |= set(_imported(tree)) - own
    environment = _environment(resolved, model)
    if environment is None or not environment.is_made:
        return  # a given one is not run here; one that is not made will be, from its lock
    for name in _missing(environment, wanted - _BY_TRITON):
        named = parameter(model.config, ENVIRONMENT_NAME) or "the kit's environment"
        yield f"imports {name}, which {named} does not have"


def _environment(resolved: Resolved, model: SiteModel) -> Environment | None:
    """Return the environment that the kit makes for a model; None if the site gives one."""
    if model.environment is not None:
        return None
    if model.environment_name is not None:
        return resolved.made_environments[model.environment_name]
    return plan_environment("cpu")


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that are imported when the module is; not those in a function."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _missing(environment: Environment, names: set[str]) -> list[str]:
    said = run(
        [environment.python, "-c", _MISSING, json.dumps(sorted(names - sys.stdlib_module_names))],
        failed=f"the Python of {environment.folder} does not start",
        environment={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        error=EnvironmentSetupError,
    )
    return list(json.loads(said))
