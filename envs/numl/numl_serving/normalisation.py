"""Find the feature normalisation of a training, which a checkpoint of nugraph does not hold."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numl_serving.errors import ModelFilesError
from numl_serving.event import PLANES
from numl_serving.modelcard import PlaneNormalisation, normalisation_from

Normalisation = dict[str, PlaneNormalisation]

_HDF5_START = b"\x89HDF\r\n\x1a\n"


def read_normalisation(path: Path) -> Normalisation:
    """Read the normalisation from a file.

    Three kinds are known by their content: JSON (``{"u": {"mean": [4], "std": [4]}, ...}``); HDF5
    with the datasets ``norm/u``, ``norm/v`` and ``norm/y`` of shape [2, 4], which is what
    nugraph's processed files have; npz with arrays ``u``, ``v`` and ``y`` of that shape.

    Raises:
        ModelFilesError: The file cannot be read or has another content.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
        if start == _HDF5_START:
            content = _from_hdf5(path)
        elif start.startswith(b"PK"):
            with np.load(path, allow_pickle=False) as arrays:
                content = {name.removeprefix("norm/"): arrays[name] for name in arrays.files}
        else:
            content = json.loads(path.read_text(encoding="utf-8"))
        found = normalisation_in(content)
    except ModelFilesError as error:
        raise ModelFilesError(f"{path}: {error}") from None
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ModelFilesError(f"{path} holds no feature normalisation: {error}") from None
    if found is None:
        raise ModelFilesError(
            f"{path} holds no feature normalisation: means and standard deviations of the planes "
            f"{list(PLANES)} are needed"
        )
    return found


def normalisation_in(content: Any) -> Normalisation | None:
    """Recognise a normalisation: by plane, mean and std by name or as two rows.

    Returns:
        The normalisation, or None where the content has no such form.

    Raises:
        ModelFilesError: It has the form, but its numbers are unusable.
    """
    if not isinstance(content, Mapping) or not set(PLANES) <= content.keys():
        return None
    planes: dict[str, Any] = {}
    for plane in PLANES:
        value = content[plane]
        if not isinstance(value, Mapping):
            rows = np.asarray(value, dtype=np.float32)
            if rows.ndim != 2 or len(rows) != 2:
                return None
            # The shortest decimal that is this float32, not the digits of its float64.
            mean, std = ([float(str(number)) for number in row] for row in rows)
            value = {"mean": mean, "std": std}
        planes[plane] = value
    return normalisation_from(planes, "normalisation")


def _from_hdf5(path: Path) -> dict[str, Any]:
    try:
        import h5py
    except ImportError:
        raise ModelFilesError("h5py is not installed: give the normalisation as JSON") from None
    with h5py.File(path) as file:
        return {plane: file[f"norm/{plane}"][()] for plane in PLANES}
