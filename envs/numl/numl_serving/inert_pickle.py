"""Run a pickle without looking up anything that it names.

A pickle is a program that may call any importable function. Here every global becomes an inert
stand-in that remembers its name, and only tensors, parameters and ordered dictionaries are put
together, by functions of this module. A tensor is only described;
`numl_serving.checkpoint` reads it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numl_serving.errors import CheckpointError

_MAX_DIMENSIONS = 64  # as in PyTorch and numpy

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
"""The data type in each of PyTorch's storages, by the storage's name."""


class Inert(dict[Any, Any]):
    """Stands for any object that the pickle would make: takes everything, does nothing.

    It is a dictionary, so that the items of dictionary-like objects remain readable.
    """

    # Python's own type for "hashable" is None or a method: objects may be keys in the pickle.
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __call__(self, *args: Any, **kwargs: Any) -> Inert:
        return Inert()

    def __setstate__(self, state: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        """Take an item of a list-like object."""

    def extend(self, items: Any) -> None:
        """Take items of a list-like object."""

    def add(self, item: Any) -> None:
        """Take an item of a set-like object."""


class _Items(dict[Any, Any]):
    """An ordered dictionary from the pickle, without the attributes that state dicts carry."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class _Tuple(tuple[Any, ...]):
    """A tuple from the pickle, equal to itself alone.

    Hash and comparison of tuples within tuples would take time and stack without limit.
    """

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


# A pickle may give an object a new state. With slots=True, dataclass would add a __setstate__ that
# does so even to frozen ones; with these slots they have neither that nor a dictionary.
@dataclass(frozen=True)
class _Function:
    """Wraps a function of this module that stands in for one of PyTorch's."""

    __slots__ = ("function",)
    function: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


@dataclass(frozen=True)
class _Dtype:
    __slots__ = ("name",)
    name: str


@dataclass(frozen=True)
class _Storage:
    __slots__ = ("dtype", "elements", "key")
    key: str
    dtype: str | None
    elements: int


@dataclass(frozen=True)
class LazyTensor:
    """A tensor as its pickle describes it: offset and stride are counted in elements."""

    __slots__ = ("dtype", "offset", "size", "storage", "stride")
    storage: _Storage
    dtype: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _own_tuple(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def loaded(unpickler: Any) -> None:
        load(unpickler)
        unpickler.stack[-1] = _Tuple(unpickler.stack[-1])

    return loaded


def _frozen_set(unpickler: Any) -> None:
    """Make nothing of a set that could be in another one, and so on, like a tuple."""
    unpickler.pop_mark()
    unpickler.append(Inert())


def _dispatch() -> dict[int, Callable[[Any], None]]:
    """Return what each operation of a pickle does, by its code."""
    found: dict[int, Callable[[Any], None]] = dict(pickle._Unpickler.dispatch)
    for (code,) in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
        found[code] = _own_tuple(found[code])
    found[pickle.FROZENSET[0]] = _frozen_set
    del found[pickle.BYTEARRAY8[0]]  # takes as much memory as the program says, before it reads
    return found


class InertUnpickler(pickle._Unpickler):
    """Runs one pickle, by Python's unpickler in Python: the one in C makes its own tuples.

    Attributes:
        ignored: What it names beyond tensors and ordered dictionaries.
    """

    dispatch = _dispatch()

    def __init__(self, program: bytes) -> None:
        super().__init__(io.BytesIO(program))
        self.ignored: set[str] = set()
        self._known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): _Function(_ordered_dict),
            ("torch._utils", "_rebuild_tensor_v2"): _Function(_rebuild_tensor),
            ("torch._utils", "_rebuild_tensor_v3"): _Function(_rebuild_typed_tensor),
            ("torch._utils", "_rebuild_parameter"): _Function(_rebuild_parameter),
            ("torch._utils", "_rebuild_parameter_with_state"): _Function(_rebuild_parameter),
            ("torch.storage", "UntypedStorage"): _Dtype("uint8"),
        }
        for storage, dtype in STORAGES.items():
            self._known["torch", storage] = self._known["torch", dtype] = _Dtype(dtype)

    def content(self) -> Any:
        """Run the pickle program.

        Raises:
            CheckpointError: It is damaged or asks for what no checkpoint needs.
        """
        try:
            return self.load()
        except CheckpointError:
            raise
        # A hostile program can provoke nearly any exception in the unpickler; none is of use.
        except Exception as error:
            raise CheckpointError(
                f"its pickle cannot be read ({type(error).__name__}: {printable_line(error)})"
            ) from None

    def find_class(self, module: str, name: str) -> Any:
        """Return one of this module's functions or the inert class; never imports anything."""
        known = self._known.get((module, name))
        if known is not None:
            return known
        self.ignored.add(printable_line(f"{module}.{name}"))
        return Inert

    def persistent_load(self, pid: Any) -> _Storage:
        """Make a storage from ``("storage", type, key, location, number of elements)``."""
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
            raise CheckpointError("its pickle refers to something other than a tensor storage")
        _, kind, key, _, elements = pid
        if not (isinstance(key, str) and isinstance(elements, int)):
            raise CheckpointError("its pickle refers to a storage in an unknown form")
        return _Storage(key, kind.name if isinstance(kind, _Dtype) else None, elements)


def _ordered_dict() -> _Items:
    """Make an empty one, as PyTorch's pickles do: copies of a large one would fill the memory."""
    return _Items()


def _rebuild_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, *_: Any
) -> LazyTensor | Inert:
    if not isinstance(storage, _Storage) or storage.dtype is None:
        return Inert()
    return _lazy_tensor(storage, storage.dtype, offset, size, stride)


def _rebuild_typed_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> LazyTensor | Inert:
    if not isinstance(storage, _Storage) or not isinstance(dtype, _Dtype):
        return Inert()
    return _lazy_tensor(storage, dtype.name, offset, size, stride)


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _lazy_tensor(storage: _Storage, dtype: str, offset: Any, size: Any, stride: Any) -> LazyTensor:
    numbers = (offset, *size, *stride) if len(size) == len(stride) <= _MAX_DIMENSIONS else ()
    if not numbers or not all(type(n) is int and n >= 0 for n in numbers):
        raise CheckpointError("a tensor in its pickle has an impossible shape")
    return LazyTensor(storage, dtype, offset, tuple(size), tuple(stride))


def printable_line(text: object, limit: int = 120) -> str:
    """Return text from the file as a single printable line."""
    line = "".join(c if c.isprintable() else "?" for c in str(text))
    return line if len(line) <= limit else f"{line[:limit]}..."
