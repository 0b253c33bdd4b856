"""The results file: labels and scores per hit, keyed by event and hit id.

HDF5 in pynuml's layout; ``docs/physicist.md`` lists the datasets and attributes.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5p, h5s, h5t
from numpy.typing import NDArray

from deploy.client.transport import ServedModel
from deploy.events.answers import FILTER_THRESHOLD, best
from deploy.events.grouping import EventId
from deploy.events.inference import Answer, Failure
from deploy.events.reserved import CHUNK_BYTES, ReservedFile
from deploy.host.errors import KitError
from deploy.host.files import write_atomically
from numl_formats.contract import FILTER, HIT_ID, HITS, PLANE, SEMANTIC

FORMAT = 1
_SMALL_BYTES = 1 << 12
# Rows wait until there are so many: appending costs HDF5 far more than the rows themselves.
_WAITING_BYTES = 1 << 20
_ID_BYTES = 24
_IN_MEMORY = {"backing_store": False, "block_size": _WAITING_BYTES}
_TEXT = h5py.string_dtype()
Columns = Mapping[str, NDArray[Any]]


class ResultsWriter:
    """Writes a results file event by event; a context manager.

    The file appears, replacing any earlier one, when the block ends; after an error in the
    block, or if ``discarded`` is set in it, nothing is left.
    """

    def __init__(self, path: Path, model: ServedModel, endpoint: str) -> None:
        self.path = path
        self.complete = False
        self.discarded = False
        self._model, self._endpoint = model, endpoint
        self._sources: dict[str, int] = {}
        self._events = 0
        self._waiting: dict[str, list[tuple[EventId, int, Columns]]] = {}
        self._waiting_bytes = 0
        self._file: ReservedFile | None = None
        self._groups: dict[str, h5g.GroupID] = {}
        self._datasets: dict[tuple[str, str], h5py.Dataset] = {}
        self._widths: dict[tuple[str, str], tuple[int, ...]] = {}
        self._indices: dict[str, list[tuple[int, int]]] = {}
        self._classes: dict[Literal["semantic", "event"], int] = {"semantic": 0, "event": 0}
        if path.exists() and not path.is_file():
            raise KitError(f"--out {path} is not a regular file", "choose another --out")
        if not os.access(path.parent, os.W_OK):  # before hours of work
            raise _refused(path, "its folder is not there, or not writable")

    def __enter__(self) -> ResultsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self.discarded:
                self._finish()
        except (OSError, RuntimeError) as failure:
            raise _refused(self.path, failure) from failure
        finally:
            if self._file is not None:
                self._file.close()
                shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, answer: Answer) -> None:
        """Append an answered event; KitError if the disk is full, or the class count changes."""
        labels = answer.labels
        tensors = labels.event.tensors
        hits = {"hit_id": tensors[HIT_ID], "local_plane": tensors[PLANE]}
        hits |= {"filter_score" if n == FILTER else n: v for n, v in labels.hits.items()}
        self._append(HITS, labels.event.event_id, labels.event.hits, hits)
        self._classes["semantic"] = labels.classes
        event: dict[str, NDArray[Any]] = {
            "source_file": self._source(labels.event.source),
            "latency": np.array([answer.latency_s], dtype=np.float32),
            **{name: values[None] for name, values in labels.whole.items()},
        }
        if labels.event_scores is not None:
            event["event_label"] = np.array([labels.event_scores.argmax()], dtype=np.int32)
            self._classes["event"] = len(labels.event_scores)
        self._append("event_table", labels.event.event_id, 1, event)
        self._events += 1

    def fail(self, failure: Failure) -> None:
        source = self._source(failure.source)
        reason = np.array([as_utf8(failure.reason)], dtype=object)
        columns = {"source_file": source, "reason": reason}
        self._append("failed_table", failure.event_id or (-1, -1, -1), 1, columns)

    def _source(self, path: str) -> NDArray[np.int32]:
        name = as_utf8(path)
        return np.array([self._sources.setdefault(name, len(self._sources))], dtype=np.int32)

    def _append(self, table: str, event_id: EventId, rows: int, columns: Columns) -> None:
        self._waiting.setdefault(table, []).append((event_id, rows, columns))
        self._waiting_bytes += rows * _ID_BYTES
        for name, values in columns.items():
            width = self._widths.setdefault((table, name), values.shape[1:])
            if width != values.shape[1:]:
                raise KitError(
                    f"{name} has {math.prod(values.shape[1:])} values for event {event_id}, "
                    f"{math.prod(width)} for the events before"
                )
            self._waiting_bytes += values.nbytes
        # The index points to rows of event_table, which failed events are not in.
        if table != "failed_table":
            self._indices.setdefault(table, []).append((self._events, rows))
        if self._waiting_bytes > _WAITING_BYTES:
            try:
                self._append_to_disk()
            except (OSError, RuntimeError) as error:
                raise _refused(self.path, error) from error

    def _append_to_disk(self) -> None:
        if self._file is None:
            # HDF5 opens by name; in a folder of our own that name is free and private.
            self._folder = tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            self._file = ReservedFile(Path(self._folder, self.path.name))
        self._file.reserve(self._waiting_bytes)
        self._write(self._file.hdf5, more=True)

    def _write(self, file: h5py.File, *, more: bool) -> None:
        """Write the rows that wait; ``more`` of them may follow."""
        for table, waiting in self._waiting.items():
            group = self._group(file, table)
            ids, rows, events = zip(*waiting, strict=True)
            whole: dict[str, NDArray[Any]] = {}
            whole["event_id"] = np.repeat(np.array(ids, dtype=np.int64), rows, axis=0)
            for name in events[0]:
                whole[name] = np.concatenate([columns[name] for columns in events])
            if SEMANTIC in whole:
                label, score = best([columns[SEMANTIC] for columns in events])
                whole |= {"semantic_label": label, "semantic_score": score}
            for name, values in whole.items():
                data = values if values.ndim == 2 else values[:, None]
                dataset = self._datasets.get((table, name))
                if dataset is None:
                    created = _create(group, name, data, more=more)
                    if more:
                        self._datasets[table, name] = h5py.Dataset(created)
                else:
                    before = len(dataset)
                    dataset.resize(before + len(data), axis=0)
                    dataset[before:] = data
        self._waiting.clear()
        self._waiting_bytes = 0

    def _group(self, file: h5py.File, table: str) -> h5g.GroupID:
        if table not in self._groups:
            self._groups[table] = h5g.create(file.id, table.encode())
        return self._groups[table]

    def _finish(self) -> None:
        if self._file is None:
            # All of it is small: it is made in memory, and written in one go.
            with h5py.File(self.path, "w", driver="core", **_IN_MEMORY) as file:
                self._complete(file)
                file.flush()
                write_atomically(self.path, file.id.get_file_image())
            return
        index_bytes = sum(16 * len(index) for index in self._indices.values())
        self._file.reserve(self._waiting_bytes + index_bytes)
        self._complete(self._file.hdf5)
        self._file.finish()
        Path(self._folder, self.path.name).replace(self.path)

    def _complete(self, file: h5py.File) -> None:
        """Write what is left, indices and attributes."""
        self._write(file, more=False)
        for table, index in self._indices.items():
            full = [(event, rows) for event, rows in index if rows]
            values = np.array(full, dtype=np.int64).reshape(-1, 2)
            _create(self._group(file, table), "event_id.seq_cnt", values, more=False)
        _create(file.id, "source_files", np.array(list(self._sources), dtype=_TEXT), more=False)
        attributes = {
            "format": FORMAT,
            "model": self._model.name,
            "endpoint": self._endpoint,
            "weights": self._model.parameters.get("weights", ""),
            "filter_threshold": FILTER_THRESHOLD,
            "planes": ",".join(self._model.planes),
            "complete": self.complete,
        }
        for kind, count in self._classes.items():
            attributes[f"{kind}_classes"] = ",".join(self._model.classes(kind, count))
        space = h5s.create(h5s.SCALAR)
        for name, value in attributes.items():
            data = np.array(value, dtype=_TEXT if isinstance(value, str) else None)
            stored, held = _types(_TEXT if isinstance(value, str) else data.dtype)
            h5a.create(file.id, name.encode(), stored, space).write(data, held)


@cache
def _types(kind: np.dtype[Any]) -> tuple[h5t.TypeID, h5t.TypeID]:
    """Return a kind of value as files hold it, and as memory does."""
    return h5t.py_create(kind, logical=True), h5t.py_create(kind)


def _create(group: h5g.GroupID, name: str, data: NDArray[Any], *, more: bool) -> h5d.DatasetID:
    """Create a dataset through HDF5's own calls: ``create_dataset`` costs as much as they do."""
    text, width = data.dtype == object, data.shape[1:]
    layout = h5p.create(h5p.DATASET_CREATE)
    layout.set_obj_track_times(False)
    # Scores would shrink by a sixth only, and take most of a bulk run's own CPU time.
    compressed = data.dtype.kind == "i" and (more or data.nbytes > _SMALL_BYTES)
    if more or compressed:
        rows = max(1, CHUNK_BYTES // (math.prod(width) * (8 if text else data.dtype.itemsize)))
        layout.set_chunk((rows if more else min(rows, len(data)), *width))
    if compressed:
        layout.set_shuffle()
        layout.set_deflate(1)
    stored, held = _types(_TEXT if text else data.dtype)
    space = h5s.create_simple(data.shape, (h5s.UNLIMITED, *width) if more else None)
    dataset = h5d.create(group, name.encode(), stored, space, layout)
    dataset.write(h5s.ALL, h5s.ALL, data, held)
    return dataset


def as_utf8(text: str) -> str:
    """Return a text as UTF-8 has it: a file's name may be of any bytes."""
    return text.encode(errors="backslashreplace").decode()


def _refused(path: Path, error: BaseException | str) -> KitError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return KitError(f"{path} cannot be written: {reason}", "mend that, or write elsewhere")
