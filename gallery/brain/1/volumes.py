"""Volumes on other grids, in numpy."""

import numpy as np


def brightness(volume: np.ndarray) -> tuple[float, float]:
    """Return what is dark and what is bright in a volume."""
    low, high = np.percentile(volume[::3, ::3, ::3], [1, 99])
    return float(low), float(max(high, low + 1e-6 * max(1, abs(low))))


def cube(box: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the middles of ``count`` voxels along each axis of a cube around a box [3, 2]."""
    side = np.ptp(box, axis=1).max() / count
    steps = (np.arange(count) - (count - 1) / 2) * side
    return [middle - 0.5 + steps for middle in box.mean(axis=1)]


def resample(volume: np.ndarray, places: list[np.ndarray], step: float) -> np.ndarray:
    """Return a volume at the places along each axis, ``step`` apart, in voxels; zero outside.

    Linear between voxels; where the places are wider apart than those, their mean.
    """
    for along in places:
        weights = shares(along.astype(np.float32), volume.shape[0], step)
        volume = np.tensordot(volume, weights, axes=(0, 1))  # the axis becomes the last one
    return volume


def shares(places: np.ndarray, count: int, step: float) -> np.ndarray:
    """Return the share [places, count] of each voxel in each place."""
    reach = max(1.0, step)
    away = np.abs(places[:, None] - np.arange(count, dtype=np.float32))
    return np.clip(1 - away / reach, 0, None) / np.float32(reach)
