"""The benchmark's reference answers like our runtime, and its arithmetic is right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from model_files import model_directory
from numl_bench import report
from numl_bench.compare import compare
from numl_bench.events import events_of_size
from numl_bench.measure import STAGES, Times, ratio
from numl_bench.paths import EAGER, GRADIENTS_OFF, GRADIENTS_ON
from oracle import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_comparison_finds_equal_answers_and_reports_every_path(kind: str, tmp_path: Path) -> None:
    folder = model_directory(kind, tmp_path)
    said: list[str] = []
    (case,) = compare(
        "m", folder, hits=[120], events=2, seed=1, seconds=0, compiled=None, say=said.append
    )
    assert case.differences == []
    assert {GRADIENTS_ON, GRADIENTS_OFF, EAGER} <= set(case.times)
    assert said
    text = "\n".join(report.lines(case))
    assert f"{EAGER} against {GRADIENTS_OFF}: preprocess" in text
    content = json.loads(json.dumps(report.as_json([case], report.machine(0))))
    paths = content["cases"][0]["paths"]
    assert paths[GRADIENTS_OFF]["event"]["median"] > paths[GRADIENTS_OFF]["network"]["median"]
    report.plot([case], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    slow = Times({stage: np.array([[2.0, 4.0], [8.0, 4.0], [90.0, 0.0]]) for stage in STAGES})
    fast = Times({stage: np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 1.0]]) for stage in STAGES})
    assert ratio(slow, fast).median == 4
    assert ratio(slow, fast).low < 4 < ratio(slow, fast).high
    assert slow.median() == 4
    assert fast.rate() == 1


def test_events_are_of_the_size_that_was_asked_for() -> None:
    events = events_of_size(300, 2, seed=5)
    assert all(285 <= len(event["hit_table_hit_id"]) <= 316 for event in events)
