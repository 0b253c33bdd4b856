"""What the agent does when, with time, bucket and server played."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from numl_sync.agent import LOAD_S, REPEAT_S, RETRY_S
from numl_sync.errors import UsageError
from numl_sync.mirror import Mirror
from played import CONFIG, POLL_S, Stage, document, expected, files, release


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "mirror")


@pytest.fixture
def serving(stage: Stage) -> Stage:
    """One that serves release 1."""
    stage.bucket.publish(1, 1)
    stage.run(10)
    assert stage.tree() == expected(1)
    stage.said.clear()
    return stage


def test_a_release_comes_whole_and_serves(stage: Stage) -> None:
    stage.bucket.publish(1, 1)
    stage.run(1)
    assert stage.tree() == expected(1)
    assert stage.said == [
        "release 1 is published",
        f"release 1 is in {stage.folder}/repository",
        "release 1 serves: a version 1, b version 1",
    ]
    assert list((stage.folder / "incoming").iterdir()) == []
    assert stage.agent.status.release == 1


def test_an_idle_agent_asks_once_a_poll_and_its_server_never(serving: Stage) -> None:
    asked, server = serving.bucket.asked, serving.server.asked
    serving.run(100 * POLL_S)
    assert serving.bucket.asked - asked == pytest.approx(100, abs=1)
    assert serving.server.asked == server


def test_back_and_forth(serving: Stage) -> None:
    for number, version in ((2, 2), (3, 1), (4, 2)):
        serving.bucket.publish(number, version)
        serving.run(2 * POLL_S)
        assert serving.tree() == expected(version)
        assert serving.agent.status.release == number


def test_the_old_version_stays_until_the_server_answers_with_the_new(serving: Stage) -> None:
    serving.server.cannot_load = {("b", 2)}
    serving.bucket.publish(2, 2)
    serving.run(60)
    assert serving.tree() == expected(1) | expected(2)
    assert serving.agent.status.release == 1
    serving.server.cannot_load = set()
    serving.run(1)
    assert serving.tree() == expected(2)
    assert serving.agent.status.release == 2


def test_what_the_server_cannot_load_is_taken_back(serving: Stage) -> None:
    serving.server.cannot_load = {("b", 2)}
    serving.bucket.publish(2, 2)
    serving.run(LOAD_S + 2 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.said[-1] == (
        "refused: release 2: b version 2 cannot be loaded: the server's log says why; "
        "release 1 goes on"
    )
    said, sent = len(serving.said), serving.bucket.sent
    serving.run(1000)
    assert (len(serving.said), serving.bucket.sent) == (said, sent)
    assert serving.agent.status.refused
    assert serving.agent.status.failures["release"] == 1
    serving.bucket.publish(3, 3)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(3)
    assert not serving.agent.status.refused


def test_another_configuration_of_the_same_version_is_seen_to_be_loaded(serving: Stage) -> None:
    said = serving.bucket.publish(2, 1)
    for model in said["releases"][-1]["models"].values():
        model["config"] += "max_batch_size: 0\n"
    serving.bucket.content = json.dumps(said).encode()
    serving.server.cannot_configure = {"b"}
    serving.run(60)
    assert serving.agent.status.release == 1
    serving.run(LOAD_S)
    assert serving.said[-1].startswith("refused: release 2: b version 1 cannot be loaded: ")
    assert serving.tree() == expected(1)
    serving.server.cannot_configure = set()
    serving.start()
    serving.run(2 * POLL_S)
    assert serving.agent.status.release == 2
    assert serving.tree()["a/config.pbtxt"].endswith(b"max_batch_size: 0\n")


def test_a_first_release_that_cannot_be_loaded_is_said_every_minute_and_kept(
    stage: Stage,
) -> None:
    stage.server.cannot_load = {("b", 1)}
    stage.bucket.publish(1, 1)
    stage.run(LOAD_S + 5 * REPEAT_S - 1)
    assert stage.tree() == expected(1)
    assert (
        stage.said[2:]
        == ["b version 1 cannot be loaded: the server's log says why; no release yet"] * 5
    )
    stage.server.cannot_load = set()
    stage.run(1)
    assert stage.agent.status.release == 1


def test_a_server_that_is_away_is_no_fault_of_a_release(serving: Stage) -> None:
    serving.server.runs = False
    serving.bucket.publish(2, 2)
    serving.run(10 * REPEAT_S - 1)
    assert serving.tree() == expected(1) | expected(2)
    silent = "release 2: the server does not answer; release 1 goes on"
    assert serving.said[2:] == [silent] * 9
    serving.server.runs = True
    serving.run(2)
    assert serving.tree() == expected(2)


def test_a_wrong_golden_answer_is_refused_before_the_server_sees_a_file(serving: Stage) -> None:
    serving.wrong = {"b-2"}
    serving.bucket.publish(2, 2)
    serving.run(1000)
    assert serving.tree() == expected(1)
    assert serving.said[-1] == (
        "refused: release 2: b-2 does not give its golden answer here: no; release 1 goes on"
    )
    assert serving.checked.count("b-2") == 1


@pytest.mark.parametrize("content", [b"other", b"w" * 1000 + b"X"])
def test_another_file_than_published_is_refused(serving: Stage, content: bytes) -> None:
    serving.bucket.publish(2, 2)
    serving.bucket.objects["a/2/weights"] = content
    serving.run(1000)
    assert serving.tree() == expected(1)
    assert serving.said[-1].startswith("refused: release 2: a/2/weights ")
    assert serving.said[-1].endswith("; release 1 goes on")
    assert len(serving.said) == 2
    serving.bucket.objects["a/2/weights"] = files(2)["weights"]
    serving.start()
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)  # a start of the agent tries once more


def test_a_document_that_cannot_be_read_is_refused_once(serving: Stage) -> None:
    serving.bucket.content = b'{"format": 2}'
    serving.run(1000)
    assert serving.said == [
        "refused: published.json is of format 2, this image reads format 1: use an image of the "
        "kit that published it; release 1 goes on"
    ]
    assert serving.tree() == expected(1)
    serving.bucket.publish(2, 2)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)


def test_a_document_that_cannot_be_read_does_not_stop_what_is_on_its_way(serving: Stage) -> None:
    serving.server.cannot_load = {("a", 2)}
    serving.bucket.publish(2, 2)
    serving.run(10)
    serving.bucket.content = b"{"
    serving.run(10)
    serving.server.cannot_load = set()
    serving.run(10)
    assert serving.tree() == expected(2)


def test_a_bucket_that_is_away_is_said_at_once_and_then_every_minute(serving: Stage) -> None:
    serving.bucket.away = True
    serving.run(10 * REPEAT_S)
    assert serving.said == ["s3://bucket: no connection; release 1 goes on"] * 10
    assert serving.tree() == expected(1)
    failures = serving.agent.status.failures["bucket"]
    assert failures == pytest.approx(10 * REPEAT_S / POLL_S, abs=2)
    serving.bucket.away = False
    serving.run(2 * POLL_S)
    assert serving.said[-1] == "the bucket answers again, after 600 s"


def test_without_a_bucket_at_its_start_it_has_what_was_there(serving: Stage) -> None:
    serving.bucket.away = True
    serving.start()
    assert serving.agent.status.in_folder
    serving.run(10)
    assert serving.tree() == expected(1)
    assert serving.agent.status.release == 1
    assert serving.said == [
        f"release 1 is in {serving.folder}/repository from before",
        "s3://bucket: no connection; release 1 goes on",
    ]


def test_without_bucket_and_mirror_it_waits(stage: Stage) -> None:
    stage.run(2 * REPEAT_S)
    assert stage.said == ["s3://bucket: no connection; no release yet"] * 2
    assert not stage.agent.status.in_folder
    stage.bucket.publish(1, 1)
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(1)


def test_a_download_that_breaks_off_goes_on_where_it_was(serving: Stage) -> None:
    serving.bucket.publish(2, 2)
    serving.bucket.sent, serving.bucket.breaks_after = 0, 300
    serving.run(10 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.said == [
        "release 2 is published",
        "s3://bucket: broken off; release 1 goes on",
    ]
    serving.start()
    serving.bucket.breaks_after = None
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)
    # Each of the two models' files once: they are the same.
    assert serving.bucket.sent == sum(map(len, files(2).values()))


@pytest.mark.parametrize("damage", [b"", b"w", b"x" * 1001, b"x" * 5000, b"x" * 900])
def test_what_lies_in_the_way_of_a_download_is_replaced(serving: Stage, damage: bytes) -> None:
    said = serving.bucket.publish(2, 2)
    digest = said["releases"][-1]["models"]["a"]["files"]["weights"]["sha256"]
    (serving.folder / "incoming" / digest).write_bytes(damage)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)


def test_a_damaged_mirror_is_mended_at_the_next_start(serving: Stage) -> None:
    weights = serving.folder / "repository" / "a" / "1" / "weights"
    weights.write_bytes(b"x" * weights.stat().st_size)
    serving.start()
    assert serving.said == [f"{serving.folder}/repository was changed by somebody else"]
    assert not serving.agent.status.in_folder
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.checked == ["a-1", "b-1", "a-1"]


@pytest.mark.parametrize("model", ["a", "b"])
def test_a_fresh_server_gets_the_newest_older_release_that_is_right(
    stage: Stage, model: str
) -> None:
    for number in (1, 2, 3, 4):
        stage.bucket.publish(number, number)
    stage.wrong = {f"{model}-4"}
    del stage.bucket.objects["a/3/weights"]
    stage.run(10)
    assert stage.tree() == expected(2)
    wrong = f"refused: release 4: {model}-4 does not give its golden answer here: no"
    assert stage.said == [
        "release 4 is published",
        f"{wrong}; release 3 is tried instead",
        "refused: release 3: a/3/weights is not in the bucket; release 2 is tried instead",
        f"release 2 is in {stage.folder}/repository",
        "release 2 serves: a version 2, b version 2",
    ]
    status = stage.agent.status
    assert (status.release, status.published_release, status.refused) == (2, 4, True)
    stage.bucket.publish(5, 5)
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(5)
    assert not status.refused


def test_a_rolled_back_release_is_not_gone_back_to(stage: Stage) -> None:
    for number in (1, 2, 1):
        stage.bucket.publish(number, number)
    stage.wrong = {"a-1"}
    stage.run(1000)
    assert stage.tree() == {}
    assert stage.said[1:] == [
        "refused: release 1: a-1 does not give its golden answer here: no; no release yet"
    ]


def test_a_fresh_server_that_cannot_load_the_release_gets_an_older_one(stage: Stage) -> None:
    for number in (1, 2):
        stage.bucket.publish(number, number)
    stage.server.cannot_load = {("b", 2)}
    stage.run(LOAD_S + 10)
    assert stage.tree() == expected(1)
    assert stage.said[2:] == [
        "refused: release 2: b version 2 cannot be loaded: the server's log says why; "
        "release 1 is tried instead",
        f"release 1 is in {stage.folder}/repository",
        "release 1 serves: a version 1, b version 1",
    ]


def test_what_was_refused_is_tried_again_at_the_next_start_and_after_a_while(stage: Stage) -> None:
    for number in (1, 2):
        stage.bucket.publish(number, number)
    stage.wrong = {"a-2"}
    stage.run(RETRY_S - 1)
    stage.start()
    stage.run(RETRY_S - 1)
    assert stage.checked.count("a-2") == 2
    assert stage.tree() == expected(1)
    assert stage.agent.status.refused
    stage.wrong = set()
    stage.run(3 * POLL_S)
    assert stage.tree() == expected(2)
    assert not stage.agent.status.refused


def test_a_folder_that_is_removed_is_made_anew(serving: Stage) -> None:
    shutil.rmtree(serving.folder)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.said[0] == f"{serving.folder}/repository was changed by somebody else"


def test_a_refusal_on_a_full_disk_is_no_end(
    serving: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_words: object, **_more: object) -> None:
        raise OSError(28, "No space left on device", "/mirror/x")

    serving.wrong = {"a-2"}
    serving.bucket.publish(2, 2)
    with monkeypatch.context() as patch:
        patch.setattr("numl_sync.mirror.Path.write_text", full)
        serving.run(10)
        serving.start()
        serving.run(10)
    assert "/mirror/x: No space left on device; release 1 goes on" in serving.said
    assert serving.agent.status.refused
    assert serving.tree() == expected(1)


def test_without_a_server_the_last_good_release_stays_in_the_folder(stage: Stage) -> None:
    stage.server.runs = False
    stage.bucket.publish(1, 1)
    stage.run(10)
    stage.wrong = {"b-2"}
    stage.bucket.publish(2, 2)
    stage.run(10)
    assert stage.tree() == expected(1)
    assert stage.said[-1].endswith("; release 1 goes on")
    stage.bucket.away = True
    stage.start()
    assert stage.agent.status.in_folder


def test_models_come_and_go(serving: Stage) -> None:
    serving.bucket.publish(2, 2, "b", "c")
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2, "b", "c")


def test_a_model_that_stays_as_it_is_is_not_touched(serving: Stage) -> None:
    models = {"a": (1, files(1)), "b": (2, files(2))}
    serving.bucket.publish(2, 2)
    serving.bucket.content = json.dumps(document(2, release(2, models))).encode()
    before = newest(serving.folder / "repository" / "a")
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(1, "a") | expected(2, "b")
    assert newest(serving.folder / "repository" / "a") == before
    assert serving.checked[2:] == ["b-2"]


def test_the_newest_time_of_a_model_rises_with_its_configuration(serving: Stage) -> None:
    folder = serving.folder / "repository" / "a"
    ahead = newest(folder) + 3600 * 10**9  # the clock was set back by an hour
    os.utime(folder / "1" / "weights", ns=(ahead, ahead))
    serving.bucket.publish(2, 2)
    serving.run(2 * POLL_S)
    assert (folder / "config.pbtxt").stat().st_mtime_ns >= ahead + 10**9


def test_two_agents_do_not_share_a_folder(serving: Stage) -> None:
    with pytest.raises(UsageError, match="another sync agent is at work in it"):
        Mirror(serving.folder)


def test_a_full_disk_is_said_and_tried_again(
    serving: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_words: object) -> None:
        raise OSError(28, "No space left on device", "/mirror/x")

    serving.bucket.publish(2, 2)
    with monkeypatch.context() as patch:
        patch.setattr("numl_sync.mirror.shutil.copyfile", full)
        serving.run(REPEAT_S - 1)
    assert serving.said[-1] == "/mirror/x: No space left on device; release 1 goes on"
    assert serving.tree() == expected(1)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)


class KilledError(BaseException):
    """The end of the process, at a place that a test chooses."""


@contextmanager
def killed_at(step: int) -> Iterator[list[str]]:
    """End the agent instead of its change number ``step`` to the disk; yield the changes."""
    done: list[str] = []

    def counted(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*words: Any, **more: Any) -> Any:
            if len(done) == step:
                raise KilledError
            done.append(name)
            return change(*words, **more)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "unlink", "mkdir", "write_text", "touch"):
            patch.setattr(Path, name, counted(name, getattr(Path, name)))
        for name in ("copyfile", "rmtree"):
            patch.setattr(shutil, name, counted(name, getattr(shutil, name)))
        patch.setattr(os, "utime", counted("utime", os.utime))
        yield done


def test_a_kill_at_any_change_to_the_disk_leaves_what_can_be_served(tmp_path: Path) -> None:
    step, ended = 0, False
    while not ended:
        stage = Stage(tmp_path / str(step))
        stage.bucket.publish(1, 1)
        stage.run(10)
        stage.bucket.publish(2, 2, "b", "c")
        with killed_at(step):
            try:
                stage.run(10)
                ended = True
            except KilledError:
                pass
        tree = stage.tree()
        for model in {path.partition("/")[0] for path in tree}:
            config = tree[f"{model}/config.pbtxt"]
            version = 1 if config == CONFIG.format(model, 1).encode() else 2
            assert config == CONFIG.format(model, version).encode()
            assert expected(version, model).items() <= tree.items(), (step, model)
        stage.start()
        stage.run(2 * POLL_S)
        assert stage.tree() == expected(2, "b", "c"), step
        assert list((stage.folder / "incoming").iterdir()) == []
        step += 1
    assert step > 40


@pytest.mark.parametrize("step", [2, 10, 30])
def test_a_kill_does_not_keep_a_fresh_server_from_an_older_release(stage: Stage, step: int) -> None:
    for number in (1, 2):
        stage.bucket.publish(number, number)
    stage.wrong = {"a-2"}
    with killed_at(step), suppress(KilledError):
        stage.run(10)
    stage.start()
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(1)
    assert (stage.agent.status.release, stage.agent.status.refused) == (1, True)


def test_a_damaged_folder_gets_an_older_release_if_the_bucket_is_damaged_too(
    stage: Stage,
) -> None:
    for number in (1, 2):
        stage.bucket.publish(number, number)
    stage.run(10)
    del stage.bucket.objects["a/2/weights"]
    shutil.rmtree(stage.folder / "repository" / "a")
    stage.start()
    stage.run(3 * POLL_S)
    assert stage.tree() == expected(1)


def newest(folder: Path) -> int:
    return max(path.stat().st_mtime_ns for path in (folder, *folder.rglob("*")))
