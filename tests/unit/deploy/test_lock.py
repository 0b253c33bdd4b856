from pathlib import Path

import pytest

from deploy.environment.lock import read_lock
from deploy.errors import EnvironmentSetupError
from deploy.paths import ENVIRONMENT_SOURCE

LOCKS = ENVIRONMENT_SOURCE / "locks"


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_the_tracked_locks_hold_nugraph_s_stack_and_nothing_that_inference_never_needs(
    flavour: str,
) -> None:
    versions = read_lock(LOCKS, flavour).versions
    wanted = {"torch", "torch-geometric", "pytorch-lightning", "pynuml", "nugraph", "mpich"}
    assert wanted <= versions.keys()
    assert versions["numpy"].startswith("1."), "Triton 24.10 answers empty tensors with numpy 2"
    assert versions.keys().isdisjoint({"wandb", "cuml-cu12", "jupyter", "notebook", "ipython"})


def test_the_cpu_lock_cannot_bring_cuda() -> None:
    versions = read_lock(LOCKS, "cpu").versions
    assert versions["torch"].endswith("+cpu")
    assert not [name for name in versions if name.startswith("nvidia")]


def test_all_but_the_cpu_torch_have_hashes() -> None:
    for name in ("cpu", "gpu", "torch-gpu"):
        lines = (LOCKS / f"{name}.txt").read_text().splitlines()
        pins = [line for line in lines if "==" in line]
        hashes = [line for line in lines if "--hash=sha256:" in line]
        assert len(pins) == len(hashes) > 0


def test_a_line_that_is_no_exact_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch-cpu.txt").write_text("torch==2.13.0+cpu\n")
    (tmp_path / "cpu.txt").write_text("# heading\nnumpy>=1\n")
    with pytest.raises(EnvironmentSetupError, match=r"cpu\.txt, line 2: not an exact version"):
        read_lock(tmp_path, "cpu")


def test_a_missing_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="No such file"):
        read_lock(tmp_path, "cpu")


def test_a_lock_that_is_no_text_or_names_no_torch_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch-cpu.txt").write_text("# torch==2.13.0+cpu\n")
    (tmp_path / "cpu.txt").write_text("numpy==1.26.4 \\\n")
    with pytest.raises(EnvironmentSetupError, match=r"torch-cpu\.txt: torch is not in it"):
        read_lock(tmp_path, "cpu")
    (tmp_path / "cpu.txt").write_bytes(b"\x1f\x8b\xff")
    with pytest.raises(EnvironmentSetupError, match=r"/cpu\.txt: not a text file"):
        read_lock(tmp_path, "cpu")
