"""From ionisation to hits and spacepoints, as a wire readout and its hit finder give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import geometry, physics
from .physics import Deposits, Floats

Ints = NDArray[np.int64]

_DEAD: Final = geometry.dead_wires()
# ADC per MeV that survives recombination, base width and threshold of each plane
_GAIN: Final = (165.0, 162.0, 158.0)
_WIDTH: Final = (3.0, 2.9, 2.6)
_THRESHOLD: Final = (14.0, 14.0, 10.0)
_SEPARATION: Final = 11.0  # ticks: closer pulses are found as one
_LONGEST: Final = 45.0  # ticks: a longer pulse train is cut
_MATCH: Final = 4.0  # ticks within which planes are matched
_NOISE_HITS: Final = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """Hits of all planes: plane and wire i64[n]; time (ticks), integral (ADC), rms f64[n]."""

    plane: Ints
    wire: Ints
    time: Floats
    integral: Floats
    rms: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Energies:
    """Which particle left how much in which hit: hit and g4_id i64[m], MeV f64[m]."""

    hit: Ints
    g4_id: Ints
    energy: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Spacepoints:
    """Matched hits, i64[s, 3] (-1: none in this plane), and positions in cm, f64[s, 3]."""

    hits: Ints
    position: Floats


def read_out(
    rng: np.random.Generator, deposits: Deposits, g4_id: Ints
) -> tuple[Hits, Energies, Spacepoints]:
    """Return hits, their true energies (of recorded particles only) and spacepoints.

    Args:
        rng: the source of chance.
        deposits: ionisation of the whole event.
        g4_id: the particle of each deposit; negative where none is recorded.
    """
    found: list[Hits] = []
    owner = np.full((len(deposits.energy), 3), -1, dtype=np.int64)
    count = 0
    # pynuml's files list the collection plane first
    for plane in (2, 1, 0):
        hits, index = _find_hits(rng, deposits, plane)
        owner[:, plane] = np.where(index >= 0, index + count, -1)
        found.append(hits)
        noise = _noise(rng, hits, plane)
        found.append(noise)
        count += len(hits.wire) + len(noise.wire)
    hits = Hits(
        np.concatenate([part.plane for part in found]),
        np.concatenate([part.wire for part in found]),
        np.concatenate([part.time for part in found]),
        np.concatenate([part.integral for part in found]),
        np.concatenate([part.rms for part in found]),
    )
    energies = _energies(owner, g4_id, deposits.energy)
    return hits, energies, _spacepoints(rng, hits, owner, deposits.energy)


def _find_hits(rng: np.random.Generator, deposits: Deposits, plane: int) -> tuple[Hits, Ints]:
    """Return one plane's hits and for each deposit the hit it is in (-1: none)."""
    coordinate = geometry.wire_coordinate(deposits.points)[:, plane]
    drift = deposits.points[:, 0]
    # transverse diffusion moves charge to the neighbouring wire now and then
    coordinate = coordinate + rng.normal(0, 0.01 * np.sqrt(np.abs(drift)), size=len(drift))
    wire = np.rint(coordinate).astype(np.int64)
    time = geometry.drift_time(drift)
    charge = _GAIN[plane] * physics.recombined(deposits.energy, deposits.density)
    order = np.lexsort((time, wire))
    w, t, q = wire[order], time[order], charge[order]
    if not len(w):
        none = np.empty(0)
        empty = np.empty(0, dtype=np.int64)
        return Hits(empty, empty, none, none, none), empty
    new = np.ones(len(w), dtype=bool)
    new[1:] = (w[1:] != w[:-1]) | (t[1:] - t[:-1] > _SEPARATION)
    first = t[new][np.cumsum(new) - 1]
    piece = np.floor((t - first) / _LONGEST)
    new[1:] |= piece[1:] != piece[:-1]
    group = np.cumsum(new) - 1

    total = np.bincount(group, q)
    mean = np.bincount(group, q * t) / total
    spread = np.bincount(group, q * (t - mean[group]) ** 2) / total
    diffusion = 3.1**2 * np.clip(drift[order][new] / 256.0, 0, 1)
    width = np.sqrt(_WIDTH[plane] ** 2 + diffusion + spread)
    n = len(total)
    integral = total * rng.normal(1.0, 0.06, size=n) + rng.normal(0, 4.0, size=n)
    rms = width * rng.normal(1.0, 0.06, size=n)
    mean = mean + rng.normal(0, 0.4 + 0.05 * np.sqrt(spread))
    wires = w[new]
    on_wire = (wires >= 0) & (wires < geometry.WIRE_COUNT[plane])
    alive = on_wire & ~_DEAD[plane][np.where(on_wire, wires, 0)]
    seen = alive & (integral > _THRESHOLD[plane]) & (rng.uniform(size=n) > 0.015)
    # induction signals of charge that drifts past in one place fade in their own tails
    if plane < 2:
        seen &= rng.uniform(size=n) > np.clip((np.sqrt(spread) - 8.0) / 25.0, 0, 0.6)
    number = np.where(seen, np.cumsum(seen) - 1, -1)
    index = np.empty(len(w), dtype=np.int64)
    index[order] = number[group]
    hits = Hits(
        np.full(int(seen.sum()), plane),
        wires[seen],
        mean[seen],
        integral[seen],
        np.clip(rms[seen], 1.0, 25.0),
    )
    return hits, index


def _noise(rng: np.random.Generator, hits: Hits, plane: int) -> Hits:
    """Return hits of electronic noise in the region the plane's hits span."""
    if not len(hits.wire):
        return hits
    n = rng.poisson(_NOISE_HITS)
    low, high = int(hits.wire.min()) - 30, int(hits.wire.max()) + 30
    wire = np.clip(rng.integers(low, high, size=n), 0, geometry.WIRE_COUNT[plane] - 1)
    time = rng.uniform(hits.time.min() - 100, hits.time.max() + 100, size=n)
    return Hits(
        np.full(n, plane),
        wire,
        np.clip(time, 0.0, geometry.READOUT_TICKS),
        _THRESHOLD[plane] + rng.exponential(8.0, size=n),
        np.clip(rng.gamma(4.0, 0.9, size=n), 1.0, 15.0),
    )


def _energies(owner: Ints, g4_id: Ints, energy: Floats) -> Energies:
    """Return the energy per hit and particle, sorted by hit."""
    parts = [np.stack((owner[:, p], g4_id), axis=1) for p in range(3)]
    pairs = np.concatenate(parts)
    amount = np.tile(energy, 3)
    known = (pairs[:, 0] >= 0) & (pairs[:, 1] >= 0)
    unique, inverse = np.unique(pairs[known], axis=0, return_inverse=True)
    total = np.bincount(inverse.ravel(), amount[known], minlength=len(unique)).astype(np.float64)
    return Energies(unique[:, 0], unique[:, 1], total)


def _spacepoints(rng: np.random.Generator, hits: Hits, owner: Ints, energy: Floats) -> Spacepoints:
    """Return spacepoints: most true ones, some ghosts, a few with a lost or a wrong hit."""
    matched = (owner >= 0).sum(axis=1) >= 2
    triples, inverse = np.unique(owner[matched], axis=0, return_inverse=True)
    weight = np.bincount(inverse.ravel(), energy[matched], minlength=len(triples))
    # the strongest triple of each collection hit, and now and then a further one
    order = np.argsort(-weight, kind="stable")
    triples = triples[order]
    best = np.zeros(len(triples), dtype=bool)
    best[np.unique(triples[:, 2], return_index=True)[1]] = True
    keep = np.where(best, rng.uniform(size=len(best)) > 0.12, rng.uniform(size=len(best)) < 0.15)
    triples = triples[keep]

    ghosts = _coincidences(hits)
    ghosts = ghosts[rng.uniform(size=len(ghosts)) < 0.04]
    triples = np.unique(np.concatenate((triples, ghosts)), axis=0)
    position = _positions(hits, triples)
    usable = geometry.inside(position, -3.0)
    triples, position = triples[usable], position[usable]

    hit_ids = triples.copy()
    rows = np.arange(len(hit_ids))
    plane = rng.integers(0, 3, size=len(hit_ids))
    lost = (rng.uniform(size=len(hit_ids)) < 0.03) & ((hit_ids >= 0).sum(axis=1) == 3)
    hit_ids[rows[lost], plane[lost]] = -1
    wrong = rows[(rng.uniform(size=len(hit_ids)) < 0.015) & (hit_ids[rows, plane] >= 0)]
    shifted = np.clip(hit_ids[wrong, plane[wrong]] + 1, 0, len(hits.plane) - 1)
    same = hits.plane[shifted] == plane[wrong] if len(wrong) else np.empty(0, dtype=bool)
    hit_ids[wrong[same], plane[wrong[same]]] = shifted[same]
    downstream = np.argsort(-position[:, 2], kind="stable")
    return Spacepoints(hit_ids[downstream], position[downstream])


def _coincidences(hits: Hits) -> Ints:
    """Return all triples of hits that time and wires allow, i64[n, 3]."""
    u, v, y = (np.flatnonzero(hits.plane == plane) for plane in range(3))
    near = np.abs(hits.time[u][:, None] - hits.time[y][None, :]) < _MATCH
    first, third = np.nonzero(near)
    wires = np.zeros((len(first), 3))
    wires[:, 0], wires[:, 2] = hits.wire[u[first]], hits.wire[y[third]]
    usable = np.tile([True, False, True], (len(first), 1))
    if not len(first) or not len(v):
        return np.empty((0, 3), dtype=np.int64)
    yz = geometry.crossing(wires, usable)
    points = np.concatenate((np.zeros((len(yz), 1)), yz), axis=1)
    wanted = np.rint(geometry.wire_coordinate(points)[:, 1])
    in_v = v[np.argsort(hits.wire[v], kind="stable")]
    low = np.searchsorted(hits.wire[in_v], wanted - 1, side="left")
    high = np.searchsorted(hits.wire[in_v], wanted + 1, side="right")
    repeat = np.repeat(np.arange(len(first)), high - low)
    offset = np.arange(len(repeat)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    second = in_v[low[repeat] + offset]
    triples = np.stack((u[first[repeat]], second, y[third[repeat]]), axis=1)
    in_time = np.abs(hits.time[triples[:, 1]] - hits.time[triples[:, 2]]) < _MATCH
    return np.asarray(triples[in_time])


def _positions(hits: Hits, triples: Ints) -> Floats:
    """Return where the wires of each triple cross, at the mean of their times."""
    usable = triples >= 0
    safe = np.where(usable, triples, 0)
    if not len(triples):
        return np.empty((0, 3))
    yz = geometry.crossing(hits.wire[safe].astype(np.float64), usable)
    time = (hits.time[safe] * usable).sum(axis=1) / usable.sum(axis=1)
    return np.concatenate((geometry.drift_position(time)[:, None], yz), axis=1)
