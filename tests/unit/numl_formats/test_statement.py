"""What a published.json may say, and what is written."""

import json
import re
import time
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from numl_formats.errors import StatementError
from numl_formats.published import (
    File,
    Image,
    Model,
    Published,
    Release,
    published_release,
    rolled_back,
    versions,
)
from numl_formats.repository import DATA_FILES
from numl_formats.statement import LARGEST, read_published, statement

NOW = datetime(2026, 11, 24, 2, 30, tzinfo=timezone.utc)
LATER = datetime(2026, 12, 24, 2, 30, tzinfo=timezone.utc)
LINE = "0123456789abcdef"
CODE = {"model.py": File("c" * 64, 30), "config.pbtxt": File("d" * 64, 40)}


def model(version: int, code: dict[str, File] | None = None) -> Model:
    return Model(
        version, {name: File(f"{version:064x}", version) for name in DATA_FILES}, code or {}
    )


def release(number: int, **models: Model) -> Release:
    return Release(number, NOW, "abc", models or {"nu": model(number)})


TWO = Published(
    line=LINE,
    sequence=7,
    created=NOW,
    expires=LATER,
    served=(1, 2),
    last=2,
    releases=(release(1), release(2, nu=model(2, CODE), site=Model(2, {}, CODE))),
)


def document() -> dict[str, Any]:
    return json.loads(statement(TWO))


def test_it_is_written_as_documented():
    written = Published(LINE, 3, NOW, None, (1,), 1, (release(1, nu=model(1, CODE)),))
    data = {"sha256": f"{1:064x}", "bytes": 1}
    assert json.loads(statement(written)) == {
        "format": 2,
        "line": LINE,
        "sequence": 3,
        "created": "2026-11-24T02:30:00Z",
        "expires": None,
        "serving": 1,
        "served": [1],
        "last": 1,
        "releases": [
            {
                "number": 1,
                "created": "2026-11-24T02:30:00Z",
                "revision": "abc",
                "models": {
                    "nu": {
                        "version": 1,
                        "files": dict.fromkeys(DATA_FILES, data),
                        "code": {
                            "model.py": {"sha256": "c" * 64, "bytes": 30},
                            "config.pbtxt": {"sha256": "d" * 64, "bytes": 40},
                        },
                    }
                },
            }
        ],
    }


@pytest.mark.parametrize("form", ["sif", "sandbox"])
def test_images_and_models_are_read_as_they_were_written(form):
    image = Release(3, NOW, "abc", image=Image(form, "numl-gpu.sif", "e" * 64, 5))
    folder = published_release(None, image, created=NOW, expires=None)
    for published in (TWO, folder):
        assert read_published(statement(published)) == published
    assert folder.current.summary == f"{form} of numl-gpu.sif"
    assert json.loads(statement(folder))["releases"][0]["image"]["name"] in ("numl.sif", "numl")


def test_what_could_not_be_read_again_is_not_written():
    wrong = release(1, **{"../nu": model(1)})
    with pytest.raises(StatementError, match="is not a model name"):
        statement(published_release(None, wrong, created=NOW, expires=None))


OLD = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("format-1-newest-serves.json", (1, 2, 4)),
        ("format-1-rolled-back.json", (1, 2)),
        ("format-1-pruned.json", (2, 4)),
    ],
)
def test_what_an_older_kit_published_is_read(name, served):
    found = read_published((OLD / name).read_bytes())
    assert (found.line, found.sequence, found.expires) == ("", 0, None)
    assert (found.served, found.last) == (served, 4)
    assert versions(found)["site_model"] == {2}
    ours, site = found.release(2).models.values()
    assert (set(ours.files), set(ours.code)) == (set(DATA_FILES), {"model.py", "config.pbtxt"})
    assert (set(site.files), len(site.code)) == (set(), 3)
    # What is written next goes on from there, in the new format.
    again = read_published(statement(rolled_back(found, 2, created=NOW, expires=LATER)))
    assert (again.sequence, again.serving, again.releases) == (1, 2, found.releases)
    assert re.fullmatch("[0-9a-f]{16}", again.line)


Change = Callable[[dict[str, Any]], Any]


def _last(said: dict[str, Any]) -> dict[str, Any]:
    return said["releases"][-1]


def _nu(said: dict[str, Any]) -> dict[str, Any]:
    return _last(said)["models"]["nu"]


def _with_file(kind: str, *paths: str) -> Change:
    more = {path: {"sha256": "0" * 64, "bytes": 1} for path in paths}
    return lambda said: _nu(said)[kind].update(more)


def _with_model(name: str) -> Change:
    return lambda said: _last(said)["models"].update({name: _nu(said)})


NOT_DATA = (
    *("model.py", "config.pbtxt", "Model.json", "golden.npz.", "model.json.link", "__pycache__"),
    "x",
)
NOT_PATHS = ("../x", "/etc/passwd", "a/../b", "a//b", "", ".", "a/.", "a\\b", "a b", "ü", "sub")
NOT_NAMES = ("..", ".", "a/b", "", "x" * 101, "-a", "a\n", "ü")


REFUSED: list[tuple[Change, str]] = [
    (lambda d: d.update(format=3), "format 3, but this release of the kit reads formats 1 and 2"),
    (lambda d: d.update(format=True), "format True, but"),
    (lambda d: d.update(format="2\nx"), "format '2\\nx', but"),
    (lambda d: d.pop("format"), "not what numlkit publish writes"),
    (lambda d: d.pop("releases"), "'releases' of the statement is missing"),
    (lambda d: d.update(more=1), "the statement has 'more', which is not of this format"),
    (lambda d: d.update(line="0123"), "line is '0123', not 16 hexadecimal digits"),
    (lambda d: d.update(line=None), "line is None, not a line of text"),
    (lambda d: d.update(sequence=0), "sequence is 0, not a number of at least 1"),
    (lambda d: d.update(sequence=1 << 60), "sequence is 1152921504606846976, not a number"),
    (lambda d: d.update(sequence=1.0), "sequence is 1.0, not a number"),
    (lambda d: d.update(created="yesterday"), "created is 'yesterday', not a time"),
    (lambda d: d.update(created="2026-11-24T02:30:00"), "a time without a zone"),
    (lambda d: d.update(created="0001-01-01T00:00:00+09:00"), "not a time"),
    (lambda d: d.update(expires=0), "expires is 0, not a line of text"),
    (lambda d: d.update(serving=1), "release 1 serves, but [1, 2] served"),
    (lambda d: d.update(serving=True, served=[2, 1]), "serving is True"),
    (lambda d: d.update(served=[]), "release 2 serves, but [] served"),
    (lambda d: d.update(served=2), "served is not a list"),
    (lambda d: d.update(served=[2, 1, 2]), "is listed twice among those that served"),
    (lambda d: d.update(served=[3, 2]), "release 3 served, but is not among its releases"),
    (lambda d: d.update(last=1), "its last release is 1, but it lists 2"),
    (lambda d: d.update(releases=[]), "release 1 served, but is not among its releases"),
    (lambda d: d.update(releases={}), "releases is not a list"),
    (lambda d: d["releases"].reverse(), "its releases are not in numerical order"),
    (lambda d: d["releases"].append(_last(d)), "its releases are not in numerical order"),
    (lambda d: d["releases"].append(3), "a release is not an object"),
    (lambda d: _last(d).update(revision="a\nb"), "revision of release 2 is 'a\\nb'"),
    (lambda d: _last(d).update(models={}), "release 2 has no models"),
    (lambda d: _last(d).update(models=[1]), "models of release 2 is not an object"),
    (lambda d: _last(d).pop("models"), "release 2 must have either models or an image"),
    (lambda d: _last(d).update(image={}), "release 2 must have either models or an image"),
    (lambda d: _nu(d).update(version=-1), "version of nu is -1"),
    (lambda d: _nu(d).update(config="x"), "nu has 'config', which is not of this format"),
    (lambda d: _nu(d).update(files={}, code={}), "nu/2 has no files"),
    (lambda d: _nu(d)["files"].update({"model.py": {}}), "'bytes' of nu/2/model.py is missing"),
    (lambda d: _nu(d)["code"].update({"a": 3}), "nu/2/a is not an object"),
    (lambda d: _nu(d)["files"]["model.json"].update(sha256="FF" * 32), "sha256 of nu/2/model.json"),
    (lambda d: _nu(d)["files"]["model.json"].update(bytes=-1), "size of nu/2/model.json is not"),
    (lambda d: _nu(d)["files"]["model.json"].update(bytes=1.5), "size of nu/2/model.json is not"),
    (lambda d: _nu(d)["files"]["model.json"].update(bytes=True), "size of nu/2/model.json is not"),
    (lambda d: _nu(d)["files"]["model.json"].update(link="/etc"), "nu/2/model.json has 'link'"),
    *((_with_file("files", path), f"{path!r} is none of weights") for path in NOT_DATA),
    *((_with_file(kind, path, "sub/x"), f"invalid file name: {path!r}")
      for kind in ("files", "code") for path in NOT_PATHS),
    *((_with_model(name), "is not a model name") for name in NOT_NAMES),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_wrong_document_is_refused(change, words):
    said = document()
    change(said)
    with pytest.raises(StatementError, match=re.escape(words)) as refused:
        read_published(json.dumps(said).encode())
    assert refused.value.reason == "format"
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff", b"[]", b"null", b"[" * 10**6, b'{"a":' * 10**5, b"9" * 10_000),
        *(b'{"format": NaN}', b'{"format": 1e999}', b'{"format": 2, "format": 1}'),
        *(json.dumps(document()).encode(coding) for coding in ("utf-16", "utf-8-sig")),
        b" " * (LARGEST + 1),
    ],
    ids=lambda content: repr(content[:20]),
)
def test_what_is_not_a_document_is_refused(content):
    with pytest.raises(StatementError, match=r"^published\.json cannot be used: ") as refused:
        read_published(content)
    assert len(str(refused.value)) < 400


def test_a_name_that_is_there_twice_among_many_is_found_as_fast_as_they_are_read():
    def seconds(last: int) -> float:
        started = time.process_time()
        with pytest.raises(StatementError):
            read_published(f'{{{names},"{last}":0}}'.encode())
        return time.process_time() - started

    many = 20_000
    names = ",".join(f'"{n}":0' for n in range(many))
    seconds(many)
    assert seconds(many - 1) < 20 * seconds(many)


def test_a_path_of_many_parts_takes_no_more_memory_than_it_is_long():
    said = document()
    _nu(said)["files"]["a/" * 10_000 + "a"] = _nu(said)["files"]["model.json"]
    content = json.dumps(said).encode()
    tracemalloc.start()
    with pytest.raises(StatementError, match="cannot be used: nu/2"):
        read_published(content)
    assert tracemalloc.get_traced_memory()[1] < 100 * len(content)
    tracemalloc.stop()


def test_a_name_that_is_there_twice_is_refused_wherever_it_is():
    text = json.dumps(document())
    with pytest.raises(StatementError, match="'sha256' is there twice"):
        read_published(text.replace('"sha256"', f'"sha256": "{"0" * 64}", "sha256"', 1).encode())
