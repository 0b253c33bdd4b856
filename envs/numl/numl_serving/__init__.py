"""Inference with NuGraph inside a Triton execution environment.

The package turns the tensors of a request into an event (`event`), the event into a graph
(`graph`), the graph into an answer (`runtime`), and `triton` binds these to Triton's Python
backend. Importing the package itself imports nothing heavy.
"""

from numl_serving import startup as startup  # first: it takes the time

__version__ = "0.1.0"
