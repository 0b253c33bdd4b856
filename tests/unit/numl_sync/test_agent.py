"""What the agent does when releases come and go, with time, bucket and server played."""

import os
import shutil
from pathlib import Path

import pytest
from numl_sync.agent import LOAD_S, REPEAT_S
from numl_sync.errors import UsageError
from numl_sync.mirror import Mirror
from numl_sync.templates import Templates
from played import POLL_S, TEMPLATE, TODAY, expected, file_of, files, release, write_templates

from numl_formats.published import Model, Release


def test_a_release_comes_whole_and_serves(stage):
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


def test_an_idle_agent_asks_once_a_poll_and_its_server_never(serving):
    asked, server = serving.bucket.asked, serving.server.asked
    serving.run(100 * POLL_S)
    assert serving.bucket.asked - asked == pytest.approx(100, abs=1)
    assert serving.server.asked == server


def test_the_old_version_stays_until_the_server_answers_with_the_new(serving):
    serving.server.cannot_load = {("b", 2)}
    serving.bucket.publish(2, 2)
    serving.run(60)
    assert serving.tree() == expected(1) | expected(2)
    assert serving.agent.status.release == 1
    serving.server.cannot_load = set()
    serving.run(1)
    assert serving.tree() == expected(2)
    assert serving.agent.status.release == 2


def test_what_the_server_cannot_load_is_taken_back(serving):
    serving.server.cannot_load = {("b", 2)}
    serving.bucket.publish(2, 2)
    serving.wait(LOAD_S + 2 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.said[-1] == (
        "refused: release 2: b version 2 cannot be loaded: the server's log says why; "
        "release 1 stays in service"
    )
    said, sent = len(serving.said), serving.bucket.sent
    serving.wait(1000)
    assert (len(serving.said), serving.bucket.sent) == (said, sent)
    assert serving.agent.status.refused
    assert serving.agent.status.failures["release"] == 1
    serving.bucket.publish(3, 3)
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(3)
    assert not serving.agent.status.refused


def test_another_configuration_of_the_same_version_is_seen_to_be_loaded(serving):
    # As after an upgrade of the image.
    write_templates(serving.templates, f"{TEMPLATE}max_batch_size: 0\n")
    serving.bucket.publish(2, 1)
    serving.server.cannot_configure = {"b"}
    serving.wait(60)
    assert serving.agent.status.release == 1
    serving.wait(LOAD_S)
    assert serving.said[-1].startswith("refused: release 2: b version 1 cannot be loaded: ")
    assert serving.agent.status.release == 1
    serving.server.cannot_configure = set()
    serving.start()
    serving.run(2 * POLL_S)
    assert serving.agent.status.release == 2
    assert b"max_batch_size: 0\n" in serving.tree()["a/config.pbtxt"]


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_release_that_is_taken_back_before_it_is_loaded_leaves_the_one_before(serving, seconds):
    serving.bucket.publish(2, 2)
    serving.run(2 * POLL_S)
    serving.server.looks = False
    serving.bucket.publish(3, 3)
    serving.run(2 * POLL_S + seconds)
    assert serving.agent.status.release == 2
    serving.bucket.roll_back()
    serving.run(2 * POLL_S)
    assert serving.said[-1] == "release 2 serves: a version 2, b version 2"
    serving.server.looks = True
    serving.run(LOAD_S + 2 * POLL_S)
    assert serving.tree() == expected(2)
    assert serving.agent.status.release == 2


def test_a_configuration_that_somebody_changed_is_put_back_and_serves_on(serving):
    path = serving.folder / "repository" / "a" / "config.pbtxt"
    serving.server.looks = False  # or loads what is equal
    path.write_text(f"# mine\n{path.read_text()}")
    serving.run(LOAD_S + 2 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.agent.status.release == 1
    assert not serving.agent.status.refused


def test_what_was_downloaded_of_a_release_that_is_no_longer_wanted_makes_room(serving):
    serving.bucket.publish(2, 2)
    serving.bucket.breaks_after = serving.bucket.sent + 500
    serving.run(2 * POLL_S)
    serving.bucket.publish(3, 3)
    serving.bucket.breaks_after = serving.bucket.sent + 100
    serving.run(2 * POLL_S)
    wanted = {file_of(content).sha256 for content in files(3).values()}
    assert {path.name for path in (serving.folder / "incoming").iterdir()} <= wanted


def test_other_weights_of_the_same_version_are_seen_to_be_loaded(serving):
    # Of a bucket that was begun afresh: the server answers with version 1 of the one before.
    serving.bucket.history = None
    other = serving.bucket.objects["b/1/model.json"] = files(2)["model.json"]
    new = release(1, 1)
    new.models["b"] = Model(1, {**new.models["b"].files, "model.json": file_of(other)})
    serving.server.cannot_configure = {"b"}
    serving.bucket.serve(new)
    serving.wait(60)
    assert not any("serves" in line for line in serving.said)
    serving.server.cannot_configure = set()
    serving.run(2 * POLL_S)
    assert serving.said[-1] == "release 1 serves: a version 1, b version 1"


def test_a_first_release_that_cannot_be_loaded_is_said_every_minute_and_kept(stage):
    stage.server.cannot_load = {("b", 1)}
    stage.bucket.publish(1, 1)
    stage.wait(LOAD_S)
    stage.run(3 * REPEAT_S - 1)
    assert stage.tree() == expected(1)
    failed = "b version 1 cannot be loaded: the server's log says why; no release yet"
    assert stage.said[2:] == [failed] * 3
    stage.server.cannot_load = set()
    stage.run(1)
    assert stage.agent.status.release == 1


def test_a_server_that_is_away_is_no_fault_of_a_release(serving):
    serving.server.runs = False
    serving.bucket.publish(2, 2)
    serving.run(4 * REPEAT_S - 1)
    assert serving.tree() == expected(1) | expected(2)
    silent = "release 2: the server does not answer; release 1 stays in service"
    assert serving.said[2:] == [silent] * 3
    serving.server.runs = True
    serving.run(2)
    assert serving.tree() == expected(2)


@pytest.mark.parametrize("cannot_load", [{("c", 2)}, set()], ids=["not loaded yet", "served"])
def test_a_release_that_is_rolled_back_leaves_no_model(serving, cannot_load):
    models = {**release(1, 1).models, **release(2, 2, ("c",)).models}
    serving.bucket.objects |= {f"c/2/{path}": content for path, content in files(2).items()}
    serving.bucket.serve(Release(2, TODAY, "abc", models))
    serving.server.cannot_load = cannot_load
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(1) | expected(2, "c")
    shutil.rmtree(serving.folder / "incoming")  # somebody may, though nothing is downloaded
    serving.bucket.roll_back()
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(1)
    assert serving.said[-1] == "release 1 serves: a version 1, b version 1"


def test_a_model_that_stays_as_it_is_is_not_touched(serving):
    serving.bucket.publish(2, 2)
    models = {**release(3, 2).models, "a": release(1, 1).models["a"]}
    serving.bucket.serve(Release(3, TODAY, "abc", models))
    before = newest(serving.folder / "repository" / "a")
    serving.run(2 * POLL_S)
    assert serving.tree() == expected(1, "a") | expected(2, "b")
    assert newest(serving.folder / "repository" / "a") == before
    assert serving.checked[2:] == ["b-2"]


def test_the_newest_time_of_a_model_rises_with_its_configuration(serving):
    folder = serving.folder / "repository" / "a"
    ahead = newest(folder) + 3600 * 10**9  # the clock was set back by an hour
    os.utime(folder / "1" / "weights.safetensors", ns=(ahead, ahead))
    serving.bucket.publish(2, 2)
    serving.run(2 * POLL_S)
    assert (folder / "config.pbtxt").stat().st_mtime_ns >= ahead + 10**9


def test_two_agents_do_not_share_a_folder(serving):
    with pytest.raises(UsageError, match="another sync agent is using it"):
        Mirror(serving.folder, Templates(serving.templates))


def test_a_folder_with_files_of_others_is_left_alone(tmp_path):
    model = tmp_path / "repository" / "mine" / "config.pbtxt"
    model.parent.mkdir(parents=True)
    model.touch()
    for _ in range(2):
        with pytest.raises(UsageError, match="repository has files that no sync agent put there"):
            Mirror(tmp_path, Templates(tmp_path))
    assert model.exists()
    assert not (tmp_path / "incoming").exists()


def newest(folder: Path) -> int:
    return max(path.stat().st_mtime_ns for path in (folder, *folder.rglob("*")))
