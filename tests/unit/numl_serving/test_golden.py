"""Comparing answers, and the files that hold the expected ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numl_serving.errors import ModelFilesError
from numl_serving.golden import Golden, disagreements, read_golden, write_golden
from small_models import NUGRAPH3, random_event, write_model


def test_values_may_differ_by_a_ten_thousandth_of_their_column() -> None:
    expected = {"x": np.array([[100.0, 1.0], [50.0, 0.5]])}
    near = np.array([[100.009, 1.0], [50.009, 0.501]])
    assert disagreements(expected, {"x": near}) == []
    far = np.array([[100.0, 1.0], [50.0, 0.502]])
    assert disagreements(expected, {"x": far}) == ["x: differs by up to 0.002; allowed: 0.0011"]


def test_a_class_may_differ_only_where_scores_are_equal_within_the_tolerance() -> None:
    expected = {"x": np.array([[1.0, 1.00005], [0.2, 0.9]])}
    assert disagreements(expected, {"x": np.array([[1.00003, 1.00001], [0.2, 0.9]])}) == []
    assert disagreements(expected, {"x": np.array([[1.0, 1.00005], [0.9, 0.2]])}) != []


def test_other_outputs_shapes_and_types_and_what_is_not_finite_disagree() -> None:
    expected = {"x": np.array([[1.0, 2.0], [0.2, 0.9]])}
    assert disagreements(expected, {}) == ["outputs are [] instead of ['x']"]
    assert disagreements(expected, {"x": np.zeros((1, 2))}) == [
        "x: shape is [1, 2] instead of [2, 2]"
    ]
    assert disagreements(expected, {"x": np.ones((2, 2), np.int64)}) == [
        "x: type is int64 instead of float64"
    ]
    for number in (np.nan, np.inf):
        assert disagreements(expected, {"x": np.full((2, 2), number)}) != []
    assert disagreements({"x": np.zeros((0, 2))}, {"x": np.zeros((0, 2))}) == []


def labels(*planes: list[int]) -> dict[str, np.ndarray]:
    return {f"x_i_{n}": np.array(each, np.int32) for n, each in zip("uv", planes, strict=True)}


def test_clusters_are_compared_by_their_hits_over_all_planes_and_not_by_their_numbers() -> None:
    expected = labels([0, 0, -1], [1, 0])
    assert disagreements(expected, labels([7, 7, -1], [2, 7])) == []
    for other in (
        labels([7, 7, -1], [2, 2]),  # the one of v is another
        labels([0, 0, 0], [1, 0]),  # one more
        labels([0, 0, -1], [0, 0]),  # two in one
        labels([-1, -1, 0], [1, -1]),  # none in one
    ):
        assert disagreements(expected, other) == ["x_i_u, x_i_v: hits are clustered differently"]
    assert disagreements(labels([], []), labels([], [])) == []


def test_a_golden_file_gives_back_what_was_written_in_the_schema_of_its_model(
    tmp_path: Path,
) -> None:
    card = replace(NUGRAPH3, planes=("a", "b"), hit_features=("wire_position", "charge"))
    write_model(tmp_path, card)
    event = random_event(card.schema, 5)
    path = tmp_path / "golden.npz"
    write_golden(path, Golden(event, {"x_i_a": np.arange(3, dtype=np.int32)}))
    golden = read_golden(path)
    assert golden.event.schema == card.schema
    for name, column in event.tensors().items():
        np.testing.assert_array_equal(golden.event.tensors()[name], column)
    assert golden.outputs["x_i_a"].tolist() == [0, 1, 2]

    write_model(tmp_path, NUGRAPH3)
    with pytest.raises(ModelFilesError, match=r"golden\.npz has no event: tensor .+ is missing"):
        read_golden(path)
