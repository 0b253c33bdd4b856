"""What engines and hosts say of themselves; tests/containers asks the engines."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from docker.errors import ImageNotFound

from deploy.artefacts.labels import (
    ENVIRONMENT_LABEL,
    FLAVOUR_LABEL,
    TRITON_DIGEST_LABEL,
    TRITON_LABEL,
)
from deploy.checks.host import gpu_findings
from deploy.deployment.deployment import Deployment
from deploy.engines import apptainer
from deploy.engines.apptainer import ApptainerEngine, labels_of, obstacles
from deploy.engines.container import image_in_use
from deploy.engines.docker import DockerEngine, docker_in_words
from deploy.engines.resolved import Resolved
from deploy.host.errors import GpuError, LaunchError
from deploy.host.finding import Finding
from deploy.host.gpu import BrokenGpu, Gpu, GpuStack
from deploy.triton.release import RELEASES
from tests.programs import write_program

VERSION = {"Version": "20.10.24", "ApiVersion": "1.41", "Components": [{"Name": "Engine"}]}
INFO = {"Driver": "overlay2", "DockerRootDir": "/var/lib/docker", "CgroupVersion": "2"}
RESOLVED = Resolved(Deployment())
APPTAINER = ApptainerEngine(RESOLVED)


@pytest.mark.parametrize(
    ("version", "info", "says"),
    [
        ({}, {}, "Docker 20.10.24 (API 1.41), {info}"),
        (
            {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]},
            {
                "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"],
                "Runtimes": {"crun": {}, "nvidia": {}},
            },
            "podman 4.3.1 (API 1.41), {info}, rootless, NVIDIA runtime",
        ),
    ],
    ids=["Docker", "podman without root"],
)
def test_an_engine_says_what_it_is(version, info, says):
    """Recorded: podman 4.3's answers, of which only these fields are read."""
    always = "storage overlay2 in /var/lib/docker, cgroup v2"
    assert docker_in_words(VERSION | version, INFO | info) == says.format(info=always)


@pytest.mark.parametrize(
    ("caller", "options", "user", "groups", "limits"),
    [
        (1234, ["name=rootless"], "0:0", (), ["stack"]),
        (1234, ["name=seccomp,profile=default"], "1234:100", (110,), ["memlock", "stack"]),
        (1234, None, "1234:100", (110,), ["memlock", "stack"]),
        (0, ["name=rootless"], None, (), ["stack"]),
    ],
)
def test_a_rootless_engine_s_user_is_root_in_a_container_and_no_limit_is_raised(
    monkeypatch, caller, options, user, groups, limits
):
    """Docker's rootless mode maps its own user to root, and 65,536 others; it has no capability."""
    client = SimpleNamespace(info=lambda: {"SecurityOptions": options}, close=lambda: None)
    monkeypatch.setattr("deploy.engines.docker.connect", lambda: client)
    monkeypatch.setattr("deploy.engines.docker.may_raise_limits", lambda: True)
    for name, answer in (("getuid", caller), ("getgid", 100), ("getgroups", [100, 110])):
        monkeypatch.setattr(os, name, lambda answer=answer: answer)
    engine = DockerEngine(RESOLVED)
    assert (engine.user, engine.groups) == (user, groups)
    assert [name for name, _ in engine.limits] == limits


def test_limits_that_an_engine_would_silently_drop_are_named():
    info: dict[str, Any] = {"MemoryLimit": False, "CpuCfsQuota": False}
    assert not list(DockerEngine(RESOLVED).limit_findings(info, "problem"))
    limited = DockerEngine(Resolved(Deployment(memory="4g", cpus=2)))
    assert [f.detail for f in limited.limit_findings(info, "problem")] == [
        f"the engine cannot enforce {flag}: it has no cgroup for that here"
        for flag in ("--memory", "--cpus")
    ]
    assert not list(limited.limit_findings({"MemoryLimit": True}, "problem"))


def test_an_engine_without_a_runtime_for_gpus_that_are_wanted_is_a_warning():
    """What engines with NVIDIA's toolkit say is recorded; there is none here."""
    gpu = DockerEngine(Resolved(Deployment(flavour="gpu")))
    (found,) = gpu.runtime_findings({"Runtimes": {"runc": {}}})
    assert (found.level, found.detail) == ("warning", "the engine lists no GPU runtime")
    assert "nvidia-container-toolkit" in (found.remedy or "")
    assert not list(gpu.runtime_findings({"Runtimes": {"runc": {}, "nvidia": {}}}))
    devices = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]
    assert not list(gpu.runtime_findings({"DiscoveredDevices": devices}))
    assert not list(DockerEngine(RESOLVED).runtime_findings({}))


def test_what_keeps_an_ordinary_user_from_a_sif_is_named(tmp_path, monkeypatch):
    fuse = tmp_path / "fuse"
    settings = {"user/max_user_namespaces": 0, "kernel/unprivileged_userns_clone": 1}
    for name, value in settings.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(apptainer, "_PROC_SYS", tmp_path)
    monkeypatch.setattr(apptainer, "_FUSE", fuse)
    assert [cause for cause, _ in obstacles()] == [
        "ordinary users cannot create namespaces: user.max_user_namespaces is 0",
        "there is no /dev/fuse: ordinary users cannot mount a .sif",
    ]
    fuse.touch()
    monkeypatch.setattr(apptainer, "_PROC_SYS", tmp_path / "none")
    assert not list(obstacles())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    ((cause, _),) = obstacles()
    assert cause == "this user may not open /dev/fuse, and so cannot mount a .sif"


@pytest.mark.parametrize(("root", "setuid"), [(False, False), (True, False), (False, True)])
def test_it_keeps_neither_root_nor_a_setuid_apptainer_from_it(root, setuid, tmp_path, monkeypatch):
    """A script stands for Apptainer."""
    program, starter = (
        write_program(tmp_path / "usr" / path, "echo apptainer version 1.4.5")
        for path in ("bin/apptainer", "libexec/apptainer/bin/starter-suid")
    )
    starter.chmod(0o4755 if setuid else 0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(apptainer, "obstacles", lambda: iter([("no FUSE", "modprobe")]))
    found = [finding.detail for finding in APPTAINER.findings("problem")]
    assert found[0] == f"apptainer 1.4.5{', setuid' * setuid}"
    assert ("no FUSE" in found) == (not root and not setuid)


@pytest.mark.parametrize("engine", [DockerEngine(RESOLVED), APPTAINER])
def test_an_engine_that_is_not_installed_is_a_problem_only_where_it_is_to_be_used(
    engine, monkeypatch
):
    monkeypatch.setenv("PATH", "/no/such")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("deploy.engines.docker._SOCKET", Path("/no/such"))
    said = f"{engine.name} is not installed"  # by name: doctor tells one cause once
    assert [(f.level, f.detail) for f in engine.findings("warning")] == [("ok", said)]
    (found,) = engine.findings("problem")
    assert (found.level, found.detail) == ("problem", said)
    assert found.remedy


def test_an_engine_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
    (found,) = DockerEngine(RESOLVED).findings("warning")
    assert found.level == "warning"
    assert found.detail.startswith("no Docker engine answers at unix:///no/such.sock")


@pytest.mark.parametrize(("script", "cause"), [
    ("echo 'FATAL:   no idea' >&2; exit 255", "{sif}: apptainer cannot read it: no idea"),
    ("exit 0", "{sif}: apptainer cannot read it: unexpected output from apptainer inspect"),
    ("echo '{}'", "{sif}: apptainer cannot read it: unexpected output from apptainer inspect"),
    (None, "{sif}: apptainer cannot read it: No such file or directory"),
])  # fmt: skip
def test_a_failed_inspection_is_never_taken_for_an_answer(script, cause, tmp_path, monkeypatch):
    """A script stands for Apptainer."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        write_program(tmp_path / "apptainer", script)
    sif = tmp_path / "numl.sif"
    with pytest.raises(LaunchError) as caught:
        labels_of(sif)
    assert caught.value.cause == cause.format(sif=sif)


GPU = Gpu(0, "GPU-1", "NVIDIA A100", (8, 0), None)
BROKEN = BrokenGpu(1, "GPU 1 cannot be used", "restart the host")
NONE = GpuError("no NVIDIA driver here", "install it")


@pytest.mark.parametrize(
    ("found", "flavour", "findings"),
    [
        (
            GpuStack("580.65.06", (GPU,), (BROKEN,)),
            "cpu",
            [
                Finding("ok", "GPU", "NVIDIA driver 580.65.06: GPU 0 (NVIDIA A100)"),
                Finding("warning", "GPU", "GPU 1 cannot be used", "restart the host"),
            ],
        ),
        (NONE, "cpu", [Finding("ok", "GPU", "no NVIDIA driver here; no GPU is requested")]),
        (NONE, "gpu", [Finding("problem", "GPU", "no NVIDIA driver here", "install it")]),
    ],
    ids=["one is broken", "none is there nor wanted", "none is there, and one is wanted"],
)
def test_gpus_are_named_and_a_problem_only_where_they_are_wanted(
    monkeypatch, found, flavour, findings
):
    """GPUs as NVIDIA's driver would tell of them; there are none here."""
    monkeypatch.setattr("deploy.engines.resolved.find_gpus", lambda: found)
    assert list(gpu_findings(Resolved(Deployment(flavour=flavour)))) == findings


def test_a_sif_given_to_docker_is_for_the_other_engine(monkeypatch):
    client = Mock(**{"images.get.side_effect": ImageNotFound("no")})
    monkeypatch.setattr("deploy.engines.docker.connect", lambda: client)
    with pytest.raises(LaunchError, match=r"has no image numl\.sif$") as e:
        DockerEngine(Resolved(Deployment(image="numl.sif"))).image  # noqa: B018
    assert e.value.remedy == "--engine apptainer, which starts .sif files"


def test_an_image_with_another_build_of_the_same_triton_is_not_taken_for_the_one_named(
    monkeypatch,
):
    labels = {ENVIRONMENT_LABEL: "e", FLAVOUR_LABEL: "serving", TRITON_LABEL: "2.73.0"}
    mended = replace(RELEASES["24.10"], release="2.73.0", digest="sha256:mended")
    monkeypatch.setattr(Resolved, "release", mended)
    named = Resolved(Deployment(triton="/opt/patched"))
    for known in ({}, {TRITON_DIGEST_LABEL: "sha256:mended"}):  # older kits labelled none
        assert image_in_use("numl", "sha256:1", labels | known, named).digest == "sha256:1"
    with pytest.raises(LaunchError) as e:
        image_in_use("numl", "sha256:1", labels | {TRITON_DIGEST_LABEL: "sha256:old"}, named)
    assert e.value.cause == "numl has a Triton 2.73.0 that was not made from /opt/patched"
    assert e.value.remedy == "numlkit build --triton /opt/patched, or another --image"


SERVING, CPU = (f"numlkit/numl:24.10-{flavour}" for flavour in ("serving", "cpu"))


@pytest.mark.parametrize("named", [True, False])
def test_a_built_image_that_was_pruned_does_not_hide_the_tag(monkeypatch, named):
    built, tagged = (f"sha256:{digit * 64}" for digit in "12")
    images = {SERVING: tagged, CPU: "sha256:3"}

    def get(asked: str) -> SimpleNamespace:
        if asked not in images:
            raise ImageNotFound("no")
        labels = {ENVIRONMENT_LABEL: "e", TRITON_LABEL: "24.10"}
        flavour = {FLAVOUR_LABEL: "cpu" if asked == CPU else "serving"}
        return SimpleNamespace(id=images[asked], labels=labels | flavour)

    client = SimpleNamespace(images=SimpleNamespace(get=get), close=lambda: None)
    monkeypatch.setattr("deploy.engines.docker.connect", lambda: client)
    monkeypatch.setattr("deploy.engines.docker.built_here", lambda: {SERVING: built})

    def started() -> tuple[str, list[str]]:
        engine, said = DockerEngine(Resolved(Deployment(image=SERVING if named else None))), []
        engine.fetch(said.append)
        return engine.image.digest, said

    another = "names another image than this checkout has built, which is gone"
    warning = f"warning: {SERVING} {another}; numlkit build makes a new one"
    assert started() == (tagged, [warning])
    images[built] = built
    assert started() == (built, [])
    # What is gone altogether is told, or the next flavour is taken, as before.
    del images[built], images[SERVING]
    if named:
        with pytest.raises(LaunchError, match=f"has no image {SERVING}$"):
            started()
    else:
        assert started() == ("sha256:3", [])


def test_a_sif_that_is_not_there_is_told_without_a_look_for_the_triton(monkeypatch, tmp_path):
    monkeypatch.setattr("deploy.engines.apptainer.shutil.which", str)
    sif = tmp_path / "none.sif"
    # Nobody answers there.
    deployment = Deployment(image=str(sif), triton="127.0.0.1:1/lab/tritonserver:24.10")
    with pytest.raises(LaunchError, match=rf"^{sif}: no such file$"):
        ApptainerEngine(Resolved(deployment)).image  # noqa: B018


def test_a_sif_in_a_registry_is_pulled_first(monkeypatch):
    monkeypatch.setattr("deploy.engines.apptainer.shutil.which", str)
    image = "oras://registry.example.org/lab/numl-sif:24.10-serving"
    with pytest.raises(LaunchError, match=f"^{image} is in a registry$") as e:
        ApptainerEngine(Resolved(Deployment(image=image))).image  # noqa: B018
    assert e.value.remedy == f"apptainer pull numl.sif {image}, then --image numl.sif"
