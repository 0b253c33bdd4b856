"""Write the pandas files beside this script, as pandas 3.0 and PyTables 3.11 do.

Run by hand in an environment with both; the tests read the files without either.
"""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parent
warnings.simplefilter("ignore")

hits = pd.DataFrame(
    {
        "hit_id": np.arange(6, dtype="i4"),
        "local_plane": np.array([0, 1, 2, 0, 1, 2], "i4"),
        "local_time": np.linspace(100, 600, 6).astype("f4"),
        "local_wire": np.arange(10, 70, 10).astype("i4"),
        "integral": np.linspace(1, 6, 6).astype("f4"),
        "rms": np.linspace(2, 3, 6).astype("f4"),
    }
)
spacepoints = pd.DataFrame(
    {
        "spacepoint_id": np.arange(3, dtype="i4"),
        "hit_id_u": np.array([0, 3, -1], "i4"),
        "hit_id_v": np.array([1, 4, 4], "i4"),
        "hit_id_y": np.array([2, -1, 5], "i4"),
    }
)
keys = ["run", "subrun", "event"]
index = pd.MultiIndex.from_tuples([(1, 2, 3)] * 3 + [(1, 2, 4)] * 3, names=keys)
keyed = hits.set_index(index), spacepoints.set_index(index[[0, 3, 3]])
flat = keyed[0].reset_index(), keyed[1].reset_index()
by_event = tuple(frame.droplevel(["run", "subrun"]) for frame in keyed)

for name, (h, s) in {
    "one_event": (hits, spacepoints),
    "no_spacepoints": (hits, spacepoints.iloc[:0]),
    "multiindex": keyed,
    "index": by_event,
    "index_no_spacepoints": (by_event[0], by_event[1].iloc[:0]),
}.items():
    with pd.HDFStore(FOLDER / f"pandas_fixed_{name}.h5", "w") as store:
        store.put("hit_table", h)
        store.put("spacepoint_table", s)
for name, (h, s), columns in (
    ("multiindex", keyed, None),
    ("index", by_event, None),
    ("data_columns", flat, True),
    ("no_spacepoints", (hits, spacepoints.iloc[:0]), None),
):
    path = FOLDER / f"pandas_table_{name}.h5"
    with pd.HDFStore(path, "w", complevel=9, complib="zlib") as store:
        for key, frame in (("hit_table", h), ("spacepoint_table", s)):
            store.append(key, frame, index=False, data_columns=columns, expectedrows=8)
