import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format

from deploy.deployment.deployment import DEFAULT_MODELS, Batch
from deploy.deployment.limits import Limits
from deploy.host.errors import RepositoryError
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.card import read_card
from deploy.triton.config import (
    BATCH_EVENTS,
    BATCH_WAIT,
    LaunchSettings,
    ModelConfig,
    for_launch,
    made_for_cpu,
    model_config_pb2,
    read_config,
    write_config,
)
from deploy.triton.stage import plan_models, request_reload, stage
from numl_formats.card import Clustering, Head
from numl_formats.cardfile import dump_card
from numl_formats.limits import LONGEST_WAIT, MOST_WAITING
from numl_formats.repository import DATA_FILES

SETTINGS = LaunchSettings(
    environment=Path('/env "with" quotes'), parameters={"threads": "1"}, instances=2
)
TRACKED_CARD = read_card(MODEL_REPOSITORY / "nugraph3" / "1")
CARD = replace(
    TRACKED_CARD,
    network=replace(TRACKED_CARD.network, nexus_start="position"),
    planes=("u",),
    hit_features=("tpc",),
    spacepoint_positions=True,
    heads=(
        Head("event", "e", "event", 3, "softmax", ("cc", "nc", "other")),
        Head("semantic", "x_semantic", "hit", 2, "softmax", ("track", "shower")),
        Head("instance", "ox", "hit", 8),
    ),
    clustering=Clustering("x_i", "ox", 0.5, 5, None, None, 0),
    weights=replace(TRACKED_CARD.weights, sha256="0123abcd"),
)
TRACKED = """
name: "nugraph3"
backend: "python"
input { name: "hit_table_hit_id" data_type: TYPE_INT32 dims: -1 }
output { name: "e_evt" data_type: TYPE_FP32 dims: 4 }
output { name: "x_semantic_u" data_type: TYPE_FP32 dims: -1 dims: 7 }
output { name: "x_filter_u" data_type: TYPE_FP32 dims: -1 }
output { name: "v_evt" data_type: TYPE_FP32 dims: 1 dims: 3 }
instance_group { kind: KIND_AUTO }
"""
LAUNCHED = """
name: "nugraph3"
backend: "python"
input { name: "hit_table_hit_id" data_type: TYPE_INT32 dims: -1 }
input { name: "hit_table_local_plane" data_type: TYPE_INT32 dims: -1 }
input { name: "hit_table_local_time" data_type: TYPE_FP32 dims: -1 }
input { name: "hit_table_local_wire" data_type: TYPE_INT32 dims: -1 }
input { name: "hit_table_integral" data_type: TYPE_FP32 dims: -1 }
input { name: "hit_table_rms" data_type: TYPE_FP32 dims: -1 }
input { name: "hit_table_tpc" data_type: TYPE_INT32 dims: -1 }
input { name: "spacepoint_table_spacepoint_id" data_type: TYPE_INT32 dims: -1 }
input { name: "spacepoint_table_hit_id_u" data_type: TYPE_INT32 dims: -1 }
input { name: "spacepoint_table_position_x" data_type: TYPE_FP32 dims: -1 optional: true }
input { name: "spacepoint_table_position_y" data_type: TYPE_FP32 dims: -1 optional: true }
input { name: "spacepoint_table_position_z" data_type: TYPE_FP32 dims: -1 optional: true }
output { name: "e_evt" data_type: TYPE_FP32 dims: 3 }
output { name: "x_semantic_u" data_type: TYPE_FP32 dims: -1 dims: 2 }
output { name: "ox_u" data_type: TYPE_FP32 dims: -1 dims: 8 }
output { name: "x_i_u" data_type: TYPE_INT32 dims: -1 }
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching { default_queue_policy {
  default_timeout_microseconds: 1000000 allow_timeout_override: true max_queue_size: 32
} }
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/env \\"with\\" quotes" } }
parameters { key: "event_classes" value { string_value: "cc,nc,other" } }
parameters { key: "max_hits" value { string_value: "25000" } }
parameters { key: "semantic_classes" value { string_value: "track,shower" } }
parameters { key: "threads" value { string_value: "1" } }
parameters { key: "weights" value { string_value: "demo weights" } }
parameters { key: "weights_sha256" value { string_value: "0123abcd" } }
"""


def _config(text: str = TRACKED) -> ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def _tracked(model: str = "nugraph3") -> ModelConfig:
    return read_config(MODEL_REPOSITORY / model / "config.pbtxt")


def _model(repository: Path, name: str = "nugraph3") -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(TRACKED)
    for file in ("model.py", *DATA_FILES):
        (version / file).write_text("x")
    (version / "model.json").write_text(dump_card(TRACKED_CARD))
    return version


def _batch(config: ModelConfig) -> tuple[str, str]:
    parameters = config.parameters
    return tuple(parameters[name].string_value for name in (BATCH_EVENTS, BATCH_WAIT))


@pytest.mark.parametrize(
    ("gpus", "tracked", "asked", "events", "wait"),
    [
        (None, {}, None, "", ""),
        (None, {BATCH_WAIT: "5"}, None, "", "5"),
        (None, {}, Batch(max_events=4, wait_ms=0.5), "4", "0.5"),
        (1, {}, None, "16", "0"),
        (1, {}, Batch(max_events=1), "1", "0"),
        (1, {BATCH_EVENTS: "8"}, None, "8", "0"),
        (1, {BATCH_WAIT: "5"}, None, "16", "5"),
        (1, {BATCH_EVENTS: "8", BATCH_WAIT: "5"}, None, "8", "5"),
        (1, {BATCH_EVENTS: "8", BATCH_WAIT: "5"}, Batch(max_events=4), "4", "0"),
    ],
)
def test_requests_join_on_gpus_or_as_asked(gpus, tracked, asked, events, wait):
    config = _config()
    for name, value in tracked.items():
        config.parameters[name].string_value = value
    launched = for_launch(config, replace(SETTINGS, gpu_instances=gpus, batch=asked), CARD)
    assert _batch(launched) == (events, wait)


def test_a_launch_sets_environment_instances_and_the_tensors_that_the_card_names(tmp_path):
    path, tracked = tmp_path / "config.pbtxt", _config()
    write_config(for_launch(tracked, SETTINGS, CARD), path)
    assert path.read_text() == text_format.MessageToString(_config(LAUNCHED))
    assert tracked == _config(), "the tracked one is left alone"


ON_CPUS, ON_EVERY_GPU = "count: 6\nkind: KIND_CPU\n", "count: 2\nkind: KIND_GPU\n"


@pytest.mark.parametrize(
    ("model", "gpus", "group", "batch"),
    [
        ("nugraph3", None, ON_CPUS, ("", "")),
        ("nugraph3", 2, ON_EVERY_GPU, ("16", "0")),
        ("nugraph2_cpu", 2, ON_CPUS, ("", "")),  # made for a CPU: it stays there, and joins none
    ],
)
def test_instances_are_written_for_each_device(model, gpus, group, batch):
    settings = replace(SETTINGS, instances=6, gpu_instances=gpus)
    launched = for_launch(_tracked(model), settings, CARD)
    assert [text_format.MessageToString(g) for g in launched.instance_group] == [group]
    assert _batch(launched) == batch


@pytest.mark.parametrize(
    ("limits", "policy"),
    [
        (Limits(waiting=0, wait_s=0), ""),
        (Limits(waiting=3, wait_s=0), "allow_timeout_override: true\nmax_queue_size: 6\n"),
        (
            Limits(waiting=0, wait_s=0.25),
            "default_timeout_microseconds: 250000\nallow_timeout_override: true\n",
        ),
    ],
)
def test_each_bound_of_a_queue_can_be_taken_off(limits, policy):
    launched = for_launch(_tracked(), replace(SETTINGS, limits=limits), CARD)
    found = launched.dynamic_batching.default_queue_policy
    assert text_format.MessageToString(found) == policy


def test_on_a_gpu_the_model_bounds_its_own_queue():
    launched = for_launch(_tracked(), replace(SETTINGS, gpu_instances=1), CARD)
    assert not launched.dynamic_batching.HasField("default_queue_policy")
    given = {name: launched.parameters[name].string_value for name in (MOST_WAITING, LONGEST_WAIT)}
    assert given == {"most_waiting": "64", "longest_wait_s": "1"}


def test_only_a_model_whose_own_configuration_says_so_is_made_for_cpus():
    made = {model: made_for_cpu(_tracked(model)) for model in DEFAULT_MODELS}
    assert made == {"nugraph2": False, "nugraph2_cpu": True, "nugraph3": False}


@pytest.mark.parametrize(
    "text", ["name: 3", "nonsense { }", 'name: "a', "max_batch_size: 99999999999"]
)
def test_a_broken_configuration_is_named_with_line_and_column(tmp_path, text):
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    with pytest.raises(RepositoryError) as caught:
        read_config(path)
    assert caught.value.cause.startswith(f"{path}: not a model configuration: 1:")
    assert "\n" not in caught.value.cause


def test_staging_copies_code_and_weights_and_writes_the_launched_configuration(tmp_path):
    repository, target = tmp_path / "tracked", tmp_path / "staged"
    _model(repository)
    stage(plan_models(repository, ["nugraph3"], SETTINGS, {}), target)
    files = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert files == [
        "nugraph3/1/__pycache__",
        "nugraph3/1/golden.npz",
        "nugraph3/1/model.json",
        "nugraph3/1/model.py",
        "nugraph3/1/weights.safetensors",
        "nugraph3/config.pbtxt",
    ]
    config = read_config(target / "nugraph3" / "config.pbtxt")
    assert [output.name for output in config.output] == [t.name for t in TRACKED_CARD.outputs]


def test_what_is_staged_can_be_entered_whatever_the_umask(tmp_path):
    version = _model(tmp_path / "tracked")
    (version / "weights.safetensors").chmod(0o600)
    (model,) = plan_models(tmp_path / "tracked", ["nugraph3"], SETTINGS, {})
    copies = {**model.copies, "1/tools/labels.py": version / "model.py"}
    before = os.umask(0o077)
    try:
        stage([replace(model, copies=copies)], tmp_path / "state" / "staged")
    finally:
        os.umask(before)
    staged = tmp_path / "state" / "staged"
    modes = {str(p.relative_to(staged)): p.stat().st_mode & 0o777 for p in staged.rglob("*")}
    assert {name: mode for name, mode in modes.items() if mode not in (0o644, 0o755)} == {
        "nugraph3/1/weights.safetensors": 0o600  # as its owner has it
    }
    assert staged.stat().st_mode & 0o777 == 0o755


def test_own_weights_take_the_place_of_the_tracked_ones_if_they_are_of_that_architecture(tmp_path):
    repository, target = tmp_path / "tracked", tmp_path / "staged"
    _model(repository)
    own = _model(tmp_path / "own")
    (own / "weights.safetensors").write_text("own")
    stage(plan_models(repository, ["nugraph3"], SETTINGS, {"nugraph3": own}), target)
    assert (target / "nugraph3" / "1" / "weights.safetensors").read_text() == "own"
    shutil.copyfile(MODEL_REPOSITORY / "nugraph2" / "1" / "model.json", own / "model.json")
    with pytest.raises(RepositoryError, match=r"serves nugraph3; .*holds a nugraph2"):
        plan_models(repository, ["nugraph3"], SETTINGS, {"nugraph3": own})


def test_an_unknown_model_is_answered_with_those_that_are_there(tmp_path):
    _model(tmp_path)
    with pytest.raises(RepositoryError, match="no model 'nugraph4'") as caught:
        plan_models(tmp_path, ["nugraph4"], SETTINGS, {})
    assert caught.value.remedy == "one of: nugraph3"


@pytest.mark.parametrize("missing", ["model.py", *DATA_FILES])
def test_a_missing_file_is_named(tmp_path, missing):
    (_model(tmp_path) / missing).unlink()
    with pytest.raises(RepositoryError, match=f"1/{missing}: no such file") as caught:
        plan_models(tmp_path, ["nugraph3"], SETTINGS, {})
    assert caught.value.remedy == (
        "restore it with git checkout, or import the checkpoint again "
        "(scripts/import_checkpoint.py)"
    )


def test_a_broken_model_json_is_named(tmp_path):
    (_model(tmp_path) / "model.json").write_text('{"format": 2, "network": {"kind": "a"}}')
    with pytest.raises(RepositoryError, match=r"model\.json"):
        plan_models(tmp_path, ["nugraph3"], SETTINGS, {})


def test_a_reload_of_a_model_whose_folder_was_removed_is_refused_with_its_name(tmp_path):
    """The supervisor goes on after an OSError, and keeps the other models."""
    with pytest.raises(FileNotFoundError, match="nugraph3"):
        request_reload(tmp_path, "nugraph3")
