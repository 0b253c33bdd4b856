"""What the gallery's clients say where no server answers, and of files that are not there."""

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from deploy.client.example import CLIENT
from deploy.host.paths import CHECKOUT
from tests.programs import run_program

CLIENTS = sorted(CHECKOUT.glob(f"gallery/*/{CLIENT}"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """What gat/train.py --graph writes, of a few papers."""
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    x, test = np.zeros((8, 1433), np.float32), np.ones(8, bool)
    np.savez(path, x=x, edges=np.zeros((2, 4), np.int64), subject=np.zeros(8, int), test=test)
    return path


FILES = re.compile(r"--(?:graph|images|picture|texts|volume)\b")


@pytest.fixture
def complaint(monkeypatch, capsys):
    """Run a client as a script; return the line that it ends with, which is all that it says."""

    def run(client: Path, *words: object) -> str:
        monkeypatch.setattr("sys.argv", [str(client), "--url", "127.0.0.1:1", *map(str, words)])
        monkeypatch.syspath_prepend(client.parent)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(client), run_name="__main__")
        assert capsys.readouterr() == ("", "")
        [line] = ended.value.code.splitlines()
        return line

    before = set(sys.modules)
    yield run
    for name in set(sys.modules) - before:  # another client's modules may have the same names
        if (sys.modules[name].__dict__.get("__file__") or "").startswith(str(CHECKOUT / "gallery")):
            del sys.modules[name]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda path: path.parent.name)
def test_a_server_that_is_away_is_one_line(complaint, client, graph):
    words = ["--graph", graph] if "--graph" in client.read_text() else []
    assert complaint(client, *words).startswith("error: [StatusCode.UNAVAILABLE] ")


@pytest.mark.parametrize(
    ("client", "flag"),
    [
        (client, flag)
        for client in CLIENTS
        for flag in sorted(set(FILES.findall(client.read_text())))
    ],
    ids=lambda each: each.parent.name if isinstance(each, Path) else each,
)
def test_a_file_that_is_not_there_is_one_line(complaint, client, flag, tmp_path):
    missing = tmp_path / "missing"
    said = complaint(client, flag, missing)
    assert said == f"error: [Errno 2] No such file or directory: '{missing}'"


@pytest.mark.parametrize("name", ["recommend/catalogue", "recommend/client", "zero_shot/client"])
@pytest.mark.parametrize("content", ["", "a label and a text\n" * 6])
def test_a_file_without_labels_is_refused(name, content, tmp_path):
    texts = tmp_path / "texts.tsv"
    texts.write_text(content)
    done = run_program([sys.executable, CHECKOUT / "gallery" / f"{name}.py", "--texts", texts])
    assert done.returncode == 2
    assert f"error: {texts}: not " in done.stderr.splitlines()[-1]


def test_texts_that_are_not_those_of_the_catalogue_are_refused(monkeypatch, capsys):
    path = CHECKOUT / "gallery" / "recommend" / CLIENT
    spec = importlib.util.spec_from_file_location("client", path)
    client = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)
    monkeypatch.setattr(client, "ask", lambda *_: (["Of another catalogue."], [1.0]))
    monkeypatch.setattr(sys, "argv", ["client.py"])
    with pytest.raises(SystemExit):
        client.main()
    assert "sample.tsv: not the texts of the catalogue" in capsys.readouterr().err
