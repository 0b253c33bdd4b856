"""Neutrino interactions, and the cosmic rays and radioactivity around them.

The mixture is made for teaching a network, not taken from nature: kaons, michel electrons and
tau neutrinos are far more frequent than in a real beam, so that every class has its share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from . import geometry, physics
from .particles import (
    COSMIC,
    DELTAS_PER_CM,
    TrueEvent,
    delta_ray_energy,
    electron,
    kaon,
    muon,
    neutral_pion,
    neutron,
    photon,
    pion,
    proton,
)
from .physics import Deposits, Floats

BEAM: Final = np.array([0.0, 0.0, 1.0])
NEUTRINOS: Final = {"cc_nue": 12, "cc_numu": 14, "cc_nutau": 16, "nc": 14}
_FLAVOUR_SHARES: Final = {"cc_nue": 0.3, "cc_numu": 0.36, "cc_nutau": 0.08, "nc": 0.26}


def cosmic_ray(event: TrueEvent, reach: float) -> None:
    """Add what an upstream slicing left of a cosmic muon: a stretch near the interaction.

    Args:
        event: the event to add to; no particle is recorded, so its hits have no truth.
        reach: how far from the vertex it may pass, cm.
    """
    rng = event.rng
    direction = physics.unit(np.array([rng.normal(0, 0.5), -1.0, rng.normal(0, 0.5)]))
    start = event.vertex + rng.normal(0, reach, size=3)
    if not geometry.inside(start[None])[0]:
        return
    track = physics.track(rng, 13, float(rng.uniform(1000, 8000)), start, direction)
    count = int(rng.exponential(35.0) / physics.STEP) + 50
    part = track.deposits
    event.deposits.append(
        (COSMIC, Deposits(part.points[:count], part.energy[:count], part.density[:count]))
    )
    for _ in range(rng.poisson(DELTAS_PER_CM * physics.STEP * len(part.energy[:count]))):
        energy = delta_ray_energy(rng)
        at = part.points[rng.integers(min(count, len(part.points)))]
        towards = physics.around(rng, direction, 0.6)
        shower = physics.cascade(rng, photon=False, energy=energy, start=at, direction=towards)
        event.deposits.append((COSMIC, shower))


def radiological_blip(event: TrueEvent, reach: float) -> None:
    """Add a low-energy deposit of the surroundings within `reach` cm of the vertex."""
    rng = event.rng
    at = event.vertex + rng.normal(0, reach, size=3)
    blip = physics.cascade(
        rng,
        photon=False,
        energy=float(rng.uniform(0.5, 3.0)),
        start=at,
        direction=physics.isotropic(rng, 1)[0],
    )
    event.deposits.append((COSMIC, blip))


@dataclass(frozen=True, slots=True)
class Plan:
    """What an event is made of, before energies and directions are drawn."""

    flavour: str
    tau_decay: str
    protons: int
    charged_pions: int
    neutral_pions: int
    kaons: int
    neutrons: int
    photons: int
    cosmic_rays: int
    blips: int


def draw_plan(rng: np.random.Generator) -> Plan:
    """Return a random plan."""
    flavour = str(rng.choice(list(_FLAVOUR_SHARES), p=list(_FLAVOUR_SHARES.values())))
    neutral = flavour == "nc"
    return Plan(
        flavour=flavour,
        tau_decay=str(rng.choice(["electron", "muon", "hadrons"], p=[0.18, 0.17, 0.65])),
        protons=1 + int(rng.poisson(1.1)),
        charged_pions=int(rng.uniform() < (0.8 if neutral else 0.1)),
        neutral_pions=int(rng.uniform() < (0.3 if neutral else 0.05)),
        kaons=int(rng.uniform() < 0.3),
        neutrons=int(rng.poisson(0.4)),
        photons=int(rng.poisson(0.4)),
        cosmic_rays=int(rng.poisson(0.9)),
        blips=int(rng.poisson(1.5)),
    )


def generate(rng: np.random.Generator, plan: Plan, scale: float) -> TrueEvent:
    """Return a random event.

    Args:
        rng: the source of chance.
        plan: what to make.
        scale: factor on the kinetic energies; 1 gives events of about 300 MeV.
    """
    vertex = rng.uniform(geometry.LOWER + 20, geometry.UPPER - 20)
    event = TrueEvent(rng, plan.flavour, vertex)
    forward = physics.around(rng, BEAM, 0.2)
    lepton = _lepton(event, plan, forward, scale)
    energy = lepton + _hadrons(event, plan, scale)
    event.neutrino_energy, event.lepton_energy = (energy + 40.0) / 1000, lepton / 1000
    for _ in range(plan.cosmic_rays):
        cosmic_ray(event, 40.0 * scale**0.5)
    for _ in range(plan.blips):
        radiological_blip(event, 60.0)
    return event


def _lepton(event: TrueEvent, plan: Plan, direction: Floats, scale: float) -> float:
    """Add the charged lepton, if any, and return its energy in MeV (an NC's is unseen)."""
    rng, vertex = event.rng, event.vertex
    charge = 1 if rng.uniform() < 0.25 else -1  # antineutrinos make positive leptons
    kinetic = scale * float(rng.gamma(4.0, 40.0))
    kind = {"cc_nue": "electron", "cc_numu": "muon", "cc_nutau": plan.tau_decay}.get(plan.flavour)
    if kind == "electron":
        electron(event, kinetic + 30.0, vertex, direction, pdg=-11 * charge)
        return kinetic + 30.0
    if kind == "muon":
        muon(event, kinetic + 25.0, vertex, direction, charge=charge)
        return kinetic + 25.0 + physics.MASSES[13]
    if kind == "hadrons":
        # GENIE lets the tau decay, so what it decays to are first particles
        for _ in range(rng.integers(1, 3)):
            towards = physics.around(rng, direction, 0.5)
            pion(event, 0.5 * kinetic + 30.0, vertex, towards, charge=charge)
        neutral_pion(event, 0.5 * kinetic, vertex, physics.around(rng, direction, 0.5))
    return kinetic


def _hadrons(event: TrueEvent, plan: Plan, scale: float) -> float:
    """Add the hadrons of the struck nucleus and return their energy in MeV."""
    rng, vertex = event.rng, event.vertex
    total = 0.0

    def energy(mean: float, power: float = 0.0) -> float:
        nonlocal total
        value = 20.0 + float(rng.gamma(3.0, mean * scale**power / 3.0))
        total += value
        return value

    def towards(spread: float) -> Floats:
        return physics.around(rng, BEAM, spread)

    def charge() -> int:
        return 1 if rng.uniform() < 0.25 else -1

    for _ in range(plan.protons):
        proton(event, energy(45.0), vertex, towards(0.45))
    for _ in range(plan.charged_pions):
        pion(event, energy(110.0, 0.8), vertex, towards(0.25), charge=charge())
    for _ in range(plan.neutral_pions):
        neutral_pion(event, energy(110.0, 0.8), vertex, towards(0.25))
    for _ in range(plan.kaons):
        kaon(event, energy(80.0), vertex, towards(0.25), charge=charge())
    for _ in range(plan.neutrons):
        neutron(event, vertex, towards(0.6))
    for _ in range(plan.photons):
        photon(event, float(rng.uniform(1.0, 8.0)), vertex)
    return total
