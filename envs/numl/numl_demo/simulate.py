"""Simulated events as the tables of pynuml's HDF5 files.

Tables and columns are those that MicroBooNE's open data has for hits, spacepoints and truth
(hit_table, spacepoint_table, particle_table, edep_table, event_table), one array per column.
An event depends on the seed and its number alone, not on how many are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from numl_formats.contract import UVY

from . import geometry, readout
from .interactions import NEUTRINOS, draw_plan, generate
from .particles import Particle, TrueEvent

Table = dict[str, NDArray[Any]]

CATEGORIES: Final = (
    "pion", "muon", "kaon", "hadron", "shower", "michel", "diffuse", "invisible",
)  # fmt: skip
DEFAULT_HITS: Final = (200, 700)
RUN: Final = 1
_MIN_TRUE_HITS: Final = 20  # per plane: pynuml drops events with fewer
_ATTEMPTS: Final = 240
# attempts with other energies before other particles are drawn: giving up at once would leave
# small events without the particles whose decays are long, such as kaons
_PATIENCE: Final = 12


class SimulationError(ValueError):
    """No event of the wanted size could be made."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedEvent:
    """One event: (run, subrun, event) and its tables by name, columns [rows, width]."""

    event_id: tuple[int, int, int]
    tables: dict[str, Table]

    @property
    def num_hits(self) -> int:
        """Return the number of hits in all planes."""
        return len(self.tables["hit_table"]["hit_id"])

    def request(self) -> dict[str, NDArray[Any]]:
        """Return the event as request tensors, without truth and positions."""
        hits, spacepoints = self.tables["hit_table"], self.tables["spacepoint_table"]
        columns = {f"hit_table_{name}": column[:, 0] for name, column in hits.items()}
        columns["spacepoint_table_spacepoint_id"] = spacepoints["spacepoint_id"][:, 0]
        for axis, plane in enumerate(geometry.PLANES):
            columns[f"spacepoint_table_hit_id_{plane}"] = spacepoints["hit_id"][:, axis]
        return {
            tensor.name: np.ascontiguousarray(columns[tensor.name], tensor.dtype)
            for tensor in UVY.tensors
        }


def simulate_events(
    count: int, seed: int, hits: tuple[int, int] = DEFAULT_HITS
) -> Iterator[SimulatedEvent]:
    """Yield `count` events; see `simulate_event`."""
    for number in range(1, count + 1):
        yield simulate_event(seed, number, hits)


def simulate_event(seed: int, number: int, hits: tuple[int, int] = DEFAULT_HITS) -> SimulatedEvent:
    """Return one event, always the same for the same arguments.

    Args:
        seed: any non-negative integer below 2^31; becomes the subrun.
        number: number of the event, from 1.
        hits: smallest and largest number of hits wanted, all planes together.

    Raises:
        SimulationError: no event of this size came up (the range is too narrow or too low).
    """
    low, high = hits
    rng = np.random.default_rng([seed, number])
    target = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    for attempt in range(_ATTEMPTS):
        if attempt % _PATIENCE == 0:
            plan, scale = draw_plan(rng), (target / 500.0) ** 1.5
        truth = generate(rng, plan, scale)
        deposits, g4_id = truth.arrays()
        found, energies, points = readout.read_out(rng, deposits, g4_id)
        signal = np.bincount(found.plane[np.unique(energies.hit)], minlength=3)
        if low <= len(found.plane) <= high and signal.min() >= _MIN_TRUE_HITS:
            event_id = (RUN, seed, number)
            return SimulatedEvent(event_id, _tables(rng, truth, found, energies, points))
        # steer the energies towards the wanted size
        ratio = target / max(len(found.plane), 10)
        scale = float(np.clip(scale * np.clip(ratio, 0.6, 1.6) ** 0.5, 0.02, 50.0))
    raise SimulationError(
        f"no event with {low} to {high} hits in {_ATTEMPTS} attempts (seed {seed}, "
        f"number {number}); widen the range of hits (at least 100 is usual)"
    )


def _column(values: object, dtype: type[np.generic]) -> NDArray[Any]:
    array = np.asarray(values, dtype=dtype)
    return array if array.ndim == 2 else array.reshape(-1, 1)


def _tables(
    rng: np.random.Generator,
    truth: TrueEvent,
    hits: readout.Hits,
    energies: readout.Energies,
    points: readout.Spacepoints,
) -> dict[str, Table]:
    count = len(hits.plane)
    per_hit = np.bincount(energies.hit, energies.energy, minlength=count)
    # spacepoint ids have gaps in real files: the reconstruction drops some late
    ids = np.cumsum(rng.integers(1, 3, size=len(points.hits))) - 1
    return {
        "hit_table": {
            "hit_id": _column(np.arange(count), np.int32),
            "integral": _column(hits.integral, np.float32),
            "local_plane": _column(hits.plane, np.int32),
            "local_time": _column(hits.time, np.float32),
            "local_wire": _column(hits.wire, np.int32),
            "rms": _column(hits.rms, np.float32),
            "tpc": _column(np.zeros(count), np.int32),
        },
        "spacepoint_table": {
            "hit_id": _column(points.hits, np.int32),
            "position": _column(points.position, np.float32),
            "spacepoint_id": _column(ids, np.int32),
        },
        "edep_table": {
            "energy": _column(energies.energy, np.float32),
            "energy_fraction": _column(energies.energy / per_hit[energies.hit], np.float32),
            "g4_id": _column(energies.g4_id, np.int32),
            "hit_id": _column(energies.hit, np.int32),
        },
        "particle_table": _particle_table(truth.particles),
        "event_table": _event_table(truth),
    }


def _wires_and_time(points: NDArray[np.float64]) -> tuple[NDArray[Any], ...]:
    wires = np.rint(geometry.wire_coordinate(points))
    return _column(wires, np.int32), _column(geometry.drift_time(points[:, 0]), np.float32)


def _particle_table(particles: list[Particle]) -> Table:
    start = np.array([p.start for p in particles]).reshape(-1, 3)
    end = np.array([p.end for p in particles]).reshape(-1, 3)
    start_wires, start_time = _wires_and_time(start)
    end_wires, end_time = _wires_and_time(end)
    own = {p.g4_id: i for i, p in enumerate(particles) if not _without_instance(p)}
    numbers = {g4_id: n for n, g4_id in enumerate(own)}
    # a delta ray belongs to its track's instance
    instance = [
        numbers.get(p.parent_id if p.start_process.endswith("Ioni") else p.g4_id, -1)
        for p in particles
    ]
    return {
        "category": _column([CATEGORIES.index(p.category) for p in particles], np.int32),
        "end_position": _column(end, np.float32),
        "end_position_corr": _column(end, np.float32),
        "end_process": _column([p.end_process for p in particles], np.object_),
        "end_wire_pos": end_wires,
        "end_wire_time": end_time,
        "g4_id": _column([p.g4_id for p in particles], np.int32),
        "instance": _column(instance, np.int32),
        "momentum": _column([p.momentum for p in particles], np.float32),
        "parent_id": _column([p.parent_id for p in particles], np.int32),
        "start_position": _column(start, np.float32),
        "start_position_corr": _column(start, np.float32),
        "start_process": _column([p.start_process for p in particles], np.object_),
        "start_wire_pos": start_wires,
        "start_wire_time": start_time,
        "type": _column([p.pdg for p in particles], np.int32),
    }


def _without_instance(particle: Particle) -> bool:
    return particle.category in ("diffuse", "invisible") or particle.start_process.endswith("Ioni")


def _event_table(truth: TrueEvent) -> Table:
    wires, time = _wires_and_time(truth.vertex[None])
    vertex = _column(truth.vertex[None], np.float32)
    return {
        "is_cc": _column([truth.flavour != "nc"], np.int32),
        "lep_energy": _column([truth.lepton_energy], np.float32),
        "nu_dir": _column([[0.0, 0.0, 1.0]], np.float32),
        "nu_energy": _column([truth.neutrino_energy], np.float32),
        "nu_pdg": _column([NEUTRINOS[truth.flavour]], np.int32),
        "nu_vtx": vertex,
        "nu_vtx_corr": vertex,
        "nu_vtx_wire_pos": wires,
        "nu_vtx_wire_time": time,
    }
