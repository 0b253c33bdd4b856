"""The feature normalisation is read from each kind of file that has one."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from checkpoint_files import UVY, norm_file, processed_file, request_for
from numl_serving.errors import ModelFilesError, ServingError
from numl_serving.importer import import_checkpoint
from numl_serving.normalisation import normalisation_in, read_metadata, read_normalisation


@pytest.mark.parametrize("kind", ["json", "hdf5", "npz"])
def test_a_normalisation_is_read_from_each_kind_of_file(tmp_path, kind):
    planes = ("w", "x", "y", "z")
    rows = {plane: np.array([[0.1, 2.5, 3], [4, 5, 6]], np.float32) for plane in planes}
    path = tmp_path / "norm"
    if kind == "json":
        content = {p: {"mean": [0.1, 2.5, 3], "std": [4, 5, 6]} for p in planes}
        path = norm_file(tmp_path, content)
    elif kind == "npz":
        with path.open("wb") as file:
            np.savez(file, **rows)
    else:
        with h5py.File(path, "w") as file:
            for plane, row in rows.items():
                file[f"norm/{plane}"] = row
    found = read_normalisation(path, planes, 3)
    assert found == dict.fromkeys(planes, ((0.1, 2.5, 3), (4, 5, 6)))
    with pytest.raises(ModelFilesError, match="needs 4 means"):
        read_normalisation(path, planes, 4)
    with pytest.raises(ModelFilesError, match="norm"):
        read_normalisation(path, ("u", "v"), 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"PK\x03\x04",
        b"\x89HDF\r\n\x1a\n",
        b"[1, 2]",
        b"[" * 100_000,
        b'{"u": 1, "v": 2, "y": 3}',
        b'{"u": "norm.h5", "v": 2, "y": 3}',
        b'{"u": [[1, 2], [3]], "v": 2, "y": 3}',
        b'{"u": [[1' + b"0" * 400 + b'], [1]], "v": 2, "y": 3}',
        b'{"u": {"mean": [1, 1, 1, 1], "std": [1, 1, 0, 1]}, "v": {}, "y": {}}',
    ],
)
def test_a_file_without_a_normalisation_is_refused(tmp_path, content):
    path = tmp_path / "norm"
    path.write_bytes(content)
    with pytest.raises(ModelFilesError, match="norm") as caught:
        read_normalisation(path, UVY, 4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["norm.h5", [[1, 2], [3]], [[10**400], [1]], {}, None])
def test_a_checkpoint_whose_norm_is_something_else_has_none(value, tmp_path):
    norm = dict.fromkeys("uvy", value)
    request = replace(request_for("24.7.1", tmp_path, norm=norm), norm=None)
    with pytest.raises(ServingError, match="normalisation"):
        import_checkpoint(request)


@pytest.mark.parametrize(("name", "value"), [("planes", 1), ("planes/u", 1), ("gen", np.inf)])
def test_a_processed_file_with_metadata_of_another_form_is_refused(name, value, tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file[name] = value
    with pytest.raises(ModelFilesError, match="holds no metadata"):
        read_metadata(path)


def test_a_single_name_in_a_processed_file_is_a_list_of_one(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["planes"] = "u"
    assert read_metadata(path) == {"planes": ["u"]}


def test_a_standard_deviation_of_zero_is_refused():
    rows = {plane: [[1.0] * 4, [1.0, 0.0, 1.0, 1.0]] for plane in "uvy"}
    with pytest.raises(ModelFilesError, match="must be positive"):
        normalisation_in(rows, UVY, 4)


def test_without_h5py_the_message_says_what_to_do(tmp_path, monkeypatch):
    path = processed_file(tmp_path / "a.h5", None, norm=True, planes=list(UVY))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ModelFilesError, match="pip install h5py, or give the normalisation as"):
        read_normalisation(path, UVY, 4)
    assert read_metadata(norm_file(tmp_path)) == {}


def test_a_normalisation_from_what_is_no_regular_file_is_refused_without_reading_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        for read in (lambda p: read_normalisation(p, UVY, 4), read_metadata):
            with pytest.raises(ModelFilesError, match="not a regular file"):
                read(path)
