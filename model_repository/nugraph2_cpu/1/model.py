"""Entry point of Triton's Python backend; all of it is in numl_serving."""

from numl_serving.triton import TritonPythonModel

__all__ = ["TritonPythonModel"]
