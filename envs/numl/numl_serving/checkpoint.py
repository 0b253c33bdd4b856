"""Read a PyTorch checkpoint without running anything that it names.

A checkpoint is a zip archive with a pickle (``data.pkl``) and one file per tensor storage
(``data/<key>``); the layout is that of ``torch.save`` since PyTorch 1.6. Nothing that the pickle
names is ever looked up: `numl_serving.inert_pickle` runs it.
"""

from __future__ import annotations

import errno
import hashlib
import math
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numl_serving.errors import CheckpointError
from numl_serving.inert_pickle import STORAGES, Inert, InertUnpickler, LazyTensor, printable_line

_ZIP_START = b"PK\x03\x04"
_LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_TAR_MAGIC = b"ustar"
_MAX_DEPTH = 16
_MAX_HYPER_PARAMETERS = 100_000
_MAX_PLAIN_TENSOR = 256
# nugraph's have a hundredth of these bytes, and names of less than a hundred characters.
_MAX_PICKLE, _MAX_NAME = 4 << 20, 1000

# numpy has no bfloat16: its bits are read, which are the upper half of a float32.
_DTYPES = {
    name: np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")
    for name in STORAGES.values()
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
        fault = f"{type(error).__name__}: {printable_line(error)}"
        raise CheckpointError(f"{path}: it is damaged ({fault}): copy it again") from None


def _read(archive: zipfile.ZipFile, path: Path, digest: str) -> Checkpoint:
    root = _root(archive)
    if _optional_entry(archive, f"{root}/byteorder") not in (None, b"little"):
        raise CheckpointError(
            "it was written on a big-endian machine: save it again on a little-endian one"
        )
    program = _entry(archive, f"{root}/data.pkl")
    # A byte of it may make an object of two hundred.
    if len(program) > _MAX_PICKLE:
        raise CheckpointError(
            f"its pickle has {len(program)} bytes, at most {_MAX_PICKLE} are read: "
            "save the state dict alone"
        )
    unpickler = InertUnpickler(program)
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


def check_regular(path: Path) -> None:
    """Raise OSError for a pipe or a device, which may never end; files and folders pass."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def _sha256(path: Path) -> str:
    try:
        check_regular(path)
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


def _state(content: dict[Any, Any]) -> dict[str, LazyTensor]:
    state = content.get("state_dict", content)
    if not isinstance(state, dict):
        raise CheckpointError("its state_dict is not a dictionary")
    tensors = {
        key: value
        for key, value in state.items()
        if isinstance(key, str) and isinstance(value, LazyTensor)
    }
    if not tensors:
        raise CheckpointError("it has no state_dict with tensors: give a checkpoint with weights")
    # What names tell is found by patterns, whose time grows with the square of a name.
    if (longest := max(map(len, tensors))) > _MAX_NAME:
        raise CheckpointError(
            f"it has a tensor with a name of {longest} characters, at most {_MAX_NAME} are read: "
            "it is no network of nugraph's"
        )
    return tensors


def _tensor(
    lazy: LazyTensor,
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
        raise CheckpointError(
            f"tensor {printable_line(name)!r} lies outside its storage: copy it again"
        )
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
        raise CheckpointError(f"tensor {printable_line(name)!r} has an impossible shape") from None
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
        # A few objects that hold each other many times would expand without end.
        if values > _MAX_HYPER_PARAMETERS:
            raise CheckpointError("its hyper-parameters have too many values")
        if _is_plain(value):
            return value
        if depth == 0 or (isinstance(value, Inert) and not value):
            return None
        if isinstance(value, list | tuple):
            return [plain(item, depth - 1) for item in value]
        if isinstance(value, dict):
            return {k: plain(v, depth - 1) for k, v in value.items() if isinstance(k, str)}
        if isinstance(value, LazyTensor) and math.prod(value.size) <= _MAX_PLAIN_TENSOR:
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
