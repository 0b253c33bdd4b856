"""Stage a copy of the model repository for one launch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.errors import RepositoryError
from deploy.files import built_folder
from deploy.repository.config import (
    LaunchSettings,
    ModelConfig,
    WeightFacts,
    for_launch,
    read_config,
    write_config,
)

VERSION = "1"
MODEL_FILES = ("model.json", "weights.safetensors", "golden.npz")


@dataclass(frozen=True)
class StagedModel:
    """A model as it will be served.

    Attributes:
        name: Its name.
        config: Its configuration, with the launch's settings.
        code: ``model.py``.
        files: Folder of its weights, ``model.json`` and golden answer.
    """

    name: str
    config: ModelConfig
    code: Path
    files: Path


def read_architecture(folder: Path) -> str:
    """Return the architecture that ``model.json`` names, as in ``nugraph3``.

    Raises:
        RepositoryError: Naming the file and what is wrong with it.
    """
    with _card(folder) as card:
        return str(card["architecture"])


def read_weight_facts(folder: Path) -> WeightFacts:
    """Read from ``model.json`` what the configuration must know.

    Raises:
        RepositoryError: Naming the file and what is wrong with it.
    """
    with _card(folder) as card:
        return WeightFacts(
            semantic_classes=tuple(card["semantic_classes"] or ()),
            event_classes=tuple(card["event_classes"] or ()),
            heads=tuple(card["heads"]),
            spacepoint_positions=bool(card["spacepoint_positions"]),
            demo=bool(card["demo"]),
        )


def read_weights_digest(folder: Path) -> str | None:
    """Return the sha256 that ``model.json`` names for the weights; None if it names none.

    Raises:
        RepositoryError: Naming the file and what is wrong with it.
    """
    with _card(folder) as card:
        return str(card["weights"]["sha256"]) if "weights" in card else None


@contextmanager
def _card(folder: Path) -> Iterator[Any]:
    """Yield the content of ``model.json``; what is wrong with it is told in one line."""
    path = folder / "model.json"
    try:
        yield json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RepositoryError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise RepositoryError(f"{path}: not a model description: {error}") from None
    except KeyError as error:
        raise RepositoryError(f"{path}: has no {error.args[0]!r}") from None


def find_model(repository: Path, model: str) -> Path:
    """Return the folder of ``model``.

    Raises:
        RepositoryError: If the repository has no such model; with those it has.
    """
    folder = repository / model
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
        own_weights: Folders with weights and ``model.json`` that replace the tracked ones.

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
                raise RepositoryError(f"{path}: no such file")
        if model in own_weights:
            wanted, given = read_architecture(folder / VERSION), read_architecture(files)
            if given != wanted:
                raise RepositoryError(f"model {model} serves {wanted}, {files} holds a {given}")
        launched = for_launch(config, settings, read_weight_facts(files))
        staged.append(StagedModel(name=model, config=launched, code=code, files=files))
    return tuple(staged)


def stage(models: Sequence[StagedModel], target: Path) -> None:
    """Write the staged repository to ``target``, whole or not at all."""
    with built_folder(target) as folder:
        write_models(models, folder)


def write_models(models: Sequence[StagedModel], folder: Path) -> None:
    """Write ``models`` into ``folder``, which holds none of them yet."""
    for model in models:
        version = folder / model.name / VERSION
        version.mkdir(parents=True)
        write_config(model.config, folder / model.name / "config.pbtxt")
        shutil.copyfile(model.code, version / "model.py")
        for name in MODEL_FILES:
            shutil.copyfile(model.files / name, version / name)
        # Python would write a folder of this name here, which a polling server takes
        # for a change of the model and loads it a second time. A file of this name
        # keeps it from doing so; the stub ignores PYTHONDONTWRITEBYTECODE.
        (version / "__pycache__").touch()
