"""The events packaged with the demo weights."""

from __future__ import annotations

from typing import Final

from .simulate import SimulatedEvent, simulate_event

PACKAGED_SEED: Final = 100
_PACKAGED_SIZES: Final = ((130, 180), (280, 320), (500, 600), (850, 1000), (1350, 1500))


def packaged_events() -> list[SimulatedEvent]:
    """Return the five events of growing size that demonstrations and tests use."""
    return [
        simulate_event(PACKAGED_SEED, number, hits)
        for number, hits in enumerate(_PACKAGED_SIZES, start=1)
    ]
