"""What the gallery's models and tools make of odd inputs, without a server."""

import runpy
import sys
from types import ModuleType

import numpy as np
import pytest

from deploy.host.paths import CHECKOUT


@pytest.fixture
def lifetime_of(monkeypatch):
    """From times (ticks) and charges by event, electron_lifetime's lifetime and error (ms)."""
    stub = "triton_python_backend_utils"  # which only a server has
    monkeypatch.setitem(sys.modules, stub, ModuleType(stub))
    model = runpy.run_path(str(CHECKOUT / "gallery/electron_lifetime/1/model.py"))

    def lifetime(*events):
        sums = (
            model["sums_of"](model["TICK"] * time.astype(float), np.log(charge.astype(float)))
            for time, charge in events
        )
        return model["fit"](sum(sums))

    return lifetime


@pytest.mark.parametrize("hits", [3, 21, 100, 10_000])
def test_hits_at_one_time_or_of_one_charge_tell_no_lifetime(lifetime_of, hits):
    random = np.random.default_rng(hits)
    for _ in range(100):
        tick, charge = random.integers(0, 4600), random.uniform(1, 1e4)
        times = random.uniform(0, 4600, hits).astype(np.float32)
        charges = random.uniform(50, 500, hits).astype(np.float32)
        at_one_time = [(np.full(hits, tick), charges)] * 3
        of_one_charge = [(times, np.full(hits, charge, np.float32))] * 3
        assert np.isnan(lifetime_of(*at_one_time)).all()
        assert np.isnan(lifetime_of(*of_one_charge)).all()


@pytest.mark.parametrize("true", [1e-2, 3.0, 1e3])
@pytest.mark.parametrize("first", [0, 4500])
def test_charges_that_fall_however_slowly_tell_the_lifetime(lifetime_of, true, first):
    times = first + np.linspace(0, 100, 50)
    found, error = lifetime_of((times, 1e4 * np.exp(-times * 0.0005 / true)))
    assert found == pytest.approx(true, rel=1e-3)
    assert error < 1e-2 * true


def test_an_event_without_hits_is_a_blank_image():
    image_of = runpy.run_path(str(CHECKOUT / "gallery/event_image/images.py"))["image_of"]
    whole, single = np.zeros(0, np.int32), np.zeros(0, np.float32)
    image = image_of(whole, whole, single, single)
    np.testing.assert_array_equal(image, np.zeros((3, 96, 96), np.float32), strict=True)
