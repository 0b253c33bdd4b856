"""The results file."""

import fcntl
import os
import resource
from pathlib import Path
from types import MappingProxyType

import h5py
import numpy as np
import pytest

from deploy.client.transport import ServedModel
from deploy.events.answers import Labels
from deploy.events.files import EventTensors
from deploy.events.inference import Answer, Failure
from deploy.events.results import ResultsWriter
from deploy.host.errors import KitError

MODEL = ServedModel(
    "nugraph3", {}, (), {"semantic_classes": "a,b,c,d,e,f,g", "event_classes": "p,q"}
)
URL = "http://localhost:8000"


def make_answer(number: int, hits: int, *, classes: int = 7, event: bool = True) -> Answer:
    rng = np.random.default_rng(number)
    tensors = {
        "hit_table_hit_id": rng.permutation(hits).astype(np.int32),
        "hit_table_local_plane": rng.integers(0, 3, hits).astype(np.int32),
    }
    scores = rng.random((hits, classes)).astype(np.float32) + np.float32(1e-3)
    labels = Labels(
        EventTensors((1, 2, number), f"file{number % 2}.h5", MappingProxyType(tensors)),
        ("u", "v", "y"),
        {
            "x_semantic": scores / scores.sum(axis=1, keepdims=True),
            "x_filter": rng.random(hits).astype(np.float32),
        },
        {"e_evt": np.float32([0.2, 0.8]), "v_evt": np.float32([1, 2, 3])} if event else {},
    )
    return Answer(labels, 0.01, 0)


def write(path: Path, answers: list[Answer]) -> None:
    with ResultsWriter(path, MODEL, URL) as writer:
        for answer in answers:
            writer.add(answer)
        writer.complete = True


@pytest.mark.parametrize("hits_of_last", [3000, 30_000])  # written at once, and in two parts
def test_labels_and_scores_are_found_by_event_and_hit_id(tmp_path, hits_of_last):
    answers = [make_answer(0, 5), make_answer(1, 0), make_answer(2, hits_of_last)]
    write(tmp_path / "r.h5", answers)
    with h5py.File(tmp_path / "r.h5") as file:
        hits = file["hit_table"]
        for answer in answers:
            labels = answer.labels
            rows = (hits["event_id"][()] == labels.event.event_id).all(axis=1)
            ids = labels.event.tensors["hit_table_hit_id"]
            assert hits["hit_id"][rows][:, 0].tolist() == ids.tolist()
            assert np.array_equal(hits["x_semantic"][rows], labels.hits["x_semantic"])
            assert np.array_equal(hits["filter_score"][rows][:, 0], labels.hits["x_filter"])
            assert np.array_equal(hits["semantic_label"][rows][:, 0], labels.label)
            assert np.allclose(
                hits["semantic_score"][rows][:, 0], labels.hits["x_semantic"].max(axis=1)
            )
        assert hits["event_id.seq_cnt"][()].tolist() == [[0, 5], [2, hits_of_last]]
        assert file["event_table/event_id"][:, 2].tolist() == [0, 1, 2]
        assert file["event_table/event_label"][:, 0].tolist() == [1, 1, 1]
        assert file["event_table/source_file"][:, 0].tolist() == [0, 1, 0]
        assert file["source_files"].asstr()[()].tolist() == ["file0.h5", "file1.h5"]
        assert file.attrs["semantic_classes"] == "a,b,c,d,e,f,g"
        assert file.attrs["event_classes"] == "p,q"
        assert file.attrs["complete"]
    # Nothing of the space that was claimed ahead stays in the file.
    assert (tmp_path / "r.h5").stat().st_size < 130 * hits_of_last
    assert [p.name for p in tmp_path.iterdir()] == ["r.h5"]


def test_logits_and_probabilities_of_several_events_give_each_the_labels_it_has_alone(tmp_path):
    answers = [make_answer(number, 50) for number in range(3)]
    scores = answers[1].labels.hits["x_semantic"]
    answers[1].labels.hits["x_semantic"] = 4 * np.log(scores)
    write(tmp_path / "r.h5", answers)
    with h5py.File(tmp_path / "r.h5") as file:
        for name in ("label", "score"):
            alone = np.concatenate([getattr(answer.labels, name) for answer in answers])
            assert np.array_equal(file[f"hit_table/semantic_{name}"][:, 0], alone)


def test_a_model_without_event_head_has_no_event_columns(tmp_path):
    write(tmp_path / "r.h5", [make_answer(0, 4, classes=5, event=False)])
    with h5py.File(tmp_path / "r.h5") as file:
        assert "e_evt" not in file["event_table"]
        assert file.attrs["semantic_classes"] == "class_0,class_1,class_2,class_3,class_4"


def test_failures_are_kept_with_their_reasons(tmp_path):
    with ResultsWriter(tmp_path / "r.h5", MODEL, URL) as writer:
        writer.fail(Failure((1, 2, 3), "a.h5", "integral above 1e6"))
        writer.fail(Failure(None, "b.h5", "no such file"))
    with h5py.File(tmp_path / "r.h5") as file:
        assert file["failed_table/event_id"][()].tolist() == [[1, 2, 3], [-1, -1, -1]]
        reasons = file["failed_table/reason"].asstr()[:, 0].tolist()
        assert reasons == ["integral above 1e6", "no such file"]
        assert not file.attrs["complete"]


def test_another_class_count_is_an_error_and_keeps_the_file_that_was_there(tmp_path):
    path = tmp_path / "r.h5"
    path.write_text("old")
    answers = [make_answer(0, 4), make_answer(1, 4, classes=5)]
    with pytest.raises(KitError, match="x_semantic has 5 values for event"):
        write(path, answers)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["r.h5"]


@pytest.mark.parametrize(("limit", "hits"), [(9 << 20, 30_000), (1 << 13, 20)])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, limit, hits):
    # A limit on file sizes stands in for a full disk; a large file's reservation fails.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(KitError, match=r"r\.h5 cannot be written: File too large"):
            write(tmp_path / "r.h5", [make_answer(i, hits) for i in range(20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["a", "absent"])
def test_a_path_through_a_file_or_an_absent_folder_is_named(tmp_path, folder):
    (tmp_path / "a").touch()
    with pytest.raises(KitError, match=r"r\.h5 cannot be written"):
        write(tmp_path / folder / "r.h5", [])


def test_a_results_file_needs_no_lock(tmp_path):
    with ResultsWriter(tmp_path / "r.h5", MODEL, "http://x") as writer:
        writer.add(make_answer(0, 100_000))
        with next(tmp_path.glob(".*/r.h5")).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has one


def test_no_block_of_a_results_file_is_reserved_twice(tmp_path, monkeypatch):
    reserved, reserve = [0], os.posix_fallocate

    def note(descriptor: int, offset: int, length: int) -> None:
        assert offset == reserved[-1]
        reserved.append(offset + length)
        reserve(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", note)
    write(tmp_path / "r.h5", [make_answer(i, 30_000) for i in range(10)])
    assert len(reserved) > 2
