"""Deployment kit for NuGraph2 and NuGraph3 on NVIDIA Triton.

The kit runs in the user's Python and never imports torch. What runs inside the
execution environment lives in ``envs/numl/numl_serving``; the two meet only in
files: the model repository and the environment.
"""

__version__ = "0.1.0"
