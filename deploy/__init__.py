"""Deployment kit for NuGraph2 and NuGraph3 on NVIDIA Triton.

The kit runs in the user's Python and never imports torch. What runs inside the
execution environment lives in ``envs/numl/numl_serving``; the two meet only in
files: the model repository and the environment.
"""

import os

__version__ = "0.1.0"

# gRPC's core would write its own lines to standard error, beside the one that says what
# is wrong. It reads this when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
