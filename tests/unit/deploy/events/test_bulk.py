"""Bulk runs over many files: killed at any point, resumed, merged. A scripted server answers."""

import errno
import fcntl
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import h5py
import pytest

from deploy.events import bulk
from deploy.events.bulk import label_files
from deploy.events.files import EventFile
from deploy.events.merging import merge
from deploy.events.tables import EventFileError
from deploy.host.errors import ClientError, KitError, NoAnswerError, RequestError
from tests.unit.deploy.events.many import EVENTS, FILES, HITS, MODEL, Server, run, write_files
from tests.unit.deploy.events.written import full_disk

SEED = 20261124


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("events"))


def labelled(into: Path) -> list[tuple[int, ...]]:
    """Return the ids of all events that have results, checking each hit's label."""
    found = []
    for path in sorted(into.glob("*.h5")):
        with h5py.File(path) as results:
            assert results.attrs["complete"]
            ids = results["hit_table/hit_id"][:, 0]
            assert (results["hit_table/semantic_label"][:, 0] == ids % 3).all()
            assert len(ids) == HITS * len(results["event_table/event_id"])
            found += [tuple(map(int, each)) for each in results["event_table/event_id"][:]]
    return found


def test_a_disk_that_is_full_when_the_record_is_written_is_named(files, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        run(files[:1], tmp_path / "out")
    assert caught.value.filename == str(tmp_path / "out")


def test_results_that_cannot_be_written_name_no_flag_that_was_not_given(
    files, tmp_path, monkeypatch
):
    monkeypatch.setattr("deploy.events.results.write_atomically", full_disk)
    with pytest.raises(KitError, match="cannot be written: No space left") as caught:
        run(files[:1], tmp_path / "out")
    assert "--out" not in str(caught.value.remedy)


def test_what_another_user_s_run_has_left_is_passed_over(files, tmp_path, monkeypatch):
    into = tmp_path / "out"
    theirs = [into / ".numlkit-work-theirs", into / ".numlkit-work-theirs.lock"]
    theirs[0].mkdir(parents=True)
    theirs[1].touch()

    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(bulk, "unless_locked", Mock(side_effect=denied))
    assert run(files[:1], into).done == 1
    assert all(path.exists() for path in theirs)


@pytest.mark.parametrize("hours", [1, 25])
def test_what_a_run_on_another_host_works_in_is_left_for_a_day(files, tmp_path, hours):
    """Its lock may not be seen here."""
    work = tmp_path / "out" / ".numlkit-work-elsewhere--abcdefgh"
    work.mkdir(parents=True)
    at = time.time() - 3600 * hours
    os.utime(work, (at, at))
    assert run(files[:1], tmp_path / "out").done == 1
    assert work.exists() == (hours < 24)


EVERY = [(number, 1, event) for number in range(FILES) for event in range(EVENTS)]


@pytest.mark.slow
def test_fifty_kills_lose_no_event_and_label_none_twice(files, tmp_path):
    class Slow(Server):
        pause = 0.002

    into, rng, context = tmp_path / "out", random.Random(SEED), multiprocessing.get_context("fork")
    first = context.Process(target=run, args=(files, tmp_path / "measured", Slow))
    started = time.monotonic()
    first.start()
    first.join()
    whole = time.monotonic() - started
    kills = 0
    while kills < 50:
        process = context.Process(target=run, args=(files, into, Slow))
        process.start()
        process.join(rng.uniform(0, whole / 4))
        if process.exitcode is None:
            process.kill()
            process.join()
            kills += 1
        else:  # it was whole: begin again
            assert process.exitcode == 0
            assert labelled(into) == EVERY
            for path in into.glob("*.json"):
                path.unlink()
    state = run(files, into)
    assert (state.done, state.failed, state.left) == (FILES, 0, [])
    assert labelled(into) == EVERY
    assert sorted(path.name for path in into.iterdir()) == sorted(
        name for path in files for name in (path.name, f"{path.stem}.json")
    )


@pytest.mark.parametrize(
    "error",
    [
        NoAnswerError("no answer within 60 s (--timeout)"),
        ClientError("grpc://x: a proxy answers with HTTP status 403"),
    ],
)
def test_an_event_without_an_answer_leaves_its_file_for_another_run(files, tmp_path, error):
    class Late(Server):
        refuse: ClassVar = {1000: error}

    state = run(files[:3], tmp_path / "out", Late)
    assert (state.done, [each.reason for each in state.left]) == (2, [error.cause])
    again = run(files[:3], tmp_path / "out")
    assert (again.skipped, again.done, again.events) == (2, 3, EVENTS)
    assert labelled(tmp_path / "out") == EVERY[: 3 * EVENTS]


def test_an_event_that_is_refused_and_a_file_that_cannot_be_read_are_told(files, tmp_path):
    class Strict(Server):
        refuse: ClassVar = {0: RequestError("integral is NaN")}

    broken = tmp_path / "broken.h5"
    broken.write_text("no HDF5")
    state = run([files[0], broken], tmp_path / "out", Strict)
    assert (state.done, state.events, state.failed) == (1, EVENTS - 1, 1)
    assert [each.reason for each in state.left] == [f"{broken}: not an HDF5 file"]
    record = json.loads((tmp_path / "out/events00.json").read_text())
    assert (record["events"], record["failed"]) == (EVENTS - 1, 1)
    assert not (tmp_path / "out/broken.h5").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path, other: shutil.copy(other, path), "changed while it was read"),
        (lambda path, _: path.unlink(), "No such file or directory"),
    ],
)
def test_a_file_that_changes_while_it_is_read_is_left_and_the_others_are_not(
    files, tmp_path, change, told
):
    changing = tmp_path / "changing.h5"
    shutil.copy(files[0], changing)

    class Changing(Server):
        def infer(self, model, tensors):
            if changing.exists() and int(tensors["hit_table_hit_id"][0]) == 0:
                change(changing, files[1])
            return super().infer(model, tensors)

    state = run([changing, files[2]], tmp_path / "out", Changing)
    assert (state.done, [each.reason for each in state.left]) == (1, [f"{changing}: {told}"])
    assert not (tmp_path / "out/changing.json").exists()


def test_a_file_that_is_done_and_gone_keeps_no_other_from_being_labelled(files, tmp_path):
    gone, link = tmp_path / "gone.h5", tmp_path / "link.h5"
    shutil.copy(files[0], gone)
    run([gone], tmp_path / "out")
    gone.unlink()
    link.symlink_to(link.name)
    state = run([gone, link, files[1]], tmp_path / "out")
    assert (state.done, [each.reason for each in state.left]) == (
        1,
        [f"{gone}: no such file", f"{link}: Too many levels of symbolic links"],
    )


def test_an_event_that_the_system_does_not_read_is_not_taken_for_refused(
    files, tmp_path, monkeypatch
):
    stale = EventFileError("cannot be read")
    stale.__cause__ = OSError(errno.ESTALE, "stale")
    with monkeypatch.context() as patched:
        patched.setattr(EventFile, "read", Mock(side_effect=stale))
        state = run(files[:1], tmp_path / "out")
    assert (state.done, state.failed, len(state.left)) == (0, 0, 1)
    assert run(files[:1], tmp_path / "out").events == EVENTS


def test_a_name_need_not_be_utf_8(files, tmp_path):
    path = tmp_path / os.fsdecode(b"\xe9.h5")
    shutil.copy(files[0], path)
    assert run([path, tmp_path / os.fsdecode(b"\xe8.h5")], tmp_path / "out").done == 1
    assert run([path], tmp_path / "out").skipped == 1
    merge(tmp_path / "out", tmp_path / "all.h5")
    with h5py.File(tmp_path / "all.h5") as results:
        assert results["source_files"].asstr()[:].tolist() == [rf"{tmp_path}/\udce9.h5"]


def test_a_run_does_not_go_on_without_its_lock(tmp_path, monkeypatch):
    made, timers = tempfile.mkdtemp, []

    def taken_for_a_killed_ones(**options: Any) -> str:
        """Have another run remove the new folder, as it does those of killed runs."""
        folder = made(**options)
        lock = os.open(f"{folder}.lock", os.O_CREAT | os.O_WRONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)

        def remove() -> None:
            bulk._remove(Path(folder))
            os.close(lock)

        timers.append(threading.Timer(0.2, remove))
        timers[0].start()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", taken_for_a_killed_ones)
    with bulk._work_folder(tmp_path) as work:
        timers[0].join()
        bulk.remove_abandoned(tmp_path)
        assert work.is_dir()


def test_merged_results_are_read_as_those_of_one_file(files, tmp_path):
    files = files[:3]
    run(files, tmp_path / "out")
    merged = tmp_path / "all.h5"
    records = merge(tmp_path / "out", merged)
    assert sum(record.events for record in records) == 3 * EVENTS
    with h5py.File(merged) as results:
        ids = [tuple(map(int, each)) for each in results["event_table/event_id"][:]]
        assert ids == EVERY[: 3 * EVENTS]
        index = results["hit_table/event_id.seq_cnt"][:]
        assert index.tolist() == [[number, HITS] for number in range(len(ids))]
        sources = results["source_files"].asstr()[:]
        names = [sources[i] for i in results["event_table/source_file"][:, 0]]
        assert names == [str(files[run]) for run, *_ in ids]
        assert results.attrs["semantic_classes"] == "a,b,c"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_merged_results_have_every_attribute_of_a_results_file(files, tmp_path):
    out, empty = tmp_path / "out", tmp_path / "empty.h5"
    shutil.copy(files[0], empty)
    with h5py.File(empty, "r+") as file:
        for table in ("hit_table", "spacepoint_table"):
            for name, dataset in list(file[table].items()):
                del file[table][name]
                file[table][name] = dataset[:0]
    for path, url in ((files[0], "http://x"), (empty, "http://y"), (files[1], "http://x")):
        label_files([path], out, MODEL, url, Server, lambda: None, concurrency=2)
    merge(out, tmp_path / "all.h5")
    with h5py.File(tmp_path / "all.h5") as merged, h5py.File(out / files[1].name) as one:
        assert dict(merged.attrs) == {**one.attrs, "endpoint": "http://y, http://x"}
        assert (merged.attrs["weights"], merged.attrs["event_classes"]) == ("", "")
        assert merged.attrs["semantic_classes"] == "a,b,c"


def test_merged_results_become_a_parquet_table(files, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run(files[:2], tmp_path / "out")
    merge(tmp_path / "out", tmp_path / "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet").to_pydict()
    assert len(table["hit_id"]) == 2 * EVENTS * HITS
    assert table["class"] == ["abc"[each % 3] for each in table["hit_id"]]
    assert table["x_a"] == [float(each % 3 == 0) for each in table["hit_id"]]
    assert set(table["run"]) == {0, 1}


def test_a_full_disk_ends_a_merge_in_order(files, tmp_path):
    run(files[:2], tmp_path / "out")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # stands in for it
    try:
        with pytest.raises(OSError, match=r"File too large: '.*all\.h5'"):
            merge(tmp_path / "out", tmp_path / "all.h5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_merging_needs_no_locks_and_names_results_that_are_damaged(files, tmp_path):
    run(files[:2], tmp_path / "out")
    results = tmp_path / "out" / files[0].name
    with results.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as good as a file system without locks
        merge(tmp_path / "out", tmp_path / "all.h5")
    results.write_bytes(b"")
    with pytest.raises(KitError, match=f"{results}: not an HDF5 file"):
        merge(tmp_path / "out", tmp_path / "all.h5")


def test_only_whole_results_of_one_model_are_merged(files, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ClientError, match="no results"):
        merge(out, tmp_path / "all.h5")
    run(files[:2], out)
    with pytest.raises(ClientError, match=r"\.h5 or \.parquet"):
        merge(out, tmp_path / "all.root")
    (out / files[0].name).unlink()
    with pytest.raises(ClientError, match="are missing"):
        merge(out, tmp_path / "all.h5")
    assert not (tmp_path / "all.h5").exists()


def test_a_file_that_is_no_record_is_not_simply_to_be_removed(tmp_path):
    (tmp_path / "published.json").write_text('{"format": 2}\n')  # a folder of releases
    with pytest.raises(ClientError, match=r"published\.json: not a record of this kit") as caught:
        merge(tmp_path, tmp_path / "all.h5")
    assert caught.value.remedy == "remove it if infer --into wrote it, or name another folder"
