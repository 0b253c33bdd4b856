"""The benchmark's part in the execution environment: NuGraph as people serve it, and our path.

It has pynuml, nugraph and PyTorch Geometric at hand there, and 25.4.0 of the first two beside them;
nothing of it is installed with ``numl_serving``. Only `events` runs in the kit's own Python, too.
The rest of the benchmark is in ``scripts/benchmarks``.
"""
