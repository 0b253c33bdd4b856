"""The demo weights: trained by nugraph 25.4.0, and published with its own answer."""

import subprocess
import sys

import pytest
from checkpoint_files import CHECKOUT, FILES, names_in
from numl_demo.hdf5 import read_events
from numl_demo.nugraph25 import lay_beside
from numl_serving.event import Event
from numl_serving.runtime import Runtime
from oracle25 import server

from numl_formats.cardfile import read_card
from numl_formats.golden import difference, read_golden

SCRIPT = CHECKOUT / "scripts" / "train_demo.py"


def test_a_folder_that_cannot_be_written_to_is_told_before_the_training(tmp_path):
    (tmp_path / "file").touch()
    words = [sys.executable, SCRIPT, "--out", tmp_path / "file" / "x"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: [Errno 20] Not a directory: '{tmp_path / 'file' / 'x'}'\n"


def test_a_process_of_its_own_comes_to_nugraph_s_own_training(tmp_path):
    """The one below has nugraph 25.4.0 before the script asks for it."""
    words = [sys.executable, SCRIPT, "--out", tmp_path, "--file", tmp_path / "none.h5"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "none.h5" in done.stderr


def test_what_was_trained_is_published_with_nugraphs_own_answer(tmp_path):
    words = ["--out", str(tmp_path), "--events-out", str(tmp_path / "events.h5")]
    few = ["--events", "4", "--epochs", "1", "--unseen", "2"]
    status, printed = server().ask("run", script=str(SCRIPT), words=[*words, *few])
    assert status == 0
    assert len(read_events(tmp_path / "events.h5")) == 5
    assert names_in(tmp_path) == {"events.h5", "nugraph2", "nugraph2_cpu", "nugraph3"}
    for name, widths in {"nugraph2": (5, 1), "nugraph3": (7, 1, 4, 3)}.items():
        folder = tmp_path / name / "1"
        assert names_in(folder) == FILES
        runtime = Runtime.load(folder)
        golden = read_golden(folder / "golden.npz")
        assert difference(golden, runtime.infer(Event.from_tensors(golden.inputs))) is None
        card = runtime.card
        assert card.network.generation == "25.4"
        assert tuple(head.width for head in card.heads) == widths
        # What clients send and get is what it was: the tracked cards say it.
        served = read_card(CHECKOUT / "model_repository" / name / "1" / "model.json")
        assert card.schema == served.schema
        assert card.outputs == served.outputs
        assert card.demo
        assert "not for physics" in card.description
        assert card.accuracy is not None
        assert card.accuracy["events"] == 2
        assert 0 <= card.accuracy["semantic"] <= 1
        assert f"{name}: epoch 1 of 1" in printed
    links = [path.is_symlink() for path in (tmp_path / "nugraph2_cpu" / "1").iterdir()]
    assert links == [True] * len(FILES)


def test_another_nugraph_that_is_there_already_is_not_taken_for_it(tmp_path):
    import nugraph  # noqa: F401

    with pytest.raises(ImportError, match="nugraph is already imported"):
        lay_beside(tmp_path)


@pytest.mark.parametrize("name", ["nugraph2", "nugraph2_cpu", "nugraph3"])
def test_the_demo_weights_are_well_above_the_largest_class(name):
    card = read_card(CHECKOUT / "model_repository" / name / "1" / "model.json")
    assert card.demo
    assert card.accuracy is not None
    for head in ("semantic", "filter"):
        assert card.accuracy[head] > card.accuracy[f"{head}_largest_class"] + 0.1
