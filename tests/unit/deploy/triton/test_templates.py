"""What the sync agent renders without protobuf is what the kit renders with it."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.config import LaunchSettings, model_config_pb2, template_of
from deploy.triton.stage import plan_models
from numl_formats.config import render_config
from numl_formats.errors import FormatError

SETTINGS = {
    "cpu": LaunchSettings(Path("/opt/numl/env"), {"environment_digest": "e2bc"}, 2),
    "gpu": LaunchSettings(Path("/opt/numl/env"), {}, 2, gpu_instances=3),
}
CARD = MODEL_REPOSITORY / "nugraph3" / "1" / "model.json"


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize("model", DEFAULT_MODELS)
@pytest.mark.parametrize("device", SETTINGS)
def test_a_template_and_a_card_make_the_configuration_of_the_image(model, device):
    planned = plan_models(MODEL_REPOSITORY, [model], SETTINGS[device], {})[0]
    template = template_of(planned.config)
    assert not {"name", "input", "output", "version_policy"} & {
        field.name for field, _ in parsed(template).ListFields()
    }
    card = (MODEL_REPOSITORY / model / "1" / "model.json").read_bytes()
    wanted = type(planned.config)()
    wanted.CopyFrom(planned.config)
    wanted.version_policy.specific.versions.append(7)
    assert parsed(render_config(model, 7, card, template)) == wanted


@settings(deadline=None)
@given(classes=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, unique=True))
def test_whatever_classes_are_called_they_are_one_parameter(classes):
    said = json.loads(CARD.read_bytes())
    said["heads"][0]["width"] = len(classes)
    del said["outputs"]
    said["heads"][0]["classes"] = [str(number) for number in range(len(classes))]
    before = json.dumps(said).encode()
    wanted = parsed(render_config("nugraph3", 1, before, 'backend: "python"'))
    name = f"{said['heads'][0]['name']}_classes"
    wanted.parameters[name].string_value = ",".join(classes)
    said["heads"][0]["classes"] = classes
    changed = json.dumps(said).encode()
    assert parsed(render_config("nugraph3", 1, changed, 'backend: "python"')) == wanted


@pytest.mark.parametrize(
    "card",
    [
        *(b"", b"{}", b"[]", b"null", b"\xff", b"[" * 10**6, b" " * (2 << 20)),
        *(
            json.dumps(json.loads(CARD.read_bytes()) | change).encode()
            for change in (
                {"inputs": [{"name": "x", "data_type": "INT32 } backend", "dims": [1]}]},
                {"outputs": 3},
                {"planes": ['u" } backend']},
                {"hit_features": ["wire_position", "rms } backend"]},
                {"heads": [{"name": None, "classes": ["a"]}]},
                {"format": 3},
            )
        ),
    ],
    ids=lambda card: repr(card[:40]),
)
def test_what_is_no_card_is_refused(card):
    with pytest.raises(FormatError, match=r"^model\.json of nu: "):
        render_config("nu", 1, card, "")
