"""The benchmark: NuGraph as people serve it, our path in one process, and through a server.

This half runs in the kit's own Python: it starts a server of its own, sends it events, and puts
everything together. What needs torch is measured by ``numl_bench`` in the execution environment.
"""
