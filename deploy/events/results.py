"""The results file: labels and scores per hit, keyed by event and hit id.

HDF5 in pynuml's layout; ``docs/physicist.md`` lists the datasets and attributes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from deploy.client.transport import ServedModel
from deploy.events.answers import FILTER_THRESHOLD
from deploy.events.grouping import EventId
from deploy.events.inference import Answer, Failure
from deploy.host.errors import KitError
from numl_formats.contract import FILTER, HIT_ID, HITS, PLANE

FORMAT = 1
_CHUNK_BYTES = 1 << 16
_SMALL_BYTES = 1 << 12
# Rows wait until there are so many: appending costs HDF5 far more than the rows themselves.
_WAITING_BYTES = 1 << 20
# More than HDF5 may hold back in its caches: two chunks per dataset, and metadata.
_MARGIN_BYTES = 4 << 20
_TEXT = h5py.string_dtype()


class ResultsWriter:
    """Writes a results file event by event; a context manager.

    The file appears, replacing any earlier one, when the block ends; after an error in the
    block, or :meth:`discard`, nothing is left.
    """

    def __init__(self, path: Path, model: ServedModel, endpoint: str) -> None:
        self.path = path
        self.complete = False
        self._discarded = False
        self._model = model
        self._sources: dict[str, int] = {}
        self._events = 0
        self._waiting: dict[str, dict[str, list[NDArray[Any]]]] = {}
        self._waiting_bytes = 0
        self._datasets: dict[tuple[str, str], h5py.Dataset] = {}
        self._widths: dict[tuple[str, str], int] = {}
        self._indices: dict[str, list[tuple[int, int]]] = {}
        self._classes: dict[Literal["semantic", "event"], int] = {"semantic": 0, "event": 0}
        if path.exists() and not path.is_file():
            raise KitError(f"--out {path} is not a regular file", "choose another --out")
        try:
            # HDF5 opens by name; in a folder of our own that name is free and private.
            self._folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        except OSError as error:
            raise _refused(path, error) from error
        self._temporary = self._folder / path.name
        self._file = h5py.File(self._temporary, "w", rdcc_nbytes=2 * _CHUNK_BYTES)
        self._descriptor = os.open(self._temporary, os.O_RDWR)
        self._reserved = 0
        self._file.attrs.update(
            {
                "format": FORMAT,
                "model": model.name,
                "endpoint": endpoint,
                "weights": model.parameters.get("weights", ""),
                "filter_threshold": FILTER_THRESHOLD,
                "planes": ",".join(model.planes),
            }
        )

    def __enter__(self) -> ResultsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self._discarded:
                self._finish()
                self._file.flush()
                size = self._file.id.get_filesize()
                self._file.close()
                os.ftruncate(self._descriptor, min(size, os.fstat(self._descriptor).st_size))
                self._temporary.replace(self.path)
            else:
                self._file.close()
        except (OSError, RuntimeError) as failure:
            raise _refused(self.path, failure) from failure
        finally:
            os.close(self._descriptor)
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, answer: Answer) -> None:
        """Append an answered event; KitError if the disk is full, or the class count changes."""
        labels = answer.labels
        tensors = labels.event.tensors
        hits = {"hit_id": tensors[HIT_ID], "local_plane": tensors[PLANE]}
        hits |= {"filter_score" if n == FILTER else n: v for n, v in labels.hits.items()}
        if labels.classes:
            hits |= {"semantic_label": labels.label, "semantic_score": labels.score}
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
        reason = np.array([failure.reason], dtype=object)
        columns = {"source_file": source, "reason": reason}
        self._append("failed_table", failure.event_id or (-1, -1, -1), 1, columns)

    def discard(self) -> None:
        """Leave no file when the block ends; an earlier one is kept."""
        self._discarded = True

    def _source(self, name: str) -> NDArray[np.int32]:
        return np.array([self._sources.setdefault(name, len(self._sources))], dtype=np.int32)

    def _append(
        self, table: str, event_id: EventId, rows: int, columns: Mapping[str, NDArray[Any]]
    ) -> None:
        waiting = self._waiting.setdefault(table, {})
        ids = np.broadcast_to(np.array(event_id, dtype=np.int64), (rows, 3))
        for name, values in {"event_id": ids, **columns}.items():
            data = values if values.ndim == 2 else values[:, None]
            width = self._widths.setdefault((table, name), data.shape[1])
            if width != data.shape[1]:
                raise KitError(
                    f"{name} has {data.shape[1]} values for event {event_id}, "
                    f"{width} for the events before"
                )
            waiting.setdefault(name, []).append(data)
            self._waiting_bytes += data.nbytes
        # The index points to rows of event_table, which failed events are not in.
        if table != "failed_table":
            self._indices.setdefault(table, []).append((self._events, rows))
        if self._waiting_bytes > _WAITING_BYTES:
            self._write(more=True)

    def _write(self, *, more: bool) -> None:
        """Write the rows that wait; ``more`` of them may follow."""
        try:
            self._reserve(self._waiting_bytes)
            for table, columns in self._waiting.items():
                group = self._file.require_group(table)
                for name, parts in columns.items():
                    data = np.concatenate(parts)
                    dataset = self._datasets.get((table, name))
                    if dataset is None:
                        self._datasets[table, name] = _create(group, name, data, more=more)
                    else:
                        before = len(dataset)
                        dataset.resize(before + len(data), axis=0)
                        dataset[before:] = data
        except (OSError, RuntimeError) as error:
            raise _refused(self.path, error) from error
        self._waiting.clear()
        self._waiting_bytes = 0

    def _reserve(self, upcoming: int) -> None:
        """Reserve disk space for the next rows: HDF5 crashes on a full disk."""
        needed = self._file.id.get_filesize() + 2 * upcoming + _MARGIN_BYTES
        if needed <= self._reserved:
            return
        # In steps larger than needed: one system call for many events.
        wanted = needed + _MARGIN_BYTES
        os.posix_fallocate(self._descriptor, 0, wanted)
        self._reserved = wanted

    def _finish(self) -> None:
        self._write(more=False)
        self._reserve(sum(16 * len(index) for index in self._indices.values()))
        for table, index in self._indices.items():
            full = [(event, rows) for event, rows in index if rows]
            values = np.array(full, dtype=np.int64).reshape(-1, 2)
            self._file[table].create_dataset("event_id.seq_cnt", data=values)
        self._file.create_dataset("source_files", data=list(self._sources), dtype=_TEXT)
        for kind, count in self._classes.items():
            self._file.attrs[f"{kind}_classes"] = ",".join(self._model.classes(kind, count))
        self._file.attrs["complete"] = self.complete


def _create(group: h5py.Group, name: str, data: NDArray[Any], *, more: bool) -> h5py.Dataset:
    text, width = data.dtype == object, data.shape[1]
    options: dict[str, Any] = {"dtype": _TEXT} if text else {}
    rows = max(1, _CHUNK_BYTES // (width * (8 if text else data.dtype.itemsize)))
    if more:
        options |= {"maxshape": (None, width), "chunks": (rows, width)}
    # Scores would shrink by a sixth only, and take most of a bulk run's own CPU time.
    if data.dtype.kind == "i" and (more or data.nbytes > _SMALL_BYTES):
        chunks = (rows if more else min(rows, len(data)), width)
        options |= {"chunks": chunks, "compression": "gzip", "compression_opts": 1, "shuffle": True}
    return group.create_dataset(name, data=data, **options)


def _refused(path: Path, error: BaseException) -> KitError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return KitError(f"{path} cannot be written: {reason}", "choose another --out")
