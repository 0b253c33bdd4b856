"""What engines and hosts say of themselves; tests/containers asks the engines."""

from pathlib import Path
from typing import Any

import pytest

from deploy.checks.engines import (
    ApptainerHost,
    access_findings,
    apptainer_findings,
    docker_findings,
    docker_in_words,
    limit_findings,
    look_at_host,
    runtime_findings,
)
from deploy.checks.finding import Finding
from deploy.checks.gpu import gpu_findings, stack_findings
from deploy.deployment import Deployment
from deploy.hardware.gpu import BrokenGpu, Gpu, GpuStack, NoGpus

VERSION = {"Version": "20.10.24", "ApiVersion": "1.41", "Components": [{"Name": "Engine"}]}
INFO = {"Driver": "overlay2", "DockerRootDir": "/var/lib/docker", "CgroupVersion": "2"}
USER = ApptainerHost(root=False, setuid=False, fuse=True, closed=())
DEPLOYMENT = Deployment()


def test_an_engine_says_what_it_is() -> None:
    assert docker_in_words(VERSION, INFO) == (
        "Docker 20.10.24 (API 1.41), storage overlay2 in /var/lib/docker, cgroup v2"
    )


def test_podman_without_root_says_so() -> None:
    """Recorded: podman 4.3's answers, of which only these fields are read."""
    version = {**VERSION, "Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}
    info = {**INFO, "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"],
            "Runtimes": {"crun": {}, "nvidia": {}}}  # fmt: skip
    assert docker_in_words(version, info) == (
        "podman 4.3.1 (API 1.41), storage overlay2 in /var/lib/docker, cgroup v2, rootless, "
        "NVIDIA runtime"
    )


def test_limits_that_an_engine_would_silently_drop_are_named() -> None:
    info: dict[str, Any] = {"MemoryLimit": False, "CpuCfsQuota": False}
    assert not list(limit_findings(info, DEPLOYMENT, "problem"))
    limited = Deployment(memory="4g", cpus=2)  # type: ignore[arg-type]
    assert [f.detail.split()[0] for f in limit_findings(info, limited, "problem")] == [
        "--memory", "--cpus"
    ]  # fmt: skip
    assert not list(limit_findings({"MemoryLimit": True}, limited, "problem"))


def test_an_engine_without_a_runtime_for_gpus_that_are_wanted_is_a_warning() -> None:
    """What engines with NVIDIA's toolkit say is recorded; there is none here."""
    gpu = Deployment(flavour="gpu")
    (found,) = runtime_findings({"Runtimes": {"runc": {}}}, gpu)
    assert (found.level, found.detail) == ("warning", "the engine names no runtime for GPUs")
    assert "nvidia-container-toolkit" in (found.remedy or "")
    assert not list(runtime_findings({"Runtimes": {"runc": {}, "nvidia": {}}}, gpu))
    devices = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]
    assert not list(runtime_findings({"DiscoveredDevices": devices}, gpu))
    assert not list(runtime_findings({}, DEPLOYMENT))


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"fuse": None}, "there is no /dev/fuse, by which an ordinary user's .sif is mounted"),
        ({"fuse": False}, "this user may not open /dev/fuse, by which a .sif is mounted"),
        ({"closed": (("user.max_user_namespaces", "sudo sysctl"),)},
         "ordinary users get no namespaces: user.max_user_namespaces is 0"),
    ],
)  # fmt: skip
def test_what_keeps_an_ordinary_user_from_a_sif_keeps_neither_root_nor_a_setuid_apptainer(
    changes: dict[str, Any], detail: str
) -> None:
    host = {**vars(USER), **changes}
    assert [f.detail for f in access_findings(ApptainerHost(**host), "problem")] == [detail]
    for free in ("root", "setuid"):
        assert not list(access_findings(ApptainerHost(**{**host, free: True}), "problem"))
    assert not list(access_findings(USER, "problem"))


def test_a_host_is_looked_at(tmp_path: Path) -> None:
    program = tmp_path / "usr" / "bin" / "apptainer"
    starter = tmp_path / "usr" / "libexec" / "apptainer" / "bin" / "starter-suid"
    for path in (program, starter):
        path.parent.mkdir(parents=True)
        path.touch()
    for name, value in (("user/max_user_namespaces", "0"), ("kernel/unprivileged_userns_clone",
                                                            "1")):  # fmt: skip
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"{value}\n")
    host = look_at_host(program, tmp_path, tmp_path / "no" / "fuse")
    assert [setting for setting, _ in host.closed] == ["user.max_user_namespaces"]
    assert (host.setuid, host.fuse) == (False, None)
    starter.chmod(0o4755)
    assert look_at_host(program, tmp_path, starter).setuid


@pytest.mark.parametrize("findings", [docker_findings, apptainer_findings])
def test_an_engine_that_is_not_installed_is_a_problem_only_where_it_is_to_be_used(
    findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deploy.checks import engines

    monkeypatch.setenv("PATH", "/no/such")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engines, "_SOCKET", Path("/no/such"))
    assert [(f.level, f.detail) for f in findings(DEPLOYMENT, "warning")] == [
        ("ok", "not installed")
    ]
    (found,) = findings(DEPLOYMENT, "problem")
    assert (found.level, found.detail) == ("problem", "not installed")
    assert found.remedy


def test_an_engine_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    (found,) = docker_findings(DEPLOYMENT, "warning")
    assert found.level == "warning"
    assert found.detail.startswith("no Docker engine answers at unix:///no/such.sock")


GPU = Gpu(0, "GPU-1", "NVIDIA A100", (8, 0), None)
BROKEN = BrokenGpu(1, "GPU 1 cannot be used", "restart the host")


def test_gpus_are_named_and_broken_ones_are_warnings() -> None:
    """GPUs as NVIDIA's driver would tell of them; there are none here."""
    stack = GpuStack("580.65.06", (GPU,), (BROKEN,))
    assert list(stack_findings(stack, wanted=False)) == [
        Finding("ok", "GPU", "NVIDIA driver 580.65.06: GPU 0 (NVIDIA A100)"),
        Finding("warning", "GPU", "GPU 1 cannot be used", "restart the host"),
    ]


def test_no_gpu_is_a_problem_only_for_a_deployment_that_wants_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = NoGpus("no NVIDIA driver here", "install it")
    monkeypatch.setattr("deploy.checks.gpu.find_gpus", lambda: none)
    monkeypatch.setattr("deploy.engines.instances.find_gpus", lambda: none)
    assert list(gpu_findings(DEPLOYMENT)) == [
        Finding("ok", "GPU", "no NVIDIA driver here; none is asked for")
    ]
    assert list(gpu_findings(Deployment(flavour="gpu"))) == [
        Finding("problem", "GPU", "no NVIDIA driver here", "install it")
    ]
