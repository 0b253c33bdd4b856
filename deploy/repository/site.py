"""A site's own model repository: read as Triton reads it, and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import RepositoryError
from deploy.repository.config import ModelConfig, read_config
from deploy.repository.served import served_versions, uses_stubs
from deploy.server.stub import STUB

CONFIG = "config.pbtxt"
ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_BYTECODE = "__pycache__"


@dataclass(frozen=True)
class SiteModel:
    """A model of a site.

    Attributes:
        name: Its name.
        folder: Its folder.
        config: Its configuration, as it stands there.
        versions: The versions that Triton serves, the oldest first.
        environment: Its own execution environment, packed or a folder, free of links; None:
            it names none, or runs in none.
        stub: The stub that lies beside its configuration, or None.
        files: What else is served of it: paths below its folder, and the files themselves,
            free of links.
        linked: What links in its folder lead to.
    """

    name: str
    folder: Path
    config: ModelConfig
    versions: tuple[int, ...]
    environment: Path | None
    stub: Path | None
    files: Mapping[str, Path]
    linked: tuple[Path, ...]


def find_site_models(repository: Path) -> tuple[str, ...]:
    """Return the names of the models in a site's repository: folders with a ``config.pbtxt``.

    Raises:
        RepositoryError: If it cannot be read, or has none.
    """
    remedy = "name the folder that holds the models' folders"
    try:
        names = tuple(sorted(p.name for p in repository.iterdir() if (p / CONFIG).is_file()))
    except OSError as error:
        raise RepositoryError(f"{repository}: {error.strerror}", remedy) from None
    if not names:
        raise RepositoryError(
            f"{repository} is no model repository: no folder in it has a {CONFIG}", remedy
        )
    return names


def read_site_model(repository: Path, name: str) -> SiteModel:
    """Read a model.

    Args:
        repository: A model repository in Triton's layout.
        name: A model in it.

    Raises:
        RepositoryError: Naming the file and what is wrong with it.
    """
    folder = repository / name
    config = read_config(folder / CONFIG)
    if config.name not in ("", name):
        raise RepositoryError(f"{folder / CONFIG}: names its model {config.name!r}")
    versions = served_versions(config, (p.name for p in folder.iterdir() if p.is_dir()))
    if not versions:
        raise RepositoryError(f"{folder} has no version that its {CONFIG} lets be served")
    environment = _environment(config, folder) if uses_stubs(config) else None
    stub = folder / STUB
    tree = _Tree(folder.resolve(), versions, environment)
    return SiteModel(
        name=name,
        folder=folder,
        config=config,
        versions=versions,
        environment=environment,
        stub=stub.resolve() if uses_stubs(config) and stub.is_file() else None,
        files=tree.files,
        linked=(folder.resolve(), *tree.linked),
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
            f"{folder / CONFIG}: {ENVIRONMENT_PARAMETER} {text!r} is relative, which Triton takes "
            "from the folder that it was started in",
            f"an absolute path, or one that begins with {_MODEL_DIRECTORY}/",
        )
    if not path.exists():
        raise RepositoryError(
            f"{folder / CONFIG}: {ENVIRONMENT_PARAMETER} {text!r} is not there ({path})",
            "correct the path; it is one of this host, not of an image",
        )
    return path.resolve()


class _Tree:
    """What is served of a model's folder, beside configuration, environment and stub."""

    def __init__(self, folder: Path, versions: tuple[int, ...], environment: Path | None) -> None:
        self._environment = environment
        self.files: dict[str, Path] = {}
        self.linked: list[Path] = []
        others = {CONFIG, STUB, *self._unserved(folder, versions)}
        for entry in self._entries(folder):
            if entry.name not in others:
                self._add(entry, entry.name, (folder,))

    @staticmethod
    def _unserved(folder: Path, versions: tuple[int, ...]) -> Iterator[str]:
        served = {str(version) for version in versions}
        for entry in folder.iterdir():
            if entry.name.isdecimal() and entry.name not in served:
                yield entry.name

    def _add(self, path: Path, name: str, above: tuple[Path, ...]) -> None:
        real = path.resolve()
        if real == self._environment or path.name == _BYTECODE:
            return
        if path.is_symlink():
            self.linked.append(real)
        if real.is_file():
            self.files[name] = real
        elif not real.is_dir():
            raise RepositoryError(f"{path}: a link to {real}, which is no file or folder")
        elif real in above:
            raise RepositoryError(f"{path}: a link to a folder that it lies in")
        else:
            for entry in self._entries(real):
                self._add(entry, f"{name}/{entry.name}", (*above, real))

    @staticmethod
    def _entries(folder: Path) -> list[Path]:
        try:
            return sorted(folder.iterdir())
        except OSError as error:
            raise RepositoryError(f"{folder}: {error.strerror}") from None
