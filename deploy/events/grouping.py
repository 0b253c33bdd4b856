"""Which rows of a file's tables belong to which event.

Rows with the same run, subrun and event are one event, adjacent or not. pynuml's
``event_id.seq_cnt`` also separates events with the same three numbers; it is used only where it
agrees with ``event_id`` and covers every table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.events.tables import EVENT_ID, SEQUENCE, EventFileError, Table

EventId = tuple[int, int, int]
_CHUNK_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Runs of rows of one table, by event: ``starts[i]`` to ``stops[i]`` is of ``events[i]``."""

    events: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def of(self, event: int) -> list[tuple[int, int]]:
        """Return an event's runs ``[start, stop)`` in file order."""
        low, high = self.events.searchsorted((event, event + 1))
        return [(int(self.starts[i]), int(self.stops[i])) for i in range(low, high)]


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Runs of rows of one table in file order, before events are numbered."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    ordinals: NDArray[np.int64] | None = None

    def segments(self, events: NDArray[np.int64]) -> Segments:
        order = np.argsort(events, kind="stable")
        return Segments(events[order], self.starts[order], self.stops[order])


def group(
    tables: list[tuple[Table, int]], event_table: Table | None
) -> tuple[tuple[EventId, ...], list[Segments]]:
    """Return the events' ids, in the order of ``event_table`` and then of their first rows.

    Also returns, for each table, the rows of each event.
    """
    known: NDArray[np.int64] = np.empty((0, 3), dtype=np.int64)
    if event_table is not None and "event" in event_table.columns:
        present = tuple(name for name in EVENT_ID if name in event_table.columns)
        known = _ids(_id_columns(event_table, 0, event_table.rows(present)))
    return _number([_blocks(table, rows, known) for table, rows in tables], known)


def _id_columns(table: Table, start: int, stop: int) -> list[NDArray[Any]]:
    """Return run, subrun and event of these rows; zeros for those that the table lacks."""
    return [
        _whole_numbers(table, name, start, stop)
        if name in table.columns
        else np.zeros(stop - start, dtype=np.int64)
        for name in EVENT_ID
    ]


def _whole_numbers(table: Table, name: str, start: int, stop: int) -> NDArray[Any]:
    """Return these rows of a part of the ids; EventFileError for NaN and fractions."""
    values = table.columns[name].read(start, stop)
    if values.dtype.kind == "f":
        exact = values.astype(np.float64)
        bad = ~(np.abs(exact) < 2.0**63) | (exact != np.floor(exact))
        if bad.any():
            row = int(np.argmax(bad))
            cause = f"{table.where}: {name} is {values[row]} in row {start + row}"
            raise EventFileError(f"{cause}: ids are whole numbers of 64 bits")
    return values


def _ids(columns: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


def _blocks(table: Table, rows: int, known: NDArray[np.int64]) -> _Blocks:
    if "event" not in table.columns:
        return _blocks_without_ids(table, rows, known)
    for name in EVENT_ID:
        if name in table.columns and table.columns[name].rows != rows:
            raise EventFileError(
                f"{table.where}'s event ids ({name}) have "
                f"{table.columns[name].rows} rows, its columns {rows}"
            )
    if table.name == "event_table":  # it has no index, and needs none: each row is an event
        row = np.arange(rows)
        return _Blocks(known, row, row + 1, row)
    found = _scan(table, rows)
    sequence = table.sequence()
    if sequence is None or not _covers(sequence, rows, len(known)):
        return found
    told = _in_sequence(sequence[sequence[:, 1] > 0], known)
    # Each run of one id must begin at a block, and each block have its event's id.
    at = np.searchsorted(found.starts, told.starts, side="right") - 1
    begun = np.count_nonzero(found.starts[at] == told.starts)
    if begun < len(found.starts) or (found.ids[at] != told.ids).any():
        return found
    return told


def _in_sequence(sequence: NDArray[np.int64], known: NDArray[np.int64]) -> _Blocks:
    ordinals, stops = sequence[:, 0], np.cumsum(sequence[:, 1])
    return _Blocks(known[ordinals], stops - sequence[:, 1], stops, ordinals)


def _covers(sequence: NDArray[np.int64], rows: int, events: int) -> bool:
    ordinals, counts = sequence[:, 0], sequence[:, 1]
    return bool(
        (counts >= 0).all()
        and counts.sum() == rows
        and (ordinals >= 0).all()
        and (ordinals < events).all()
        and (np.diff(ordinals) > 0).all()
    )


def _blocks_without_ids(table: Table, rows: int, known: NDArray[np.int64]) -> _Blocks:
    if (sequence := table.sequence()) is not None:
        if not _covers(sequence, rows, len(known)):
            raise EventFileError(
                f"{table.where}/{SEQUENCE} contradicts the table's {rows} rows "
                f"or event_table's {len(known)} events, and {table.name} has no event_id"
            )
        return _in_sequence(sequence, known)
    if len(known) > 1:
        raise EventFileError(
            f"{table.where} has no event_id, and event_table lists {len(known)} events"
        )
    only = known if len(known) else np.zeros((1, 3), dtype=np.int64)
    return _Blocks(only, np.zeros(1, dtype=np.int64), np.array([rows]))


def _scan(table: Table, rows: int) -> _Blocks:
    starts = [np.empty(0, dtype=np.int64)]
    ids = [np.empty((0, 3), dtype=np.int64)]
    for low in range(0, rows, _CHUNK_ROWS):
        columns = _id_columns(table, low, min(low + _CHUNK_ROWS, rows))
        fresh = np.ones(len(columns[0]), dtype=bool)
        fresh[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        begin, part = np.flatnonzero(fresh) + low, _ids([column[fresh] for column in columns])
        if low and (part[0] == ids[-1][-1]).all():  # the last event of the rows before goes on
            begin, part = begin[1:], part[1:]
        if len(part):
            starts.append(begin)
            ids.append(part)
    begin = np.concatenate(starts)
    return _Blocks(np.concatenate(ids), begin, np.append(begin, rows)[1:])


def _number(
    blocks: list[_Blocks], known: NDArray[np.int64]
) -> tuple[tuple[EventId, ...], list[Segments]]:
    """Number the events; return their ids, and each table's segments."""
    if all(b.ordinals is not None for b in blocks):
        events = [b.ordinals for b in blocks if b.ordinals is not None]
        unique = known
    else:
        every = np.concatenate([known, *(b.ids for b in blocks)])
        unique, first, inverse = np.unique(every, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        numbers, unique = rank[inverse.reshape(-1)], unique[order]
        ends = np.cumsum([len(known), *(len(b.ids) for b in blocks)])
        events = [numbers[a:b] for a, b in pairwise(ends)]
    ids = tuple((int(r), int(s), int(e)) for r, s, e in unique)
    return ids, [b.segments(e) for b, e in zip(blocks, events, strict=True)]
