"""The real data, which a clone lacks: what the files are called, and what is in them."""

from pathlib import Path

import h5py
from numl_serving.event import Event

REAL_CHECKPOINT = "nugraph3_hierarchical.ckpt"
REAL_EVENT = "uboone_event_189hits.h5"
REAL_ANSWER = "uboone_event_189hits.nugraph3_expected.npz"

REAL_NORM = {
    "u": {
        "mean": [389.42752, 172.90794, 147.81108, 4.5563765],
        "std": [147.1627, 78.01324, 228.31424, 2.2156637],
    },
    "v": {
        "mean": [368.83023, 173.01247, 154.14513, 4.449338],
        "std": [145.29645, 80.54078, 282.34027, 1.8969047],
    },
    "y": {
        "mean": [546.2973, 172.77615, 116.974, 4.1647816],
        "std": [283.47656, 73.99135, 115.49256, 1.4615369],
    },
}
"""The feature normalisation of the real weights, which their checkpoint does not hold."""


def real_event(real_data: Path) -> Event:
    """Read the real event."""
    with h5py.File(real_data / REAL_EVENT) as file:
        hits, spacepoints = file["hit_table"], file["spacepoint_table"]
        tensors = {
            f"hit_table_{name}": hits[name][:, 0]
            for name in ("hit_id", "local_plane", "local_time", "local_wire", "integral", "rms")
        }
        tensors["spacepoint_table_spacepoint_id"] = spacepoints["spacepoint_id"][:, 0]
        for axis, plane in enumerate("uvy"):
            tensors[f"spacepoint_table_hit_id_{plane}"] = spacepoints["hit_id"][:, axis]
    return Event.from_tensors(tensors)
