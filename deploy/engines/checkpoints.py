"""A user's own weights for a launch, imported once."""

import hashlib
import sys
import zipfile
from pathlib import Path

from deploy.host.console import Say
from deploy.host.errors import DeploymentError, RepositoryError
from deploy.host.files import locked
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY, cache_folder
from deploy.host.programs import run, without_python_variables
from deploy.triton.card import read_card
from deploy.triton.stage import VERSION
from numl_formats.repository import DATA_FILES, GOLDEN_FILE


def imported_folder(checkpoint: Path, norm: Path | None) -> Path:
    """Return the folder that holds, or will hold, the weights of ``checkpoint``.

    A folder given as checkpoint is one already.
    """
    if checkpoint.is_dir():
        return checkpoint.resolve()
    # An earlier kit's importer wrote model cards of another format.
    total = hashlib.sha256(b"model card 2")
    for path in (checkpoint, norm):
        if path is None:
            continue
        try:
            total.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise RepositoryError(f"{path}: {error.strerror}") from None
    return cache_folder() / "checkpoints" / total.hexdigest()[:16]


def check_own_weights(model: str, checkpoint: Path, norm: Path | None) -> None:
    """Check a user's own weights as far as possible without an execution environment."""
    remedy = (
        "PATH with a Lightning checkpoint (.ckpt), or with a folder made by "
        "scripts/import_checkpoint.py"
    )
    for option, path, why_not, wanted in (
        ("checkpoint", checkpoint, _why_no_weights, remedy),
        ("norm", norm, _why_not_read, "FILE with JSON, HDF5 or npz"),
    ):
        try:
            reason = why_not(path) if path is not None else None
        except OSError as error:
            reason = error.strerror
        if reason is not None:
            cause = f"{option} for {model}: {path}: {reason}"
            raise DeploymentError(cause, f"--{option} {model}={wanted}")


def _why_no_weights(path: Path) -> str | None:
    """Return why ``path`` is neither a checkpoint nor a folder made from one, or None."""
    if path.is_dir():
        lacking = [name for name in DATA_FILES if not (path / name).is_file()]
        return f"the folder has no {lacking[0]}" if lacking else None
    reason = _why_not_read(path)
    if reason is None and not zipfile.is_zipfile(path):
        return "not a complete PyTorch checkpoint (a zip archive, since PyTorch 1.6)"
    return reason


def _why_not_read(path: Path) -> str | None:
    if not path.is_file():
        return "not a file" if path.exists() else "no such file"
    with path.open("rb") as stream:
        return None if stream.read(1) else "it is empty"


def ensure_imported(model: str, checkpoint: Path, norm: Path | None, say: Say) -> None:
    folder = imported_folder(checkpoint, norm)
    if checkpoint.is_dir() or (folder / GOLDEN_FILE).exists():
        return
    tracked = MODEL_REPOSITORY / model / VERSION
    with locked(folder.with_suffix(".lock")):
        say(f"importing {checkpoint.name} for {model}")
        command = [sys.executable, str(CHECKOUT / "scripts" / "import_checkpoint.py")]
        command += [str(checkpoint.resolve()), "--model", read_card(tracked).network.kind]
        command += ["--out", str(folder), "--json"]
        if norm is not None:
            command += ["--norm", str(norm.resolve())]
        run(
            command,
            failed=f"checkpoint for {model}",
            environment=without_python_variables(),
            error=RepositoryError,
        )
