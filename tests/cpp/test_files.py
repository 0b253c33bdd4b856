"""What numl-label reads: as numlkit does, and bad files end in one line."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from deploy.events.files import EventFile
from deploy.events.tables import EventFileError
from tests.cpp.conftest import only_line
from tests.cpp.scripted import scripted
from tests.inputs import EVENTS

Change = Callable[[h5py.File], None]


def put(file: h5py.File, name: str, values: object) -> None:
    """Write in the place of what is called so."""
    del file[name]
    file[name] = values


def since_25_4(file: h5py.File) -> None:
    for old, new in (("plane", "view"), ("wire", "proj"), ("time", "drift")):
        file.move(f"hit_table/local_{old}", f"hit_table/{new}")


def flat_columns(file: h5py.File) -> None:
    for name in ("hit_id", "integral"):
        put(file, f"hit_table/{name}", file[f"hit_table/{name}"][:, 0])


def scattered(file: h5py.File) -> None:
    rows = np.random.default_rng(1).permutation(len(file["hit_table/hit_id"]))
    for column in file["hit_table"].values():
        if len(column) == len(rows):
            column[...] = column[...][rows]


def twice_the_same_id(file: h5py.File) -> None:
    for table in ("hit_table", "spacepoint_table", "event_table"):
        file[f"{table}/event_id"][...] = [[1, 100, 1]]


def floats_with_nan(file: h5py.File) -> None:
    ids = file["spacepoint_table/hit_id"][...].astype(float)
    ids[ids < 0] = np.nan
    ids[0, 0] = np.nan
    put(file, "spacepoint_table/hit_id", ids)


def ids_above_int64(file: h5py.File) -> None:
    for table in ("hit_table", "spacepoint_table", "event_table"):
        ids = file[f"{table}/event_id"][...].astype(np.uint64) + np.uint64(1 << 63)
        put(file, f"{table}/event_id", ids)


def _replace(name: str, values: object) -> Change:
    return lambda file: put(file, name, values)


def _without(*names: str) -> Change:
    def change(file: h5py.File) -> None:
        for name in names:
            del file[name]

    return change


def _changed(folder: Path, change: Change) -> Path:
    path = folder / "events.h5"
    shutil.copy(EVENTS, path)
    with h5py.File(path, "r+") as file:
        change(file)
    return path


@pytest.mark.parametrize(
    "change",
    [
        *(lambda _: None, since_25_4, flat_columns, scattered),
        *(twice_the_same_id, floats_with_nan, ids_above_int64),
        _without("hit_table/event_id.seq_cnt", "spacepoint_table/event_id.seq_cnt"),
        _without("hit_table/event_id", "spacepoint_table/event_id"),
        _without("event_table"),
    ],
)
def test_events_are_those_that_numlkit_reads(label, tmp_path, change):
    path = _changed(tmp_path, change)
    with EventFile(path) as events:
        expected = [
            (*e, len(t["hit_table_hit_id"]), len(t["spacepoint_table_spacepoint_id"]))
            for e, t in ((i, events.read(n).tensors) for n, i in enumerate(events.event_ids))
        ]
    done = label("--list", path)
    assert done.returncode == 0, done.stderr
    assert [tuple(map(int, line.split())) for line in done.stdout.splitlines()] == expected


def _halves(kind: str) -> Change:
    """Store numbers that lie in the middle of two float32, or above them."""

    def change(file: h5py.File) -> None:
        values = np.full((3418, 1), 2**24, dtype=kind)
        values[:, 0] += (np.arange(3418) % 8).astype(kind)
        put(file, "hit_table/integral", values)

    return change


def halves_of_precision(file: h5py.File) -> None:
    put(file, "hit_table/rms", file["hit_table/rms"][...].astype(np.float16))


def other_byte_order(file: h5py.File) -> None:
    values = file["hit_table/rms"][...].astype(">f4")
    values[:3, 0] = [1e-45, -0.0, 3.4e38]
    put(file, "hit_table/rms", values)


def booleans(file: h5py.File) -> None:
    put(file, "hit_table/local_plane", file["hit_table/local_plane"][...] > 0)
    put(file, "hit_table/integral", file["hit_table/integral"][...] > 10)


@pytest.mark.parametrize(
    "change",
    [
        *map(_halves, ("<f8", ">f8", "<i8", ">i8", "<u8", ">u4")),
        *(halves_of_precision, other_byte_order, booleans),
    ],
)
def test_numbers_of_any_kind_are_sent_as_numlkit_reads_them(label, tmp_path, change):
    path = _changed(tmp_path, change)
    with scripted() as server:
        done = label("--url", server.address, "--in-flight", 1, "--quiet", path)
    assert done.returncode == 0, done.stderr
    with EventFile(path) as events:
        for index, request in enumerate(server.requests):
            sent = dict(
                zip((i.name for i in request.inputs), request.raw_input_contents, strict=True)
            )
            tensors = events.read(index).tensors
            assert sent == {name: values.tobytes() for name, values in tensors.items()}
        assert index + 1 == len(events) == 5


def _claiming(rows: int) -> Change:
    def change(file: h5py.File) -> None:
        del file["hit_table"]
        table = file.create_group("hit_table")
        table.create_dataset("event_id", shape=(rows, 3), dtype="i4", chunks=(1024, 3))
        for name in ("hit_id", "local_plane", "local_wire", "local_time", "integral", "rms"):
            table.create_dataset(name, shape=(rows, 1), dtype="f4", chunks=(1024, 1))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without("hit_table"), "no hit_table in it"),
        (_without("spacepoint_table"), "no spacepoint_table in it"),
        (_without("hit_table/rms"), "has no column rms"),
        (_replace("hit_table", np.zeros(3)), "not in pynuml's layout"),
        (_replace("hit_table/rms", [1.0, 2.0]), "hit_table/rms has 2 rows"),
        (_replace("hit_table/rms", [b"x"] * 3418), "does not hold numbers"),
        (_replace("hit_table/rms", np.zeros((3418, 2))), "has 2 columns"),
        (_replace("hit_table/rms", np.zeros((2, 2, 2))), "not a dataset of shape"),
        (_replace("hit_table/rms", 1.0), "not a dataset of shape"),
        (_replace("hit_table/hit_id", np.full(3418, 1 << 40)), f"is {1 << 40}: not an int32"),
        (_replace("hit_table/hit_id", np.full(3418, 2**64 - 1, np.uint64)), f"is {2**64 - 1}: not"),
        (_replace("hit_table/hit_id", np.full(3418, 0.5)), "not an int32"),
        (_replace("hit_table/hit_id", np.full(3418, np.nan)), "not an int32"),
        (_replace("hit_table/event_id.seq_cnt", np.zeros(5)), "[events, 2]"),
        (_replace("hit_table/event_id", np.zeros((7, 3), dtype=int)), "event ids have 7 rows"),
        (_replace("hit_table/event_id", np.full((3418, 3), 1.5)), "hit_table: run is 1.500000 in"),
        (_replace("hit_table/event_id", np.full(3418, np.nan)), "hit_table: event is nan in row 0"),
        (_replace("event_table/event_id", np.full((5, 3), 2.0**63)), "event_table: run is 9223"),
        (_claiming(1 << 40), "hit_table/event_id claims 13194 GB, and stores 0 bytes"),
        (_claiming((1 << 32) - 1), "hit_table/event_id claims 52 GB, and stores 0 bytes"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(label, tmp_path, change, said):
    path = _changed(tmp_path, change)
    with pytest.raises(EventFileError):  # the kit refuses it too
        _read_all(path)
    assert said in only_line(label("--list", path), 1)


def test_more_events_than_memory_holds_are_not_read(label, tmp_path):
    def many(file: h5py.File) -> None:
        del file["event_table/event_id"]
        shape = ((1 << 24) + 1, 3)
        file["event_table"].create_dataset("event_id", shape=shape, dtype="i4", chunks=(1024, 3))

    said = only_line(label("--list", _changed(tmp_path, many)), 1)
    assert "event_table has 16777217 rows, more than 16777216" in said


def _read_all(path: Path) -> None:
    with EventFile(path) as events:
        if len(events) > 100:
            raise EventFileError("too many")
        for index in range(len(events)):
            events.read(index)


def test_an_event_that_cannot_be_read_is_named_and_the_others_are_sent(label, tmp_path):
    def spoil(file: h5py.File) -> None:
        ids = file["hit_table/hit_id"][...].astype(np.int64)
        ids[3] = 1 << 40
        put(file, "hit_table/hit_id", ids)

    path = _changed(tmp_path, spoil)
    with scripted() as server:
        said = only_line(label("--url", server.address, "--quiet", path), 1)
    assert len(server.requests) == 4
    where = f"event 1\t100\t1: {path}: hit_table/hit_id row 3 of the event"
    assert said == f"{where} is {1 << 40}: not an int32"


def test_damaged_files_never_end_it_by_a_signal(label, tmp_path):
    """Cut off, overwritten and turned bits: an answer, or one line and exit status 1."""
    whole = EVENTS.read_bytes()
    chance = random.Random(7)
    for index in range(60):
        damaged = bytearray(whole)
        if index % 3 == 0:
            del damaged[chance.randrange(len(whole)) :]
        else:
            # Metadata lies at the beginning of the file.
            for _ in range(1 + index % 5):
                at = chance.randrange(4096 if index % 3 == 1 else len(whole))
                damaged[at] = chance.randrange(256)
        path = tmp_path / "damaged.h5"
        path.write_bytes(damaged)
        done = label("--list", path)
        assert done.returncode in (0, 1), (index, done.returncode, done.stderr)
        assert len(done.stderr.splitlines()) == done.returncode


@pytest.mark.parametrize("path", ["/dev/null", "/nonexistent/x.h5", "."])
def test_what_is_no_file_of_events_is_told(label, path):
    assert "no such file, or not an HDF5 file" in only_line(label("--list", path), 1)
