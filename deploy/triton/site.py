"""A site's own model repository, as Triton reads it and as a server sees it; never modified."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.deployment.deployment import CONFIG
from deploy.host.errors import RepositoryError
from deploy.triton.config import ModelConfig, config_of, served_versions, uses_stubs
from deploy.triton.stub import STUB

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_BYTECODE = "__pycache__"
# Where a container sees the execution environments of a site's own models.
ENVIRONMENTS = Path("/opt/numl/site/environments")
_NOT_PLAIN = re.compile(r"[^\w.+-]", re.ASCII)


@dataclass(frozen=True)
class SiteModel:
    """A site's own model.

    Attributes:
        config: Its configuration, unmodified.
        versions: The versions that Triton serves, oldest first.
        environment: The execution environment that it names, packed or a folder, resolved.
        stub: The stub beside its configuration.
        files: The other files that are served, resolved, by their paths below its folder.
    """

    name: str
    config: ModelConfig
    versions: tuple[int, ...]
    environment: Path | None
    stub: Path | None
    files: Mapping[str, Path]

    @property
    def runs_in_kits(self) -> bool:
        """Whether it runs in the kit's environment, for lack of its own."""
        return uses_stubs(self.config) and self.environment is None


def read_site_model(repository: Path, name: str) -> SiteModel:
    folder = repository / name
    config = config_of(folder)
    versions = served_versions(config, (p.name for p in folder.iterdir() if p.is_dir()))
    if not versions:
        raise RepositoryError(f"{folder}: its {CONFIG} selects none of its versions")
    environment = _environment(config, folder) if uses_stubs(config) else None
    stub = folder / STUB
    return SiteModel(
        name=name,
        config=config,
        versions=versions,
        environment=environment,
        stub=stub.resolve() if uses_stubs(config) and stub.is_file() else None,
        files=_served_files(folder.resolve(), versions, environment),
    )


def _environment(config: ModelConfig, folder: Path) -> Path | None:
    """Return the execution environment that a configuration names, or None."""
    # Asking a map of protobuf's for a key puts it there.
    if ENVIRONMENT_PARAMETER not in config.parameters:
        return None
    text = config.parameters[ENVIRONMENT_PARAMETER].string_value
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
        real = path.resolve()
        if real == environment or path.name == _BYTECODE:
            return
        if real.is_file():
            found[name] = real
        elif not real.is_dir():
            raise RepositoryError(f"{path}: a link to {real}, which is neither file nor folder")
        elif real in above:
            raise RepositoryError(f"{path}: a link to a folder that contains it")
        else:
            for entry in _entries(real):
                add(entry, f"{name}/{entry.name}", (*above, real))

    for entry in _entries(folder):
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
