"""The protobuf classes of config.pbtxt, as tritonclient has them.

Importing ``tritonclient.grpc`` takes longer than all the rest of a command: it brings gRPC and
numpy. Its generated module needs neither, and is loaded by itself.
"""

from __future__ import annotations

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def _load() -> Any:
    package = find_spec("tritonclient")  # found, not imported
    assert package is not None
    assert package.submodule_search_locations is not None
    (folder,) = package.submodule_search_locations
    spec = spec_from_file_location(
        "model_config_pb2", Path(folder) / "grpc" / "model_config_pb2.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model_config_pb2 = _load()
