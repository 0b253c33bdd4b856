"""The folder that an image is built from, and the model repository for a stock image.

``containers/Dockerfile`` takes ``triton.tar``, ``packages.tar``, ``sync.tar`` and ``serving.tar``,
layers that begin at the root of the file system, and copies ``models/``, ``templates/`` and
``bin/``.
"""

import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.artefacts.image import Base
from deploy.artefacts.site import LAYERS, SiteContent, dockerfile, kits_beside, write_layers
from deploy.artefacts.triton import FACTS
from deploy.artefacts.triton_source import OWN_STUB, SERVER
from deploy.deployment.limits import Limits
from deploy.environment.agent import agent_folder
from deploy.environment.archive import pack_layers
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.elf import is_elf
from deploy.environment.environment import Environment
from deploy.environment.lock import Flavour
from deploy.environment.tars import write_tar
from deploy.host.command_line import quote
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.files import built_folder, work_folder, write_atomically
from deploy.host.paths import CHECKOUT, ENVIRONMENT_SOURCE, MODEL_REPOSITORY
from deploy.host.programs import needed_by, search_path, set_search_path
from deploy.triton.command import TRITON_ROOT, image_flags
from deploy.triton.config import LaunchSettings, on_cpu
from deploy.triton.distribution import TritonDistribution
from deploy.triton.release import TritonRelease
from deploy.triton.response_cache import uses_cache
from deploy.triton.site import ENVIRONMENT_NAME, ENVIRONMENT_PARAMETER, parameter
from deploy.triton.stage import StagedModel, plan_models, stage, write_models, write_templates
from deploy.triton.stub import stub_of_wheel

CONTAINERS = CHECKOUT / "containers"
MARKER = "numlkit-wired.json"
SCRIPTS = ("check", "health", "probe", "serve", "sync")
# One thread each: two serve more than one, and start on two cores at once.
INSTANCES = 2

_STUB = Path(OWN_STUB)
_SERVER = tuple(map(Path, SERVER))


def make_context(
    folder: Path,
    *,
    environment: Environment,
    release: TritonRelease,
    distribution: TritonDistribution,
    base: Base,
    say: Say,
    site: SiteContent,
) -> None:
    """Fill ``folder``, which is empty, with a Triton whose stub fits the environment's Python."""
    parameters = {"environment_digest": environment.digest, **release.model_parameters}
    models, templates = folder / "models", folder / "templates"
    stage_models(models, templates, parameters, environment.flavour, site.models)
    triton_layer(distribution, folder / "triton.tar", base=base, say=say)
    pack_layers(environment, folder, say)
    write_tar(agent_folder(environment, say), folder / "sync.tar", root="opt/numl/sync")
    write_layers(environment, site.environments, folder / LAYERS, say)
    recipe = (CONTAINERS / "Dockerfile").read_text(encoding="utf-8")
    (folder / "Dockerfile").write_text(dockerfile(recipe, site.environments), encoding="utf-8")
    shutil.copyfile(CONTAINERS / ".dockerignore", folder / ".dockerignore")
    write_scripts(folder / "bin", cache=uses_cache(model.config for model in site.models))


def write_scripts(folder: Path, *, cache: bool = False) -> None:
    """Write the image's scripts, and the flags that ``serve`` starts its server with."""
    folder.mkdir(parents=True)
    for name in SCRIPTS:
        shutil.copy(CONTAINERS / name, folder / name)
    (folder / "flags").write_text("".join(f"{flag}\n" for flag in image_flags(cache=cache)))
    write_program(folder / "exec")


def write_program(path: Path) -> None:
    """Write ``numl_job`` as one file that any Python runs; its bytes are always the same."""
    sources = sorted((ENVIRONMENT_SOURCE / "numl_job").glob("*.py"))
    parts = {f"numl_job/{source.name}": source.read_text(encoding="utf-8") for source in sources}
    parts["__main__.py"] = "from numl_job.image import main\n\nraise SystemExit(main())\n"
    with path.open("wb") as stream:
        stream.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(stream, "w") as archive:
            for name, text in parts.items():
                archive.writestr(zipfile.ZipInfo(name), text)
    path.chmod(0o755)


def stage_models(
    folder: Path,
    templates: Path,
    parameters: Mapping[str, str],
    flavour: Flavour,
    own: Sequence[StagedModel] = (),
) -> None:
    """Write the kit's models, and a site's ``own``, which replace those of their names.

    What only a GPU can run is not among those for CPUs.
    """
    names = kits_beside(own)
    without_gpu = on_cpu({model.name: model.config for model in own})
    for device in ("cpu", "gpu") if flavour == "gpu" else ("cpu",):
        settings = launch_settings(Path(IMAGE_PREFIX), parameters, gpu=device == "gpu")
        planned = plan_models(MODEL_REPOSITORY, names, settings, {})
        fitting = [model for model in own if device == "gpu" or model.name in without_gpu]
        stage((*planned, *fitting), folder / device)
        write_templates(planned, templates / device)


def launch_settings(place: Path, parameters: Mapping[str, str], *, gpu: bool) -> LaunchSettings:
    """Return the settings of every model's configuration; all run on every visible GPU, or on none.

    The server finds the environment at ``place``.
    """
    return LaunchSettings(
        environment=place,
        parameters=parameters,
        instances=Limits().instances(INSTANCES),
        gpu_instances=INSTANCES if gpu else None,
    )


def triton_layer(distribution: TritonDistribution, out: Path, *, base: Base, say: Say) -> None:
    """Write Triton as a layer for a base: a tar with NVIDIA's layout in ``opt/tritonserver``.

    Each file finds its libraries relative to itself, so neither server nor stub needs
    ``LD_LIBRARY_PATH``. Libraries that nothing needs are left out.
    """
    say(f"laying out Triton for base {base}")
    # NVIDIA's image lacks nothing but a stub for the environment's Python.
    parts = _SERVER if base == "slim" else (_STUB,)
    for part in parts:
        if not (distribution.root / part).is_file():
            raise BuildError(
                f"{distribution.root / part} is missing",
                f"rm -r {quote(str(distribution.root))}, then run the command again to unpack it",
            )
    available = {path.name: path for path in distribution.libraries.iterdir()}
    if base == "slim":
        parts = (*parts, *_more(distribution.root))
    binaries = [part for part in parts if is_elf(distribution.root / part)]
    needed = closure((distribution.root / part for part in binaries), available)
    with work_folder(out) as tree:
        for part in parts:
            (tree / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(distribution.root / part, tree / part)
        (tree / "lib").mkdir()
        for name in sorted(needed):
            library = tree / "lib" / name
            shutil.copy(available[name], library)
            # patchelf may add 2 MB to a file: those that need no other library stay as they are.
            if search_path(library) or needed & set(needed_by(library)):
                set_search_path(library, "$ORIGIN")
        for part in binaries:
            search = "$ORIGIN/" + "../" * len(part.parent.parts) + "lib"
            if part.parent.parts[0] == "backends":
                search = f"$ORIGIN:{search}"
            # The server tries whether the stub starts before it sets the library path.
            libpython = f":{IMAGE_PREFIX}/lib" if part == _STUB else ""
            set_search_path(tree / part, search + libpython)
        write_tar(tree, out, root=str(TRITON_ROOT).lstrip("/"))


def _more(root: Path) -> Iterator[Path]:
    """Yield the rest of a Triton that serves: its cache, other backends, its terms."""
    for path in sorted(root.rglob("*")):
        part = path.relative_to(root)
        of_its_own = part.parts[0] in ("bin", "lib") or part.name == FACTS or part in _SERVER
        if path.is_file() and not of_its_own:
            yield part


def closure(binaries: Iterable[Path], available: dict[str, Path]) -> set[str]:
    """Return which ``available`` libraries (by name) the binaries need, directly or indirectly."""
    found: set[str] = set()
    waiting = list(binaries)
    while waiting:
        new = {name for name in needed_by(waiting.pop()) if name in available} - found
        found |= new
        waiting += [available[name] for name in new]
    return found


def check_target(target: Path) -> None:
    """Check that ``target`` is new, empty or an older wired repository with nothing else in it."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise BuildError(f"{target} is not a folder", "choose a new folder")
    if target.is_mount():
        cause = f"{target} is a mount point, which no other folder can replace"
        raise BuildError(cause, f"choose a folder in it, such as {target / 'models'}")
    made: set[str] = set()
    with suppress(OSError, ValueError, TypeError):
        made = set(json.loads((target / MARKER).read_text(encoding="utf-8")))
    for name in _files(target):
        if name not in made:
            cause = f"{target} holds {name}, which --wire did not make"
            raise BuildError(cause, "choose a new folder")


def mark_wired(folder: Path) -> None:
    """List what is in a wired repository, so that nothing else is removed with it later."""
    text = json.dumps([MARKER, *_files(folder)], indent=1)
    write_atomically(folder / MARKER, text + "\n")


def _files(folder: Path) -> list[str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return [path.relative_to(folder).as_posix() for path in paths]


@dataclass(frozen=True)
class Packed:
    """A packed environment, and where an image would have it."""

    archive: Path
    environment: Environment
    place: Path


def wire(
    target: Path,
    packed: Sequence[Packed],
    release: TritonRelease,
    distribution: TritonDistribution,
    own: Sequence[StagedModel] = (),
) -> None:
    """Write a model repository for a stock Triton image, whole or not at all.

    It can be moved: every model names an archive beside the model folders, relative to its own, so
    Triton unpacks each once for all of its models. Where a stock image's stub is for another Python
    than the environment's, a stub lies beside each ``config.pbtxt``, with the libpython and the
    CUDA runtime that it is linked to.

    Args:
        packed: The kit's environment, and those of a site's models.
        own: The site's models, as an image has them.
    """
    check_target(target)
    environment = packed[0].environment
    settings = launch_settings(
        packed[0].place,
        {"environment_digest": environment.digest, **release.model_parameters},
        gpu=environment.flavour == "gpu",
    )
    planned = plan_models(MODEL_REPOSITORY, kits_beside(own), settings, {})
    places = {str(each.place): each for each in packed}
    own_stub = release.own_python == environment.lock.python
    with built_folder(target) as folder:
        write_models(
            [wired_model(m, places, distribution, own_stub) for m in (*planned, *own)], folder
        )
        for each in packed:
            # With its mode: whatever the umask, the server may run as another user.
            shutil.copy(each.archive, folder / each.archive.name)
        mark_wired(folder)


def wired_model(
    model: StagedModel,
    places: Mapping[str, Packed],
    distribution: TritonDistribution,
    own_stub: bool,
) -> StagedModel:
    """Return a model of an image with the packed environment in place of the one there."""
    named = parameter(model.config, ENVIRONMENT_PARAMETER)
    if named is None:
        return model  # an ensemble
    packed, config = places[named], deepcopy(model.config)
    archive = f"$$TRITON_MODEL_DIRECTORY/../{packed.archive.name}"
    config.parameters[ENVIRONMENT_PARAMETER].string_value = archive
    config.parameters.pop(ENVIRONMENT_NAME, None)
    stub = None if own_stub else stub_of_wheel(distribution, packed.environment.libpython)
    return replace(model, config=config, stub=stub)
