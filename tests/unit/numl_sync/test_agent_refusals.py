"""Which releases the agent refuses, and what serves instead; time, bucket and server are played."""

import shutil

import pytest
from numl_sync.agent import LOAD_S, REPEAT_S, RETRY_S
from played import KEY, POLL_S, TEMPLATE, TODAY, expected, files, write_templates

from numl_formats.published import Image, Release, published_release


def test_a_wrong_golden_answer_is_refused_before_the_server_sees_a_file(serving):
    serving.wrong = {"b-2"}
    serving.bucket.publish(2, 2)
    serving.wait(1000)
    assert serving.tree() == expected(1)
    assert serving.said[-1] == (
        "refused: release 2: b-2 does not give its golden answer here: no; "
        "release 1 stays in service"
    )
    assert serving.checked.count("b-2") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"other", "has 5 bytes, published.json says 1001"),
        (b"w" * 1000 + b"X", "is not the published file: its sha256 differs"),
    ],
)
def test_another_file_than_published_is_refused(serving, content, words):
    serving.bucket.publish(2, 2)
    serving.bucket.objects["a/2/weights.safetensors"] = content
    serving.wait(1000)
    assert serving.tree() == expected(1)
    refused = f"refused: release 2: a/2/weights.safetensors {words}; release 1 stays in service"
    assert serving.said == ["release 2 is published", refused]
    serving.bucket.objects["a/2/weights.safetensors"] = files(2)["weights.safetensors"]
    serving.start()
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)  # a start of the agent tries once more


def test_a_document_that_cannot_be_read_is_said_every_minute_until_there_is_another(serving):
    serving.bucket.content = b'{"format": 3}'
    serving.run(2 * REPEAT_S - 1)
    line = (
        "refused: published.json cannot be used: format 3, but this release of the kit reads "
        "formats 1 and 2: use one that is as new as what published it; release 1 stays in service"
    )
    assert serving.said == [line] * 2
    assert serving.tree() == expected(1)
    assert serving.agent.status.refused_statements["format"] > 2
    serving.bucket.publish(2, 2)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)
    assert not serving.agent.status.refused


def test_a_document_that_cannot_be_read_does_not_stop_what_is_on_its_way(serving):
    serving.server.cannot_load = {("a", 2)}
    serving.bucket.publish(2, 2)
    serving.run(10)
    serving.bucket.content = b"{"
    serving.run(10)
    serving.server.cannot_load = set()
    serving.run(10)
    assert serving.tree() == expected(2)


def test_a_fresh_server_gets_the_newest_older_release_that_is_right(stage):
    stage.bucket.publish_each(1, 2, 3, 4)
    stage.wrong = {"b-4"}
    del stage.bucket.objects["a/3/weights.safetensors"]
    stage.run(10)
    assert stage.tree() == expected(2)
    assert stage.said == [
        "release 4 is published",
        "refused: release 4: b-4 does not give its golden answer here: no; "
        "falling back to release 3",
        "refused: release 3: a/3/weights.safetensors is not in the bucket; "
        "falling back to release 2",
        f"release 2 is in {stage.folder}/repository",
        "release 2 serves: a version 2, b version 2",
    ]
    status = stage.agent.status
    assert (status.release, status.published_release, status.refused) == (2, 4, True)
    stage.bucket.publish(5, 5)
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(5)
    assert not status.refused


def test_a_fresh_server_that_cannot_load_the_release_gets_an_older_one(stage):
    stage.bucket.publish_each(1, 2)
    stage.server.cannot_load = {("b", 2)}
    stage.wait(LOAD_S + 20)
    assert stage.tree() == expected(1)
    assert stage.said[2:] == [
        "refused: release 2: b version 2 cannot be loaded: the server's log says why; "
        "falling back to release 1",
        f"release 1 is in {stage.folder}/repository",
        "release 1 serves: a version 1, b version 1",
    ]


def test_what_was_refused_is_tried_again_at_the_next_start_and_after_a_while(stage):
    stage.bucket.publish_each(1, 2)
    stage.wrong = {"a-2"}
    stage.wait(RETRY_S - 1)
    stage.start()
    stage.wait(RETRY_S - 1)
    assert stage.checked.count("a-2") == 2
    assert stage.tree() == expected(1)
    assert stage.agent.status.refused
    stage.wrong = set()
    stage.run(3 * POLL_S)
    assert stage.tree() == expected(2)
    assert not stage.agent.status.refused


def test_a_refusal_on_a_full_disk_is_no_end(serving, monkeypatch):
    def full(*_words: object, **_more: object) -> None:
        raise OSError(28, "No space left on device", "/mirror/x")

    serving.wrong = {"a-2"}
    serving.bucket.publish(2, 2)
    with monkeypatch.context() as patch:
        patch.setattr("numl_sync.mirror.Path.write_text", full)
        serving.run(10)
        serving.start()
        serving.run(10)
    assert "/mirror/x: No space left on device; release 1 stays in service" in serving.said
    assert serving.agent.status.refused
    assert serving.tree() == expected(1)


def test_without_a_server_the_last_good_release_stays_in_the_folder(stage):
    stage.server.runs = False
    stage.bucket.publish(1, 1)
    stage.run(10)
    stage.wrong = {"b-2"}
    stage.bucket.publish(2, 2)
    stage.run(10)
    assert stage.tree() == expected(1)
    assert stage.said[-1].endswith("; release 1 stays in service")
    stage.bucket.away = True
    stage.start()
    assert stage.agent.status.in_folder


@pytest.mark.parametrize(
    "there", [True, False], ids=["weights there", "weights in the bucket only"]
)
def test_what_served_before_an_upgrade_serves_on_when_what_is_published_since_is_refused(
    serving, there
):
    serving.bucket.publish(2, 2)
    serving.bucket.publish(3, 3)
    serving.wrong = {"a-3"}
    write_templates(serving.templates, f"{TEMPLATE}max_batch_size: 0\n")
    if not there:
        shutil.rmtree(serving.folder / "repository" / "a" / "1")
    serving.start()
    serving.run(10 * POLL_S)
    assert serving.agent.status.release == 1
    assert {name for name in serving.tree() if name.startswith("a/1/")}
    assert b"max_batch_size: 0\n" in serving.tree()["a/config.pbtxt"]


@pytest.mark.parametrize("key", ["", KEY])
def test_a_folders_statement_takes_no_model_away_and_is_not_remembered(stage, key):
    stage.key = stage.bucket.key = key or None
    stage.start()
    image = Image("sif", "numl.sif", "0" * 64, 1)
    of_folder = published_release(
        None, Release(1, TODAY, "abc", {}, image), created=TODAY, expires=None
    )
    stage.bucket.put(of_folder)
    stage.run(2 * POLL_S)
    assert stage.agent.status.refused
    stage.bucket.history = None
    stage.bucket.publish(1, 1)
    stage.run(10)
    assert stage.tree() == expected(1)
    stage.bucket.put(of_folder)
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(1)
    assert stage.agent.status.refused
    assert stage.said[-1].startswith("refused: published.json ")
