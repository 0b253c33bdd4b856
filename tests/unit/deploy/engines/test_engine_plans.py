"""What each engine with a container would do, rendered: whole texts."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.deployment.deployment import Deployment, Ports, Tls
from deploy.deployment.gpus import ON_CPU
from deploy.deployment.plan import ContainerPlan, LaunchPlan, Mount, mount_field
from deploy.engines.container import ImageInUse, image_in_use, tls_in_container
from deploy.engines.docker import readable_in_image
from deploy.engines.docker_container import create_options, run_command
from deploy.engines.instance import instance_command
from deploy.engines.resolved import Resolved
from deploy.host.errors import GpuError, LaunchError
from deploy.host.gpu import Gpu, GpuStack, Memory
from tests.plans import make_plan
from tests.unit.deploy.engines.site import LABELS

PLACE = Path("/opt/numl/models/cpu")
TLS = {"cert": "/tls/my, site.pem", "key": "/tls/k.pem", "ca": "/tls/ca.pem"}


def planned(
    image: str = "numlkit/numl:24.10-cpu", gpus: tuple[str, ...] = (), **settings: Any
) -> LaunchPlan:
    folder = Path("/state/numl")
    return make_plan(
        folder,
        deployment=Deployment.model_validate({"name": "numl", **settings}),
        engine="docker",
        ports=Ports(http=8010, grpc=8011, metrics=8012),
        arguments=("/opt/tritonserver/bin/tritonserver", "--id=numlkit-numl-0123"),
        variables={"OMP_NUM_THREADS": "1"},
        container=ContainerPlan(
            image=image,
            name="numlkit-0-01234567-numl",
            user="1234:100",
            groups=(110, 2000),
            mounts=(Mount(source=folder / "model_repository", target=PLACE),),
            limits=(("memlock", -1), ("stack", 67108864)),
            gpus=gpus,
            health=("/opt/numl/bin/health",),
        ),
    )


def test_the_whole_docker_command():
    words = """
        docker run --detach --name=numlkit-0-01234567-numl
        --label=org.numlkit.deployment=numl --label=org.numlkit.state=/state/numl
        --user=1234:100 --group-add=110 --group-add=2000
        --read-only --tmpfs=/tmp:mode=1777 --cap-drop=ALL --security-opt=no-new-privileges
        --ulimit=memlock=-1 --ulimit=stack=67108864 --shm-size=1000000000
        --cpus=2 --memory=4000000000 --memory-swap=4000000000 --restart=unless-stopped
        --publish=127.0.0.1:8010:8000 --publish=127.0.0.1:8011:8001 --publish=127.0.0.1:8012:8002
        --mount=type=bind,source=/state/numl/model_repository,target=/opt/numl/models/cpu,readonly
        --env=OMP_NUM_THREADS=1
        --health-cmd=/opt/numl/bin/health --health-interval=15s --health-timeout=10s
        --health-start-period=60s --health-retries=3
        --entrypoint=/opt/tritonserver/bin/tritonserver numlkit/numl:24.10-cpu
        --id=numlkit-numl-0123
    """
    assert run_command(planned(cpus=2, memory="4g")) == tuple(words.split())


def test_the_sdk_is_told_the_same_as_the_command_line():
    folder, second = "/state/numl", 10**9
    source, target = f"{folder}/model_repository", str(PLACE)
    times = {"Interval": 15 * second, "Timeout": 10 * second, "StartPeriod": 60 * second}
    options = create_options(planned(cpus=2, memory="4g"))
    assert options == {
        "image": "numlkit/numl:24.10-cpu",
        "name": "numlkit-0-01234567-numl",
        "entrypoint": ["/opt/tritonserver/bin/tritonserver"],
        "command": ["--id=numlkit-numl-0123"],
        "environment": {"OMP_NUM_THREADS": "1"},
        "labels": {"org.numlkit.deployment": "numl", "org.numlkit.state": folder},
        "mounts": [{"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}],
        "ports": {f"{port - 10}/tcp": ("127.0.0.1", port) for port in (8010, 8011, 8012)},
        "user": "1234:100",
        "group_add": [110, 2000],
        "shm_size": 1_000_000_000,
        "ulimits": [
            {"Name": "memlock", "Soft": -1, "Hard": -1},
            {"Name": "stack", "Soft": 67108864, "Hard": 67108864},
        ],
        "nano_cpus": 2 * second,
        "mem_limit": 4_000_000_000,
        "memswap_limit": 4_000_000_000,
        "read_only": True,
        "tmpfs": {"/tmp": "mode=1777"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "restart_policy": {"Name": "unless-stopped"},
        "healthcheck": {"Test": ["CMD", "/opt/numl/bin/health"], "Retries": 3, **times},
    }


def test_without_healing_the_engine_does_not_restart_it_either():
    assert "--restart=no" in run_command(planned(heal=False))
    assert create_options(planned(heal=False))["restart_policy"] == {"Name": "no"}


@pytest.mark.parametrize(
    ("settings", "http", "grpc"),
    [
        ({"listen": "10.0.0.5"}, "127.0.0.1", "10.0.0.5"),
        ({"listen": "10.0.0.5", "tls": TLS}, "127.0.0.1", "10.0.0.5"),
        ({"listen": "::1"}, "[::1]", "[::1]"),
    ],
    ids=["without TLS", "with TLS", "IPv6, in brackets"],
)
def test_what_opens_grpc_to_others_does_not_open_http(settings, http, grpc):
    plan = planned(**settings).model_copy(update={"http_listen": http.strip("[]")})
    published = {8000: (http, 8010), 8001: (grpc, 8011), 8002: (http, 8012)}
    assert [word for word in run_command(plan) if word.startswith("--publish")] == [
        f"--publish={address}:{port}:{within}" for within, (address, port) in published.items()
    ]
    assert create_options(plan)["ports"] == {
        f"{within}/tcp": (address.strip("[]"), port)
        for within, (address, port) in published.items()
    }


def test_the_files_for_tls_are_mounted_under_names_that_do_not_depend_on_theirs():
    inside, mounts = tls_in_container(Tls.model_validate(TLS))
    places = {use: Path(f"/opt/numl/tls/{use}.pem") for use in TLS}
    assert inside == Tls.model_validate(places)
    assert list(mounts) == [Mount(source=Path(TLS[use]), target=places[use]) for use in TLS]
    assert tls_in_container(None) == (None, ())


@pytest.mark.parametrize(
    ("mode", "group", "readable"),
    [(0o600, 0, False), (0o640, 0, True), (0o640, 5, False), (0o644, 5, True)],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="files can be given away by root only")
def test_what_the_image_s_user_may_read(tmp_path, mode, group, readable):
    file = tmp_path / "key"
    file.touch()
    os.chown(file, 0, group)
    file.chmod(mode)
    assert readable_in_image(file) == readable


def test_the_whole_apptainer_command():
    words = """
        apptainer instance run --containall --no-privs
        --mount=type=bind,source=/state/numl/model_repository,destination=/opt/numl/models/cpu,ro
        --env=OMP_NUM_THREADS=1 /dist/numl.sif numlkit-0-01234567-numl
        /opt/tritonserver/bin/tritonserver --id=numlkit-numl-0123
    """
    assert instance_command(planned("/dist/numl.sif")) == tuple(words.split())


@settings(max_examples=50, deadline=None)  # however busy the host is
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n/"), min_size=1).filter(
        lambda name: name not in (".", "..")
    )
)
def test_no_name_of_a_folder_adds_a_field_to_a_mount(name):
    source = Path("/") / name
    field = mount_field(Mount(source=source, target=Path("/m")), "target", "readonly")
    assert next(csv.reader([field])) == ["type=bind", f"source={source}", "target=/m", "readonly"]


NAMED, PACKED = Deployment(image="numl:1"), Deployment(env="packed")


@pytest.mark.parametrize(("deployment", "labels"), [
    (Deployment(), LABELS),
    (Deployment(), LABELS | {"org.numlkit.flavour": "serving"}),
    (NAMED, LABELS | {"org.numlkit.flavour": "gpu"}),  # which starts on CPUs, too
    (PACKED, LABELS),
    (PACKED, {"com.nvidia.tritonserver.version": "2.51.0"}),
])  # fmt: skip
def test_an_image_that_can_serve_a_deployment_is_known_by_its_labels(deployment, labels):
    image = image_in_use("numl:1", "sha256:1", labels, Resolved(deployment))
    assert image == ImageInUse("numl:1", "sha256:1", labels)
    assert image.environment_digest == labels.get("org.numlkit.environment.digest", "")


@pytest.mark.parametrize(("deployment", "labels", "cause"), [
    (Deployment(), {}, "was not built by this kit: it has no label org.numlkit.environment.digest"),
    (Deployment(), LABELS | {"org.numlkit.flavour": "gpu"},
     "was built for flavour gpu; this deployment needs serving or cpu"),
    (Deployment(), LABELS | {"org.numlkit.triton.release": "25.03"},
     "was built for Triton 25.03; this deployment needs 24.10"),
    (PACKED, {}, "does not say which Triton it has, and its server does not start"),
    (PACKED, {"com.nvidia.tritonserver.version": "2.56.0"},
     "has Triton 2.56.0; this deployment's stubs are for 2.51.0"),
    (PACKED, {"org.numlkit.triton.release": "25.03"},
     "has Triton 25.03; this deployment needs 24.10"),
])  # fmt: skip
def test_another_image_is_refused(deployment, labels, cause):
    with pytest.raises(LaunchError) as caught:
        image_in_use("numl:1", "sha256:1", labels, Resolved(deployment))
    assert caught.value.cause == f"numl:1 {cause}"


def test_a_container_is_given_its_gpus_by_uuid():
    plan = planned(gpus=("GPU-1", "GPU-2"))
    assert '--gpus="device=GPU-1,GPU-2"' in run_command(plan)
    asked = {"DeviceIDs": ["GPU-1", "GPU-2"], "Capabilities": [["gpu"]]}
    wanted = {"Driver": "", "Count": 0, "Options": {}, **asked}
    assert create_options(plan)["device_requests"] == [wanted]
    assert "--nv" in instance_command(plan)


def test_models_are_spread_over_gpus_and_those_made_for_a_cpu_stay_there(monkeypatch):
    """Two devices stand for NVIDIA GPUs, which this machine does not have."""
    memory = Memory(total=80 << 30, free=70 << 30)
    gpus = tuple(Gpu(i, f"GPU-{i}", "H100", (9, 0), memory) for i in range(2))
    stack = GpuStack("580.65.06", gpus, ())
    monkeypatch.setattr("deploy.engines.resolved.find_gpus", lambda: stack)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    resolved = Resolved(Deployment(flavour="gpu", cpus=1))
    assert resolved.instances == {"nugraph2": 2, "nugraph2_cpu": 3, "nugraph3": 2}
    assert resolved.gpu_instances == 1


def test_the_driver_is_asked_once_for_a_whole_launch(monkeypatch):
    asked = []
    none = GpuError("no NVIDIA driver here", "install it")
    monkeypatch.setattr("deploy.engines.resolved.find_gpus", lambda: asked.append(1) or none)
    resolved = Resolved(Deployment(flavour="gpu"))
    for _ in range(3):
        with pytest.raises(GpuError):
            _ = resolved.devices
    assert asked == [1]


def test_gpus_are_never_used_unless_asked_for(monkeypatch):
    monkeypatch.setattr("deploy.engines.resolved.find_gpus", lambda: pytest.fail("looked for"))
    assert Resolved(Deployment()).devices == ON_CPU
