"""``published.json``: what may stand in it, and what each command makes of it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.host.errors import PublishError
from deploy.publishing.place import rollback_target
from deploy.publishing.pointer import (
    Published,
    PublishedFile,
    PublishedModel,
    pruned,
    read_pointer,
    serving,
    versions,
    with_release,
)

NOW = datetime(2026, 11, 23, 2, 27, tzinfo=timezone.utc)


def model(version: int) -> PublishedModel:
    file = PublishedFile(sha256=f"{version:064x}", bytes=version)
    return PublishedModel(version=version, config=f"{version}", files={"model.py": file})


def publish(published: Published | None, **models: int) -> Published:
    number = published.last + 1 if published is not None else 1
    return with_release(
        published,
        number=number,
        created=NOW,
        revision="abc",
        models={name: model(version) for name, version in models.items()},
    )


# A history: publish a release with such versions, go back to the nth release, or prune.
STEPS = st.lists(
    st.one_of(
        st.dictionaries(st.sampled_from(["one", "two"]), st.integers(1, 9), min_size=1),
        st.integers(0, 5),
        st.just("prune"),
    )
)


@given(STEPS)
def test_whatever_is_done_what_serves_is_there_and_numbers_only_grow(steps: list[Any]) -> None:
    published, given_numbers = publish(None, one=1), [1]
    for step in steps:
        before = published
        if isinstance(step, dict):
            published = publish(published, **step)
            assert published.serving == published.last > max(given_numbers)
            given_numbers.append(published.last)
            assert published.releases[:-1] == before.releases
        elif isinstance(step, int):
            to = published.releases[step % len(published.releases)]
            published = serving(published, to.number)
            assert (published.current, published.releases) == (to, before.releases)
        else:
            published = pruned(published)
            kept = [before.previous, before.current] if before.previous else [before.current]
            assert list(published.releases) == kept
            assert (published.serving, published.last) == (before.serving, before.last)
            for name, needed in versions(published).items():
                assert needed <= versions(before)[name]
        assert read_pointer(published.text().encode(), "here") == published
        assert published.current in published.releases
        older = [r for r in published.releases if r.number < published.serving]
        assert published.previous == (older[-1] if older else None)


def test_the_file_reads_as_it_is_documented() -> None:
    assert json.loads(publish(publish(None, one=1), one=2).text()) == {
        "format": 1,
        "serving": 2,
        "last": 2,
        "releases": [
            {
                "number": number,
                "created": "2026-11-23T02:27:00Z",
                "revision": "abc",
                "models": {
                    "one": {
                        "version": number,
                        "config": str(number),
                        "files": {"model.py": {"sha256": f"{number:064x}", "bytes": number}},
                    }
                },
            }
            for number in (1, 2)
        ],
    }


def _without(document: Any, *path: Any) -> None:
    for part in path[:-1]:
        document = document[part]
    del document[path[-1]]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda d: d.update(format=2), "format: Input should be 1"),
        (lambda d: d.update(serving=7), "release 7 serves, but is not among its releases"),
        (lambda d: d.update(last=1), "its last release is 1, but it lists 2"),
        (lambda d: d.update(more=1), "more: Extra inputs are not permitted"),
        (lambda d: d["releases"].reverse(), "not in numerical order"),
        (lambda d: _without(d, "releases", 0, "models"), "releases.0.models: Field required"),
        (
            lambda d: d["releases"][0]["models"]["one"]["files"].update({"../x": {}}),
            "releases.0.models.one.files.../x",
        ),
        (
            lambda d: d["releases"][0]["models"]["one"]["files"].update(
                {"../x": {"sha256": "0" * 64, "bytes": 1}}
            ),
            "'../x' is not a file path in a version",
        ),
        (
            lambda d: d["releases"][0]["models"].update({"a/b": d["releases"][0]["models"]["one"]}),
            "'a/b' is not a model name",
        ),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(change: Any, cause: str) -> None:
    document = json.loads(publish(publish(None, one=1), one=2).text())
    change(document)
    with pytest.raises(PublishError) as raised:
        read_pointer(json.dumps(document).encode(), "s3://b/published.json")
    assert raised.value.cause.startswith("s3://b/published.json was not written by the kit: ")
    assert cause in raised.value.cause


@given(st.binary(max_size=200))
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_line(content: bytes) -> None:
    with pytest.raises(PublishError) as raised:
        read_pointer(content, "here")
    assert "\n" not in raised.value.cause


def test_a_rollback_to_nothing_says_what_is_there() -> None:
    assert rollback_target([1, 2, 4], 4, None) == 2
    assert rollback_target([1, 2, 4], 2, "4") == 4
    for to in ("3", "x", ""):
        with pytest.raises(PublishError, match=f"^there is no release {to}$") as raised:
            rollback_target([1, 2], 2, to)
        assert raised.value.remedy == "use --to with one of: 1"
    with pytest.raises(PublishError, match="release 1 serves, and there is none before it"):
        rollback_target([1, 2], 1, None)
    with pytest.raises(PublishError) as raised:
        rollback_target([1], 1, None)
    assert raised.value.remedy is None


def test_what_somebody_wrote_into_the_file_begins_no_line_of_a_message() -> None:
    document = json.loads(publish(None, one=1).text())
    for wrong in ("x\nerror: \x1b[2J", "y" * 9999):
        document["releases"][0]["models"]["one"]["files"] = {wrong: 3}
        with pytest.raises(PublishError) as raised:
            read_pointer(json.dumps(document).encode(), "s3://b/published.json")
        assert raised.value.cause.isprintable()
        assert len(raised.value.cause) < 500
