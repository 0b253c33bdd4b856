"""What really happened in an event, as far as a file holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.events.files import Columns, EventTensors
from numl_formats.contract import HIT_ID

FLAVOURS = ("cc_nue", "cc_numu", "cc_nutau", "nc")
"""The event classes of pynuml's ``FlavorLabels``."""
_BY_PDG = {12: 0, 14: 1, 16: 2}
_NEUTRAL_CURRENT = 3
_VERTEX = tuple(f"nu_vtx_corr_{axis}" for axis in "xyz")

TRUE_COLUMNS: Columns = {
    "event_table": {
        "is_cc": np.int32,
        "nu_pdg": np.int32,
        **dict.fromkeys(_VERTEX, np.float32),
    },
    "edep_table": {"hit_id": np.int32},
}
"""Columns of pynuml's tables that `truth_of` looks at."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The truth of one event; rows are its hits, in the order in which they are sent.

    Attributes:
        signal: Which hits are not noise, bool ``[hits]``.
        semantic: Class of each hit, int64 ``[hits]``; -1 for noise.
        instance: Particle of each hit, int64 ``[hits]``; -1 for none.
        event: Class of the event.
        vertex: Of the interaction, in the file's unit (pynuml: cm), float64 ``[3]``.
    """

    signal: NDArray[np.bool_] | None = None
    semantic: NDArray[Any] | None = None
    instance: NDArray[Any] | None = None
    event: int | None = None
    vertex: NDArray[np.float64] | None = None


def truth_of(event: EventTensors) -> Truth:
    """Return the truth that pynuml's tables hold as it is, read with `TRUE_COLUMNS`.

    The classes of hits are not in it: pynuml's labellers make them of the particles, and graph
    files hold what they made.
    """
    tensors = event.tensors
    deposits = tensors.get("edep_table_hit_id")
    charged, pdg, *vertex = (
        tensors.get(f"event_table_{name}") for name in ("is_cc", "nu_pdg", *_VERTEX)
    )
    flavour = None
    if charged is not None and pdg is not None and len(charged) == len(pdg) == 1:
        flavour = _BY_PDG.get(abs(int(pdg[0]))) if charged[0] else _NEUTRAL_CURRENT
    there = [np.asarray(axis, np.float64) for axis in vertex if axis is not None and len(axis) == 1]
    return Truth(
        signal=None if deposits is None else np.isin(tensors[HIT_ID], deposits),
        event=flavour,
        vertex=np.concatenate(there) if len(there) == len(_VERTEX) else None,
    )
