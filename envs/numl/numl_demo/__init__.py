"""The demo: a small liquid-argon simulation, and the training of the demo weights.

Nothing here is needed to serve. The simulation (numpy and h5py only) writes events in
pynuml's HDF5 layout; the training processes them with pynuml's own graph producer and
trains NuGraph's own models on them. The weights that come out are demo weights: they show
that a server works, and are not for physics.
"""

from __future__ import annotations

__all__: list[str] = []
