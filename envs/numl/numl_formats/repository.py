"""A model's folder in Triton's model repository: its files, and how a polling server sees changes.

``MODEL/config.pbtxt`` configures it; code and data are in ``MODEL/VERSION``.
"""

from __future__ import annotations

import time
from pathlib import Path

CONFIG = "config.pbtxt"
CODE = "model.py"
WEIGHTS_FILE, CARD_FILE, GOLDEN_FILE = "weights.safetensors", "model.json", "golden.npz"
DATA_FILES = (WEIGHTS_FILE, CARD_FILE, GOLDEN_FILE)
"""All that a NuGraph model consists of besides code."""

NO_BYTECODE = "__pycache__"
"""An empty file beside ``model.py``. Python would write a folder of this name, and the polling
server would load the changed model a second time; the stub ignores PYTHONDONTWRITEBYTECODE."""


def later(folder: Path) -> int:
    """Return a time (ns) that has the server reload a model once something in its folder has it.

    The server looks at the newest time of the folder and of all that is in it, which must rise
    even if the clock was set back or the disk keeps whole seconds only.
    """
    times = [path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))]
    return max(time.time_ns(), max(times) + 10**9)
