"""What a person names is looked at before anything is made for it."""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.checks.launch import check_given
from deploy.deployment.deployment import Deployment
from deploy.engines.resolved import Resolved
from deploy.host.errors import DeploymentError, KitError, RepositoryError
from deploy.host.paths import MODEL_REPOSITORY


def _checkpoint(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    return path


def _refused(deployment: Deployment) -> KitError:
    with pytest.raises(KitError) as caught:
        check_given(Resolved(deployment))
    return caught.value


def _served_by(path: Path, norm: Path | None = None) -> Deployment:
    norms = {} if norm is None else {"nugraph3": norm}
    return Deployment(checkpoints={"nugraph3": path}, norms=norms)


def _made(folder: Path, kind: str) -> Path:
    """Return a path at which there is such a thing."""
    path = folder / ("own" if kind != "too long" else "x" * 300)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("empty", "text"):
        path.write_text("weights" if kind == "text" else "")
    return path


TOO_LONG = "File name too long" if sys.version_info < (3, 14) else "no such file"


REMEDIES = {
    "checkpoint": (
        "--checkpoint nugraph3=PATH with a Lightning checkpoint (.ckpt), or with a folder made by "
        "scripts/import_checkpoint.py"
    ),
    "norm": "--norm nugraph3=FILE with JSON, HDF5 or npz",
}


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("checkpoint", "missing", "no such file"),
        ("checkpoint", "too long", TOO_LONG),
        ("checkpoint", "fifo", "not a file"),
        ("checkpoint", "empty", "it is empty"),
        ("checkpoint", "text",
         "not a complete PyTorch checkpoint (a zip archive, since PyTorch 1.6)"),
        ("checkpoint", "folder", "the folder has no weights.safetensors"),
        ("norm", "missing", "no such file"),
        ("norm", "too long", TOO_LONG),
        ("norm", "empty", "it is empty"),
    ],
)  # fmt: skip
def test_a_checkpoint_or_a_normalisation_that_cannot_be_one_is_refused(tmp_path, what, kind, said):
    path = _made(tmp_path, kind)
    good = _checkpoint(tmp_path / "good.ckpt")
    error = _refused(_served_by(path) if what == "checkpoint" else _served_by(good, path))
    assert isinstance(error, DeploymentError)
    assert error.cause == f"{what} for nugraph3: {path}: {said}"
    assert error.remedy == REMEDIES[what]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_checkpoint_that_may_not_be_read_is_refused(tmp_path):
    path = _checkpoint(tmp_path / "own.ckpt")
    path.chmod(0)
    error = _refused(_served_by(path))
    assert error.cause == f"checkpoint for nugraph3: {path}: Permission denied"


def test_what_may_be_a_checkpoint_is_left_to_the_import(tmp_path):
    norm = tmp_path / "norm.json"
    norm.write_text("{}")
    check_given(Resolved(_served_by(_checkpoint(tmp_path / "own.ckpt"), norm)))
    check_given(Resolved(_served_by(MODEL_REPOSITORY / "nugraph3/1")))


def test_a_model_that_is_nobody_s_is_refused():
    error = _refused(Deployment(models=("none",)))
    assert isinstance(error, RepositoryError)
    assert error.cause == f"no model 'none' in {MODEL_REPOSITORY}"
    assert error.remedy == "one of: nugraph2, nugraph2_cpu, nugraph3"


def test_a_packed_environment_that_is_not_there_is_refused(tmp_path):
    error = _refused(Deployment(env="packed", archive=tmp_path / "none.tar.gz"))
    assert error.cause == f"{tmp_path}/none.tar.gz: no such file"
