"""The agent when its bucket, its disk or itself fails; time, bucket and server are played."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from numl_sync.agent import REPEAT_S
from numl_sync.errors import UsageError
from played import POLL_S, KilledError, Stage, config, expected, files, killed_at


def test_a_bucket_that_is_away_is_said_at_once_and_then_every_minute(serving):
    serving.bucket.away = True
    serving.run(3 * REPEAT_S)
    assert serving.said == ["s3://bucket: no connection; release 1 stays in service"] * 3
    assert serving.tree() == expected(1)
    failures = serving.agent.status.failures["bucket"]
    assert failures == pytest.approx(3 * REPEAT_S / POLL_S, abs=2)
    serving.bucket.away = False
    serving.run(2 * POLL_S)
    assert serving.said[-1] == "the bucket answers again after 180 s"


def test_without_a_bucket_at_its_start_it_has_what_was_there(serving):
    serving.bucket.away = True
    serving.start()
    assert serving.agent.status.in_folder
    serving.run(10)
    assert serving.tree() == expected(1)
    assert serving.agent.status.release == 1
    assert serving.said == [
        f"release 1 is already in {serving.folder}/repository",
        "s3://bucket: no connection; release 1 stays in service",
    ]


def test_without_bucket_and_mirror_it_waits(stage):
    stage.run(2 * REPEAT_S)
    assert stage.said == ["s3://bucket: no connection; no release yet"] * 2
    assert not stage.agent.status.in_folder
    stage.bucket.publish(1, 1)
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(1)


def test_a_download_that_breaks_off_goes_on_where_it_was(serving):
    serving.bucket.publish(2, 2)
    serving.bucket.sent, serving.bucket.breaks_after = 0, 300
    serving.run(10 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.said == [
        "release 2 is published",
        "s3://bucket: broken off; release 1 stays in service",
    ]
    serving.start()
    serving.bucket.breaks_after = None
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)
    # Each of the two models' files once: they are the same.
    assert serving.bucket.sent == sum(map(len, files(2).values()))


def test_a_long_download_is_no_bucket_that_is_away(serving, monkeypatch):
    """Nor is a long check: the alert NumlBucketAway comes after 300 s without an answer."""
    monkeypatch.setattr("numl_sync.agent.time.time", lambda: serving.now)
    ages: list[float] = []

    def pass_time() -> None:
        serving.now += 200
        ages.append(serving.now - serving.agent.status.last_success)

    def slowly(*asked: Any) -> Iterator[bytes]:
        for chunk in read(*asked):
            pass_time()
            yield chunk

    def check(_versions: object, meanwhile: Callable[[], None]) -> None:
        for _ in range(3):
            pass_time()
            meanwhile()

    read = serving.bucket.read
    monkeypatch.setattr(serving.bucket, "read", slowly)
    monkeypatch.setattr(serving.agent, "_check", check)
    serving.bucket.publish(2, 2)
    asked = serving.bucket.asked
    serving.run(2 * POLL_S)
    assert serving.agent.status.release == 2
    assert len(ages) > 10
    assert max(ages) < 300
    assert serving.bucket.asked - asked == pytest.approx(3 + 2, abs=1)


def test_a_bucket_that_goes_away_during_a_check_is_no_fault_of_a_release(serving, monkeypatch):
    def check(_versions: object, meanwhile: Callable[[], None]) -> None:
        serving.bucket.away = True
        meanwhile()

    monkeypatch.setattr("numl_sync.agent.time.time", lambda: serving.now)
    monkeypatch.setattr(serving.agent, "_check", check)
    serving.bucket.publish(2, 2)
    serving.run(10)
    answered = serving.agent.status.last_success
    serving.run(100)
    assert serving.agent.status.last_success == answered
    assert serving.agent.status.release == 2


@pytest.mark.parametrize("damage", [b"", b"w", b"x" * 1001, b"x" * 5000, b"x" * 900])
def test_what_lies_in_the_way_of_a_download_is_replaced(serving, damage):
    digest = serving.bucket.publish(2, 2).models["a"].files["weights.safetensors"].sha256
    (serving.folder / "incoming" / digest).write_bytes(damage)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)


@pytest.mark.parametrize("restarted", [True, False], ids=["at the next start", "within a poll"])
def test_a_file_that_somebody_changes_is_mended(serving, restarted):
    weights = serving.folder / "repository" / "a" / "1" / "weights.safetensors"
    before = weights.stat()
    weights.write_bytes(b"x" * before.st_size)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    if restarted:
        serving.start()
        assert not serving.agent.status.in_folder
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.said[0] == f"{serving.folder}/repository was changed by someone else"
    assert serving.checked == ["a-1", "b-1", "a-1"]


def test_a_folder_that_is_removed_is_made_anew_and_the_agents_also_after_a_restart(serving):
    shutil.rmtree(serving.folder)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.said[0] == f"{serving.folder}/repository was changed by someone else"
    with pytest.raises(UsageError, match="another sync agent is using it"):
        Stage(serving.folder)
    serving.start()
    serving.run(10)
    assert serving.tree() == expected(1)


def test_a_full_disk_is_said_and_tried_again(serving, monkeypatch):
    def full(*_words: object) -> None:
        raise OSError(28, "No space left on device", "/mirror/x")

    serving.bucket.publish(2, 2)
    with monkeypatch.context() as patch:
        patch.setattr("numl_sync.mirror.shutil.copyfile", full)
        serving.run(REPEAT_S - 1)
    assert serving.said[-1] == "/mirror/x: No space left on device; release 1 stays in service"
    assert serving.tree() == expected(1)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(2)


def test_a_kill_at_any_change_to_the_disk_leaves_what_can_be_served(tmp_path):
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
            there = tree[f"{model}/config.pbtxt"]
            version = 1 if there == config(model, 1).encode() else 2
            assert there == config(model, version).encode()
            assert expected(version, model).items() <= tree.items(), (step, model)
        stage.start()
        stage.run(2 * POLL_S)
        assert stage.tree() == expected(2, "b", "c"), step
        assert list((stage.folder / "incoming").iterdir()) == []
        step += 1
    assert step > 40


@pytest.mark.parametrize("step", [2, 10, 30])
def test_a_kill_does_not_keep_a_fresh_server_from_an_older_release(stage, step):
    stage.bucket.publish_each(1, 2)
    stage.wrong = {"a-2"}
    with killed_at(step), suppress(KilledError):
        stage.run(10)
    stage.start()
    stage.run(2 * POLL_S)
    assert stage.tree() == expected(1)
    assert (stage.agent.status.release, stage.agent.status.refused) == (1, True)


def test_a_damaged_folder_gets_an_older_release_if_the_bucket_is_damaged_too(stage):
    stage.bucket.publish_each(1, 2)
    stage.run(10)
    del stage.bucket.objects["a/2/weights.safetensors"]
    shutil.rmtree(stage.folder / "repository" / "a")
    stage.start()
    stage.run(3 * POLL_S)
    assert stage.tree() == expected(1)
