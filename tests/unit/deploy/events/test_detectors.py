"""What is sent follows from the model: any planes and columns, from old and new files of pynuml."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from deploy.client import asked
from deploy.client.endpoint import Endpoint
from deploy.client.transport import ServedModel, TritonTransport
from deploy.commands import infer
from deploy.events import client
from deploy.events.files import EventFile, planes_of
from deploy.events.tables import EventFileError
from numl_formats.contract import INPUTS
from tests.unit.deploy.events.played import Fake
from tests.unit.deploy.events.written import write_pynuml

UVY, TWO, FOUR = ("u", "v", "y"), ("x", "z"), ("u", "v", "w", "z")
SINCE_25_4 = {"local_plane": "view", "local_wire": "proj", "local_time": "drift"}
POSITION = {f"spacepoint_table_position_{axis}": "FP32" for axis in "xyz"}


def inputs_of(planes: tuple[str, ...], *more: str) -> dict[str, str]:
    """Return the inputs of a model of these planes that reads more columns of hits."""
    shared = {n: t for n, t in INPUTS.items() if not n.startswith("spacepoint_table_hit_id_")}
    hits = {f"hit_table_{name}": "FP32" for name in more}
    return {**shared, **hits, **{f"spacepoint_table_hit_id_{p}": "INT32" for p in planes}}


def columns(planes: int, hits: int = 12, spacepoints: int = 5) -> tuple[dict[str, Any], ...]:
    """Return the columns of one event's tables, by the names of pynuml's first generation."""
    rng = np.random.default_rng(planes)
    return {
        "hit_id": np.arange(hits),
        "local_plane": np.arange(hits) % planes,
        "local_wire": rng.integers(0, 3456, hits),
        "local_time": rng.uniform(0, 6400, hits),
        "integral": rng.uniform(0, 500, hits),
        "rms": rng.uniform(0, 9, hits),
        "tpc": rng.integers(0, 2, hits),
    }, {
        "spacepoint_id": np.arange(spacepoints),
        "hit_id": rng.integers(-1, hits, (spacepoints, planes)),
        "position": rng.uniform(-100, 100, (spacepoints, 3)),
    }


def write(path: Path, planes: int, *, newer: bool = False, without: tuple[str, ...] = ()) -> Path:
    """Write one event as pynuml does; newer files spread positions over three columns."""
    tables = []
    for values in columns(planes):
        stored = {name: column for name, column in values.items() if name not in without}
        if newer and "position" in stored:
            axes = stored.pop("position").T
            stored |= {f"position_{axis}": part for axis, part in zip("xyz", axes, strict=True)}
        tables.append({SINCE_25_4.get(n, n) if newer else n: c for n, c in stored.items()})
    write_pynuml(path, [((0, 0, 0), *tables)], sequence=False, ids=False, event_table=False)
    return path


def read(path: Path, *model: Any) -> dict[str, NDArray[Any]]:
    """Return the event's tensors, for a model of these inputs."""
    with EventFile(path, *model) as file:
        return file.read(0).tensors


@pytest.mark.parametrize("newer", [False, True], ids=["24.7", "25.4"])
@pytest.mark.parametrize("planes", [("x",), TWO, UVY, FOUR], ids=len)
def test_both_generations_of_files_give_the_tensors_that_a_model_reads(tmp_path, planes, newer):
    inputs = {**inputs_of(planes, "tpc"), **POSITION}
    path = write(tmp_path / "a.h5", len(planes), newer=newer)
    tensors = read(path, inputs)
    hits, spacepoints = columns(len(planes))
    expected: dict[str, NDArray[Any]] = {f"hit_table_{n}": v for n, v in hits.items()}
    expected["spacepoint_table_spacepoint_id"] = spacepoints["spacepoint_id"]
    for i, plane in enumerate(planes):
        expected[f"spacepoint_table_hit_id_{plane}"] = spacepoints["hit_id"][:, i]
    for i, axis in enumerate("xyz"):
        expected[f"spacepoint_table_position_{axis}"] = spacepoints["position"][:, i]
    assert tensors.keys() == expected.keys() == inputs.keys()
    for name, datatype in inputs.items():
        assert tensors[name].dtype == (np.float32 if datatype == "FP32" else np.int32)
        np.testing.assert_array_equal(tensors[name], expected[name].astype(tensors[name].dtype))
    # What a model does not read is not sent; existing clients send INPUTS.
    assert read(path, inputs_of(planes)).keys() == inputs_of(planes).keys()


def test_columns_of_both_generations_are_told_apart_as_pynuml_does(tmp_path):
    path = write(tmp_path / "a.h5", 3)
    with h5py.File(path, "r+") as file:
        for name in SINCE_25_4.values():
            file[f"hit_table/{name}"] = np.zeros((12, 1))
    assert read(path)["hit_table_local_plane"].tolist() == [0, 1, 2] * 4


def test_a_projection_that_is_no_wire_number_is_sent_where_the_model_takes_it(tmp_path):
    path = write(tmp_path / "a.h5", 3, newer=True)
    with h5py.File(path, "r+") as file:
        del file["hit_table/proj"]
        file["hit_table/proj"] = np.arange(12)[:, None] / 4
    with pytest.raises(EventFileError, match=r"/proj row 1 .* 0\.25"):
        read(path)
    assert read(path, INPUTS | {"hit_table_local_wire": "FP32"})["hit_table_local_wire"][1] == 0.25


def test_a_column_that_the_file_lacks_is_named_unless_it_is_optional(tmp_path):
    inputs = {**inputs_of(UVY, "tpc"), **POSITION}
    path = write(tmp_path / "a.h5", 3, without=("tpc", "position"))
    with pytest.raises(EventFileError, match=r"a\.h5: hit_table has no column tpc \("):
        EventFile(path, inputs, POSITION)
    with pytest.raises(EventFileError, match=r"spacepoint_table has no column position_x \("):
        EventFile(path, inputs, ["hit_table_tpc"])
    optional = [*POSITION, "hit_table_tpc"]
    assert read(path, inputs, optional).keys() == inputs_of(UVY).keys()


def test_events_of_another_detector_are_told_from_the_model_s(tmp_path):
    path = write(tmp_path / "a.h5", 4)
    says = r"spacepoint_table/hit_id has 4 columns, not 3: hit_id_u, hit_id_v, hit_id_y"
    with pytest.raises(EventFileError, match=says):
        EventFile(path)


def test_a_model_without_spacepoints_needs_no_table_of_them(tmp_path):
    path = write(tmp_path / "a.h5", 3)
    with h5py.File(path, "r+") as file:
        del file["spacepoint_table"]
    hits = {name: type_ for name, type_ in INPUTS.items() if name.startswith("hit_table_")}
    assert read(path, hits).keys() == hits.keys()


class Server(TritonTransport):
    """A connection whose other end answers from what it is told, over no network."""

    def __init__(self, inputs: dict[str, str], config: dict[str, Any]) -> None:
        super().__init__(Endpoint.parse("localhost"), timeout=1)
        declared = [{"name": n, "datatype": t, "shape": [-1]} for n, t in inputs.items()]
        self.metadata_, self.config = {"inputs": declared, "outputs": []}, config
        self.sent: list[str] = []

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "infer":
            self.sent = [tensor.name() for tensor in arguments[1]]
        return {"get_model_metadata": self.metadata_, "get_model_config": self.config}.get(method)


@pytest.mark.parametrize("without", [(), ("position",)])
def test_a_server_says_planes_and_what_may_be_left_out_and_that_is_sent_if_the_file_has_it(
    tmp_path, without
):
    inputs = {**inputs_of(FOUR, "tpc"), **POSITION}
    server = Server(inputs, {"input": [{"name": n, "optional": n in POSITION} for n in inputs]})
    model = server.describe("m")
    assert model.planes == planes_of(inputs) == FOUR
    assert model.optional == POSITION.keys()
    path = write(tmp_path / "a.h5", len(FOUR), without=without)
    server.infer(model, read(path, model.inputs, model.optional))
    wanted = set(inputs) - (set(POSITION) if without else set())
    assert sorted(server.sent) == sorted(wanted)


def test_where_a_configuration_is_closed_only_what_every_client_sends_is_needed():
    assert Server({**INPUTS, **POSITION}, {}).describe("m").optional == POSITION.keys()


class Detector(Fake):
    """Answers for a detector of four planes, with heads that the models here lack."""

    def describe(self, model: str) -> ServedModel:
        return ServedModel(model, inputs_of(FOUR, "tpc"), (), {"semantic_classes": "a,b"})

    def infer(self, model: ServedModel, tensors: dict[str, NDArray[Any]]) -> dict[str, Any]:
        assert tensors.keys() == model.inputs.keys()
        outputs: dict[str, Any] = {"n_evt": np.float32([[7]])}
        for i, plane in enumerate(FOUR):
            ids = tensors["hit_table_hit_id"][tensors["hit_table_local_plane"] == i]
            outputs[f"x_semantic_{plane}"] = np.eye(2, dtype=np.float32)[ids % 2]
            outputs[f"x_position_{plane}"] = np.repeat(ids[:, None], 3, axis=1).astype(np.float32)
            outputs[f"x_i_{plane}"] = ids - 1
        return outputs


def test_results_have_whatever_planes_and_heads_a_model_has(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "TritonTransport", Detector)
    monkeypatch.setattr(asked, "default_endpoint", lambda protocol: "localhost")
    events = write(tmp_path / "a.h5", 4, newer=True)
    out = tmp_path / "r.h5"
    assert infer.main([str(events), "--out", str(out)]) == 0
    with h5py.File(out) as file:
        hits = file["hit_table"]
        assert file.attrs["planes"] == "u,v,w,z"
        assert hits["local_plane"][:, 0].tolist() == [0, 1, 2, 3] * 3
        assert hits["semantic_label"][:, 0].tolist() == [0, 1] * 6
        assert hits["x_position"][:, 2].tolist() == list(range(12))
        assert (hits["x_i"].dtype, hits["x_i"][3, 0]) == (np.int32, 2)
        assert "filter_score" not in hits
        assert file["event_table/n_evt"][:, 0].tolist() == [7]
