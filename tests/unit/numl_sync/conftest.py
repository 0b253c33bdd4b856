"""The agent's modules are imported from their source: the kit's own Python has its requirements."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3] / "envs" / "numl"), str(Path(__file__).parent)]
