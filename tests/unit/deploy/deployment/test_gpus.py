"""Which devices a launch gets. The GPUs are made up: there is none here."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.deployment.deployment import load_deployment
from deploy.deployment.gpus import ON_CPU, DevicePlan, GpuNeeds, cuda_needs, plan_gpus
from deploy.deployment.options import add_model_options, model_overrides
from deploy.environment.lock import read_lock
from deploy.host.command_line import Parser
from deploy.host.errors import DeploymentError, GpuError
from deploy.host.gpu import BrokenGpu, Gpu, GpuStack, Memory, MigInstance
from deploy.host.paths import ENVIRONMENT_SOURCE
from deploy.triton.release import find_release

GIB = 1 << 30
TRITON = find_release("24.10").gpu_needs
TORCH = cuda_needs("torch 2.13.0", "13.0")
NEEDS = (TRITON, TORCH)


def _gpu(index: int, name: str = "NVIDIA A100-SXM4-40GB", **changed: object) -> Gpu:
    gpu = Gpu(index, f"GPU-{index}d5ba0d6-d33d", name, (8, 0), Memory(40 * GIB, 39 * GIB))
    return replace(gpu, **changed)


def _stack(*gpus: Gpu, driver: str = "580.65.06", broken: Sequence[int] = ()) -> GpuStack:
    lost = (BrokenGpu(i, f"GPU {i} cannot be used: lost", "restart the host") for i in broken)
    return GpuStack(driver, gpus, tuple(lost))


A, B = _gpu(0), _gpu(1)
OLD = _gpu(2, "Tesla P100-PCIE-16GB", compute_capability=(6, 0))
DIVIDED = _gpu(3, divided=True)
PARTS = (MigInstance("MIG-16d4f1ef-42e4"), MigInstance("MIG-26d4f1ef-42e4"))


def _plan(
    names: str,
    found: GpuStack | GpuError,
    *,
    visible: str | None = None,
    needs: Sequence[GpuNeeds] = NEEDS,
    processes: int = 4,
) -> DevicePlan:
    given = names.split(",") if names else ()
    return plan_gpus(given, found, needs=needs, processes=processes, visible=visible)


def _refusal(names: str, found: GpuStack | GpuError, **more: object) -> tuple[str, str | None]:
    with pytest.raises(GpuError) as caught:
        _plan(names, found, **more)
    return caught.value.cause, caught.value.remedy


@pytest.mark.parametrize(
    ("names", "visible", "gpus", "devices"),
    [
        ("", None, (A, B), (A, B)),
        ("1", None, (A, B), (B,)),
        ("1,0", None, (A, B), (B, A)),
        ("gpu-1d5", None, (A, B), (B,)),
        ("MIG-26d4f1ef-42e4", None, (A, DIVIDED), (PARTS[1],)),
        ("", "1", (A, B), (B,)),
        ("", " GPU-1d5ba0d6 , 0", (A, B), (B, A)),
        ("", "1,-1,0", (A, B), (B,)),  # CUDA, too, reads up to what it does not know
        ("", "MIG-16d4f1ef-42e4,MIG-26d4f1ef-42e4", (A, DIVIDED), PARTS),
        ("0", "1,0", (A, B), (A,)),
        ("0,MIG-16d4f1ef-42e4", None, (A, DIVIDED), (A, PARTS[0])),
    ],
)
def test_what_is_asked_for_is_given_in_its_order(names, visible, gpus, devices):
    assert _plan(names, _stack(*gpus), visible=visible) == DevicePlan(tuple(devices))


def test_a_server_sees_its_devices_only_and_counts_them_from_0_and_on_cpus_none():
    plan = _plan("1,MIG-26d4f1ef-42e4", _stack(A, B, DIVIDED))
    assert plan.uuids == ("GPU-1d5ba0d6-d33d", "MIG-26d4f1ef-42e4")
    assert plan.variables == {"CUDA_VISIBLE_DEVICES": "GPU-1d5ba0d6-d33d,MIG-26d4f1ef-42e4"}
    assert ON_CPU.variables == {"CUDA_VISIBLE_DEVICES": ""}
    assert ON_CPU.uuids == ON_CPU.warnings == ()


def test_without_a_driver_the_reason_is_passed_on():
    assert _refusal("", GpuError("no driver", "get one")) == ("no driver", "get one")


NOTED_BELOW_CUDAS_OWN = [GpuNeeds("Triton 25.10", "13.0.2", 575, (7, 5))]


@pytest.mark.parametrize(
    ("driver", "needs", "what", "cuda", "least"),
    [
        ("470.57.02", [TRITON], "Triton 24.10", "12.6.2", 560),
        ("575.57.08", NEEDS, "torch 2.13.0", "13.0", 580),
        ("470.57.02", NEEDS, "torch 2.13.0", "13.0", 580),
        ("575.57.08", NOTED_BELOW_CUDAS_OWN, "Triton 25.10", "13.0.2", 580),
    ],
)
def test_a_driver_that_is_too_old_is_refused_with_both_numbers(driver, needs, what, cuda, least):
    assert _refusal("", _stack(A, driver=driver), needs=needs) == (
        f"NVIDIA driver {driver} is too old for {what}: CUDA {cuda} needs driver {least} or later",
        f"install NVIDIA's driver {least} or later, or start with --cpu",
    )


def test_a_driver_that_nvidia_does_not_name_but_cuda_runs_on_is_a_warning():
    plan = _plan("", _stack(A, driver="535.129.03"), needs=[TRITON])
    assert plan.warnings == (
        "NVIDIA driver 535.129.03 is older than 560, which NVIDIA specifies for Triton 24.10; "
        "CUDA 12.6.2 works with 525 or later",
    )


@pytest.mark.parametrize(
    ("names", "gpus", "visible", "remedy"),
    [
        ("2", (A, B, OLD, DIVIDED), None, "--gpu 0,1"),
        ("2", (A, B, OLD), "1,2", "--gpu 1"),  # none that the shell has not been given
        ("", (OLD,), None, "start with --cpu"),
    ],
)
def test_a_gpu_that_is_too_old_is_named_with_those_that_are_not(names, gpus, visible, remedy):
    assert _refusal(names, _stack(*gpus), visible=visible) == (
        "GPU 2 (Tesla P100-PCIE-16GB) has compute capability 6.0, torch 2.13.0 needs 7.5 or later",
        remedy,
    )


AVAILABLE = "available: GPU 0 (NVIDIA A100-SXM4-40GB), GPU 3 (NVIDIA A100-SXM4-40GB)"
ALIKE = (_gpu(0, uuid="GPU-5d5b-1"), _gpu(1, uuid="GPU-5d5b-2"))


@pytest.mark.parametrize(
    ("names", "gpus", "cause", "remedy"),
    [
        ("7", (A, DIVIDED), "there is no GPU 7 here", AVAILABLE),
        ("0,GPU-9", (A, DIVIDED), "there is no GPU-9 here", AVAILABLE),
        ("GPU-5d5", ALIKE, "GPU-5d5 matches 2 UUIDs", "give more of it: GPU-5d5b-1, GPU-5d5b-2"),
        ("0,GPU-0", (A,), f"{A.label} is named twice", "name each device once"),
    ],
    ids=["no such number", "no such UUID", "a UUID cut too short", "twice"],
)
def test_names_that_are_not_of_one_device_each_are_answered_with_what_is(
    names, gpus, cause, remedy
):
    assert _refusal(names, _stack(*gpus)) == (cause, remedy)


@pytest.mark.parametrize("names", ["1", "0,1"])
def test_a_broken_gpu_is_refused_with_its_reason(names):
    expected = ("GPU 1 cannot be used: lost", "restart the host")
    assert _refusal(names, _stack(A, broken=[1])) == expected
    assert _refusal("", _stack(A, broken=[1]), visible=names) == expected
    assert _refusal("", _stack(broken=[1])) == expected


def test_without_names_every_whole_gpu_that_fits_is_taken_and_the_others_are_told():
    plan = _plan("", _stack(A, OLD, DIVIDED, broken=[9]))
    assert plan == DevicePlan(
        (A,),
        (
            "left out: GPU 2 (Tesla P100-PCIE-16GB) has compute capability 6.0, "
            "torch 2.13.0 needs 7.5 or later",
            "left out: GPU 3 (NVIDIA A100-SXM4-40GB) is divided by MIG and cannot be used whole",
            "left out: GPU 9 cannot be used: lost",
        ),
    )


@pytest.mark.parametrize(
    ("names", "visible", "gpus"),
    [
        ("3", None, (A, DIVIDED)),
        ("", "3", (A, DIVIDED)),
        ("3", "3", (A, DIVIDED)),
        ("", None, (DIVIDED,)),
    ],
)
def test_a_divided_gpu_is_not_given_whole(names, visible, gpus):
    assert _refusal(names, _stack(*gpus), visible=visible) == (
        "GPU 3 (NVIDIA A100-SXM4-40GB) is divided by MIG and cannot be used whole",
        "--gpu with UUIDs of its instances, as nvidia-smi -L lists them, or switch MIG off "
        "(sudo nvidia-smi -i 3 -mig 0)",
    )


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "10000", "5,0"])
def test_a_shell_that_has_been_given_no_gpu_is_told_so(visible):
    assert _refusal("", _stack(A), visible=visible) == (
        f"this shell has been given no GPU: CUDA_VISIBLE_DEVICES={visible!r}",
        "ask the batch system for one, unset CUDA_VISIBLE_DEVICES, or start with --cpu",
    )


def test_a_gpu_that_was_given_to_somebody_else_is_refused():
    assert _refusal("0", _stack(A, B), visible="1") == (
        "GPU 0 (NVIDIA A100-SXM4-40GB) is not among those that this shell has been given: "
        "CUDA_VISIBLE_DEVICES='1'",
        "leave it out of --gpu, or unset CUDA_VISIBLE_DEVICES",
    )


def test_too_little_free_memory_is_a_warning():
    full = _gpu(0, memory=Memory(40 * GIB, 3 * GIB))
    plan = _plan("", _stack(full, _gpu(1, memory=None)))
    assert plan.warnings == (
        "GPU 0 (NVIDIA A100-SXM4-40GB) has 3072 MiB free of 40960: its models' processes (4) are "
        "expected to need 4096",
    )
    assert _plan("", _stack(full), processes=3).warnings == ()


@pytest.mark.parametrize("text", ["0,", "all", "-1", "0 1", "site.toml", "GPU", "0,GPU-x"])
def test_a_flag_that_names_no_devices_is_refused(text):
    flags = Parser()
    add_model_options(flags)
    with pytest.raises(DeploymentError) as caught:
        load_deployment(None, model_overrides(flags.parse_args(["--gpu", text])))
    wrong = next(name for name in text.split(",") if name != "0")
    assert caught.value.cause == (
        f"--gpu: {wrong!r} is neither the number nor the UUID of a GPU (nvidia-smi -L lists them)"
    )


def test_the_tracked_environment_and_release_agree_on_what_they_need():
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", "gpu")
    plan = _plan("", _stack(A), needs=(TRITON, lock.gpu_needs()))
    assert plan == DevicePlan((A,))


@st.composite
def _hosts(draw: st.DrawFn) -> GpuStack:
    capabilities = st.sampled_from([(9, 0), (8, 0), (7, 5), (6, 0)])
    is_divided = st.sampled_from([False, False, True])
    gpus = [
        _gpu(index, compute_capability=draw(capabilities), divided=draw(is_divided))
        for index in range(draw(st.integers(0, 4)))
    ]
    # A driver without any GPU, not even a broken one, is told as none at all.
    broken = [len(gpus)] if not gpus or draw(st.booleans()) else []
    driver = draw(st.sampled_from(["580.65.06", "580.65.06", "550.54.15", "470.57.02"]))
    return _stack(*gpus, driver=driver, broken=broken)


def _names_in(found: GpuStack) -> st.SearchStrategy[list[str]]:
    """Return names of devices of a host, and now and then of one that is not there."""
    known = [gpu.uuid for gpu in found.gpus] + [str(gpu.index) for gpu in found.gpus]
    return st.lists(st.sampled_from([*known, "4", "GPU-9", "MIG-0", "MIG-1"]), max_size=3)


@settings(max_examples=300, deadline=None)
@given(
    found=_hosts(),
    needs=st.sampled_from([[TRITON], NEEDS]),
    processes=st.integers(1, 64),
    data=st.data(),
)
def test_a_plan_can_be_carried_out_or_is_refused_in_a_line(found, needs, processes, data):
    names = data.draw(_names_in(found), "names")
    visible = data.draw(
        st.none() | st.none() | _names_in(found).map(",".join) | st.text(max_size=3),
        "CUDA_VISIBLE_DEVICES",
    )
    plan, said = None, ("", "")
    try:
        plan = plan_gpus(names, found, needs=needs, processes=processes, visible=visible)
    except GpuError as refusal:
        said = refusal.cause, refusal.remedy or ""
    if plan is None:
        assert all(said)
        assert len(" ".join(said).splitlines()) == 1
        return
    assert plan.devices
    assert len(set(plan.uuids)) == len(plan.uuids) == len(plan.devices)
    for device in plan.devices:
        if isinstance(device, MigInstance):
            assert device.uuid in [*names, *map(str.strip, (visible or "").split(","))]
            continue
        assert device in found.gpus
        assert not device.divided
        assert all(device.compute_capability >= need.compute_capability for need in needs)
    assert all(found.driver_release >= need.oldest_driver for need in needs)
    if names:
        assert len(plan.devices) == len(names)
    assert not any(len(warning.splitlines()) > 1 for warning in plan.warnings)
