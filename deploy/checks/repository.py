"""A model repository: is every model in it complete, valid, and of one piece?"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deploy.engines.resolved import Resolved
from deploy.host.errors import RepositoryError
from deploy.host.finding import Finding, ok
from deploy.triton.card import AGAIN, check_digest, read_card
from deploy.triton.config import config_of, misfits
from deploy.triton.golden import read_golden
from deploy.triton.stage import VERSION, find_model
from deploy.triton.stub import STUB
from numl_formats.repository import CODE, CONFIG, DATA_FILES, GOLDEN_FILE, NO_BYTECODE, WEIGHTS_FILE

SUBJECT = "model repository"
# A stub beside the configuration has its own Python, that of the library it is linked to.
_BESIDE_CONFIG = {CONFIG, VERSION, STUB}
_REMEDY = "correct the file, or restore it with git checkout"
_BESIDE_WEIGHTS = {CODE, *DATA_FILES, NO_BYTECODE}


def model_findings(
    repository: Path, models: Sequence[str], weights: Mapping[str, Path]
) -> Iterator[Finding]:
    """Return what keeps ``models`` from being served, with ``weights`` in place of their own."""
    for model in models:
        try:
            folder = find_model(repository, model)
            _check_config(folder)
            parse_code(folder / VERSION / CODE)
            files = weights.get(model, folder / VERSION)
            if model in weights and not files.exists():
                continue  # not imported yet
            _check_files(folder, files)
        except RepositoryError as error:
            yield Finding("problem", SUBJECT, error.cause, error.remedy or _REMEDY)


def repository_findings(
    repository: Path, models: Sequence[str], weights: Mapping[str, Path]
) -> Iterator[Finding]:
    """Return everything that is wrong with a repository, and what does not belong in it."""
    found = list(model_findings(repository, models, weights))
    if not found:
        for model in models:
            if model not in weights:
                found += _misfit_findings(repository / model)
    if not found:
        yield ok(SUBJECT, f"{', '.join(models)} in {repository}")
    yield from found
    yield from _unknown_findings(repository)


def site_findings(resolved: Resolved) -> Iterator[Finding]:
    names = ", ".join(model.name for model in resolved.site)
    if names:
        yield ok(SUBJECT, f"{names} in {resolved.deployment.models_dir}")


def _check_config(folder: Path) -> None:
    config = config_of(folder)
    if config.backend != "python":
        cause = f"{folder / CONFIG}: the kit serves Python models, not {config.backend!r}"
        raise RepositoryError(cause, 'backend: "python"')


def parse_code(path: Path) -> ast.Module:
    """Parse a model's code; RepositoryError if it is not Python."""
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except OSError as error:
        raise RepositoryError(f"{path}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise RepositoryError(f"{path}: not Python: {error}") from None


def _check_files(folder: Path, files: Path) -> None:
    for name in DATA_FILES:
        if not (files / name).is_file():
            raise RepositoryError(f"{files / name}: no such file", AGAIN)
    card = read_card(files)
    check_digest(files / WEIGHTS_FILE, card.weights.sha256)
    golden = read_golden(files / GOLDEN_FILE)
    asked = {name for name, tensor in card.signature.inputs.items() if not tensor.optional}
    if missing := ", ".join(sorted(asked - golden.inputs.keys())):
        raise RepositoryError(f"{files / GOLDEN_FILE}: its event has no {missing}", AGAIN)


def _misfit_findings(folder: Path) -> Iterator[Finding]:
    """Return what a launch would correct but a server pointed at the folder would not."""
    names = misfits(config_of(folder), read_card(folder / VERSION))
    if names:
        detail = f"{folder / CONFIG}: its {', '.join(names)} are not those of the weights"
        remedy = "set names and dims as in model.json beside the weights; up does so by itself"
        yield Finding("problem", SUBJECT, detail, remedy)


def _unknown_findings(repository: Path) -> Iterator[Finding]:
    for folder in sorted(repository.iterdir()):
        if not (folder / CONFIG).exists():
            yield from _unknown([folder], "not a model, but Triton treats every folder here as one")
            continue
        known = _BESIDE_CONFIG | {path.name for path in folder.glob("lib*.so*")}
        for place, names in ((folder, known), (folder / VERSION, _BESIDE_WEIGHTS)):
            there = sorted(place.iterdir()) if place.is_dir() else []
            strangers = [path for path in there if path.name not in names]
            yield from _unknown(strangers, "not part of any model")


def _unknown(paths: Sequence[Path], what: str) -> Iterator[Finding]:
    if paths:
        names = ", ".join(map(str, paths[:3]))
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        yield Finding("warning", SUBJECT, f"{names}{more}: {what}", "move it elsewhere")
