"""A stock image with a packed environment, and a site's models in a container: rendered.

The engines here have an image that is only said to be there, and archives that hold names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.deployment import Deployment, Ports
from deploy.engines import choose, packed
from deploy.engines.apptainer_engine import ApptainerEngine
from deploy.engines.choose import choose_engine
from deploy.engines.container import ContainerEngine, ImageInUse, image_in_use, uses_archive
from deploy.engines.container_options import create_options, run_command
from deploy.engines.docker_engine import DockerEngine
from deploy.engines.packed import find_archive, packed_environment
from deploy.engines.ready_times import compared, remember
from deploy.environment.serving import serving_digest
from deploy.errors import DeploymentError, EnvironmentSetupError, KitError, LaunchError
from deploy.paths import ENVIRONMENT_SOURCE
from deploy.plan import LaunchPlan
from deploy.server.command import CONTAINER_KEY, LAUNCHER
from deploy.server.command import TOLERANT_LAUNCHER as TOLERANT
from deploy.server.distribution import distribution_folder
from deploy.server.release import find_release
from deploy.supervisor.instance import instance_command
from tests.unit.deploy.site_repository import ENVIRONMENT, write_archive, write_model

PORTS = Ports(http=8010, grpc=8011, metrics=8012)
STOCK = "nvcr.io/nvidia/tritonserver:24.10-py3"
MIB = 2**20
LABELS = {
    "org.numlkit.environment.digest": "abc",
    "org.numlkit.flavour": "cpu",
    "org.numlkit.triton.release": "24.10",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(packed, "CHECKOUT", tmp_path)
    return tmp_path


@pytest.fixture
def archive(home: Path) -> Path:
    """The kit's packed environment, as far as names tell."""
    names = [name.replace("3.10", "3.11") for name in ENVIRONMENT]
    path = home / "dist" / "numl-cpu-py3.11-0123456789ab.tar.gz"
    path.parent.mkdir()
    marker = json.dumps({"digest": "abcdef", "python": "3.11.7"})
    return write_archive(path, names, more={"numlkit-environment.json": marker})


def wanted(**settings: Any) -> Deployment:
    return Deployment.model_validate(
        {"env": "packed", "models": ("nugraph3",), "instances": 2, **settings}
    )


class Docker(DockerEngine):
    """One whose engine is not asked for the image."""

    def image(self, *, deployment: Deployment) -> ImageInUse:
        return image_in_use(deployment.image or STOCK, "sha256:1", LABELS, deployment)


class Apptainer(ApptainerEngine):
    """One whose .sif is not looked for."""

    def image(self, *, deployment: Deployment) -> ImageInUse:
        return image_in_use("/images/triton.sif", "1", LABELS, deployment)


def planned(engine: ContainerEngine, deployment: Deployment) -> LaunchPlan:
    return engine.planned(
        deployment,
        ports=PORTS,
        listen="0.0.0.0",
        http_listen="0.0.0.0",
        inner_ports=Ports(),
        new_key=CONTAINER_KEY if engine.name == "docker" else None,
        user="1234:100",
    )


def rendered(engine: ContainerEngine, deployment: Deployment) -> LaunchPlan:
    """Return the plan, without what differs from host to host."""
    plan = planned(engine, deployment)
    assert plan.container is not None
    container = plan.container.model_copy(update={"name": "numlkit-numl"})
    return plan.model_copy(update={"arguments": ("tritonserver",), "container": container})


def test_the_whole_docker_command_of_a_stock_image(home: Path, archive: Path) -> None:
    state = home / "state/numlkit/deployments/numl"
    plan = rendered(Docker(), wanted())
    assert run_command(plan) == (
        "docker",
        "run",
        "--detach",
        "--name=numlkit-numl",
        "--label=org.numlkit.deployment=numl",
        f"--label=org.numlkit.state={state}",
        "--user=1234:100",
        "--read-only",
        f"--tmpfs=/tmp:exec,mode=1777,size={6 * 4096 + 64 * MIB}",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--shm-size=1000000000",
        "--restart=unless-stopped",
        "--publish=127.0.0.1:8010:8000",
        "--publish=127.0.0.1:8011:8001",
        "--publish=127.0.0.1:8012:8002",
        f"--mount=type=bind,source={state}/model_repository,target=/opt/numl/models/cpu,readonly",
        f"--mount=type=bind,source={LAUNCHER},target=/opt/numl/keyed_start.py,readonly",
        f"--mount=type=bind,source={TOLERANT},target=/opt/numl/with_or_without_key.sh,readonly",
        f"--mount=type=bind,source={archive},target=/opt/numl/environment.tar.gz,readonly",
        "--env=OMP_NUM_THREADS=1",
        "--env=MKL_NUM_THREADS=1",
        "--env=OPENBLAS_NUM_THREADS=1",
        "--env=CUDA_VISIBLE_DEVICES=",
        "--entrypoint=tritonserver",
        STOCK,
    )
    assert create_options(plan)["tmpfs"] == {"/tmp": f"exec,mode=1777,size={6 * 4096 + 64 * MIB}"}
    assert "healthcheck" not in create_options(plan), "a stock image has nothing to ask"


def test_the_whole_apptainer_command_of_a_stock_image(home: Path, archive: Path) -> None:
    state = home / "state/numlkit/deployments/numl"
    assert instance_command(rendered(Apptainer(), wanted())) == (
        "apptainer",
        "instance",
        "run",
        "--containall",
        "--no-privs",
        f"--mount=type=bind,source={state}/model_repository,destination=/opt/numl/models/cpu,ro",
        f"--mount=type=bind,source={LAUNCHER},destination=/opt/numl/keyed_start.py,ro",
        f"--mount=type=bind,source={state}/admin.key,destination=/opt/numl/admin.key,ro",
        f"--mount=type=bind,source={TOLERANT},destination=/opt/numl/with_or_without_key.sh,ro",
        f"--mount=type=bind,source={archive},destination=/opt/numl/environment.tar.gz,ro",
        f"--mount=type=bind,source={state}/scratch,destination=/tmp",
        "--env=OMP_NUM_THREADS=1",
        "--env=MKL_NUM_THREADS=1",
        "--env=OPENBLAS_NUM_THREADS=1",
        "--env=CUDA_VISIBLE_DEVICES=",
        "/images/triton.sif",
        "numlkit-numl",
        "tritonserver",
    )


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        (Docker(), ("--new-key-file", "/tmp/admin.key")),
        (Apptainer(), ("--key-file", "/opt/numl/admin.key")),
    ],
)
def test_a_stock_image_s_own_python_hides_the_key(
    engine: ContainerEngine, key: tuple[str, str], archive: Path
) -> None:
    arguments = planned(engine, wanted()).arguments
    assert arguments[: arguments.index("--") + 2] == (
        "/bin/sh",
        "/opt/numl/with_or_without_key.sh",
        "/usr/bin/python3",
        "-IS",
        "/opt/numl/keyed_start.py",
        *key,
        "--",
        "/opt/tritonserver/bin/tritonserver",
    )


def test_all_models_name_the_one_archive_and_have_its_stub_beside_them(
    home: Path, archive: Path
) -> None:
    root = distribution_folder(home / "cache/numlkit", find_release("24.10"), "3.11")
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "libcudart-0.so").touch()
    write_model(home / "site", "m")
    models = Docker().models(
        deployment=wanted(models=("nugraph2", "nugraph3", "m"), models_dir=home / "site")
    )
    assert [model.name for model in models] == ["nugraph2", "nugraph3", "m"]
    for model in models:
        place = model.config.parameters["EXECUTION_ENV_PATH"].string_value
        assert place == "/opt/numl/environment.tar.gz"
        assert model.stub is not None
        assert model.stub.program == root / "backends/python/triton_python_backend_stub"
        names = [path.name for path in model.stub.libraries]
        assert names == ["libcudart-0.so", "libpython3.11.so.1.0"]
    digests = [m.config.parameters["environment_digest"].string_value for m in models[:2]]
    assert digests == ["abcdef"] * 2


def test_a_sites_repository_and_its_environments_are_mounted_beside_ours(home: Path) -> None:
    outside = write_archive(home / "their env.tar.gz")
    write_model(home / "site", "m", environment=str(outside))
    plan = rendered(Docker(), wanted(env="unpacked", models_dir=home / "site", models=("m",)))
    assert plan.container is not None
    mounts = [(m.source, str(m.target), m.writable) for m in plan.container.mounts[2:]]
    assert mounts == [
        (home / "site", "/opt/numl/site/models", False),
        (outside, "/opt/numl/site/environments/1-their_env.tar.gz", False),
    ]
    assert plan.container.extracted_bytes == 5 * 4096
    assert plan.instances == {"m": 2}
    assert plan.site_models == ("m",)


def test_an_incomplete_configuration_has_the_server_ask_the_models(home: Path) -> None:
    write_model(home / "site", "m", config='backend: "python"')
    ask = "--disable-auto-complete-config"
    for models, asked in (("m",), True), (("nugraph3",), False):
        deployment = wanted(env="unpacked", models_dir=home / "site", models=models)
        plan = Docker().planned(
            deployment, ports=PORTS, listen="::", http_listen="::", inner_ports=Ports()
        )
        assert (ask not in plan.arguments) == asked


def test_the_archive_is_the_newest_that_was_built_for_this_flavour(
    home: Path, archive: Path
) -> None:
    assert find_archive(wanted()) == archive
    newer = write_archive(archive.with_name("numl-cpu-py3.11-ffff.tar.gz"))
    write_archive(archive.with_name("numl-gpu-py3.11-0000.tar.gz"))
    os.utime(archive, (0, 0))
    assert find_archive(wanted()) == newer
    os.utime(newer, (0, 0))
    small = write_archive(archive.with_name("numl-serving-py3.11-eeee.tar.gz"))
    assert find_archive(wanted()) == small
    assert find_archive(wanted(archive=archive)) == archive


def test_without_an_archive_the_command_that_makes_one_is_told(home: Path) -> None:
    with pytest.raises(EnvironmentSetupError) as caught:
        find_archive(wanted())
    assert caught.value.cause == f"no packed environment in {home / 'dist'}"
    assert caught.value.remedy == (
        "python3 deploy/build.py --target env --flavour serving, or --archive PATH"
    )
    with pytest.raises(EnvironmentSetupError, match=r"none\.tar\.gz: no such file"):
        find_archive(wanted(archive=home / "none.tar.gz"))


def test_an_archive_that_is_not_the_kits_is_refused(home: Path) -> None:
    other = write_archive(home / "other.tar.gz")
    with pytest.raises(EnvironmentSetupError) as caught:
        packed_environment(wanted(archive=other))
    assert caught.value.cause == f"{other} is none of the kit's packed environments"


def test_no_archive_is_needed_where_every_model_has_an_environment(home: Path) -> None:
    own = write_archive(home / "own.tar.gz")
    write_model(home / "site", "m", environment=str(own))
    write_model(home / "site", "n")
    assert not uses_archive(wanted(models_dir=home / "site", models=("m",)))
    assert uses_archive(wanted(models_dir=home / "site", models=("m", "n")))
    assert uses_archive(wanted(models_dir=home / "site", models=("m", "nugraph3")))
    plan = rendered(Docker(), wanted(models_dir=home / "site", models=("m",)))
    assert plan.container is not None
    assert "/opt/numl/environment.tar.gz" not in [str(m.target) for m in plan.container.mounts]


@pytest.mark.parametrize(
    ("labels", "cause"),
    [
        (
            {"com.nvidia.tritonserver.version": "2.56.0"},
            "image has Triton 2.56.0, the stubs are those of 2.51.0",
        ),
        (
            {"org.numlkit.triton.release": "25.03"},
            "image has Triton 25.03, wanted is 24.10",
        ),
    ],
)
def test_a_stock_image_of_another_triton_is_refused(labels: dict[str, str], cause: str) -> None:
    with pytest.raises(LaunchError) as caught:
        image_in_use("image", "1", labels, wanted())
    assert caught.value.cause == cause


@pytest.mark.parametrize("labels", [{}, {"com.nvidia.tritonserver.version": "2.51.0"}, LABELS])
def test_any_other_image_may_be_a_stock_one(labels: dict[str, str]) -> None:
    assert image_in_use("image", "1", labels, wanted()).name == "image"


def test_what_is_extracted_must_fit_into_memory_with_docker(
    home: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LaunchError, match="the container is to have 800 MB"):
        Docker().require_room(wanted(memory="800m"), 900_000_000)
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: type("Memory", (), {"available": 500_000_000})
    )
    with pytest.raises(LaunchError) as caught:
        Docker().require_room(wanted(), 900_000_000)
    assert caught.value.cause == (
        "packed environments take 900 MB of memory when they are extracted, 500 MB are free"
    )
    Docker().require_room(wanted(), 0)


def test_what_is_extracted_must_fit_onto_the_disk_with_apptainer() -> None:
    with pytest.raises(KitError, match=r"disk too small: .* for packed environments, extracted"):
        Apptainer().require_room(wanted(), 2**60)
    Apptainer().require_room(wanted(), 1)


def test_root_is_told_of_files_that_the_server_may_not_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    secret = write_model(home / "site", "m") / "model.py"
    secret.chmod(0o600)
    with pytest.raises(DeploymentError) as caught:
        Docker().prepare(
            deployment=wanted(env="unpacked", models_dir=home / "site", models=("m",)),
            say=lambda _text: None,
        )
    assert caught.value.cause == (
        f"{secret}: the server's user in the container (1000, group 0) may not read it"
    )


def test_auto_needs_an_engine_for_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __init__(self, name: str) -> None:
            self.name = name

        def artefact(self, *, deployment: Deployment) -> str:
            raise LaunchError(f"{self.name} is not here", "install it")

    monkeypatch.setattr(choose, "engine_named", Nothing)
    with pytest.raises(LaunchError) as caught:
        choose_engine(wanted())
    assert caught.value.cause == (
        "no engine can start a stock image: docker: docker is not here "
        "(install it); apptainer: apptainer is not here (install it)"
    )


def test_a_start_is_compared_with_what_was_seen_on_this_host(home: Path, archive: Path) -> None:
    packed_plan = rendered(Docker(), wanted())
    unpacked_plan = rendered(Docker(), wanted(env="unpacked"))
    assert compared(unpacked_plan, 6.0) is None
    assert compared(packed_plan, 17.04) == (
        "ready in 17.0 s, after 0 MB were extracted; in the kit's image (without --env packed) "
        "they lie unpacked"
    )
    remember(unpacked_plan, 6.0)
    remember(packed_plan, 17.04)
    assert compared(packed_plan, 18.0) == (
        "ready in 18.0 s; from the kit's image the same took 6.0 s on this host"
    )
    assert compared(unpacked_plan, 6.5) == (
        "ready in 6.5 s; with --env packed the same took 17.0 s on this host"
    )
    other = rendered(Docker(), wanted(env="unpacked", instances=1))
    assert compared(other, 5.0) is None, "other instances are not the same"


def test_a_file_of_times_that_is_damaged_is_no_mistake(home: Path, archive: Path) -> None:
    file = home / "cache/numlkit/ready-seconds.json"
    file.parent.mkdir(parents=True)
    file.write_text("[]")
    plan = rendered(Docker(), wanted())
    assert compared(plan, 1.0)
    remember(plan, 1.0)
    assert len(json.loads(file.read_text())) == 1


def test_a_start_whose_time_cannot_be_kept_is_no_failure(home: Path, archive: Path) -> None:
    plan = rendered(Docker(), wanted())
    (home / "cache/numlkit/ready-seconds.lock").mkdir(parents=True)
    remember(plan, 1.0)
    assert not (home / "cache/numlkit/ready-seconds.json").exists()


@pytest.mark.parametrize(
    ("labels", "another"),
    [
        ({}, False),  # by an older kit, or a stock one: nobody knows
        ({"org.numlkit.serving.digest": serving_digest(ENVIRONMENT_SOURCE)}, False),
        ({"org.numlkit.serving.digest": "another"}, True),
    ],
)
def test_an_image_of_another_checkout_is_known(labels: dict[str, str], another: bool) -> None:
    assert ImageInUse("numl:1", "sha256:1", labels).is_of_another_checkout() is another
