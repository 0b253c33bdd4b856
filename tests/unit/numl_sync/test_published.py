"""What a published.json may say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from numl_sync.errors import ReleaseError
from numl_sync.published import read_published, read_release
from played import document, files, release


def published() -> dict[str, Any]:
    return document(2, release(1, {"a": (1, files(1))}), release(2, {"a": (7, files(7))}))


def test_the_release_that_serves_is_read() -> None:
    found, older = read_published(json.dumps(published()).encode())
    assert found.number == 2
    assert [(model.name, model.version, model.place) for model in found.models] == [("a", 7, "a/7")]
    assert {path: file.size for path, file in found.models[0].files.items()} == {
        "weights": 1001,
        "model.py": 4,
        "sub/data": 0,
    }
    assert read_release(json.loads(json.dumps(found.as_json()))) == found
    assert [(release.number, release.models[0].version) for release in older] == [(1, 1)]


def test_of_older_releases_those_that_can_be_read_are_read_the_newest_first() -> None:
    said = document(4, *(release(number, {"a": (number, files(1))}) for number in (1, 5, 2, 3, 4)))
    said["releases"][2]["models"]["a"]["files"]["../x"] = {}
    said["releases"][0] = {"number": 1}
    found, older = read_published(json.dumps(said).encode())
    assert found.number == 4
    assert [release.number for release in older] == [3]


def test_another_way_to_write_the_policy_is_read() -> None:
    said = published()
    said["releases"][1]["models"]["a"]["config"] = (
        "version_policy: { specific: { versions: [ 7 ] } }"
    )
    assert read_published(json.dumps(said).encode())[0].number == 2


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format=2), "has format 2, but this image reads format 1: use an image"),
        (lambda d: d.update(format="9\nx"), "has format '9\\nx', but this image"),
        (lambda d: d.pop("format"), "is not what numlkit publish writes"),
        (lambda d: d.pop("releases"), "is incomplete: 'releases' is missing"),
        (lambda d: d.update(serving=3), "lists release 3, the one in service, 0 times"),
        (lambda d: d.update(serving="2"), "serving is '2', not a number of at least 1"),
        (lambda d: d.update(serving=True), "serving is True"),
        (lambda d: d.update(releases=3), "is incomplete"),
        (lambda d: d["releases"][1].update(models={}), "release 2 has no models"),
        (lambda d: d["releases"][1].update(models=[1]), "is incomplete"),
    ],
)  # fmt: skip
def test_a_wrong_document_is_refused(change: Change, words: str) -> None:
    said = published()
    change(said)
    with pytest.raises(ReleaseError, match=re.escape(words)):
        read_published(json.dumps(said).encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(version=-1), "version of a is -1"),
        (lambda m: m.update(config=""), "config.pbtxt of a does not serve version 7 alone"),
        (lambda m: m.update(config=m["config"].replace("7", "77")), "does not serve version 7"),
        (lambda m: m.update(config=None), "does not serve version 7"),
        (lambda m: m.update(files={}), "a/7 has no files"),
        (lambda m: m["files"]["weights"].update(sha256="ff"), "sha256 of a/7/weights is not valid"),
        (lambda m: m["files"]["weights"].update(bytes=-1), "size of a/7/weights is not valid: -1"),
        (lambda m: m["files"]["weights"].update(bytes=1.5), "size of a/7/weights is not valid"),
    ],
)  # fmt: skip
def test_a_wrong_model_is_refused(change: Change, words: str) -> None:
    said = published()
    change(said["releases"][1]["models"]["a"])
    with pytest.raises(ReleaseError, match=re.escape(words)):
        read_published(json.dumps(said).encode())


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../b", "a//b", "", ".", "a/.", "a\\b", "a b", "ü", "sub"]
)
def test_a_path_that_leaves_its_folder_is_refused(path: str) -> None:
    said = published()
    there = said["releases"][1]["models"]["a"]["files"]
    there[path] = there["weights"]
    with pytest.raises(
        ReleaseError, match=f"a/7 has an invalid file name: {re.escape(repr(path))}"
    ):
        read_published(json.dumps(said).encode())


@pytest.mark.parametrize("name", ["..", "a/b", "", "x" * 300])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    said = published()
    models = said["releases"][1]["models"]
    models[name] = models.pop("a")
    with pytest.raises(ReleaseError, match="is not a model name"):
        read_published(json.dumps(said).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 10**6])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(ReleaseError, match=r"^published\.json is not "):
        read_published(content)
