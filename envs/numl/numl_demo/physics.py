"""Energy loss in liquid argon: tracks by the Bethe formula, showers by a simple cascade.

Energies in MeV, lengths in cm. Constants of argon from the Particle Data Group; the density
correction is Sternheimer's, recombination is Birks' law with ICARUS' constants at 273 V/cm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import geometry

Floats = NDArray[np.float64]

ELECTRON_MASS: Final = 0.511
MASSES: Final = {11: 0.511, 13: 105.66, 211: 139.57, 321: 493.68, 2212: 938.27}
STEP: Final = 0.1
RADIATION_LENGTH: Final = 14.0

_DENSITY, _Z_OVER_A, _EXCITATION = 1.396, 18 / 39.948, 188e-6
_MIP_LOSS, _MAX_LOSS = 2.2, 40.0
_PAIR_THRESHOLD, _SOFTEST = 10.0, 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Deposits:
    """Ionisation along one particle: points f64[n, 3], energy and energy per cm f64[n]."""

    points: Floats
    energy: Floats
    density: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """A charged particle's track and how it ended (stopped, or left or interacted)."""

    deposits: Deposits
    stopped: bool
    end: Floats
    direction: Floats
    kinetic: float
    length: float


def bethe(beta_gamma: Floats, mass: float = 105.66) -> Floats:
    """Return the mean energy loss in MeV/cm of a singly charged particle."""
    gamma = np.sqrt(1 + beta_gamma**2)
    beta2 = (beta_gamma / gamma) ** 2
    ratio = ELECTRON_MASS / mass
    w_max = 2 * ELECTRON_MASS * beta_gamma**2 / (1 + 2 * gamma * ratio + ratio**2)
    x = np.log10(beta_gamma)
    density = np.where(x > 0.2, 2 * np.log(10) * x - 5.2146, 0.0)
    density += np.where((x > 0.2) & (x < 3.0), 0.19559 * np.abs(3.0 - x) ** 3, 0.0)
    log = 0.5 * np.log(2 * ELECTRON_MASS * beta_gamma**2 * w_max / _EXCITATION**2)
    loss = 0.307075 * _DENSITY * _Z_OVER_A / beta2 * (log - beta2 - density / 2)
    return np.asarray(np.clip(loss, 1.0, _MAX_LOSS))


# Range over mass is a function of beta gamma alone, so one table serves all particles.
_BETA_GAMMA = np.geomspace(0.02, 100.0, 2000)
_KINETIC = np.sqrt(1 + _BETA_GAMMA**2) - 1
_LOSS = bethe(_BETA_GAMMA)
_RANGE = np.concatenate(
    ([0.0], np.cumsum(np.diff(_KINETIC) / (0.5 * (_LOSS[1:] + _LOSS[:-1])))),
)


def range_of(kinetic: float, mass: float) -> float:
    """Return the range in cm of a particle of this kinetic energy and mass in MeV."""
    return float(np.interp(kinetic / mass, _KINETIC, _RANGE)) * mass


def kinetic_at(residual_range: Floats, mass: float) -> Floats:
    """Return the kinetic energy in MeV left at a residual range in cm."""
    return np.asarray(np.interp(residual_range / mass, _RANGE, _KINETIC)) * mass


def momentum(kinetic: float, mass: float) -> float:
    """Return the momentum in MeV/c."""
    return float(np.sqrt(kinetic * (kinetic + 2 * mass)))


def recombined(energy: Floats, density: Floats) -> Floats:
    """Return the part of the deposited energy whose charge survives recombination (Birks)."""
    return energy * 0.8 / (1 + 0.0486 * np.maximum(density, 1.0) / (_DENSITY * 0.273))


def unit(vectors: Floats) -> Floats:
    """Return the vectors scaled to length one along the last axis."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def isotropic(rng: np.random.Generator, count: int) -> Floats:
    """Return `count` random directions, f64[count, 3]."""
    return unit(rng.normal(size=(count, 3)))


def around(rng: np.random.Generator, axis: Floats, spread: float | Floats) -> Floats:
    """Return directions scattered about the given axes by a Gaussian angle (radians)."""
    return unit(axis + np.asarray(spread)[..., None] * rng.normal(size=axis.shape))


def _walk(
    rng: np.random.Generator, start: Floats, direction: Floats, angle: Floats, step: float
) -> tuple[Floats, Floats]:
    """Return points and directions f64[n, m, 3] of n random walks of m steps.

    Args:
        rng: the source of chance.
        start: first points, f64[n, 3].
        direction: first directions, f64[n, 3].
        angle: standard deviation of the scattering angle before each step, f64[n, m].
        step: step length in cm.
    """
    kicks = rng.normal(size=(*angle.shape, 3)) * angle[:, :, None]
    directions = unit(direction[:, None, :] + np.cumsum(kicks, axis=1))
    points = start[:, None, :] + step * (np.cumsum(directions, axis=1) - 0.5 * directions)
    return points, directions


def track(
    rng: np.random.Generator,
    pdg: int,
    kinetic: float,
    start: Floats,
    direction: Floats,
    interaction_length: float = np.inf,
) -> Track:
    """Follow a charged particle until it stops, interacts, or leaves the active volume.

    Args:
        rng: the source of chance.
        pdg: particle code; its magnitude must be one of `MASSES`.
        kinetic: kinetic energy in MeV.
        start: first point, f64[3].
        direction: first direction, f64[3].
        interaction_length: mean free path in cm to an interaction that ends the track.
    """
    mass = MASSES[abs(pdg)]
    full = range_of(kinetic, mass)
    free = rng.exponential(interaction_length) if np.isfinite(interaction_length) else np.inf
    count = max(1, int(min(full, free) / STEP))
    before = np.maximum(full - STEP * np.arange(count), 0.0)
    energy_before = kinetic_at(before, mass)
    mean = energy_before - kinetic_at(np.maximum(before - STEP, 0.0), mass)
    p = np.sqrt(energy_before * (energy_before + 2 * mass))
    beta_p = p**2 / (energy_before + mass)
    angle = 13.6 / np.maximum(beta_p, 5.0) * np.sqrt(STEP / RADIATION_LENGTH)
    points, directions = _walk(rng, start[None], direction[None], angle[None], STEP)
    kept = np.cumprod(geometry.inside(points[0])).astype(bool)
    # A Moyal tail stands for Landau's; its mean is subtracted so that the energy is kept.
    moyal = -np.log(np.maximum(rng.normal(size=count) ** 2, 1e-9)) - 1.2704
    energy = np.maximum(mean + 0.012 * moyal, 0.2 * mean)
    last = max(int(kept.sum()) - 1, 0)
    stopped = bool(kept.all()) and full <= free
    left = 0.0 if stopped else float(kinetic_at(np.array([before[last] - STEP]), mass)[0])
    return Track(
        Deposits(points[0][kept], energy[kept], energy[kept] / STEP),
        stopped,
        points[0][last],
        directions[0][last],
        left if kept.all() else 0.0,
        STEP * float(kept.sum()),
    )


def cascade(
    rng: np.random.Generator, *, photon: bool, energy: float, start: Floats, direction: Floats
) -> Deposits:
    """Follow an electron or photon and all it makes, generation by generation.

    Electrons ionise and radiate photons with a 1/k spectrum; photons fly, then make pairs or
    scatter off an electron. What leaves the active volume is lost.

    Args:
        rng: the source of chance.
        photon: whether the first particle is a photon.
        energy: its (kinetic) energy in MeV.
        start: first point, f64[3].
        direction: first direction, f64[3].
    """
    none = (np.empty((0, 3)), np.empty((0, 3)), np.empty(0))
    first = (start[None], direction[None], np.array([energy]))
    electrons, photons = (none, first) if photon else (first, none)
    points: list[Floats] = []
    energies: list[Floats] = []
    while len(electrons[2]) or len(photons[2]):
        converted, scattered = _convert(rng, *photons)
        electrons = _joined(electrons, converted)
        where, deposited, electrons, radiated = _ionise(rng, *electrons)
        photons = _joined(scattered, radiated)
        points.append(where)
        energies.append(deposited)
    at, lost = np.concatenate(points), np.concatenate(energies)
    kept = geometry.inside(at)
    return Deposits(at[kept], lost[kept], np.full(int(kept.sum()), _MIP_LOSS))


Shower = tuple[Floats, Floats, Floats]


def _joined(a: Shower, b: Shower) -> Shower:
    return (
        np.concatenate((a[0], b[0])),
        np.concatenate((a[1], b[1])),
        np.concatenate((a[2], b[2])),
    )


def _convert(
    rng: np.random.Generator, at: Floats, direction: Floats, energy: Floats
) -> tuple[Shower, Shower]:
    """Let photons fly; return (electrons made, photons left after scattering)."""
    at = at + direction * rng.exponential(1.3 * RADIATION_LENGTH, size=len(energy))[:, None]
    share = rng.uniform(0.1, 0.9, size=len(energy))
    pair = energy > _PAIR_THRESHOLD
    spread = np.minimum(0.6, 0.8 / np.maximum(energy, 0.1))
    first = (at, around(rng, direction, spread), energy * share)
    second = tuple(
        part[pair] for part in (at, around(rng, direction, spread), energy * (1 - share))
    )
    soft = ~pair & (energy * (1 - share) > _SOFTEST)
    photons = (at[soft], isotropic(rng, int(soft.sum())), (energy * (1 - share))[soft])
    return _joined(first, (second[0], second[1], second[2])), photons


def _ionise(
    rng: np.random.Generator, at: Floats, direction: Floats, energy: Floats
) -> tuple[Floats, Floats, Shower, Shower]:
    """Let electrons run to their next hard photon.

    Returns:
        Points and energies deposited, the electrons that go on, the photons radiated.
    """
    if not len(energy):
        none = (at, direction, energy)
        return at, energy, none, none
    # A spectrum 1/k from _SOFTEST to the electron's energy: one photon per X0 / log of the ratio.
    octaves = np.log(np.maximum(energy / _SOFTEST, 1.2))
    free = rng.exponential(RADIATION_LENGTH / octaves)
    length = np.minimum(free, energy / _MIP_LOSS)
    steps = np.maximum(np.ceil(length / STEP).astype(int), 1)
    index = np.arange(int(steps.max()))
    left = np.maximum(energy[:, None] - _MIP_LOSS * STEP * index, 1.0)
    angle = np.minimum(13.6 / left * np.sqrt(STEP / RADIATION_LENGTH), 0.6)
    points, directions = _walk(rng, at, direction, angle, STEP)
    mask = index[None, :] < steps[:, None]
    spent = np.minimum(energy, _MIP_LOSS * length)
    deposited = np.broadcast_to((spent / steps)[:, None], mask.shape)[mask]
    deposited = deposited * rng.gamma(12.0, 1 / 12.0, size=len(deposited))
    end = points[np.arange(len(steps)), steps - 1]
    towards = directions[np.arange(len(steps)), steps - 1]
    rest = energy - spent
    photon = np.minimum(_SOFTEST * np.exp(octaves * rng.uniform(size=len(rest))), rest)
    onward = rest - photon
    go, shine = onward > _SOFTEST, photon >= _SOFTEST
    return (
        points[mask],
        deposited,
        (end[go], towards[go], onward[go]),
        (end[shine], towards[shine], photon[shine]),
    )
