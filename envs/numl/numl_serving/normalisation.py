"""What a training's own files add to its checkpoint: normalisation, planes, classes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from numl_formats.card import PlaneNormalisation
from numl_formats.cardfile import normalisation_from
from numl_serving.checkpoint import check_regular
from numl_serving.errors import ModelFilesError, of_model_files

Normalisation = dict[str, PlaneNormalisation]

_HDF5_START = b"\x89HDF\r\n\x1a\n"
# What reading a file of another kind raises.
_NOT_IT = (
    *(AttributeError, EOFError, KeyError, MemoryError, OverflowError, RecursionError, TypeError),
    *(ValueError, zipfile.BadZipFile),
)
_NAME_LISTS = ("planes", "semantic_classes", "event_classes")


def read_normalisation(path: Path, planes: Sequence[str], features: int) -> Normalisation:
    """Read the normalisation of the hit features from a file.

    Three kinds are known by their content: JSON (``{"u": {"mean": [F], "std": [F]}, ...}``); HDF5
    with a dataset ``norm/PLANE`` of shape [2, F] for each plane, which is what nugraph 24.7.1's
    processed files have; npz with an array of that shape under the name of each plane.

    Args:
        path: The file.
        planes: The planes that it must have.
        features: Number of hit features F.

    Raises:
        ModelFilesError: The file cannot be read or has another content.
    """
    with _reading(path, "feature normalisation"):
        if _is_hdf5(path):
            with _hdf5(path) as file:
                content = {plane: file[f"norm/{plane}"][()] for plane in planes}
        elif path.read_bytes().startswith(b"PK"):
            with np.load(path, allow_pickle=False) as arrays:
                content = {name.removeprefix("norm/"): arrays[name] for name in arrays.files}
        else:
            content = json.loads(path.read_text(encoding="utf-8"))
        found = normalisation_in(content, planes, features)
        if found is None:
            raise ModelFilesError(
                "it has no feature normalisation: means and standard deviations of the planes "
                f"{list(planes)} expected"
            )
    return found


def normalisation_in(content: Any, planes: Sequence[str], features: int) -> Normalisation | None:
    """Recognise a normalisation: by plane, mean and std by name or as two rows.

    Returns:
        The normalisation, or None where the content has no such form.

    Raises:
        ModelFilesError: It has the form, but its numbers are unusable.
    """
    if not isinstance(content, Mapping) or not set(planes) <= content.keys():
        return None
    by_plane: dict[str, Any] = {}
    for plane in planes:
        value = content[plane]
        if not isinstance(value, Mapping):
            try:
                rows = np.asarray(value, dtype=np.float32)
            except (OverflowError, TypeError, ValueError):
                return None
            if rows.ndim != 2 or len(rows) != 2:
                return None
            # The shortest decimal that is this float32, not the digits of its float64.
            mean, std = ([float(str(number)) for number in row] for row in rows)
            value = {"mean": mean, "std": std}
        by_plane[plane] = value
    with of_model_files(""):
        return normalisation_from(by_plane, "normalisation", planes, features)


def read_metadata(path: Path) -> dict[str, Any]:
    """Read what pynuml wrote into a processed HDF5 file about all of its graphs.

    Returns:
        As far as they are there: ``planes``, ``semantic_classes`` and ``event_classes``, lists of
        names, and ``gen``, the generation of the graphs, 1 where the file has graphs but does not
        tell. Nothing for a file of another kind.

    Raises:
        ModelFilesError: The file cannot be read.
    """
    with _reading(path, "metadata"):
        if not _is_hdf5(path):
            return {}
        with _hdf5(path) as file:
            found: dict[str, Any] = {
                name: np.ravel(file[name].asstr()[()]).tolist()
                for name in _NAME_LISTS
                if name in file
            }
            if "gen" in file:
                found["gen"] = int(np.asarray(file["gen"][()]).item())
            elif "dataset" in file:
                found["gen"] = 1
    return found


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_HDF5_START)) == _HDF5_START


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Turn errors into one line that names the file and what was read from it."""
    try:
        check_regular(path)
        yield
    except ModelFilesError as error:
        raise ModelFilesError(f"{path}: {error}") from None
    except OSError as error:
        raise ModelFilesError(f"{path}: cannot be read ({error.strerror or error})") from None
    except _NOT_IT as error:
        raise ModelFilesError(f"{path} holds no {what}: {error}") from None


def _hdf5(path: Path) -> Any:
    try:
        import h5py
    except ImportError:
        raise ModelFilesError(
            "h5py, which reads HDF5 files, is not installed: pip install h5py, or give the "
            "normalisation as JSON"
        ) from None
    return h5py.File(path)
