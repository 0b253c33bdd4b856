"""The results of a bulk run as one file: HDF5 as pynuml has it, or a Parquet table of hits.

It appears whole or not at all; one input file is in memory at once.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from deploy.events.bulk import Record, read_record
from deploy.events.files import open_hdf5
from deploy.events.reserved import ReservedFile
from deploy.host.errors import ClientError, KitError

_POINTER_BYTES = 32  # more than a text takes besides its own
_INDEX = "event_id.seq_cnt"
_MAY_DIFFER = ("endpoint", "weights")  # a weights' name: their digests are the same


def merge(folder: Path, out: Path) -> list[Record]:
    """Merge all results of a folder into ``out``; return their records, in its order.

    Raises:
        ClientError: There are none, one is missing or of another model, or the format is unknown.
    """
    found = sorted(path for path in folder.glob("*.json"))
    records = [record for path in found if (record := read_record(path)) is not None]
    if not records:
        raise ClientError(f"{folder}: no results", "numlkit infer FILES --into it")
    if len({(record.model, record.weights) for record in records}) > 1:
        raise ClientError(f"{folder}: its results are of several models", "label the files again")
    missing = [record.file for record in records if not (folder / record.file).is_file()]
    if missing:
        raise ClientError(f"{folder}: the results of {missing[0]} are missing", "label it again")
    write = {".h5": _write_hdf5, ".parquet": _write_parquet}.get(out.suffix)
    if write is None:
        raise ClientError(f"{out}: the name must end in .h5 or .parquet")
    if out.parent.resolve() == folder.resolve():
        raise ClientError(f"{out}: write to another folder than {folder}")
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        write([folder / record.file for record in records], work / out.name)
        (work / out.name).replace(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return records


def _write_hdf5(paths: Sequence[Path], out: Path) -> None:
    events, sources = 0, list[bytes]()
    said: dict[str, dict[str, None]] = {name: {} for name in _MAY_DIFFER}
    with closing(ReservedFile(out)) as file:
        merged = file.hdf5
        for path in paths:
            with open_hdf5(path) as results:
                file.reserve(results.id.get_filesize())
                for name, value in results.attrs.items():
                    # A file without events does not know the classes.
                    if value != "" or name not in merged.attrs:
                        merged.attrs[name] = value
                    if name in said and value:
                        said[name][value] = None
                for table in ("hit_table", "event_table", "failed_table"):
                    for name, dataset in results.get(table, {}).items():
                        values = dataset[:]
                        if name == _INDEX:
                            values[:, 0] += events
                        elif name == "source_file":
                            values += len(sources)
                        _append(merged, f"{table}/{name}", dataset, values)
                events += len(results["event_table/event_id"]) if "event_table" in results else 0
                sources += results["source_files"][:].tolist()
        file.reserve(sum(len(name) + _POINTER_BYTES for name in sources))
        merged.create_dataset("source_files", data=sources, dtype=h5py.string_dtype())
        for name, values in said.items():
            merged.attrs[name] = ", ".join(values)
        merged.attrs["complete"] = True
        file.finish()


def _append(merged: h5py.File, name: str, like: h5py.Dataset, values: Any) -> None:
    if name not in merged:
        shape = (0, *like.shape[1:])
        merged.create_dataset(
            name, shape, like.dtype, maxshape=(None, *like.shape[1:]), chunks=like.chunks or True,
            compression="gzip", compression_opts=1, shuffle=True,
        )  # fmt: skip
    dataset = merged[name]
    dataset.resize(len(dataset) + len(values), axis=0)
    dataset[len(dataset) - len(values) :] = values


def _write_parquet(paths: Sequence[Path], out: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise KitError("Parquet needs the package pyarrow", "pip install pyarrow") from None
    writer = None
    try:
        for path in paths:
            with open_hdf5(path) as results:
                if "hit_table" not in results:
                    continue
                table = pyarrow.table(dict(_columns(results)))
                writer = writer or parquet.ParquetWriter(out, table.schema, compression="zstd")
                writer.write_table(table)
        if writer is None:
            raise ClientError("there are no hits to write")
    finally:
        if writer is not None:
            writer.close()


def _columns(results: h5py.File) -> Iterator[tuple[str, Any]]:
    """Yield a file's columns of hits by name; those of several values are one column each."""
    hits = results["hit_table"]
    yield from zip(("run", "subrun", "event"), hits["event_id"][:].T, strict=True)
    classes = results.attrs.get("semantic_classes", "")
    for name, dataset in hits.items():
        if name in ("event_id", _INDEX):
            continue
        values = dataset[:].T
        if len(values) == 1:
            yield name, values[0]
        elif name == "x_semantic" and classes:
            yield from zip((f"x_{each}" for each in classes.split(",")), values, strict=True)
        else:
            yield from ((f"{name}_{number}", column) for number, column in enumerate(values))
    if classes:
        yield "class", np.array(classes.split(","))[hits["semantic_label"][:, 0]]
