"""The events packaged with the demo weights."""

from __future__ import annotations

from typing import Final

from .simulate import SimulatedEvent, simulate_event

PACKAGED_SEED: Final = 100
_PACKAGED_SIZES: Final = ((130, 180), (280, 320), (500, 600), (850, 1000), (1350, 1500))


def packaged_event(number: int) -> SimulatedEvent:
    """Return one of the five events of growing size, from 1, that demonstrations and tests use."""
    return simulate_event(PACKAGED_SEED, number, _PACKAGED_SIZES[number - 1])


def packaged_events() -> list[SimulatedEvent]:
    """Return all five."""
    return [packaged_event(number) for number in range(1, len(_PACKAGED_SIZES) + 1)]
