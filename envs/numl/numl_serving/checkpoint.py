"""Read a PyTorch checkpoint without running anything that it names.

A checkpoint is a zip archive with a pickle (``data.pkl``) and one file per tensor storage
(``data/<key>``); the layout is that of ``torch.save`` since PyTorch 1.6. A pickle is a program
that may call any importable function. Here none is ever looked up: every global becomes an inert
stand-in that remembers its name, and only tensors, parameters and ordered dictionaries are put
together, by functions of this module.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numl_serving.errors import CheckpointError

_ZIP_START = b"PK\x03\x04"
_LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_TAR_MAGIC = b"ustar"
_MAX_DEPTH = 16
_MAX_HYPER_PARAMETERS = 100_000
_MAX_PLAIN_TENSOR = 256
_MAX_TUPLES = 50_000  # two for each tensor; half the depth that was seen to overflow 8 MiB

_STORAGES = {
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
# numpy has no bfloat16: its bits are read, which are the upper half of a float32.
_DTYPES = {
    name: np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")
    for name in _STORAGES.values()
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is usable in a checkpoint.

    Attributes:
        name: File name.
        sha256: Of the whole file.
        state: The tensors of ``state_dict`` by name, contiguous, each with memory of its own;
            bfloat16 becomes float32.
        hyper_parameters: Lightning's hyper-parameters, reduced to what JSON can hold: texts,
            numbers, booleans, None, lists, dictionaries; small tensors become nested lists.
        facts: Lightning's version, the epoch and the step, as far as they are there.
        ignored_globals: Everything the pickle names, beyond tensors and ordered dictionaries.
    """

    name: str
    sha256: str
    state: Mapping[str, NDArray[Any]]
    hyper_parameters: Mapping[str, Any]
    facts: Mapping[str, Any]
    ignored_globals: tuple[str, ...]


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint written by ``torch.save`` or by Lightning.

    Raises:
        CheckpointError: The file cannot be read, is no checkpoint, is damaged, or has no weights.
    """
    digest = _sha256(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path, digest)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path}: {_not_a_zip(path, error)}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    # A damaged archive, and what a hostile pickle makes, can provoke nearly any exception.
    except Exception as error:
        fault = f"{type(error).__name__}: {_line(error)}"
        raise CheckpointError(f"{path}: it is damaged ({fault}): copy it again") from None


def _read(archive: zipfile.ZipFile, path: Path, digest: str) -> Checkpoint:
    root = _root(archive)
    if _optional_entry(archive, f"{root}/byteorder") not in (None, b"little"):
        raise CheckpointError(
            "it was written on a big-endian machine: save it again on a little-endian one"
        )
    unpickler = _InertUnpickler(_entry(archive, f"{root}/data.pkl"))
    content = unpickler.content()
    if not isinstance(content, dict):
        raise CheckpointError(
            f"it holds a {type(content).__name__}, not a dictionary: save a state dict"
        )
    state = _state(content)
    # Tensors may share a storage, but not so often that they would fill the memory.
    if sum(math.prod(tensor.size) for tensor in state.values()) > path.stat().st_size:
        raise CheckpointError(
            "its tensors have more numbers than the file has bytes: copy it again"
        )
    storages: dict[str, bytes] = {}
    return Checkpoint(
        name=path.name,
        sha256=digest,
        state={key: _tensor(value, key, archive, root, storages) for key, value in state.items()},
        hyper_parameters=_hyper_parameters(content, archive, root, storages),
        facts={
            key: content[key]
            for key in ("pytorch-lightning_version", "epoch", "global_step")
            if isinstance(content.get(key), str | int) and _is_plain(content[key])
        },
        ignored_globals=tuple(sorted(unpickler.ignored)),
    )


def _sha256(path: Path) -> str:
    try:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None


def _not_a_zip(path: Path, error: zipfile.BadZipFile) -> str:
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(_ZIP_START):
        return f"it is truncated or damaged ({error}): copy it again"
    if start.startswith(_LEGACY_MAGIC) or start[257:262] == _TAR_MAGIC:
        return "it has the format before PyTorch 1.6: load and save it with a newer PyTorch"
    return "it is not a PyTorch checkpoint (no zip archive): give the .ckpt file that was trained"


def _root(archive: zipfile.ZipFile) -> str:
    roots = [n.removesuffix("/data.pkl") for n in archive.namelist() if n.endswith("/data.pkl")]
    if len(roots) != 1:
        raise CheckpointError("it is a zip archive but not a PyTorch checkpoint (no data.pkl)")
    return roots[0]


def _entry(archive: zipfile.ZipFile, name: str) -> bytes:
    content = _optional_entry(archive, name)
    if content is None:
        raise CheckpointError(f"it lacks the entry {name!r}: it is incomplete, copy it again")
    return content


def _optional_entry(archive: zipfile.ZipFile, name: str) -> bytes | None:
    try:
        info = archive.getinfo(name)
    except KeyError:
        return None
    # PyTorch stores without compression; a compressed entry may unpack to any size.
    if info.compress_type != zipfile.ZIP_STORED:
        raise CheckpointError(f"its entry {name!r} is compressed, which PyTorch never does")
    return archive.read(info)


def _state(content: dict[Any, Any]) -> dict[str, _LazyTensor]:
    state = content.get("state_dict", content)
    if not isinstance(state, dict):
        raise CheckpointError("its state_dict is not a dictionary")
    tensors = {
        key: value
        for key, value in state.items()
        if isinstance(key, str) and isinstance(value, _LazyTensor)
    }
    if not tensors:
        raise CheckpointError("it has no state_dict with tensors: give a checkpoint with weights")
    return tensors


# ---- the inert unpickler


class _Inert(dict[Any, Any]):
    """Stands for any object that the pickle would make: takes everything, does nothing.

    It is a dictionary, so that the items of dictionary-like objects remain readable.
    """

    # Python's own type for "hashable" is None or a method: objects may be keys in the pickle.
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __new__(cls, *args: Any, **kwargs: Any) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __call__(self, *args: Any, **kwargs: Any) -> _Inert:
        return _Inert()

    def __setstate__(self, state: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        """Take an item of a list-like object."""

    def extend(self, items: Any) -> None:
        """Take items of a list-like object."""

    def add(self, item: Any) -> None:
        """Take an item of a set-like object."""


class _Items(dict[str, Any]):
    """An ordered dictionary from the pickle; may carry attributes, as state dicts do."""


class _Function:
    """Wraps a function of this module that stands in for one of PyTorch's; immutable."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


@dataclass(frozen=True, slots=True)
class _Dtype:
    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str | None
    elements: int


@dataclass(frozen=True, slots=True)
class _LazyTensor:
    storage: _Storage
    dtype: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, program: bytes) -> None:
        super().__init__(io.BytesIO(program))
        self._program = program
        self.ignored: set[str] = set()
        self._known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): _Function(_ordered_dict),
            ("torch._utils", "_rebuild_tensor_v2"): _Function(_rebuild_tensor),
            ("torch._utils", "_rebuild_tensor_v3"): _Function(_rebuild_typed_tensor),
            ("torch._utils", "_rebuild_parameter"): _Function(_rebuild_parameter),
            ("torch._utils", "_rebuild_parameter_with_state"): _Function(_rebuild_parameter),
            ("torch.storage", "UntypedStorage"): _Dtype("uint8"),
        }
        for storage, dtype in _STORAGES.items():
            self._known["torch", storage] = self._known["torch", dtype] = _Dtype(dtype)

    def content(self) -> Any:
        """Run the pickle program.

        Raises:
            CheckpointError: It is damaged or asks for what no checkpoint needs.
        """
        try:
            self._check_program()
            return self.load()
        except CheckpointError:
            raise
        # A hostile program can provoke nearly any exception in the unpickler; none is of use.
        except Exception as error:
            raise CheckpointError(
                f"its pickle cannot be read ({type(error).__name__}: {_line(error)})"
            ) from None

    def _check_program(self) -> None:
        """Refuse what no exception would stop: the unpickler would fill the memory, or crash."""
        tuples = 0
        for operation, number, _ in pickletools.genops(self._program):
            # It makes a table as long as the largest number.
            if operation.name in ("PUT", "LONG_BINPUT") and (number or 0) > len(self._program):
                raise pickle.UnpicklingError(f"object number {number}")
            tuples += operation.name.startswith("TUPLE")
        # The hash of a tuple within a tuple within ... has no limit but the stack.
        if tuples > _MAX_TUPLES:
            raise pickle.UnpicklingError(f"{tuples} tuples")

    def find_class(self, module: str, name: str) -> Any:
        """Return one of this module's functions or a new inert class; never imports anything."""
        known = self._known.get((module, name))
        if known is not None:
            return known
        self.ignored.add(_line(f"{module}.{name}"))
        return type("_Inert", (_Inert,), {})

    def persistent_load(self, pid: Any) -> _Storage:
        """Make a storage from ``("storage", type, key, location, number of elements)``."""
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
            raise CheckpointError("its pickle refers to something other than a tensor storage")
        _, kind, key, _, elements = pid
        if not (isinstance(key, str) and isinstance(elements, int)):
            raise CheckpointError("its pickle refers to a storage in an unknown way")
        return _Storage(key, kind.name if isinstance(kind, _Dtype) else None, elements)


def _ordered_dict(*args: Any) -> _Items:
    return _Items(*args)


def _rebuild_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, *_: Any
) -> _LazyTensor | _Inert:
    if not isinstance(storage, _Storage) or storage.dtype is None:
        return _Inert()
    return _lazy_tensor(storage, storage.dtype, offset, size, stride)


def _rebuild_typed_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> _LazyTensor | _Inert:
    if not isinstance(storage, _Storage) or not isinstance(dtype, _Dtype):
        return _Inert()
    return _lazy_tensor(storage, dtype.name, offset, size, stride)


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _lazy_tensor(storage: _Storage, dtype: str, offset: Any, size: Any, stride: Any) -> _LazyTensor:
    numbers = (offset, *size, *stride)
    if len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in numbers):
        raise CheckpointError("a tensor in its pickle has an impossible shape")
    return _LazyTensor(storage, dtype, offset, tuple(size), tuple(stride))


# ---- from stand-ins to values


def _tensor(
    lazy: _LazyTensor,
    name: str,
    archive: zipfile.ZipFile,
    root: str,
    storages: dict[str, bytes],
) -> NDArray[Any]:
    """Copy a tensor out of its storage after a bounds check."""
    key = lazy.storage.key
    if key not in storages:
        storages[key] = _entry(archive, f"{root}/data/{key}")
    dtype = _DTYPES[lazy.dtype]
    available = len(storages[key]) // dtype.itemsize
    elements = math.prod(lazy.size)
    last = lazy.offset + sum((n - 1) * s for n, s in zip(lazy.size, lazy.stride, strict=True))
    # More elements than the storage has: a stride of zero could make them any number.
    if elements and (last >= available or elements > available):
        raise CheckpointError(f"tensor {_line(name)!r} lies outside its storage: copy it again")
    # A dimension of one element may have any stride; numpy wants one that it can count.
    stride = [
        s * dtype.itemsize if n > 1 else 0 for n, s in zip(lazy.size, lazy.stride, strict=True)
    ]
    try:
        if elements:
            offset = lazy.offset * dtype.itemsize
            found: NDArray[Any] = np.ndarray(lazy.size, dtype, storages[key], offset, stride).copy()
        else:
            found = np.empty(lazy.size, dtype)
    except (ValueError, OverflowError):
        raise CheckpointError(f"tensor {_line(name)!r} has an impossible shape") from None
    if lazy.dtype == "bfloat16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    return found


def _hyper_parameters(
    content: dict[Any, Any], archive: zipfile.ZipFile, root: str, storages: dict[str, bytes]
) -> dict[str, Any]:
    values = 0

    def plain(value: Any, depth: int) -> Any:
        nonlocal values
        values += 1
        # A few objects that hold each other many times would unfold without end.
        if values > _MAX_HYPER_PARAMETERS:
            raise CheckpointError("its hyper-parameters have too many values")
        if _is_plain(value):
            return value
        if depth == 0 or (isinstance(value, _Inert) and not value):
            return None
        if isinstance(value, list | tuple):
            return [plain(item, depth - 1) for item in value]
        if isinstance(value, dict):
            return {k: plain(v, depth - 1) for k, v in value.items() if isinstance(k, str)}
        if isinstance(value, _LazyTensor) and math.prod(value.size) <= _MAX_PLAIN_TENSOR:
            return _tensor(value, "hyper-parameter", archive, root, storages).tolist()
        return None

    found = content.get("hyper_parameters")
    return plain(found, _MAX_DEPTH) if isinstance(found, dict) else {}


def _is_plain(value: Any) -> bool:
    """Return whether a value is one that can be printed, and that JSON can hold."""
    if isinstance(value, str):
        return value.isprintable()
    return (
        value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    )


def _line(text: object, limit: int = 120) -> str:
    """Return text from the file as a single printable line."""
    line = "".join(c if c.isprintable() else "?" for c in str(text))
    return line if len(line) <= limit else f"{line[:limit]}..."
