"""The benchmark: our serving path against NuGraph as people serve it, side by side.

Runs in the execution environment, which has pynuml, nugraph and PyTorch Geometric; nothing of it
is installed with ``numl_serving``.
"""
