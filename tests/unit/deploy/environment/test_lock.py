import re

import pytest

from deploy.deployment.gpus import GpuNeeds
from deploy.environment.lock import locked_pythons, read_lock
from deploy.host.errors import EnvironmentSetupError
from deploy.host.paths import CHECKOUT, ENVIRONMENT_SOURCE

LOCKS = ENVIRONMENT_SOURCE / "locks"


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_the_tracked_locks_hold_nugraph_s_stack_and_nothing_that_inference_never_needs(flavour):
    versions = read_lock(LOCKS, flavour).versions
    wanted = {"torch", "torch-geometric", "pytorch-lightning", "pynuml", "nugraph", "mpich"}
    serving = read_lock(LOCKS, "serving").versions
    assert serving.keys() == {"numpy", "safetensors"}
    assert wanted | serving.keys() <= versions.keys()
    for numpy in (versions["numpy"], serving["numpy"]):
        assert numpy.startswith("1."), "Triton 24.10 answers empty tensors with numpy 2"
    assert versions.keys().isdisjoint({"wandb", "cuml-cu12", "jupyter", "notebook", "ipython"})


def test_the_cpu_lock_cannot_bring_cuda_and_is_not_for_gpus():
    lock = read_lock(LOCKS, "cpu")
    assert lock.versions["torch"].endswith("+cpu")
    assert not [name for name in lock.versions if name.startswith("nvidia")]
    with pytest.raises(EnvironmentSetupError) as caught:
        lock.gpu_needs()
    assert caught.value.cause == (
        f"torch 2.13.0+cpu of lock file {LOCKS / 'cpu.txt'} is not for GPUs"
    )


@pytest.mark.parametrize(
    "lock",
    [*(CHECKOUT / "envs").glob("*.txt"), *LOCKS.glob("*.txt")],
    ids=lambda lock: str(lock.name),
)
def test_all_but_one_build_of_torch_have_hashes(lock):
    lines = lock.read_text().splitlines()
    pins = [number for number, line in enumerate(lines) if "==" in line]
    if lock.name == "torch-cpu-3.10.txt":  # whose wheel its maker could not fetch
        assert lines[-1] == "torch==2.13.0+cpu"
    elif lock.name == "python.txt":
        assert all(re.match(r"[0-9a-f]{64}  |#", line) for line in lines)
    else:
        assert pins
        for number in pins:
            assert lines[number].endswith(" \\")
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", lines[number + 1])


TORCH = "torch==2.13.0+cpu\n"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ((), "No such file"),
        ((TORCH, "# heading\nnumpy>=1\n"), r"cpu\.txt, line 2: not an exact version"),
        ((f"# {TORCH}", "numpy==1.26.4 \\\n"), r"torch-cpu\.txt: it does not list torch"),
        ((TORCH, "\x1f\x8b\udcff"), r"/cpu\.txt: not a text file"),
    ],
    ids=["none", "no exact version", "no torch", "no text"],
)
def test_what_is_no_lock_is_named(tmp_path, files, says):
    for name, text in zip(("torch-cpu", "cpu"), files, strict=False):
        (tmp_path / f"{name}.txt").write_text(text, errors="surrogateescape")
    with pytest.raises(EnvironmentSetupError, match=says):
        read_lock(tmp_path, "cpu")


def test_a_file_with_another_name_than_a_locks_is_none(tmp_path):
    for name in ("cpu-3.12.txt", "cpu-3.9.txt", "cpu-3.12-old.txt", "cpu-3.13.1.txt", "gpu-3.txt"):
        (tmp_path / name).touch()
    assert locked_pythons(tmp_path, "cpu") == ("3.12", "3.9")
    assert locked_pythons(tmp_path, "gpu") == ()
    (tmp_path / "cpu.txt").touch()
    assert locked_pythons(tmp_path, "cpu") == ("3.11", "3.12", "3.9")


def test_a_gpu_lock_tells_what_its_torch_needs_of_the_host(tmp_path):
    needs = read_lock(LOCKS, "gpu").gpu_needs()
    assert needs == GpuNeeds("torch 2.13.0", "13.0", driver=580, compute_capability=(7, 5))
    (tmp_path / "torch-gpu.txt").write_text("torch==2.7.1\n")
    (tmp_path / "gpu.txt").write_text("nvidia-cuda-runtime-cu12==12.6.77\n")
    needs = read_lock(tmp_path, "gpu").gpu_needs()
    assert needs == GpuNeeds("torch 2.7.1", "12.6", driver=525, compute_capability=(5, 0))
    (tmp_path / "gpu.txt").write_text("nvidia-cuda-runtime==99.1.2\n")
    said = r"^torch 2\.7\.1 is built for CUDA 99\.1, whose driver the kit does not know$"
    with pytest.raises(EnvironmentSetupError, match=said):
        read_lock(tmp_path, "gpu").gpu_needs()
