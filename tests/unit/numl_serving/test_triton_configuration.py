"""What the glue to Triton reads when a model starts, and what it refuses to start with."""

import json
import sys

import numpy as np
import pytest
from numl_serving import configuration
from numl_serving.batches import Limits
from numl_serving.errors import EventError, ModelFilesError, one_line
from small_models import NUGRAPH3, random_event, write_model
from triton_models import INPUTS

from numl_formats.golden import GoldenEvent, write_golden


def test_initialize_loads_the_version_directory_and_warms_up(start, runtime, tmp_path):
    start()
    assert runtime.loaded == (tmp_path / "1", "cpu", 1, Limits())
    assert runtime.batches == [1]


def test_limits_of_batches_are_read(start, runtime):
    start(batch_max_hits="5000", batch_max_edges="70000")
    assert runtime.loaded[-1] == Limits(5000, 70000)


def test_parameters_of_other_times_and_other_programs_are_left_alone(start):
    start(threads="many", compiled="/nowhere", EXECUTION_ENV_PATH="/env")


@pytest.mark.parametrize(("parameters", "guarded"), [({}, True), ({"guard_arrays": "off"}, False)])
def test_arrays_are_guarded_unless_the_server_refuses_impossible_shapes(
    start, monkeypatch, parameters, guarded
):
    called = []
    monkeypatch.setattr("numl_serving.triton.guard_arrays", lambda: called.append(True))
    start(**parameters)
    assert bool(called) == guarded


def test_a_golden_event_is_read_for_the_warm_up(tmp_path):
    write_model(tmp_path)
    event = random_event(0, 2)
    assert configuration.warm_up_event(tmp_path, NUGRAPH3).num_hits == 0
    golden = GoldenEvent(event.tensors(), {"x_filter_u": np.zeros(1)})
    write_golden(tmp_path / "golden.npz", golden)
    assert configuration.warm_up_event(tmp_path, NUGRAPH3).num_hits == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", r"golden\.npz has no event of this model: tensor .+ is"),
        ("broken", r"golden\.npz: not a reference event"),
    ],
)
def test_a_golden_event_of_another_model_or_none_is_named(tmp_path, name, said):
    write_model(tmp_path)
    write_golden(tmp_path / "other", GoldenEvent({"a": np.zeros(1)}, {"b": np.zeros(1)}))
    (tmp_path / "broken").write_bytes(b"PK\x03\x04 truncated")
    (tmp_path / name).rename(tmp_path / "golden.npz")
    with pytest.raises(ModelFilesError, match=said):
        configuration.warm_up_event(tmp_path, NUGRAPH3)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([{"name": "x_other_u", "dims": ["-1"]}], "declares output x_other_u but these weights"),
        ([{"name": "x_semantic_u", "dims": ["-1", "5"]}], "declares 5 as the last dimension of"),
    ],
)
def test_outputs_that_the_weights_do_not_give_are_refused(start, outputs, message):
    with pytest.raises(ModelFilesError, match=message):
        start(outputs=outputs)


@pytest.mark.parametrize("dims", [["4"], ["1", "4"], ["-1", "-1"]])
def test_the_event_score_may_be_declared_without_its_leading_dimension(start, dims):
    start(outputs=[{"name": "e_evt", "dims": dims}])


def test_an_input_that_is_not_declared_is_named(start):
    with pytest.raises(ModelFilesError, match="lacks input hit_table_hit_id, which"):
        start(inputs=INPUTS[1:])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("batch_max_hits", "0"),
        ("max_hits", "many"),
        ("batch_max_edges", "many"),
        ("batch_max_events", "1.5"),
        ("batch_max_wait_ms", "-1"),
        ("batch_max_wait_ms", "nan"),
        ("batch_max_wait_ms", "inf"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(start, name, text):
    with pytest.raises(ModelFilesError, match=f"^parameter {name} in config.pbtxt is '{text}'"):
        start(**{name: text})


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """The prefix of the environment, in which what identifies it is written."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("python", [{}, {"python": "{0.major}.{0.minor}.99"}])
def test_the_right_environment_of_any_patch_release_is_accepted(start, prefix, python):
    facts = {"digest": "abc"} | {k: v.format(sys.version_info) for k, v in python.items()}
    (prefix / "numlkit-environment.json").write_text(json.dumps(facts))
    start(environment_digest="abc")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        *(('{"digest": "xyz"}', "has digest xyz"), (None, "has digest none")),
        *((text, "has digest none") for text in ("{", "[]", "{}")),
        # A virtual environment's prefix is what any Python takes for its own that finds it.
        ('{"digest": "abc", "python": "3.1.4"}', "is for Python 3.1.4, this is Python 3."),
    ],
)
def test_a_wrong_environment_is_refused_with_its_prefix(start, prefix, content, found):
    if content is not None:
        (prefix / "numlkit-environment.json").write_text(content)
    with pytest.raises(ModelFilesError) as caught:
        start(environment_digest="abc")
    assert f"{prefix} {found}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gpu_instance_in_an_environment_without_torch_is_refused(start, monkeypatch):
    monkeypatch.delitem(sys.modules, "numl_serving.torch_runtime")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelFilesError) as caught:
        start(kind="GPU")
    assert str(caught.value) == (
        "the instance is of KIND_GPU but this environment has no torch: deploy with the GPU "
        "environment or set KIND_CPU in config.pbtxt's instance_group"
    )


@pytest.mark.parametrize("device_id", ["0", "3"])
def test_a_gpu_instance_uses_its_device(start, runtime, device_id):
    """There is no GPU here: it and the runtime are fakes."""
    start(kind="GPU", device_id=device_id)
    assert runtime.loaded[1] == f"cuda:{device_id}"


def test_errors_are_one_line_even_for_long_messages():
    assert one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert one_line(EventError()) == "EventError"
