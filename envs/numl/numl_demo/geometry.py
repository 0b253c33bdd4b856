"""A single-phase liquid-argon TPC of MicroBooNE's size and wire layout.

Coordinates in cm: x along the drift (0 at the wires), y up, z along the beam. The three
planes' wires lie at +60, -60 and 0 degrees to the vertical with a 3 mm pitch; the offsets
were read off MicroBooNE's open data, so that simulated and real wire numbers agree.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

PLANES: Final = ("u", "v", "y")
LOWER: Final = np.array([0.0, -116.0, 0.0])
UPPER: Final = np.array([256.0, 116.0, 1037.0])
WIRE_COUNT: Final = np.array([2400, 2400, 3456])
PITCH: Final = 0.3
TICKS_PER_CM: Final = 18.216
FIRST_TICK: Final = 800.0
READOUT_TICKS: Final = 6400.0

# wire = offset + (y, z) . normal / pitch
_ANGLE = np.radians([60.0, -60.0, 0.0])
_NORMAL = np.stack((-np.sin(_ANGLE), np.cos(_ANGLE)), axis=1) / PITCH
_OFFSET = np.array([338.2, 332.4, -0.3])


def wire_coordinate(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the position in wire numbers, f64[n, 3], one column per plane, of points [n, 3]."""
    return np.asarray(points[:, 1:] @ _NORMAL.T + _OFFSET)


def drift_time(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the arrival time in ticks for a drift coordinate in cm."""
    return FIRST_TICK + TICKS_PER_CM * x


def drift_position(time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the drift coordinate in cm for an arrival time in ticks."""
    return (time - FIRST_TICK) / TICKS_PER_CM


def crossing(wires: NDArray[np.float64], usable: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the (y, z) in cm, f64[n, 2], that fits each row's usable wires best.

    Args:
        wires: wire numbers, f64[n, 3].
        usable: which of the three to use, bool[n, 3]; at least two per row.
    """
    weight = usable.astype(np.float64)
    normal_matrix = np.einsum("np,pi,pj->nij", weight, _NORMAL, _NORMAL)
    right = np.einsum("np,pi->ni", weight * (wires - _OFFSET), _NORMAL)
    return np.asarray(np.linalg.solve(normal_matrix, right[:, :, None])[:, :, 0])


def inside(points: NDArray[np.float64], margin: float = 0.0) -> NDArray[np.bool_]:
    """Return which of the points [n, 3] lie inside the active volume, `margin` cm from it."""
    return np.asarray(np.all((points > LOWER + margin) & (points < UPPER - margin), axis=-1))


def dead_wires() -> tuple[NDArray[np.bool_], ...]:
    """Return per plane which wires never give a hit: the same few blocks in every event."""
    rng = np.random.default_rng(20_16)
    dead = []
    for count in WIRE_COUNT:
        mask = np.zeros(count, dtype=bool)
        for start in rng.integers(0, count, size=count // 200):
            mask[start : start + rng.integers(2, 12)] = True
        dead.append(mask)
    return tuple(dead)
