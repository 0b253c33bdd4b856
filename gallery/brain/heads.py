"""Simulated heads: shapes that are roughly a head's, in all kinds of contrasts.

A network that has seen every contrast finds shapes, and so the brain in real pictures, too (as
SynthSeg, doi:10.1016/j.media.2023.102789). Lengths in mm, from the middle of the brain: x to the
right, y to the front, z up.
"""

import numpy as np

SIDE, VOXEL = 96, 2.5
# Tissues, by number. Fluid in the brain belongs to it.
AIR, WHITE, GREY, FLUID, AROUND, SKULL, FAT, MUSCLE, EYE, MARROW = range(10)
T1 = np.array([0, 0.85, 0.6, 0.2, 0.2, 0.1, 0.95, 0.5, 0.3, 0.7])  # their usual brightness


def tissues(rng: np.random.Generator) -> np.ndarray:
    """Return a random head, uint8 [96, 96, 96]: the tissue of each voxel."""
    p = turned(rng) + waves(rng, 4, 80, 3)
    x, y, z = p * rng.uniform(0.9, 1.1, (3, 1, 1, 1))
    fold, blob = waves(rng, 1, 18, 1)[0], waves(rng, 1, 45, 1)[0]
    cerebrum = 70 * (norm(x / 68, y / 86, np.where(z > 0, z / 64, z / 50), 2.4) - 1)
    cerebellum = 33 * (norm(x / 50, (y + 42) / 34, (z + 46) / 28) - 1)
    stem = np.maximum(np.hypot(x, y + 18) - 14, -z - 85)
    away = np.minimum(np.minimum(cerebrum, cerebellum), np.where(z < -20, stem, 99))
    fluid, bone, skin = rng.uniform((2, 5, 4), (6, 9, 11)).cumsum()
    face = 60 * (norm(x / 62, (y - 45) / 58, (z + 75) / 75) - 1)
    neck = np.hypot(x / 1.1, y + 12) - rng.uniform(50, 65)
    below = np.minimum(face, np.where(z < -40, neck, 99))
    head = np.full(x.shape, AIR, np.uint8)
    head[below < 0] = FAT
    head[below < -5 - 3 * blob] = MUSCLE
    head[(below < -8) & (blob > 0.9)] = SKULL
    head[(below < -8) & (blob < -1.1)] = rng.choice([AIR, MARROW])
    shell = np.minimum(cerebrum, cerebellum)
    for reach, tissue in ((skin, FAT), (bone, SKULL), (fluid, AROUND)):
        head[shell < reach] = tissue
    middle = (fluid + bone) / 2
    head[(np.abs(shell - middle) < rng.uniform(0, 2)) & (blob > -0.5)] = MARROW
    head[(np.hypot(np.abs(x) - 32, norm(y - 72, z + 25, 0)) < 12)] = EYE
    head[away < fluid] = np.where(shell < bone, AROUND, head)[away < fluid]
    head[away < 0] = GREY
    head[away < -8 - 7 * fold] = WHITE
    head[(away < 0) & (away > -12 * (fold - 0.9))] = FLUID
    wide = rng.uniform(0.6, 1.5)
    head[norm((np.abs(x) - 12) / (7 * wide), y / 30, (z - 8) / (10 * wide)) < 1] = FLUID
    return head


def picture(rng: np.random.Generator, head: np.ndarray) -> np.ndarray:
    """Return a random picture of a head, float32, bright and dark as in T1, or in any way."""
    bright = np.clip(T1 + rng.normal(0, 0.08, len(T1)), 0, None)
    if rng.random() < 0.4:
        bright = rng.uniform(0, 1, len(T1))
    bright[AIR] = rng.uniform(0, 0.05)
    found = bright[head]
    for axis in range(3):  # blurred
        share = rng.uniform(0, 0.25)
        found = (1 - 2 * share) * found + share * (
            np.roll(found, 1, axis) + np.roll(found, -1, axis)
        )
    ramp = np.linspace(-1, 1, SIDE)
    for axis, slope in enumerate(rng.normal(0, 0.2, 3)):  # brighter near one coil
        found *= np.exp(slope * ramp).reshape([-1 if a == axis else 1 for a in range(3)])
    found += rng.normal(0, rng.uniform(0.005, 0.06), found.shape)
    return np.abs(found).astype(np.float32)


def is_brain(head: np.ndarray) -> np.ndarray:
    """Return which voxels are brain."""
    return (head >= WHITE) & (head <= FLUID)


def turned(rng: np.random.Generator) -> np.ndarray:
    """Return the place [3, 96, 96, 96] of each voxel, of a head that is turned a little."""
    line = (np.arange(SIDE) - SIDE / 2) * VOXEL * rng.uniform(0.9, 1.1)
    grid = np.stack(np.meshgrid(line, line, line, indexing="ij"))
    grid += rng.normal(0, 12, (3, 1, 1, 1)) - np.array([0, 0, 15]).reshape(3, 1, 1, 1)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        angle = rng.normal(0, 0.15)
        grid[a], grid[b] = (
            np.cos(angle) * grid[a] - np.sin(angle) * grid[b],
            np.sin(angle) * grid[a] + np.cos(angle) * grid[b],
        )
    return grid


def waves(rng: np.random.Generator, size: float, length: float, count: int) -> np.ndarray:
    """Return smooth random fields [count, 96, 96, 96] of a size and wave length (mm)."""
    found = np.zeros((count, SIDE, SIDE, SIDE))
    line = np.arange(SIDE) * VOXEL
    for field in found:
        for _ in range(8):
            direction = rng.normal(size=3)
            k = direction * 2 * np.pi / length / np.linalg.norm(direction) * rng.uniform(0.6, 1.4)
            parts = [np.exp(1j * each * line) for each in k]
            wave = parts[0][:, None, None] * parts[1][None, :, None] * parts[2][None, None]
            field += (wave * np.exp(2j * np.pi * rng.random())).real
    return found * (size / 2)


def norm(x, y, z, power: float = 2.0) -> np.ndarray:
    """Return the length of (x, y, z)."""
    return (np.abs(x) ** power + np.abs(y) ** power + np.abs(z) ** power) ** (1 / power)
