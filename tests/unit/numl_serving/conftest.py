"""Make numl_serving importable from the checkout, and the tests' own helpers by their names."""

import os
import sys
import tempfile
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "envs" / "numl"), str(HERE)]

# NuGraph's own code imports the whole of torch, which then makes a folder in /tmp for good.
_INDUCTOR = tempfile.TemporaryDirectory(prefix="numl-test-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _INDUCTOR.name

# NUMLKIT_PROPERTY_EVENTS=5000 tries more events than a run of every day.
settings.register_profile(
    "numl_serving",
    max_examples=int(os.environ.get("NUMLKIT_PROPERTY_EVENTS", "300")),
    deadline=None,
)
settings.load_profile("numl_serving")
