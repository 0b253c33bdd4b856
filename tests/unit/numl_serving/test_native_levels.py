"""Each level of instructions that the native library has gives the same answers."""

from functools import cache
from pathlib import Path

import pytest
from comparing import differences
from numl_demo.simulate import simulate_event
from numl_serving.native import NativeModel
from numl_serving.weights import read_weights
from oracle25 import simulated

from numl_formats.cardfile import read_card

MODELS = Path(__file__).resolve().parents[3] / "model_repository"
BASELINE = 1


@cache
def model(name: str, level: int) -> NativeModel:
    folder = MODELS / name / "1"
    card = read_card(folder / "model.json")
    return NativeModel(card, read_weights(folder, card), level=level)


@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize("name", ["nugraph2", "nugraph3"])
@pytest.mark.parametrize("hits", [(60, 100), (1000, 1500)])
def test_a_level_answers_as_the_baseline_does(name, level, hits):
    asked, baseline = model(name, level), model(name, BASELINE)
    assert baseline.level == BASELINE
    if asked.level != level:
        pytest.skip(f"this processor has no x86-64-v{level}")
    event = simulated(simulate_event(7, 1, hits), asked.card.schema)
    assert differences(baseline.infer(event), asked.infer(event), 2e-5) == []
