"""The particles of an event: how each kind travels, ends, and what it turns into.

`TrueEvent` collects particles and their ionisation. The names of processes are Geant4's, as
pynuml's labelling reads them. What a shower makes is credited to the particle that began it,
as LArSoft does; delta rays and the stages of a decay are particles of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import physics
from .physics import Deposits, Floats

COSMIC: Final = -1
DELTAS_PER_CM: Final = 0.025
_HADRON_LENGTH: Final = 75.0
_CAPTURE: Final = "hBertiniCaptureAtRest"
_HADRON_THRESHOLD: Final = 0.2  # GeV/c: below, pynuml calls a proton diffuse


@dataclass(frozen=True, slots=True, eq=False)
class Particle:
    """One row of the particle table: momentum in GeV/c, positions in cm."""

    g4_id: int
    parent_id: int
    pdg: int
    momentum: float
    start_process: str
    end_process: str
    start: Floats
    end: Floats
    category: str


@dataclass(slots=True, eq=False)
class TrueEvent:
    """What happened: the interaction, its particles and all ionisation.

    Attributes:
        rng: the event's source of chance.
        flavour: one of pynuml's flavour classes.
        vertex: interaction point in cm, f64[3].
        neutrino_energy: GeV, the kinetic energies of all first particles and the lepton's mass.
        lepton_energy: GeV.
        particles: rows of the particle table.
        deposits: ionisation with the g4_id it belongs to (`COSMIC` for cosmic rays).
    """

    rng: np.random.Generator
    flavour: str
    vertex: Floats
    neutrino_energy: float = 0.0
    lepton_energy: float = 0.0
    particles: list[Particle] = field(default_factory=list)
    deposits: list[tuple[int, Deposits]] = field(default_factory=list)
    _count: int = 0

    def next_id(self) -> int:
        """Return a new g4_id; the first is 2, as 1 is the neutrino's."""
        self._count += 1
        return self._count + 1

    def record(
        self,
        g4_id: int,
        parent: int,
        pdg: int,
        momentum: float,
        processes: tuple[str, str],
        ends: tuple[Floats, Floats],
        category: str,
    ) -> None:
        """Add a particle; momentum in MeV/c."""
        self.particles.append(
            Particle(g4_id, parent, pdg, momentum / 1000, *processes, *ends, category)
        )

    def arrays(self) -> tuple[Deposits, NDArray[np.int64]]:
        """Return all ionisation in one piece, and the g4_id of each deposit, i64[n]."""
        parts = [part for _, part in self.deposits]
        ids = [np.full(len(part.energy), g4_id) for g4_id, part in self.deposits]
        together = Deposits(
            np.concatenate([np.empty((0, 3)), *(part.points for part in parts)]),
            np.concatenate([np.empty(0), *(part.energy for part in parts)]),
            np.concatenate([np.empty(0), *(part.density for part in parts)]),
        )
        return together, np.concatenate([np.empty(0, dtype=np.int64), *ids])


def muon(
    event: TrueEvent,
    kinetic: float,
    start: Floats,
    direction: Floats,
    *,
    charge: int,
    parent: int = 0,
    process: str = "primary",
) -> None:
    """Add a muon, its delta rays, and the michel electron if it stops and decays."""
    g4_id = event.next_id()
    track = physics.track(event.rng, 13, kinetic, start, direction)
    decays = track.stopped and (charge > 0 or event.rng.uniform() < 0.27)
    end = "FastScintillation"
    if track.stopped:
        end = "Decay" if charge > 0 else "muMinusCaptureAtRest"
    event.record(
        g4_id,
        parent,
        -13 * charge,
        physics.momentum(kinetic, physics.MASSES[13]),
        (process, end),
        (start, track.end),
        "muon",
    )
    event.deposits.append((g4_id, track.deposits))
    _delta_rays(event, g4_id, track, "muIoni", "muon")
    if decays:
        # the Michel spectrum 3x^2 - 2x^3 by inversion of its leading term, cut at its end
        energy = 52.8 * min(1.0, event.rng.uniform() ** 0.42)
        electron(
            event,
            energy,
            track.end,
            physics.isotropic(event.rng, 1)[0],
            pdg=-11 * charge,
            parent=g4_id,
            process=end,
            category="michel",
        )


def electron(
    event: TrueEvent,
    energy: float,
    start: Floats,
    direction: Floats,
    *,
    pdg: int = 11,
    parent: int = 0,
    process: str = "primary",
    category: str = "shower",
) -> None:
    """Add an electron or positron with its shower."""
    g4_id = event.next_id()
    deposits = physics.cascade(
        event.rng, photon=False, energy=energy, start=start, direction=direction
    )
    end = deposits.points[0] if len(deposits.points) else start
    event.record(
        g4_id,
        parent,
        pdg,
        physics.momentum(energy, physics.ELECTRON_MASS),
        (process, "annihil" if pdg < 0 else "FastScintillation"),
        (start, end),
        category,
    )
    event.deposits.append((g4_id, deposits))


def photon(
    event: TrueEvent,
    energy: float,
    start: Floats,
    *,
    direction: Floats | None = None,
    parent: int = 0,
    process: str = "primary",
) -> None:
    """Add a photon: a shower from 20 MeV on, a few diffuse blips below, as pynuml has it."""
    g4_id = event.next_id()
    towards = physics.isotropic(event.rng, 1)[0] if direction is None else direction
    deposits = physics.cascade(
        event.rng, photon=True, energy=energy, start=start, direction=towards
    )
    end = deposits.points[0] if len(deposits.points) else start
    event.record(
        g4_id,
        parent,
        22,
        energy,
        (process, "conv" if energy > 10 else "compt"),
        (start, end),
        "shower" if energy >= 20 else "diffuse",
    )
    event.deposits.append((g4_id, deposits))


def proton(
    event: TrueEvent,
    kinetic: float,
    start: Floats,
    direction: Floats,
    *,
    parent: int = 0,
    process: str = "primary",
) -> None:
    """Add a proton."""
    g4_id = event.next_id()
    track = physics.track(event.rng, 2212, kinetic, start, direction)
    momentum = physics.momentum(kinetic, physics.MASSES[2212])
    event.record(
        g4_id,
        parent,
        2212,
        momentum,
        (process, "FastScintillation"),
        (start, track.end),
        "hadron" if momentum / 1000 >= _HADRON_THRESHOLD else "diffuse",
    )
    event.deposits.append((g4_id, track.deposits))


def pion(
    event: TrueEvent,
    kinetic: float,
    start: Floats,
    direction: Floats,
    *,
    charge: int,
    parent: int = 0,
    process: str = "primary",
) -> None:
    """Add a charged pion that interacts, or stops and decays (pi+) or is captured (pi-)."""
    rng, g4_id = event.rng, event.next_id()
    track = physics.track(rng, 211, kinetic, start, direction, _HADRON_LENGTH)
    inelastic = "pi+Inelastic" if charge > 0 else "pi-Inelastic"
    end = inelastic if track.kinetic > 0 else "FastScintillation"
    if track.stopped:
        end = "Decay" if charge > 0 else _CAPTURE
    event.record(
        g4_id,
        parent,
        211 * charge,
        physics.momentum(kinetic, physics.MASSES[211]),
        (process, end),
        (start, track.end),
        "pion",
    )
    event.deposits.append((g4_id, track.deposits))
    _delta_rays(event, g4_id, track, "hIoni", "pion")
    if end == "Decay":
        muon(
            event,
            4.12,
            track.end,
            physics.isotropic(rng, 1)[0],
            charge=charge,
            parent=g4_id,
            process=end,
        )
    elif end in (inelastic, _CAPTURE):
        budget = track.kinetic + (0.0 if end == inelastic else 60.0)
        for _ in range(rng.integers(1, 4)):
            energy = max(6.0, budget * rng.uniform(0.15, 0.45))
            proton(
                event,
                energy,
                track.end,
                physics.around(rng, track.direction, 0.9),
                parent=g4_id,
                process=end,
            )
        if end == inelastic and budget > 60 and rng.uniform() < 0.5:
            pion(
                event,
                budget * rng.uniform(0.3, 0.6),
                track.end,
                physics.around(rng, track.direction, 0.6),
                charge=charge,
                parent=g4_id,
                process=end,
            )


def kaon(
    event: TrueEvent, kinetic: float, start: Floats, direction: Floats, *, charge: int
) -> None:
    """Add a charged kaon.

    A positive one decays at rest, to a muon of 236 MeV/c or to pi+ and pi0; a negative one is
    captured by a nucleus, which emits a pion or protons.
    """
    rng, g4_id = event.rng, event.next_id()
    track = physics.track(rng, 321, kinetic, start, direction)
    end = "FastScintillation"
    if track.stopped:
        end = "Decay" if charge > 0 else _CAPTURE
    event.record(
        g4_id,
        0,
        321 * charge,
        physics.momentum(kinetic, physics.MASSES[321]),
        ("primary", end),
        (start, track.end),
        "kaon",
    )
    event.deposits.append((g4_id, track.deposits))
    if not track.stopped:
        return
    away = physics.isotropic(rng, 1)[0]
    if charge < 0:
        for energy in rng.uniform(20, 110, size=rng.integers(1, 3)):
            towards = physics.isotropic(rng, 1)[0]
            proton(event, float(energy), track.end, towards, parent=g4_id, process=end)
        if rng.uniform() < 0.6:
            energy = float(rng.uniform(40, 90))
            pion(event, energy, track.end, away, charge=-1, parent=g4_id, process=end)
    elif rng.uniform() < 0.65:
        muon(event, 152.5, track.end, away, charge=1, parent=g4_id, process="Decay")
    else:
        pion(event, 108.6, track.end, away, charge=1, parent=g4_id, process="Decay")
        neutral_pion(event, 110.5, track.end, -away, parent=g4_id, process="Decay")


def neutral_pion(
    event: TrueEvent,
    kinetic: float,
    start: Floats,
    direction: Floats,
    *,
    parent: int = 0,
    process: str = "primary",
) -> None:
    """Add a neutral pion and the two photons it decays to at once."""
    mass, g4_id = 134.98, event.next_id()
    energy, p = kinetic + mass, physics.momentum(kinetic, mass)
    event.record(g4_id, parent, 111, p, (process, "Decay"), (start, start), "invisible")
    axis = physics.isotropic(event.rng, 1)[0]
    for side in (1, -1):
        along = mass / 2 * side * float(axis @ direction)
        boosted = energy / mass * (mass / 2 + p / energy * along)
        four = mass / 2 * side * axis + direction * ((energy / mass - 1) * along + p / 2)
        photon(
            event,
            boosted,
            start,
            direction=physics.unit(four),
            parent=g4_id,
            process="Decay",
        )


def neutron(event: TrueEvent, start: Floats, direction: Floats) -> None:
    """Add a neutron that flies and knocks a few photons and perhaps a proton out of a nucleus."""
    rng, g4_id = event.rng, event.next_id()
    end = start + direction * rng.exponential(35.0)
    ends = "neutronInelastic"
    momentum = float(rng.uniform(100, 500))
    event.record(g4_id, 0, 2112, momentum, ("primary", ends), (start, end), "diffuse")
    for _ in range(rng.integers(1, 4)):
        photon(event, float(rng.uniform(1.5, 9.0)), end, parent=g4_id, process=ends)
    if rng.uniform() < 0.5:
        proton(
            event,
            float(rng.uniform(5, 50)),
            end,
            physics.isotropic(rng, 1)[0],
            parent=g4_id,
            process=ends,
        )


def delta_ray_energy(rng: np.random.Generator) -> float:
    """Return a knock-on electron's energy in MeV, from 1.5 on by 1/T^2, cut at 40."""
    return float(min(1.5 / rng.uniform(0.02, 1.0), 40.0))


def _delta_rays(
    event: TrueEvent, parent: int, track: physics.Track, process: str, category: str
) -> None:
    """Add the knock-on electrons of a track."""
    rng = event.rng
    if not len(track.deposits.energy):
        return
    for _ in range(rng.poisson(DELTAS_PER_CM * track.length)):
        at = track.deposits.points[rng.integers(len(track.deposits.points))]
        energy = delta_ray_energy(rng)
        electron(
            event,
            energy,
            at,
            physics.around(rng, track.direction, 0.6),
            parent=parent,
            process=process,
            category=category,
        )
