"""A site's model repository, checked without a server: would its models load, and fit together?"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.checks.repository import parse_code
from deploy.deployment.deployment import Deployment, check_model_name, find_site_models
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
    is_complete,
    served_versions,
    uses_stubs,
)
from deploy.triton.golden import read_golden
from deploy.triton.site import CALLS, ENVIRONMENT_NAME, SiteModel, called_by, parameter
from numl_formats.golden import tensor_names
from numl_formats.repository import CODE, CONFIG, GOLDEN_FILE

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What Triton loads of a version, by what a configuration names.
_PLATFORMS = {
    "onnxruntime_onnx": "model.onnx",
    "pytorch_libtorch": "model.pt",
    "tensorflow_graphdef": "model.graphdef",
    "tensorflow_savedmodel": "model.savedmodel",
    "tensorrt_plan": "model.plan",
}
_BACKENDS = {"python": CODE, "onnxruntime": "model.onnx", "tensorrt": "model.plan"}
_Form = tuple[str, tuple[int, ...]]
_BY_TRITON = {"triton_python_backend_utils", "triton_python_backend"}
_MISSING = """
import importlib.util, json, sys
names = json.loads(sys.argv[1])
print(json.dumps([name for name in names if importlib.util.find_spec(name) is None]))
"""


def models_of(repository: Path) -> tuple[str, ...]:
    """Return the models of a repository; what this user may not look into counts as one."""
    found: list[str] = []
    with suppress(OSError):
        found = sorted(path.name for path in repository.iterdir() if _may_be_model(path))
    return tuple(found) or find_site_models(repository)  # which says why there is none


def _may_be_model(folder: Path) -> bool:
    try:
        return (folder / CONFIG).is_file()
    except OSError:
        return True


def check_repository(repository: Path, models: Iterable[str]) -> Iterator[Finding]:
    """Return what is wrong with the models of a repository, each as a subject of its own."""
    there = models_of(repository)
    for model in models:
        try:
            if model not in there:
                cause = f"no model {model!r} in {repository}"
                raise RepositoryError(cause, f"one of: {', '.join(there)}")
            check_model_name(model)
            found = list(_check(repository, model))
        except KitError as error:
            # The finding names the model already.
            plain = error.__cause__ if isinstance(error, ModelError) else error
            assert isinstance(plain, KitError)
            found = [wrong(model, plain)]
        except OSError as error:
            found = [wrong(model, RepositoryError(f"{error.filename}: {error.strerror}"))]
        yield from found or [ok(model, "complete, and fits together")]


def _check(repository: Path, name: str) -> Iterator[Finding]:
    resolved = Resolved(Deployment(models_dir=repository, models=(name,)))
    (model,) = resolved.site
    problems = [
        *_tensors(model.config), *_controls(model.config), *_files(model),
        *_steps(repository, model), *_callees(repository, model),
    ]  # fmt: skip
    if uses_stubs(model.config):
        environment = _environment(resolved, model)
        problems += _code(model, environment)
        if environment is not None and not environment.is_made:
            detail = "what it imports is not checked, since its environment is not made yet"
            yield Finding("warning", name, detail, "numlkit up, or build, makes it")
        given = resolved.environment_of(model)
        if given is not None:
            check_usable(given, numpy_below=resolved.release.numpy_below, in_container=False)
    elif model.config.backend or model.config.platform in _PLATFORMS:
        backend = model.config.backend or model.config.platform.partition("_")[0]
        detail = f"needs backend {backend}, which is not checked"
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


def _controls(config: ModelConfig) -> Iterator[str]:
    """Yield the control inputs by which a client can end the server.

    Triton 2.51 writes a sequence's id, a text of up to 128 bytes, into a number of 8: seen.
    """
    for each in config.sequence_batching.control_input:
        kinds = {c.Kind.Name(c.kind) for c in each.control if datatype(c) != "BYTES"}
        if "CONTROL_SEQUENCE_CORRID" in kinds:
            yield (
                f"control input {each.name} (CONTROL_SEQUENCE_CORRID) lets a client end the "
                "server: request.correlation_id() in model.py gives the same"
            )


def _files(model: SiteModel) -> Iterator[str]:
    """Yield what a configuration names, or leaves out, so that Triton finds nothing to load."""
    config = model.config
    if not config.backend and config.platform not in {*_PLATFORMS, ENSEMBLE}:
        known = ", ".join((ENSEMBLE, *_PLATFORMS))
        yield f"has platform {config.platform!r}, which Triton does not know: one of {known}"
    file = _file(config)
    for version in model.versions if file is not None else ():
        path = f"{version}/{file}"  # a folder, of some
        if not any(name == path or name.startswith(f"{path}/") for name in model.files):
            yield f"version {version} has no {file}"
    labels = (output.label_filename for output in config.output)
    samples = (each.input_data_file for warmup in config.model_warmup
               for each in warmup.inputs.values())  # fmt: skip
    named = [*filter(None, labels), *(f"warmup/{sample}" for sample in samples if sample)]
    for name in dict.fromkeys(named):
        if normpath(name.lstrip("/")) not in model.files:
            yield f"names {name}, which its folder does not have"


def _file(config: ModelConfig) -> str | None:
    """Return the name of what Triton loads of each version; None if that is not known."""
    if config.platform == ENSEMBLE or config.cc_model_filenames:
        return None
    usual = _PLATFORMS.get(config.platform) or _BACKENDS.get(config.backend)
    return config.default_model_filename or usual


def _callees(repository: Path, model: SiteModel) -> Iterator[str]:
    for callee in called_by(model.config):
        if _folder(repository, callee) is None:
            what = "has a step" if model.config.ensemble_scheduling.step else f"{CALLS} names"
            yield f"{what} {callee!r}, which is neither in {repository} nor one of the kit's models"
    paths: list[tuple[str, ...]] = [(model.name,)]
    seen = set[str]()
    for path in paths:  # grows meanwhile
        folder = _folder(repository, path[-1])
        of = config_of(folder).ensemble_scheduling.step if folder is not None else ()
        steps = {step.model_name for step in of}
        if model.name in steps:
            yield f"is a step of itself: {' -> '.join((*path, model.name))}"
            return
        paths += [(*path, step) for step in sorted(steps - seen)]
        seen |= steps


def _steps(repository: Path, model: SiteModel) -> Iterator[str]:
    """Yield where the tensors of an ensemble's steps do not fit."""
    config, steps = model.config, list(model.config.ensemble_scheduling.step)
    if not steps:
        if config.platform == ENSEMBLE:
            yield "is an ensemble without steps"
        return
    made = [target for step in steps for target in step.output_map.values()]
    yield from (f"tensor {t} is made twice" for t in dict.fromkeys(made) if made.count(t) > 1)
    read = {source for step in steps for source in step.input_map.values()}
    yield from (f"no step reads input {t.name}" for t in config.input if t.name not in read)
    # None: only the server will know, from the model.
    flowing: dict[str, _Form | None] = {t.name: _form(config, t) for t in config.input}
    nobodys = read - flowing.keys() - {*made}
    for step in steps:
        for key, source in step.input_map.items():
            if source in nobodys:
                yield f"step {step.model_name}: no step makes {source}, its input {key}"
    flowing |= dict.fromkeys(nobodys)
    while steps:
        # Triton goes by what flows, not by their order in the file.
        step = next((s for s in steps if flowing.keys() >= {*s.input_map.values()}), None)
        if step is None:
            yield f"steps wait for each other: {', '.join(step.model_name for step in steps)}"
            return
        steps.remove(step)
        yield from _step(repository, config, step, flowing)
    for tensor in config.output:
        if tensor.name not in flowing:
            yield f"no step makes output {tensor.name}"
        elif not _fit(flowing[tensor.name], _form(config, tensor)):
            given, declared = _words(flowing[tensor.name]), _words(_form(config, tensor))
            yield f"output {tensor.name} is {declared}; the step that makes it has {given}"


def _step(
    repository: Path, config: ModelConfig, step: Any, flowing: dict[str, _Form | None]
) -> Iterator[str]:
    """Yield where one step does not fit what flows; what it makes flows from then on."""
    folder, name = _folder(repository, step.model_name), step.model_name
    if folder is None:  # reported as a callee
        flowing |= dict.fromkeys(step.output_map.values())
        return
    called = config_of(folder)
    versions = served_versions(called, (p.name for p in folder.iterdir() if p.is_dir()))
    if step.model_version != -1 and step.model_version not in versions:
        newest = "model_version: -1 is the newest"
        yield f"step {name} asks for version {step.model_version}, which is not served: {newest}"
    if is_complete(called) and 0 < called.max_batch_size < config.max_batch_size:
        most, wanted = called.max_batch_size, config.max_batch_size
        yield f"step {name} takes batches of up to {most}, the ensemble of up to {wanted}"
    inputs = {tensor.name: tensor for tensor in called.input}
    outputs = {tensor.name: tensor for tensor in called.output}
    if inputs:
        yield from (
            f"step {name} has no input {key}" for key in step.input_map if key not in inputs
        )
    for key, tensor in inputs.items():
        if key not in step.input_map and not tensor.optional:
            yield f"step {name}: nothing is its input {key}"
    for key, source in step.input_map.items():
        if key in inputs and not _fit(flowing[source], _form(called, inputs[key])):
            given, taken = _words(flowing[source]), _words(_form(called, inputs[key]))
            yield f"step {name}: {source} is {given}; {key} is {taken}"
    for key, target in step.output_map.items():
        if outputs and key not in outputs:
            yield f"step {name} has no output {key}"
        else:
            flowing[target] = _form(called, outputs[key]) if outputs else None


def _folder(repository: Path, model: str) -> Path | None:
    folders = (repository / model, MODEL_REPOSITORY / model)
    return next((folder for folder in folders if (folder / CONFIG).is_file()), None)


def _form(config: ModelConfig, tensor: Any) -> _Form:
    """Return a tensor's type and its shape as a client sees it; -1 is any size."""
    batch = [-1] if config.max_batch_size else []
    return datatype(tensor), (*batch, *tensor.dims)


def _fit(made: _Form | None, wanted: _Form | None) -> bool:
    if made is None or wanted is None:
        return True
    same = made[0] == wanted[0] and len(made[1]) == len(wanted[1])
    return same and all(-1 in (a, b) or a == b for a, b in zip(made[1], wanted[1], strict=True))


def _words(form: _Form | None) -> str:
    return "unknown" if form is None else f"{form[0]} {list(form[1])}"


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
        names = tensor_names(arrays)
        for key, name in names.items():
            if name not in declared:
                yield f"{path}: {kind} {name} is not in {CONFIG}"
                continue
            wanted = _form(config, declared[name])
            has = (str(np_to_triton_dtype(arrays[key].dtype)), arrays[key].shape)
            if not _fit(has, wanted):
                yield f"{path}: {kind} {name} is {_words(has)}; {CONFIG} says {_words(wanted)}"
        needed = {name for name, tensor in declared.items() if kind == "input"}
        optional = {name for name in needed if declared[name].optional}
        for name in sorted(needed - optional - {*names.values()}):
            yield f"{path}: it has no input {name}"


def _code(model: SiteModel, environment: Environment | None) -> Iterator[str]:
    """Yield what is wrong with a model's Python files, and what its environment lacks."""
    wanted: set[str] = set()
    for version in model.versions:
        path = model.files.get(f"{version}/{_file(model.config)}")
        if path is None:
            continue  # reported as a file
        # Triton finds what lies in the version's folder, and in the model's.
        beside = (Path(name.removeprefix(f"{version}/")).parts[0] for name in model.files)
        own = {name.partition(".")[0] for name in beside}
        try:
            tree = parse_code(path)
        except RepositoryError as error:
            yield error.cause
            continue
        if not {"TritonPythonModel", "*"} & set(_defined(tree)):
            yield f"{path} has no class TritonPythonModel"
        wanted |= set(_imported(tree)) - own
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
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
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
    wanted = json.dumps(sorted(names - sys.stdlib_module_names))
    said = run(
        # Isolated: what lies in the folder where this was typed, or in the user's, is not served.
        [environment.python, "-I", "-B", "-c", _MISSING, wanted],
        failed=f"the Python of {environment.folder} does not start",
        error=EnvironmentSetupError,
    )
    return list(json.loads(said))
