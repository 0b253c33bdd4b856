"""Models made elsewhere, served as they are: ONNX, torch.export, a PyTorch class with weights.

``model.py`` of such a model imports `TritonPythonModel` from here; what it serves lies beside it:
``model.onnx``, ``model.pt2``, or the module of a class and ``weights.safetensors``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numl_serving.errors import ServingError, one_line

ONNX, EXPORTED, WEIGHTS = "model.onnx", "model.pt2", "weights.safetensors"
CLASS = "PORTED_CLASS"
"""The parameter of a configuration that names the class, as ``module:Class``."""
_ANY_SIZE = 2  # of a dimension that may have any, in a request that is made up
_ONNX_TYPES = {"float": "float32", "double": "float64", "string": "object"}

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Tensors: TypeAlias = "dict[str, tuple[str, list[int]]]"
"""Numpy's name of the type, and the dimensions of each tensor; -1 is any size."""


class PortingError(ServingError):
    """A model cannot be served as it is.

    Args:
        cause: One line.
        remedy: One line.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.remedy = remedy


@contextmanager
def porting_errors(cause: str, remedy: str) -> Iterator[None]:
    """Raise what goes wrong in here, in someone else's code or file, as a `PortingError`."""
    try:
        yield
    except PortingError:
        raise
    except Exception as error:
        raise PortingError(f"{cause}: {one_line(error)}", remedy) from error


class Network(ABC):
    """A model as it was made: arrays in, arrays out."""

    @abstractmethod
    def __call__(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Run it; the arrays of both sides are named."""

    @abstractmethod
    def inputs(self, example: Arrays) -> Tensors:
        """Return what it takes."""

    @abstractmethod
    def outputs(self, answer: Arrays) -> Tensors:
        """Return what it gives."""

    def example(self) -> dict[str, NDArray[Any]] | None:
        """Return an example of its own, if it has one."""
        return None


class OnnxNetwork(Network):
    """``model.onnx``, run by ONNX Runtime."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = _threads()
        remedy = "export it with ONNX's own operators, as one file, for an older opset if need be"
        with porting_errors(f"ONNX Runtime {onnxruntime.__version__} cannot load it", remedy):
            self._session = onnxruntime.InferenceSession(
                str(folder / ONNX), options, providers=["CPUExecutionProvider"]
            )
        self._outputs = [output.name for output in self._session.get_outputs()]

    def __call__(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        given = {n: _texts(a) if a.dtype.kind in "OSU" else a for n, a in arrays.items()}
        answer = self._session.run(self._outputs, given)
        return dict(zip(self._outputs, answer, strict=True))

    def inputs(self, example: Arrays) -> Tensors:
        return _onnx_tensors(self._session.get_inputs(), example)

    def outputs(self, answer: Arrays) -> Tensors:
        return _onnx_tensors(self._session.get_outputs(), answer)

    def example(self) -> dict[str, NDArray[Any]]:
        made, random = {}, np.random.default_rng(1)
        for name, (dtype, dims) in self.inputs({}).items():
            shape = [size if size > 0 else _ANY_SIZE for size in dims]
            values = random.random(shape) if dtype.startswith("float") else np.zeros(shape)
            made[name] = values.astype(dtype) if dtype != "object" else np.full(shape, b"", object)
        return made


class TorchNetwork(Network):
    """A PyTorch module, called with the tensors named in ``names``."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        torch.set_num_threads(_threads())

    @abstractmethod
    def run(self, tensors: dict[str, Any]) -> Any:
        """Call the module."""

    def __call__(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        # Triton's memory may be read-only, and torch warns of that.
        tensors = {name: self._torch.from_numpy(array.copy()) for name, array in arrays.items()}
        with self._torch.inference_mode():
            answer = self.run(tensors)
        return {name: self._array(name, tensor) for name, tensor in _named(answer).items()}

    def _array(self, name: str, tensor: Any) -> NDArray[Any]:
        if not isinstance(tensor, self._torch.Tensor):
            cause = f"output {name} is a {type(tensor).__name__}, not a tensor"
            raise PortingError(cause, "return a tensor, a tuple of tensors, or a dict of them")
        return np.asarray(tensor.numpy())


class ExportedNetwork(TorchNetwork):
    """``model.pt2``, as torch.export.save wrote it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        version = self._torch.__version__
        with porting_errors(f"torch {version} cannot load it", "save it with torch.export.save"):
            self._program = self._torch.export.load(folder / EXPORTED)
        self._module = self._program.module()
        specified = self._program.graph_signature.input_specs
        self._arguments = [each.arg for each in specified if each.kind.name == "USER_INPUT"]

    def run(self, tensors: dict[str, Any]) -> Any:
        unflatten = importlib.import_module("torch.utils._pytree").tree_unflatten
        # None, numbers and texts are what they were when it was exported.
        flat = [arg.value if _is_fixed(arg) else tensors[arg.name] for arg in self._arguments]
        positional, named = unflatten(flat, self._program.call_spec.in_spec)
        return self._module(*positional, **named)

    def inputs(self, example: Arrays) -> Tensors:
        nodes = {node.name: node for node in self._program.graph.nodes}
        names = [arg.name for arg in self._arguments if not _is_fixed(arg)]
        return {name: self._tensor(nodes[name]) for name in names}

    def outputs(self, answer: Arrays) -> Tensors:
        nodes = {node.name: node for node in self._program.graph.nodes}
        found = [nodes[name] for name in self._program.graph_signature.user_outputs]
        return {name: self._tensor(node) for name, node in zip(answer, found, strict=True)}

    def _tensor(self, node: Any) -> tuple[str, list[int]]:
        value = node.meta["val"]
        dims = [size if isinstance(size, int) else -1 for size in value.shape]
        return str(value.dtype).removeprefix("torch."), dims

    def example(self) -> dict[str, NDArray[Any]] | None:
        if self._program.example_inputs is None:
            return None
        flatten = importlib.import_module("torch.utils._pytree").tree_flatten
        flat, _ = flatten(self._program.example_inputs)
        given = zip(self._arguments, flat, strict=True)
        return {arg.name: tensor.numpy() for arg, tensor in given if not _is_fixed(arg)}


class ClassNetwork(TorchNetwork):
    """A class of PyTorch beside ``weights.safetensors``; its tensors are those of an example."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__()
        from safetensors.torch import load_file

        module, _, made = name.partition(":")
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        remedy = f"modules of yours: make it a package, {module}/, that holds what it imports"
        remedy += "; other packages: docs/port.md"
        with porting_errors(f"{module} cannot be imported", remedy):
            found = importlib.import_module(module)
        with porting_errors(f"{module} has no {made}", "correct the name of the class"):
            network = getattr(found, made)
        remedy = "name a class that needs no arguments, such as a subclass that gives them"
        with porting_errors(f"{made}() fails", remedy):
            self._module = network()
        with porting_errors(f"the weights do not fit {made}", f"the state dictionary of a {made}"):
            self._module.load_state_dict(load_file(folder / WEIGHTS))
        self._module.eval()

    def run(self, tensors: dict[str, Any]) -> Any:
        return self._module(**tensors)

    def inputs(self, example: Arrays) -> Tensors:
        wanted = inspect.signature(self._module.forward).parameters
        needed = [n for n, p in wanted.items() if p.default is p.empty and p.kind < p.VAR_KEYWORD]
        if not set(needed) <= example.keys() <= wanted.keys():
            there = ", ".join(example)
            cause = f"forward takes {', '.join(wanted)}; the example has {there}"
            raise PortingError(cause, "name the example's arrays as forward's arguments")
        return _tensors_of(example)

    def outputs(self, answer: Arrays) -> Tensors:
        return _tensors_of(answer)


class TritonPythonModel:
    """What Triton starts: each request on its own, in one thread."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model."""
        self._pb: Any = importlib.import_module("triton_python_backend_utils")
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"], args["model_version"])
        named = config["parameters"].get(CLASS, {}).get("string_value")
        self._network = network_in(folder, named)
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._outputs = [tensor["name"] for tensor in config["output"]]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request, or say what is wrong with it."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        pb = self._pb
        try:
            tensors = {n: pb.get_input_tensor_by_name(request, n) for n in self._inputs}
            given = {name: tensor.as_numpy() for name, tensor in tensors.items()}
            answer = for_triton(self._network(given))
        except Exception as error:  # someone else's model
            told = pb.TritonError(f"the model fails: {one_line(error)}", pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=told)
        return pb.InferenceResponse([pb.Tensor(name, answer[name]) for name in self._outputs])


def network_in(folder: Path, named: str | None) -> Network:
    """Load the model in the folder of its version; ``named`` is its class, if it is one."""
    if named is not None:
        return ClassNetwork(folder, named)
    return OnnxNetwork(folder) if (folder / ONNX).is_file() else ExportedNetwork(folder)


def for_triton(answer: Arrays) -> dict[str, NDArray[Any]]:
    """Return an answer with a dimension for each single number, which Triton wants."""
    return {name: np.atleast_1d(array) for name, array in answer.items()}


def _threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def _is_fixed(argument: Any) -> bool:
    """Return whether an argument of an exported program is no tensor, but a value."""
    return hasattr(argument, "value")


def _named(answer: Any) -> dict[str, Any]:
    """Return the tensors of a module's answer by name."""
    if isinstance(answer, Mapping):
        return {str(name): tensor for name, tensor in answer.items()}
    if isinstance(answer, (tuple, list)):
        names = getattr(answer, "_fields", [f"output_{number}" for number in range(len(answer))])
        return dict(zip(names, answer, strict=True))
    return {"output": answer}


def _tensors_of(arrays: Arrays) -> Tensors:
    return {name: (array.dtype.name, list(array.shape)) for name, array in arrays.items()}


def _texts(array: NDArray[Any]) -> NDArray[Any]:
    """Return texts as ONNX Runtime wants them: of bytes it makes b'...', with the quotes."""
    words = [word.decode() if isinstance(word, bytes) else word for word in array.ravel().tolist()]
    return np.array(words, object).reshape(array.shape)


def _onnx_tensors(tensors: Sequence[Any], arrays: Arrays) -> Tensors:
    found = {}
    for tensor in tensors:
        dtype = tensor.type.removeprefix("tensor(").rstrip(")")
        # [] is a single number's, and also what ONNX Runtime says where the file declares no shape.
        shape = tensor.shape or [None] * getattr(arrays.get(tensor.name), "ndim", 0)
        dims = [size if isinstance(size, int) else -1 for size in shape]
        found[tensor.name] = (_ONNX_TYPES.get(dtype, dtype), dims)
    return found
