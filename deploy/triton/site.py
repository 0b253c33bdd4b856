"""A site's own model repository, as Triton reads it and as a server sees it; never modified."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.host.errors import RepositoryError
from deploy.triton.config import (
    ENSEMBLE,
    PYTHON_BACKEND,
    ModelConfig,
    config_of,
    served_versions,
    taken_for,
    uses_stubs,
)
from deploy.triton.response_cache import check_cache
from deploy.triton.stub import STUB
from numl_formats.repository import CODE, CONFIG, NO_BYTECODE

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
ENVIRONMENT_NAME = "NUMLKIT_ENV"
CALLS = "NUMLKIT_CALLS"
"""The parameter in which a model names those that its code calls, separated by commas."""
KITS_OWN = "numl"
"""What NUMLKIT_ENV may say of a model that runs in NuGraph's environment."""
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
# Where a container sees the execution environments of a site's own models.
ENVIRONMENTS = Path("/opt/numl/site/environments")
# What Triton takes for the model where a configuration names no backend, before it looks for
# model.py: AutoCompleteBackendFields in core's model_config_utils.cc.
_BEFORE_CODE = frozenset(
    f"model.{suffix}" for suffix in ("savedmodel", "graphdef", "plan", "onnx", "xml", "pt", "pt2")
)
_NOT_PLAIN = re.compile(r"[^\w.+-]", re.ASCII)


@dataclass(frozen=True)
class SiteModel:
    """A site's own model.

    Attributes:
        config: Its configuration, unmodified but for a backend that Triton would fill in.
        versions: The versions that Triton serves, oldest first.
        environment: The execution environment that it names, packed or a folder, resolved.
        environment_name: Instead, the name of one that the kit makes from a lock.
        stub: The stub beside its configuration.
        files: The other files that are served, resolved, by their paths below its folder.
    """

    name: str
    config: ModelConfig
    versions: tuple[int, ...]
    environment: Path | None
    environment_name: str | None
    stub: Path | None
    files: Mapping[str, Path]

    @property
    def runs_in_kits(self) -> bool:
        """Whether it runs in the kit's environment, for lack of its own."""
        own = self.environment is not None or self.environment_name is not None
        return uses_stubs(self.config) and not own


def called_by(config: ModelConfig) -> tuple[str, ...]:
    """Return the models that one needs: an ensemble's steps, and those that it says it calls."""
    steps = [step.model_name for step in config.ensemble_scheduling.step]
    calls = [name.strip() for name in (parameter(config, CALLS) or "").split(",")]
    return tuple(dict.fromkeys(filter(None, [*steps, *calls])))


def with_callees(repository: Path, models: Sequence[str]) -> tuple[str, ...]:
    """Return ``models``, and after them what they need of the same repository."""
    wanted = list(models)
    for model in wanted:  # grows meanwhile
        # One that cannot be read is refused when it is to be served.
        with suppress(RepositoryError):
            needed = called_by(config_of(repository / model))
            there = [name for name in needed if (repository / name / CONFIG).is_file()]
            wanted += [name for name in there if name not in wanted]
    return tuple(wanted)


def with_callers(repository: Path, models: Iterable[str]) -> tuple[str, ...]:
    """Return ``models``, and after them what needs them of the same repository."""
    found, folders = list(models), [path.parent for path in repository.glob(f"*/{CONFIG}")]
    needs = {folder.name: called_by(config_of(folder)) for folder in sorted(folders)}
    for model in found:  # grows meanwhile
        found += [name for name, needed in needs.items() if model in needed and name not in found]
    return tuple(found)


def read_site_model(repository: Path, name: str) -> SiteModel:
    folder = repository / name
    config = config_of(folder)
    versions = served_versions(config, (p.name for p in _entries(folder) if p.is_dir()))
    if not versions:
        raise RepositoryError(f"{folder}: its {CONFIG} selects none of its versions")
    _fill_in_backend(config, folder, versions)
    check_cache(folder, config)
    environment = _environment(config, folder) if uses_stubs(config) else None
    named = parameter(config, ENVIRONMENT_NAME) if uses_stubs(config) else None
    if named is not None and environment is not None:
        cause = f"{folder / CONFIG}: {ENVIRONMENT_PARAMETER} and {ENVIRONMENT_NAME} are both set"
        raise RepositoryError(cause, "leave one of them out")
    stub = folder / STUB
    return SiteModel(
        name=name,
        config=config,
        versions=versions,
        environment=environment,
        environment_name=None if named == KITS_OWN else named,
        stub=stub.resolve() if uses_stubs(config) and stub.is_file() else None,
        files=_served_files(folder.resolve(), versions, environment),
    )


def _fill_in_backend(config: ModelConfig, folder: Path, versions: Iterable[int]) -> None:
    """Name the backend of a Python model that names none, as Triton does when it loads it."""
    if config.backend or config.platform:
        return
    there = {path.name for version in versions for path in _entries(folder / str(version))}
    named = config.default_model_filename
    if CODE in there and (named == CODE or (not named and not there & _BEFORE_CODE)):
        config.backend = PYTHON_BACKEND
        return
    is_ensemble = config.ensemble_scheduling.step
    line = f'platform: "{ENSEMBLE}"' if is_ensemble else f'backend: "{PYTHON_BACKEND}" for {CODE}'
    cause = f"{folder / CONFIG}: names neither backend nor platform"
    raise RepositoryError(cause, f"say which: {line}")


def parameter(config: ModelConfig, name: str) -> str | None:
    # Asking a map of protobuf's for a key puts it there.
    return config.parameters[name].string_value if name in config.parameters else None


def _environment(config: ModelConfig, folder: Path) -> Path | None:
    """Return the execution environment that a configuration names, or None."""
    text = parameter(config, ENVIRONMENT_PARAMETER)
    if text is None:
        return None
    path = Path(text)
    if text.startswith(_MODEL_DIRECTORY):
        path = Path(f"{folder.resolve()}{text.removeprefix(_MODEL_DIRECTORY)}")
    if not path.is_absolute():
        raise RepositoryError(
            f"{folder / CONFIG}: {ENVIRONMENT_PARAMETER} {text!r} is relative; Triton would "
            "resolve it from the folder it was started in",
            f"use an absolute path, or one that starts with {_MODEL_DIRECTORY}/",
        )
    if not path.exists():
        cause = f"{folder / CONFIG}: {ENVIRONMENT_PARAMETER} {text!r} does not exist ({path})"
        raise RepositoryError(cause, "correct the path: it is on this host, not in an image")
    return path.resolve()


def _served_files(
    folder: Path, versions: tuple[int, ...], environment: Path | None
) -> dict[str, Path]:
    """Return a folder's served files, except configuration, environment and stub, by path."""
    served = {CONFIG: False, STUB: False} | {str(version): True for version in versions}
    found: dict[str, Path] = {}

    def add(path: Path, name: str, above: tuple[Path, ...]) -> None:
        try:
            real = path.resolve()
        except RuntimeError:  # up to Python 3.12; later ones return a path to nothing
            raise RepositoryError(f"{path}: a link that leads back to itself") from None
        if real == environment or path.name == NO_BYTECODE:
            return
        if real.is_file():
            if not os.access(real, os.R_OK):
                raise RepositoryError(f"{real}: you may not read it", "chmod a+r, or ask its owner")
            found[name] = real
        elif not real.is_dir():
            raise RepositoryError(f"{path}: a link to {real}, which is neither file nor folder")
        elif real in above:
            raise RepositoryError(f"{path}: a link to a folder that contains it")
        else:
            for entry in _entries(real):
                add(entry, f"{name}/{entry.name}", (*above, real))

    for entry in _entries(folder):
        if (taken := taken_for(entry.name)) is not None and entry.is_dir():
            cause = f"{entry}: Triton takes it for version {taken}"
            raise RepositoryError(cause, "rename it: a name that begins with a letter")
        if served.get(entry.name, not entry.name.isdecimal()):
            add(entry, entry.name, (folder,))
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise RepositoryError(f"{folder}: {error.strerror}") from None


def places_in_container(environments: Iterable[Path]) -> dict[Path, Path]:
    """Return where a container sees each of a site's execution environments, packed or folders.

    Triton's Python backend puts their paths into a shell command, so each gets a place with a
    plain name.
    """
    places = {}
    for number, path in enumerate(dict.fromkeys(environments), start=1):
        if not str(path).isprintable():
            raise RepositoryError(f"{str(path)!r}: a path with a line break cannot be mounted")
        places[path] = ENVIRONMENTS / f"{number}-{_NOT_PLAIN.sub('_', path.name)}"
    return places
