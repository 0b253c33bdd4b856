"""What goes into the image as text: Dockerfile, scripts, model repositories."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from google.protobuf import text_format

from deploy.artefacts.context import (
    CONTAINERS,
    MARKER,
    SCRIPTS,
    Packed,
    check_target,
    mark_wired,
    stage_models,
    wire,
    write_scripts,
)
from deploy.deployment.deployment import DEFAULT_MODELS, Ports
from deploy.deployment.limits import FEWEST_BOUNDED
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.environment import Environment
from deploy.host.errors import BuildError
from deploy.triton.command import server_arguments
from deploy.triton.config import model_config_pb2, read_config, template_of
from deploy.triton.distribution import TritonDistribution
from deploy.triton.release import DEFAULT, RELEASES
from deploy.triton.stage import StagedModel
from tests.programs import run_program, write_program

DOCKERFILE = (CONTAINERS / "Dockerfile").read_text()


def test_the_dockerfile_keeps_hadolint_s_rules():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = run_program([hadolint, CONTAINERS / "Dockerfile"])
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_takes_from_the_context_what_dockerignore_lets_through():
    taken = re.findall(r"^(?:ADD|COPY) (\S+) ", DOCKERFILE, re.MULTILINE)
    ignored = (CONTAINERS / ".dockerignore").read_text().splitlines()
    let_through = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert sorted(let_through) == sorted(
        {"Dockerfile", "environments", *taken} - {"--from=checked"}
    )


def test_the_scripts_can_be_run_and_know_the_environment_s_place():
    for script in SCRIPTS:
        text = (CONTAINERS / script).read_text()
        assert os.access(CONTAINERS / script, os.X_OK)
        needs_python = script != "probe"  # which is asked every few seconds
        assert (f"{IMAGE_PREFIX}/bin/python" in text.replace("$numl", "/opt/numl")) == needs_python


def test_all_of_a_wired_repository_can_be_read_whatever_the_umask(tmp_path):
    archive, target = tmp_path / "numl.tar.gz", tmp_path / "model_store"
    archive.touch(0o644)
    lock = SimpleNamespace(python="3.10")
    environment = SimpleNamespace(digest="d", flavour="serving", lock=lock)
    packed = Packed(archive, cast(Environment, environment), Path(IMAGE_PREFIX))
    release = replace(RELEASES[DEFAULT], wheel=None)  # with a stub for that Python
    before = os.umask(0o077)
    try:
        wire(target, [packed], release, TritonDistribution(tmp_path, "3.10"))
    finally:
        os.umask(before)
    assert [path for path in target.rglob("*") if not path.stat().st_mode & 0o004] == []


def test_a_mount_point_is_no_place_for_a_wired_repository():
    with pytest.raises(BuildError, match="/proc is a mount point") as raised:
        check_target(Path("/proc"))
    assert str(raised.value.remedy) == "choose a folder in it, such as /proc/models"


def test_a_wired_repository_is_replaced_only_if_all_in_it_was_made_by_wire(tmp_path):
    target = tmp_path / "model_store"
    check_target(target)
    target.mkdir()
    check_target(target)
    (target / "nugraph3" / "1").mkdir(parents=True)
    (target / "nugraph3" / "1" / "model.py").touch()
    with pytest.raises(
        BuildError, match=r"model_store holds nugraph3/1/model\.py, which --wire did"
    ):
        check_target(target)
    mark_wired(target)
    check_target(target)
    for added in ("mine/config.pbtxt", "nugraph3/2/model.py", "notes.txt"):
        (target / added).parent.mkdir(exist_ok=True)
        (target / added).touch()
        with pytest.raises(BuildError, match=re.escape(f"model_store holds {added}, which")):
            check_target(target)
        (target / added).unlink()
    check_target(target)
    (target / MARKER).write_text("")
    with pytest.raises(BuildError, match="which --wire did not make"):
        check_target(target)


@pytest.mark.parametrize(
    ("variables", "http"),
    [
        ({}, "127.0.0.1"),
        ({"NUML_LISTEN_HTTP": "10.0.0.5"}, "10.0.0.5"),
        ({"NUML_OWN_NETWORK": "yes"}, "::1"),
    ],
    ids=["HTTP stays on loopback", "HTTP is opened", "in a container's own network"],
)
def test_serve_starts_the_server_as_the_kit_does(tmp_path, variables, http):
    write_scripts(tmp_path / "numl" / "bin")
    write_program(tmp_path / "triton/bin/tritonserver", 'printf \'%s\\n\' "$0" "$@"')
    (tmp_path / "numl/models/cpu").mkdir(parents=True)
    serve = tmp_path / "numl/bin/serve"
    places = {"triton=/opt/tritonserver": tmp_path / "triton", "numl=/opt/numl": tmp_path / "numl"}
    text = serve.read_text()
    for place, path in places.items():
        assert place in text
        text = text.replace(place, f"{place.partition('=')[0]}={path}")
    serve.write_text(text)
    variables |= {"NUML_LISTEN": "::1", "NUML_GRPC_PORT": "9001", "PATH": os.environ["PATH"]}
    done = run_program([serve, "--cpu", "--id=NAME"], env=variables, check=True)
    said = re.sub(r"numlkit-\d+-[0-9a-f]+-", "PREFIX", done.stdout).splitlines()
    assert sorted(said) == sorted(
        server_arguments(
            distribution=TritonDistribution(root=tmp_path / "triton", stub_python="3.11"),
            repository=tmp_path / "numl/models/cpu",
            listen="::1",
            http_listen=http,
            ports=Ports(grpc=9001),
            shm_prefix="PREFIX",
            identity="NAME",
        )
    )


@pytest.mark.parametrize(
    ("flavour", "devices"), [("serving", ["cpu"]), ("cpu", ["cpu"]), ("gpu", ["cpu", "gpu"])]
)
def test_the_models_of_an_image(tmp_path, flavour, devices):
    stage_models(
        tmp_path / "models", tmp_path / "templates", {"environment_digest": "e2bc"}, flavour
    )
    for kind in ("models", "templates"):
        assert sorted(path.name for path in (tmp_path / kind).iterdir()) == devices
    for device in devices:
        for model in DEFAULT_MODELS:
            config = read_config(tmp_path / "models" / device / model / "config.pbtxt")
            parameters = {name: v.string_value for name, v in config.parameters.items()}
            assert parameters["EXECUTION_ENV_PATH"] == IMAGE_PREFIX
            assert parameters["environment_digest"] == "e2bc"
            kind = "KIND_GPU" if device == "gpu" and model != "nugraph2_cpu" else "KIND_CPU"
            groups = [text_format.MessageToString(group) for group in config.instance_group]
            count = 2 if kind == "KIND_GPU" else FEWEST_BOUNDED
            assert groups == [f"count: {count}\nkind: {kind}\n"]
            template = tmp_path / "templates" / device / model
            assert (template / "config.pbtxt").read_text() == template_of(config)
            assert (template / "model.py").is_file()


def test_models_that_only_a_gpu_can_run_are_not_among_those_for_cpus(tmp_path):
    own = [staged("cpu", "KIND_CPU"), staged("gpu", "KIND_CPU", "KIND_GPU")]
    own += [staged("of_those", calls="of_gpu"), staged("nugraph3", "KIND_GPU")]
    own += [staged("of_cpu", calls="cpu"), staged("of_gpu", calls="gpu")]
    stage_models(tmp_path / "models", tmp_path / "templates", {}, "gpu", own)
    there = {
        device: {path.name for path in (tmp_path / "models" / device).iterdir()}
        for device in ("cpu", "gpu")
    }
    kits = set(DEFAULT_MODELS) - {"nugraph3"}
    assert there == {
        "cpu": {*kits, "cpu", "of_cpu"},
        "gpu": {*kits, *(model.name for model in own)},
    }


def staged(name: str, *kinds: str, calls: str = "") -> StagedModel:
    """Return a site's model with groups of these kinds, or an ensemble of another."""
    text = "".join(f"instance_group {{ kind: {kind} }}" for kind in kinds)
    text += f'ensemble_scheduling {{ step {{ model_name: "{calls}" }} }}' if calls else ""
    return StagedModel(name, text_format.Parse(text, model_config_pb2.ModelConfig()), ("1",), {})
