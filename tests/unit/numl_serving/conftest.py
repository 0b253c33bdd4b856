"""Make numl_bench and numl_demo importable, and the tests' own helpers by their names."""

import os
import sys
import tempfile
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# Last: numl_serving is the installed one, which has its native library.
sys.path.append(str(HERE.parents[2] / "envs" / "numl"))


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

from played_triton import repository, triton  # noqa: E402, F401  # fixtures
from triton_models import runtime, start  # noqa: E402, F401  # fixtures
