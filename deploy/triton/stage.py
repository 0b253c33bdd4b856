"""Stage a copy of the model repository for a launch."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.host.errors import RepositoryError
from deploy.host.files import built_folder
from deploy.triton.card import AGAIN, read_card
from deploy.triton.config import (
    LaunchSettings,
    ModelConfig,
    config_of,
    for_launch,
    template_of,
    write_config,
)
from deploy.triton.stub import StubFiles, write_stub
from numl_formats.repository import CODE, CONFIG, DATA_FILES, NO_BYTECODE, later

VERSION = "1"


@dataclass(frozen=True)
class StagedModel:
    """A model as it will be served. Paths are relative to its folder.

    Attributes:
        config: Its configuration, with the launch's settings.
        versions: Folders of the versions that are served.
        copies: The files to copy, by path: the server polls its repository, and must not load a
            file that is being edited.
        stub: The stub to put beside the configuration; None: the server's own fits.
    """

    name: str
    config: ModelConfig
    versions: tuple[str, ...]
    copies: Mapping[str, Path]
    stub: StubFiles | None = None


def find_model(repository: Path, model: str) -> Path:
    folder = repository / model
    if not repository.is_dir():
        raise RepositoryError(f"model repository {repository}: no such folder")
    if not folder.is_dir():
        there = ", ".join(sorted(p.name for p in repository.iterdir() if p.is_dir()))
        cause = f"no model {model!r} in {repository}"
        raise RepositoryError(cause, f"one of: {there or 'none is there'}")
    return folder


def plan_models(
    repository: Path,
    models: Sequence[str],
    settings: LaunchSettings,
    own_weights: Mapping[str, Path],
) -> tuple[StagedModel, ...]:
    staged = []
    for model in models:
        folder = find_model(repository, model)
        config = config_of(folder)
        code = folder / VERSION / CODE
        files = own_weights.get(model, folder / VERSION)
        for path in (code, *(files / name for name in DATA_FILES)):
            if not path.is_file():
                raise RepositoryError(f"{path}: no such file", AGAIN)
        card = read_card(files)
        if model in own_weights:
            wanted = read_card(folder / VERSION).network.kind
            if card.network.kind != wanted:
                cause = f"model {model} serves {wanted}; {files} holds a {card.network.kind}"
                raise RepositoryError(cause)
        launched = for_launch(config, settings, card)
        copies = {f"{VERSION}/{name}": files / name for name in DATA_FILES}
        copies[f"{VERSION}/{CODE}"] = code
        staged.append(StagedModel(model, launched, (VERSION,), copies))
    return tuple(staged)


def stage(models: Sequence[StagedModel], target: Path) -> None:
    """Write the staged repository to ``target``, completely or not at all."""
    with built_folder(target) as folder:
        write_models(models, folder)


def write_models(models: Sequence[StagedModel], folder: Path) -> None:
    for model in models:
        target = folder / model.name
        for version in model.versions:
            (target / version).mkdir(parents=True)
        write_config(model.config, target / CONFIG)
        for path, source in model.copies.items():
            copy = target / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
            if os.geteuid() == 0:
                # Its permissions stay the same: root's server runs as another user.
                os.chown(copy, source.stat().st_uid, source.stat().st_gid)
            if copy.suffix == ".py":
                (copy.parent / NO_BYTECODE).touch()
        if model.stub is not None:
            write_stub(model.stub, target)
        _open_to_all(target)


def _open_to_all(folder: Path) -> None:
    """Let others enter what root's umask may have closed: its server runs as another user.

    Files keep the permissions that they were copied with; some are nobody else's business.
    """
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        elif path.name == NO_BYTECODE:
            path.chmod(0o644)


def write_templates(models: Sequence[StagedModel], folder: Path) -> None:
    """Write what the sync agent adds to the weights and cards of a bucket, by model."""
    for model in models:
        target = folder / model.name
        target.mkdir(parents=True)
        (target / CONFIG).write_text(template_of(model.config), encoding="utf-8")
        shutil.copyfile(model.copies[f"{VERSION}/{CODE}"], target / CODE)


def request_reload(repository: Path, model: str) -> None:
    """Have the server that polls a staged repository reload one of its models.

    Raises:
        OSError: If the model's folder is gone.
    """
    folder = repository / model
    touched = later(folder)
    for version in folder.iterdir():
        if version.is_dir():
            os.utime(version, ns=(touched, touched))
