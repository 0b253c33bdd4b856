from pathlib import Path

import numpy as np
import pytest

from deploy.host.errors import RepositoryError
from deploy.triton.golden import GoldenEvent, difference, golden_of, read_golden

WANT: dict[str, np.ndarray] = {"x": np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)}


def golden(**outputs: np.ndarray) -> GoldenEvent:
    return GoldenEvent({}, outputs)


def _changed(**changes: object) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float32) for name, value in changes.items()}


def test_values_within_a_ten_thousandth_of_their_column_s_scale_are_right() -> None:
    assert difference(golden(**WANT), {"x": WANT["x"] + np.float32(3e-4)}) is None
    small = np.array([[100.0, 0.1], [200.0, 0.2]], np.float32)
    assert difference(golden(x=small), {"x": small + np.float32([1e-2, 0])}) is None
    assert difference(golden(x=small), {"x": small + np.float32([0, 1e-2])}) == (
        "output x is off by 0.01 at a scale of 0.2"
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "output x is missing"),
        (_changed(x=np.empty((0, 2))), "output x has shape [0, 2], expected [2, 2]"),
        (_changed(x=[[1, 2], [4, np.nan]]), "output x is not finite"),
        (_changed(x=[[1, 2], [4, 3.1]]), "output x is off by 0.1 at a scale of 3"),
        (_changed(x=[[2, 1], [4, 3]]), "output x is off by 1 at a scale of 3"),
    ],
)
def test_a_wrong_answer_is_described(answer: dict[str, np.ndarray], said: str) -> None:
    assert difference(golden(**WANT), answer) == said


def test_two_classes_that_are_all_but_equal_may_change_places() -> None:
    """As the runtime says, which judges the same answers in a pod."""
    near = np.array([[1.0, 1.00001]], np.float32)
    assert difference(golden(x=near), {"x": near[:, ::-1]}) is None


def test_an_empty_plane_s_empty_answer_is_right() -> None:
    empty = {"x": np.empty((0, 5), np.float32)}
    assert difference(golden(**empty), empty) is None


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04cut"])
def test_a_file_that_is_no_golden_event_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "golden.npz"
    path.write_bytes(content)
    with pytest.raises(RepositoryError, match=r"golden\.npz: not a reference event"):
        read_golden(path)


def test_a_golden_event_without_outputs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "golden.npz"
    np.savez(path, **{"input/a": np.zeros(3)})
    with pytest.raises(RepositoryError, match="lacks inputs or outputs"):
        read_golden(path)


@pytest.mark.parametrize(
    ("want", "other"),
    [
        (np.array([7, 7], np.uint8), np.array([7, 8], np.uint8)),
        (np.array([10**9], np.int64), np.array([10**9 + 1], np.int64)),
        (np.array([True, False]), np.array([True, True])),
    ],
)
def test_labels_and_counts_are_right_only_if_they_are_the_same(
    want: np.ndarray, other: np.ndarray
) -> None:
    assert difference(golden(x=want), {"x": want.copy()}) is None
    assert difference(golden(x=want), {"x": other}) == "output x differs"


def test_words_are_compared_as_a_file_has_them_with_what_triton_answers() -> None:
    want = {"x": np.array([b"cat", b"ibex"])}
    assert difference(golden(**want), {"x": np.array([b"cat", b"ibex"], dtype=object)}) is None
    answer = {"x": np.array([b"cat", b"dog"], dtype=object)}
    assert difference(golden(**want), answer) == "output x differs"


def test_a_model_s_golden_event_is_that_of_its_newest_version(tmp_path: Path) -> None:
    for version in ("2", "10", "configs"):
        (tmp_path / version).mkdir()
    assert golden_of(tmp_path) is None
    np.savez(tmp_path / "2" / "golden.npz", **{"input/a": np.zeros(1), "output/b": np.zeros(1)})
    assert golden_of(tmp_path) is None, "an older version's says nothing of the newest"
    np.savez(tmp_path / "10" / "golden.npz", **{"input/a": np.ones(1), "output/b": np.ones(1)})
    newest = golden_of(tmp_path)
    assert newest is not None
    assert newest.inputs["a"] == [1]


def test_a_model_that_is_not_there_has_no_golden_event_to_look_for(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="none: No such file"):
        golden_of(tmp_path / "none")
