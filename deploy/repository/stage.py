"""Stage a copy of the model repository for one launch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.errors import RepositoryError
from deploy.files import built_folder
from deploy.repository.card import AGAIN, CARD_FILE, read_card
from deploy.repository.config import (
    LaunchSettings,
    ModelConfig,
    for_launch,
    read_config,
    write_config,
)
from deploy.server.stub import StubFiles, write_stub

VERSION = "1"
MODEL_FILES = (CARD_FILE, "weights.safetensors", "golden.npz")
# Python would write a folder of this name, which a polling server takes for a change of the
# model and loads it a second time, and which in a site's repository is none of ours. A file of
# this name keeps it from doing so; the stub ignores PYTHONDONTWRITEBYTECODE. A server that is
# to load the model anew has it touched.
BYTECODE = "__pycache__"


@dataclass(frozen=True)
class StagedModel:
    """A model as it will be served. Paths are below its folder, with slashes.

    Attributes:
        name: Its name.
        config: Its configuration, with the launch's settings.
        versions: Folders of the versions that are served.
        copies: Files of this host that are copied, by path.
        links: Files that are linked to, by path: where the server sees them.
        stub: The stub to put beside the configuration; None: the server's own serves it.
    """

    name: str
    config: ModelConfig
    versions: tuple[str, ...]
    copies: Mapping[str, Path]
    links: Mapping[str, Path] = field(default_factory=dict)
    stub: StubFiles | None = None


def find_model(repository: Path, model: str) -> Path:
    """Return the folder of ``model``.

    Raises:
        RepositoryError: If the repository has no such model; with those it has.
    """
    folder = repository / model
    if not repository.is_dir():
        raise RepositoryError(f"model repository {repository}: no such folder")
    if not folder.is_dir():
        there = ", ".join(sorted(p.name for p in repository.iterdir() if p.is_dir()))
        raise RepositoryError(
            f"no model {model!r} in {repository}", f"one of: {there or 'none is there'}"
        )
    return folder


def plan_models(
    repository: Path,
    models: Sequence[str],
    settings: LaunchSettings,
    own_weights: Mapping[str, Path],
) -> tuple[StagedModel, ...]:
    """Read the models and set this launch's settings in their configurations.

    Args:
        repository: A model repository in Triton's layout.
        models: The models to serve.
        settings: What the launch sets.
        own_weights: Folders with weights and model card that replace the tracked ones.

    Raises:
        RepositoryError: Naming the model, the file and what is wrong.
    """
    staged = []
    for model in models:
        folder = find_model(repository, model)
        config = read_config(folder / "config.pbtxt")
        if config.name not in ("", model):
            raise RepositoryError(f"{folder / 'config.pbtxt'}: names its model {config.name!r}")
        code = folder / VERSION / "model.py"
        files = own_weights.get(model, folder / VERSION)
        for path in (code, *(files / name for name in MODEL_FILES)):
            if not path.is_file():
                raise RepositoryError(f"{path}: no such file", AGAIN)
        card = read_card(files)
        if model in own_weights:
            wanted = read_card(folder / VERSION).network
            if card.network != wanted:
                raise RepositoryError(
                    f"model {model} serves {wanted}, {files} holds a {card.network}"
                )
        launched = for_launch(config, settings, card)
        copies = {f"{VERSION}/{name}": files / name for name in MODEL_FILES}
        copies[f"{VERSION}/{code.name}"] = code
        staged.append(StagedModel(model, launched, (VERSION,), copies))
    return tuple(staged)


def stage(models: Sequence[StagedModel], target: Path) -> None:
    """Write the staged repository to ``target``, whole or not at all."""
    with built_folder(target) as folder:
        write_models(models, folder)


def write_models(models: Sequence[StagedModel], folder: Path) -> None:
    """Write ``models`` into ``folder``, which holds none of them yet.

    Raises:
        BuildError: If a stub cannot be changed.
    """
    for model in models:
        target = folder / model.name
        for version in model.versions:
            (target / version).mkdir(parents=True)
        write_config(model.config, target / "config.pbtxt")
        for path, source in model.copies.items():
            _made_for(target / path)
            shutil.copyfile(source, target / path)
        for path, place in model.links.items():
            _made_for(target / path)
            (target / path).symlink_to(place)
        if model.stub is not None:
            write_stub(model.stub, target)


def _made_for(path: Path) -> None:
    """Make the folder that ``path`` lies in, and keep Python from writing bytecode there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".py":
        (path.parent / BYTECODE).touch()
