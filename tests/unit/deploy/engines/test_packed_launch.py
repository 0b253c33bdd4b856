"""A stock image with a packed environment, and a site's models in a container: rendered.

The engines here have an image that is only said to be there, and archives that hold names.
"""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from deploy.deployment.deployment import Deployment, Ports
from deploy.deployment.plan import LaunchPlan
from deploy.engines import base, resolved
from deploy.engines.apptainer import ApptainerEngine
from deploy.engines.container import ContainerEngine, ImageInUse, image_in_use
from deploy.engines.docker import DockerEngine
from deploy.engines.docker_container import create_options, run_command
from deploy.engines.instance import instance_command
from deploy.engines.resolved import Resolved
from deploy.environment.serving import serving_digest
from deploy.host.errors import DeploymentError, EnvironmentSetupError, KitError, LaunchError
from deploy.host.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY
from tests.unit.deploy.engines.site import LABELS, write_distribution
from tests.unit.deploy.site_repository import ENVIRONMENT, write_archive, write_model

PORTS = Ports(http=8010, grpc=8011, metrics=8012)
STOCK = "nvcr.io/nvidia/tritonserver:24.10-py3"
MIB = 2**20
SETTINGS = """
    --env=OMP_NUM_THREADS=1 --env=MKL_NUM_THREADS=1 --env=OPENBLAS_NUM_THREADS=1
    --env=CUDA_VISIBLE_DEVICES=
"""


@pytest.fixture(autouse=True)
def _dist(home, monkeypatch):
    monkeypatch.setattr(resolved, "DIST", home / "dist")


@pytest.fixture
def archive(home):
    """The kit's packed environment, as far as names tell."""
    names = [name.replace("3.10", "3.11") for name in ENVIRONMENT]
    path = home / "dist" / "numl-cpu-py3.11-0123456789ab.tar.gz"
    path.parent.mkdir()
    marker = json.dumps({"digest": "abcdef", "python": "3.11.7"})
    return write_archive(path, names, more={"numlkit-environment.json": marker})


def wanted(**settings: Any) -> Resolved:
    values = {"env": "packed", "models": ("nugraph3",), "instances": 2, **settings}
    return Resolved(Deployment.model_validate(values))


def of_site(home: Path, *models: str, **settings: Any) -> Resolved:
    return wanted(models_dir=home / "site", models=models, **settings)


class Docker(DockerEngine):
    """One whose engine is not asked for the image."""

    @property
    def image(self) -> ImageInUse:
        return image_in_use(self.deployment.image or STOCK, "sha256:1", LABELS, self.resolved)

    user = "1234:100"
    groups = (110,)
    limits = (("stack", 1),)


class Apptainer(ApptainerEngine):
    """One whose .sif is not looked for."""

    @property
    def image(self) -> ImageInUse:
        return image_in_use("/images/triton.sif", "1", LABELS, self.resolved)


def planned(engine: ContainerEngine) -> LaunchPlan:
    return engine.render(ports=PORTS, identity="numlkit-numl-0123", artefact="digest")


def rendered(engine: ContainerEngine) -> LaunchPlan:
    """Return the plan, without what differs from host to host."""
    plan = planned(engine)
    container = plan.container.model_copy(update={"name": "numlkit-numl"})
    return plan.model_copy(update={"arguments": plan.arguments[:1], "container": container})


def test_the_whole_docker_command_of_a_stock_image(home, archive):
    state, scratch = home / "state/numlkit/deployments/numl", f"size={6 * 4096 + 64 * MIB}"
    words = f"""
        docker run --detach --name=numlkit-numl
        --label=org.numlkit.deployment=numl --label=org.numlkit.state={state}
        --user=1234:100 --group-add=110
        --read-only --tmpfs=/tmp:exec,mode=1777,{scratch}
        --cap-drop=ALL --security-opt=no-new-privileges --ulimit=stack=1
        --shm-size=1000000000 --restart=unless-stopped
        --publish=127.0.0.1:8010:8000 --publish=127.0.0.1:8011:8001 --publish=127.0.0.1:8012:8002
        --mount=type=bind,source={state}/model_repository,target=/opt/numl/models/cpu,readonly
        --mount=type=bind,source={archive},target=/opt/numl/environment.tar.gz,readonly
        {SETTINGS}
        --entrypoint=/opt/tritonserver/bin/tritonserver sha256:1
    """
    plan = rendered(Docker(wanted()))
    assert run_command(plan) == tuple(words.split())
    assert create_options(plan)["tmpfs"] == {"/tmp": f"exec,mode=1777,{scratch}"}
    assert "healthcheck" not in create_options(plan), "a stock image has nothing to ask"


def test_the_whole_apptainer_command_of_a_stock_image(home, archive):
    state = home / "state/numlkit/deployments/numl"
    words = f"""
        apptainer instance run --containall --no-privs
        --mount=type=bind,source={state}/model_repository,destination=/opt/numl/models/cpu,ro
        --mount=type=bind,source={archive},destination=/opt/numl/environment.tar.gz,ro
        --mount=type=bind,source={state}/scratch,destination=/tmp
        {SETTINGS}
        /images/triton.sif numlkit-numl /opt/tritonserver/bin/tritonserver
    """
    assert instance_command(rendered(Apptainer(wanted()))) == tuple(words.split())


def test_all_models_name_the_one_archive_and_have_its_stub_beside_them(home, archive):
    root = write_distribution("3.11")
    write_model(home / "site", "m")
    models = Docker(of_site(home, "nugraph2", "nugraph3", "m")).models()
    assert [model.name for model in models] == ["nugraph2", "nugraph3", "m"]
    for model in models:
        place = model.config.parameters["EXECUTION_ENV_PATH"].string_value
        assert place == "/opt/numl/environment.tar.gz"
        assert model.stub.program == root / "backends/python/triton_python_backend_stub"
        names = [path.name for path in model.stub.libraries]
        assert names == ["libcudart-0.so", "libpython3.11.so.1.0"]
    digests = [m.config.parameters["environment_digest"].string_value for m in models[:2]]
    assert digests == ["abcdef"] * 2


def test_the_environments_of_a_site_s_models_are_mounted_and_nothing_else_of_it(home):
    outside = write_archive(home / "their env.tar.gz")
    write_model(home / "site", "m", environment=str(outside))
    plan = rendered(Docker(of_site(home, "m", env="unpacked")))
    mounts = [(m.source, str(m.target), m.writable) for m in plan.container.mounts[1:]]
    assert mounts == [(outside, "/opt/numl/site/environments/1-their_env.tar.gz", False)]
    assert plan.container.extracted_bytes == 5 * 4096
    assert plan.instances == {"m": 2}


def test_an_incomplete_configuration_has_the_server_ask_the_models(home):
    write_model(home / "site", "m", config='backend: "python"')
    ask = "--disable-auto-complete-config"
    for model, asked in ("m", True), ("nugraph3", False):
        plan = planned(Docker(of_site(home, model, env="unpacked")))
        assert (ask not in plan.arguments) == asked


def test_the_archive_is_the_newest_that_was_built_for_this_flavour(home, archive):
    assert wanted().archive == archive
    newer = write_archive(archive.with_name("numl-cpu-py3.11-ffff.tar.gz"))
    write_archive(archive.with_name("numl-gpu-py3.11-0000.tar.gz"))
    os.utime(archive, (0, 0))
    assert wanted().archive == newer
    os.utime(newer, (0, 0))
    small = write_archive(archive.with_name("numl-serving-py3.11-eeee.tar.gz"))
    assert wanted().archive == small
    assert wanted(archive=archive).archive == archive


def test_without_an_archive_of_the_kits_the_command_that_makes_one_is_told(home):
    with pytest.raises(EnvironmentSetupError) as caught:
        _ = wanted().archive
    assert caught.value.cause == f"no packed environment in {home / 'dist'}"
    assert caught.value.remedy == "numlkit build --target env --flavour serving, or --archive PATH"
    with pytest.raises(EnvironmentSetupError, match=r"none\.tar\.gz: no such file"):
        _ = wanted(archive=home / "none.tar.gz").archive
    other = write_archive(home / "other.tar.gz")
    with pytest.raises(EnvironmentSetupError, match=f"^{other} was not packed by this kit$"):
        _ = wanted(archive=other).packed


def test_no_archive_is_needed_where_every_model_has_an_environment(home):
    own = write_archive(home / "own.tar.gz")
    write_model(home / "site", "m", environment=str(own))
    write_model(home / "site", "n")
    assert not of_site(home, "m").uses_archive
    assert of_site(home, "m", "n").uses_archive
    assert of_site(home, "m", "nugraph3").uses_archive
    plan = rendered(Docker(of_site(home, "m")))
    assert "/opt/numl/environment.tar.gz" not in [str(m.target) for m in plan.container.mounts]


def test_what_is_extracted_must_fit_into_memory_with_docker(monkeypatch):
    with pytest.raises(LaunchError, match="the container's limit is 800 MB"):
        Docker(wanted(memory="800m")).require_room(900_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=500_000_000))
    why = "^the packed environments, extracted, take 900 MB of memory; 500 MB is free$"
    with pytest.raises(LaunchError, match=why):
        Docker(wanted()).require_room(900_000_000)
    Docker(wanted()).require_room(0)


def test_what_is_extracted_must_fit_onto_the_disk_with_apptainer():
    why = "not enough disk space: .* for packed environments, extracted"
    with pytest.raises(KitError, match=why):
        Apptainer(wanted()).require_room(2**60)
    Apptainer(wanted()).require_room(1)


@pytest.mark.parametrize("kits", [False, True])
def test_root_is_told_of_files_that_the_server_may_not_read(home, monkeypatch, kits):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    secret = write_model(home / "site", "m") / "model.py"
    settings: dict[str, Any] = {"models_dir": home / "site", "models": ("m",)}
    if kits:
        clone = shutil.copytree(MODEL_REPOSITORY / "nugraph3", home / "clone" / "nugraph3").parent
        monkeypatch.setattr(base, "MODEL_REPOSITORY", clone)
        secret, settings = clone / "nugraph3/1/weights.safetensors", {"models": ("nugraph3",)}
    also = secret.with_name("model.json" if kits else "more names")
    also.touch()
    for file in (secret, also):
        file.chmod(0o600)
    engine = Docker(wanted(env="unpacked", **settings))
    with pytest.raises(DeploymentError) as caught:
        engine.prepare(lambda _text: None)
    assert caught.value.cause == (
        f"{secret}, {also} cannot be read by the server's user in the container (1000, group 0)"
    )
    quoted = f"{secret} '{also}'" if not kits else f"{secret} {also}"
    assert caught.value.remedy == f"chgrp 0 {quoted}; chmod g+r {quoted}"


@pytest.mark.parametrize(
    ("labels", "another"),
    [
        ({}, False),  # by an older kit, or a stock one: nobody knows
        ({"org.numlkit.serving.digest": serving_digest(ENVIRONMENT_SOURCE)}, False),
        ({"org.numlkit.serving.digest": "another"}, True),
    ],
)
def test_an_image_of_another_checkout_is_known(labels, another):
    assert ImageInUse("numl:1", "sha256:1", labels).is_of_another_checkout is another
