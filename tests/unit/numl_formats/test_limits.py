"""Limits that the environment of an image's server sets, in configurations of the kit."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deploy.deployment.limits import Limits as Configured
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.card import read_card
from deploy.triton.config import LaunchSettings, for_launch, read_config, template_of
from numl_formats.errors import FormatError
from numl_formats.limits import Limits, limited_copy

SETTINGS = LaunchSettings(environment=Path("/opt/numl/env"), parameters={}, instances=3)


def written(gpus, limits, *, template):
    tracked = read_config(MODEL_REPOSITORY / "nugraph3" / "config.pbtxt")
    settings = replace(SETTINGS, gpu_instances=gpus, limits=limits)
    config = for_launch(tracked, settings, read_card(MODEL_REPOSITORY / "nugraph3" / "1"))
    return template_of(config) if template else text_format.MessageToString(config)


@pytest.mark.parametrize("template", [False, True], ids=["configuration", "template"])
@pytest.mark.parametrize("gpus", [None, 2])
@pytest.mark.parametrize(
    "limits",
    [
        {"waiting": 5},
        {"wait_s": 2.5},
        {"hits": 99},
        {"waiting": 0, "wait_s": 0.25, "hits": 100_000},
        {"waiting": 3, "wait_s": 0},
    ],
    ids=json.dumps,
)
def test_a_configuration_is_what_a_deployment_with_these_limits_has(limits, gpus, template):
    found = Limits(**limits).apply(written(gpus, Configured(), template=template))
    wanted = written(gpus, Configured(**limits), template=template)
    assert parsed(found) == parsed(wanted)


def parsed(text):
    return text_format.Parse(text, ModelConfig())


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("NUML_WAITING", "-1", "a whole number from 0 to 1000000"),
        ("NUML_WAITING", "1.5", "a whole number from 0 to 1000000"),
        ("NUML_WAIT_S", "nan", "a number from 0 to 3600"),
        ("NUML_WAIT_S", "3601", "a number from 0 to 3600"),
        ("NUML_HITS", "0", "a whole number from 1 to 100000"),
        ("NUML_HITS", "\u0663", "a whole number from 1 to 100000"),
    ],
)
def test_a_value_that_is_none_is_refused(name, text, kind):
    with pytest.raises(FormatError) as error:
        Limits.of({name: text})
    assert str(error.value) == f"{name}={text}: it must be {kind}"


def test_what_is_not_set_stays_as_it_was_built():
    text = written(None, Configured(), template=False)
    assert Limits.of({"NUML_HITS": ""}).apply(text) == text


def test_an_image_s_models_are_served_with_other_limits(tmp_path):
    built, folder = tmp_path / "built", tmp_path / "limited"
    (built / "nugraph3" / "1").mkdir(parents=True)
    folder.mkdir()
    (built / "nugraph3" / "config.pbtxt").write_text(written(None, Configured(), template=False))
    (built / "nugraph3" / "1" / "model.py").write_text("code")
    (built / "nugraph3" / "1" / "model.json").write_text("{}")
    words = [sys.executable, "-m", "numl_formats.limits", str(built), str(folder)]
    wrong = {**os.environ, "NUML_HITS": "many"}
    done = subprocess.run(words, env=wrong, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "serve: NUML_HITS=many: it must be a whole number from 1 to 100000\n",
    )
    limited_copy(built, folder, Limits(hits=99))
    config = parsed((folder / "nugraph3" / "config.pbtxt").read_text())
    assert config.parameters["max_hits"].string_value == "99"
    assert (folder / "nugraph3" / "1" / "model.py").read_text() == "code"


SITE_S_OWN = """\
instance_group {
  count: 2
  kind: KIND_CPU
}
dynamic_batching {
  default_queue_policy {
    default_timeout_microseconds: 5000000
    max_queue_size: 32
  }
}
parameters {
  key: "max_hits"
  value {
    string_value: "7"
  }
}
"""


@pytest.mark.parametrize(
    "limits", [{"waiting": 4, "wait_s": 1, "hits": 99}, {"waiting": 0, "wait_s": 0}], ids=json.dumps
)
def test_a_site_s_own_model_keeps_its_queue(tmp_path, limits):
    built, folder = tmp_path / "built", tmp_path / "limited"
    (built / "vision" / "1").mkdir(parents=True)
    folder.mkdir()
    (built / "vision" / "config.pbtxt").write_text(SITE_S_OWN)
    limited_copy(built, folder, Limits(**limits))
    assert (folder / "vision" / "config.pbtxt").read_text() == SITE_S_OWN
