"""What the gallery's clients say where no server answers, and of files that are not there."""

import re
import runpy
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from deploy.client.example import CLIENT
from deploy.host.paths import CHECKOUT

CLIENTS = sorted(CHECKOUT.glob(f"gallery/*/{CLIENT}"))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Files by the flags that take them: of a few papers as gat/train.py writes it, of a head."""
    folder = tmp_path_factory.mktemp("given")
    graph, volume = folder / "graph.npz", folder / "volume.npy"
    x, test = np.zeros((8, 1433), np.float32), np.ones(8, bool)
    np.savez(graph, x=x, edges=np.zeros((2, 4), np.int64), subject=np.zeros(8, int), test=test)
    np.save(volume, np.zeros((2, 2, 2), np.float32))
    return {"--graph": graph, "--volume": volume}


FILES = re.compile(r"--(?:graph|images|picture|texts|volume)\b")


@pytest.fixture
def ending(monkeypatch, capsys):
    """Run a program of the gallery; return what it exits with, and the errors that it prints."""

    def run(program: Path, *words: object) -> tuple[object, str]:
        monkeypatch.setattr("sys.argv", [str(program), *map(str, words)])
        monkeypatch.syspath_prepend(program.parent)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(program), run_name="__main__")
        said = capsys.readouterr()
        assert said.out == ""
        return ended.value.code, said.err

    before = set(sys.modules)
    yield run
    for name in set(sys.modules) - before:  # another client's modules may have the same names
        if (sys.modules[name].__dict__.get("__file__") or "").startswith(str(CHECKOUT / "gallery")):
            del sys.modules[name]


@pytest.fixture
def complaint(ending):
    """Run a client that asks where no server is; return the line that is all that it says."""

    def run(client: Path, *words: object) -> str:
        code, printed = ending(client, "--url", "127.0.0.1:1", *words)
        assert printed == ""
        [line] = code.splitlines()
        return line

    return run


@pytest.mark.parametrize("client", CLIENTS, ids=lambda path: path.parent.name)
def test_a_server_that_is_away_is_one_line(complaint, client, given):
    words = [each for each in given.items() if each[0] in client.read_text()]
    assert complaint(client, *chain(*words)).startswith("error: [StatusCode.UNAVAILABLE] ")


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
def test_a_file_without_labels_is_refused(ending, name, content, tmp_path):
    texts = tmp_path / "texts.tsv"
    texts.write_text(content)
    code, printed = ending(CHECKOUT / "gallery" / f"{name}.py", "--texts", texts)
    assert code == 2
    assert f"error: {texts}: not " in printed.splitlines()[-1]


def test_texts_that_are_not_those_of_the_catalogue_are_refused(monkeypatch, capsys):
    main = runpy.run_path(str(CHECKOUT / "gallery" / "recommend" / CLIENT))["main"]
    answer = (["Of another catalogue."], [1.0])
    monkeypatch.setitem(main.__globals__, "ask", lambda *_: answer)
    monkeypatch.setattr(sys, "argv", ["client.py"])
    with pytest.raises(SystemExit):
        main()
    assert "sample.tsv: not the texts of the catalogue" in capsys.readouterr().err
