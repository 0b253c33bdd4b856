"""What goes into the image as text: Dockerfile, scripts, model repositories."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format

from deploy.deployment import DEFAULT_MODELS, Ports
from deploy.environment.lock import Flavour
from deploy.images.context import CONTAINERS, SCRIPTS, stage_models
from deploy.packing.layers import IMAGE_PREFIX
from deploy.paths import MODEL_REPOSITORY
from deploy.repository.config import read_config
from deploy.server.command import RESTRICTED_APIS, server_arguments
from deploy.server.distribution import TritonDistribution
from deploy.server.keyed_start import PLACEHOLDER

DOCKERFILE = (CONTAINERS / "Dockerfile").read_text()
SERVE = (CONTAINERS / "serve").read_text()


def flags(text: str) -> dict[str, str]:
    """Return flags by name; the value of a flag without one is empty."""
    return dict(re.findall(r"(--[a-z-]+)(?:=(\S*))?", text))


def test_the_dockerfile_keeps_hadolint_s_rules() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, CONTAINERS / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_takes_from_the_context_what_dockerignore_lets_through() -> None:
    taken = re.findall(r"^(?:ADD|COPY) (\S+) ", DOCKERFILE, re.MULTILINE)
    ignored = (CONTAINERS / ".dockerignore").read_text().splitlines()
    let_through = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert sorted(let_through) == sorted({"Dockerfile", *taken} - {"--from=checked"})


def test_the_scripts_can_be_run_and_know_the_environment_s_place() -> None:
    for script in SCRIPTS:
        text = (CONTAINERS / script).read_text()
        assert os.access(CONTAINERS / script, os.X_OK)
        assert f"{IMAGE_PREFIX}/bin/python" in text.replace("$numl", "/opt/numl")


def test_serve_starts_the_server_as_the_engine_without_a_container_does() -> None:
    arguments = server_arguments(
        distribution=TritonDistribution(root=Path("/opt/tritonserver"), stub_python="3.11"),
        repository=Path("/opt/numl/models/cpu"),
        listen="127.0.0.1",
        ports=Ports(),
        shm_prefix="PREFIX",
        identity="NAME",
    )
    variables = {
        '"$triton/': '"/opt/tritonserver/',
        '"$numl/models/$device"': '"/opt/numl/models/cpu"',
        "$prefix": "PREFIX",
        "$exit_timeout_s": re.findall(r"exit_timeout_s=(\d+)", SERVE)[0],
        "$listen": re.findall(r"NUML_LISTEN:-([\d.]+)", SERVE)[0],
        "$closed": f"{RESTRICTED_APIS}:{PLACEHOLDER}",
    }
    text = SERVE[SERVE.index('"$triton/bin/tritonserver"') : SERVE.rindex('"$@"')]
    for name, value in variables.items():
        text = text.replace(name, value)
    text = re.sub(r"\$\{NUML_\w+:-(\d+)\}", r"\1", text).replace('"', "")
    wanted = flags(" ".join(arguments[1:]))
    # What is in an image does not change, and its server has its host to itself.
    del wanted["--load-model"], wanted["--id"]
    assert flags(text) == wanted | {"--model-control-mode": "none"}


def test_nobody_can_use_the_admin_endpoints_of_an_image_s_own_server() -> None:
    [(apis, name)] = re.findall(r'closed="(.*?):(.*)=', SERVE)
    # Without model control, its list of models is all there is to read.
    assert {*apis.split(",")} == {*RESTRICTED_APIS.split(",")} - {"model-repository"}
    assert ":" in name


@pytest.mark.parametrize(
    ("flavour", "devices"), [("serving", ["cpu"]), ("cpu", ["cpu"]), ("gpu", ["cpu", "gpu"])]
)
def test_the_models_of_an_image(tmp_path: Path, flavour: Flavour, devices: list[str]) -> None:
    stage_models(
        tmp_path / "models",
        repository=MODEL_REPOSITORY,
        models=DEFAULT_MODELS,
        environment_digest="e2bc",
        flavour=flavour,
    )
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == devices
    for device in devices:
        for model in DEFAULT_MODELS:
            config = read_config(tmp_path / "models" / device / model / "config.pbtxt")
            parameters = {name: v.string_value for name, v in config.parameters.items()}
            assert parameters["EXECUTION_ENV_PATH"] == IMAGE_PREFIX
            assert parameters["environment_digest"] == "e2bc"
            kind = "KIND_GPU" if device == "gpu" and model != "nugraph2_cpu" else "KIND_CPU"
            groups = [text_format.MessageToString(group) for group in config.instance_group]
            assert groups == [f"count: 2\nkind: {kind}\n"]
