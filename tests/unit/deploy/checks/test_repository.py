import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.checks.repository import model_findings, repository_findings
from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.host.finding import Finding
from deploy.host.paths import MODEL_REPOSITORY
from numl_formats.golden import GoldenEvent, read_golden, write_golden

CONFIG, WEIGHTS, CARD = "nugraph3/config.pbtxt", "nugraph3/1/weights.safetensors", "1/model.json"


@pytest.fixture
def repository(tmp_path):
    """A copy of the tracked repository, to be broken."""
    # A checkout in which tests have run has byte code beside a model.py.
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(MODEL_REPOSITORY, tmp_path / "models", ignore=ignored))


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _flip_a_byte(repository: Path) -> None:
    path = repository / WEIGHTS
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _broken_link(repository: Path) -> None:
    (repository / WEIGHTS).unlink()
    (repository / WEIGHTS).symlink_to("gone")


def _lose_a_column(path: Path) -> None:
    golden = read_golden(path)
    inputs = {name: array for name, array in golden.inputs.items() if name != "hit_table_rms"}
    write_golden(path, GoldenEvent(inputs, golden.outputs))


Break = Callable[[Path], object]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda r: shutil.rmtree(r / "nugraph3"), "no model 'nugraph3' in"),
        (lambda r: (r / CONFIG).unlink(), "config.pbtxt: No such file or directory"),
        (lambda r: _edit(r / CONFIG, "output [", "output {["),
         "config.pbtxt: not a model configuration: 62:3"),
        (lambda r: _edit(r / CONFIG, 'name: "nugraph3"', 'name: "other"'),
         "config.pbtxt: names its model 'other'"),
        (lambda r: _edit(r / CONFIG, 'backend: "python"', 'backend: "onnxruntime"'),
         "the kit serves Python models, not 'onnxruntime'"),
        (lambda r: (r / "nugraph3/1/model.py").write_text("class :\n"), "model.py: not Python"),
        (lambda r: (r / "nugraph3/1/model.py").unlink(), "model.py: No such file or directory"),
        (lambda r: (r / "nugraph3/1/golden.npz").unlink(), "golden.npz: no such file"),
        (lambda r: (r / "nugraph3/1/golden.npz").write_bytes(b"PK"), "not a reference event"),
        (_broken_link, "weights.safetensors: no such file"),
        (_flip_a_byte, "weights.safetensors is not the file model.json describes"),
        (lambda r: (r / "nugraph3" / CARD).write_text("{}"), "model.json: not a model card"),
        (lambda r: _edit(r / "nugraph3" / CARD, "hit_table_rms", "hit_table_width"),
         "model.json: inputs do not match the rest of the card"),
        (lambda r: _lose_a_column(r / "nugraph3/1/golden.npz"),
         "golden.npz: its event has no hit_table_rms"),
    ],
)  # fmt: skip
def test_what_keeps_a_model_from_being_served_is_named_with_a_remedy(repository, harm, said):
    harm(repository)
    found = list(model_findings(repository, DEFAULT_MODELS, {}))
    assert [f.level for f in found] == ["problem"]
    assert said in found[0].detail
    assert "\n" not in found[0].detail
    assert found[0].remedy


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("dims: [ -1, 7 ]", "dims: [ -1, 5 ]", "x_semantic_u, x_semantic_v, x_semantic_y"),
        ("dims: [ 4 ]", "dims: [ 3 ]", "e_evt"),
        ('name: "x_filter_u"', 'name: "x_filter_x"', "x_filter_u, x_filter_x"),
    ],
)
def test_outputs_that_are_not_those_of_the_weights_are_named_and_keep_no_launch(
    repository, old, new, named
):
    _edit(repository / CONFIG, old, new)
    assert not list(model_findings(repository, DEFAULT_MODELS, {}))
    found = list(repository_findings(repository, DEFAULT_MODELS, {}))
    assert [(f.level, f.detail) for f in found] == [
        ("problem", f"{repository / CONFIG}: its {named} are not those of the weights")
    ]


def test_a_sound_repository_is_told_in_both_ways_to_declare_the_event_classes(repository):
    said = Finding("ok", "model repository", f"nugraph2, nugraph2_cpu, nugraph3 in {repository}")
    assert list(repository_findings(repository, DEFAULT_MODELS, {})) == [said]
    _edit(repository / CONFIG, "dims: [ 4 ]", "dims: [ 1, 4 ]")
    assert list(repository_findings(repository, DEFAULT_MODELS, {})) == [said]


def test_strangers_are_warnings(repository):
    for name in ("notes", "nugraph2/1/hierarchical.ckpt", "nugraph3/2"):
        (repository / name).mkdir()
    (repository / "nugraph3/1/__pycache__").touch()
    found = list(repository_findings(repository, DEFAULT_MODELS, {}))
    assert [f.level for f in found] == ["ok", "warning", "warning", "warning"]
    assert [f.detail for f in found[1:]] == [
        f"{repository}/notes: not a model, but Triton treats every folder here as one",
        f"{repository}/nugraph2/1/hierarchical.ckpt: not part of any model",
        f"{repository}/nugraph3/2: not part of any model",
    ]


def test_only_models_that_are_asked_for_are_looked_at_and_own_weights_in_place_of_theirs(
    repository, tmp_path
):
    own = tmp_path / "own"
    shutil.copytree(repository / "nugraph3/1", own)
    _flip_a_byte(repository)
    assert not list(model_findings(repository, ["nugraph2", "nugraph2_cpu"], {}))
    assert not list(model_findings(repository, ["nugraph3"], {"nugraph3": own}))
    (own / "golden.npz").unlink()
    found = list(model_findings(repository, ["nugraph3"], {"nugraph3": own}))
    assert [f.detail for f in found] == [f"{own}/golden.npz: no such file"]
    not_imported = {"nugraph3": tmp_path / "later"}
    assert not list(model_findings(repository, ["nugraph3"], not_imported))
